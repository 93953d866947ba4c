// SPDX-License-Identifier: Apache-2.0
// Operator orders to the coordinator machine, moves of experts, the next coordinator's handling of
// them, and time in which no coordinator was run.
#include <functional>

#include "tests/protocol/machine_script.h"

namespace bulkhead::protocol {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OrdersTest : public MachineScript {
  protected:
    void stop(bool checkpoint, const std::string& why, bool thisTermOnly = false) {
        Operation o;
        o.kind = OperationKind::kStop;
        o.checkpoint = checkpoint;
        o.thisTermOnly = thisTermOnly;
        o.why = why;
        step(o);
    }
    std::vector<int32_t> askedToWrite() const {
        std::vector<int32_t> asked;
        for (int32_t r = 0; r < places(); ++r)
            for (const Commit& c : sentNow<Commit>(r))
                if (c.checkpoint) asked.push_back(r);
        return asked;
    }
    /// The last step's state.
    void wrote(int32_t writer) {
        const uint64_t step = machine->committedStep();
        say(writer,
            CheckpointDone{writer, 1, step, 0, "/c/" + std::to_string(step), 1, 1, true, ""});
    }
    /// To a coordinator that begins now.
    bool logWantsCheckpoint() const {
        std::vector<LogEntry> entries;
        for (const auto& append : actionsIn<AppendLog>(everything)) entries.push_back(append.entry);
        const auto read = recoverState(entries, options.replicas, options.domains);
        return read.ok() && read->orders && read->orders->checkpoint;
    }
};

TEST_F(OrdersTest, PoliciesHoldFromTheirAnswerOnAndImpossibleOnesAreRefused) {
    train(2);
    Operation o;
    o.kind = OperationKind::kSetPolicies;
    o.why = "operator ana";
    o.policies = options.policies;
    o.policies.minReplicas = 4;
    step(o);
    EXPECT_THAT(answer(), HasSubstr("min_replicas = 4 is more than the job's 3 replicas"));
    EXPECT_THAT(factsNow<fact::PoliciesChanged>(), IsEmpty());
    o.policies.minReplicas = 3;
    o.policies.parityEverySteps = 0;
    o.policies.fetchBytesPerSecond = 77;
    step(o);
    EXPECT_EQ(answer(), "done");
    ASSERT_THAT(factsNow<fact::PoliciesChanged>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::PoliciesChanged>()[0].why, "operator ana");
    EXPECT_TRUE(factsNow<fact::PoliciesChanged>()[0].policies == o.policies);
    EXPECT_TRUE(machine->policies() == o.policies);
    EXPECT_TRUE(logged<LogOrders>().back().policies == o.policies);
    voteAll();
    EXPECT_FALSE(quorums.at(4).checkParity);
    exits({2, 0});
    durable();
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting) << "there are to be three";
}

/// A replica that was given up or waits for its turn starts at once, with all its restarts left.
TEST_F(OrdersTest, AReleaseForgetsWhatWasBefore) {
    options.policies.restartLimit = 2;
    train(2);
    for (int i = 0; i < 3; ++i) {
        if (state(2) == ReplicaState::kBackingOff) pass(200 * kMillisecond);
        exits({2, 0});
    }
    ASSERT_EQ(state(2), ReplicaState::kFailed);
    EXPECT_TRUE(view(2).releasable);
    operate(OperationKind::kReleaseRejoin, 2);
    EXPECT_EQ(startsNow(2), 1u);
    EXPECT_FALSE(view(2).releasable);
    exits({2, 0});
    EXPECT_NE(state(2), ReplicaState::kFailed);
    exits({2, 0});
    ASSERT_EQ(state(2), ReplicaState::kBackingOff);
    operate(OperationKind::kHoldRejoin, 2);
    EXPECT_TRUE(view(2).releasable);
    operate(OperationKind::kReleaseRejoin, 2);
    EXPECT_EQ(startsNow(2), 1u) << "it does not wait for the end of its back-off";
    operate(OperationKind::kHoldRejoin, 1);
    EXPECT_TRUE(view(1).releasable);
    operate(OperationKind::kReleaseRejoin, 1);
    EXPECT_EQ(startsNow(1), 0u) << "it trains";
    EXPECT_EQ(state(1), ReplicaState::kTraining);
}

TEST_F(OrdersTest, AStopSaysWhoOrderedItAndOnlyTheOneForGoodIsTheNextCoordinatorsToo) {
    for (const bool thisTermOnly : {false, true}) {
        now = kSecond;
        train(2);
        stop(true, "operator ana", thisTermOnly);
        EXPECT_EQ(machine->phase(), JobPhase::kStopping);
        EXPECT_EQ(facts<fact::JobPhaseChanged>().back().why, "operator ana");
        EXPECT_EQ(logged<LogOrders>().back().stopping, !thisTermOnly);
        EXPECT_TRUE(logged<LogOrders>().back().stopCheckpoint);
        EXPECT_EQ(logged<LogOrders>().back().stopWhy, "operator ana");
        stop(false, "operator bo");
        EXPECT_EQ(answer(), "done") << "the end was wanted more than the state";
        EXPECT_FALSE(logged<LogOrders>().back().stopCheckpoint);
        stop(true, "operator cy");
        EXPECT_EQ(answer(), "the job is stopping");
        commit();
        for (const int32_t r : {0, 1, 2}) {
            ASSERT_THAT(sentNow<Leave>(r), SizeIs(1));
            EXPECT_EQ(sentNow<Leave>(r)[0].why, "operator bo");
        }
        EXPECT_THAT(actionsIn<StopReplica>(last), SizeIs(3));
        // Any exit code counts as orderly now, since the ranks were told to leave.
        exits({0, 0}, kExitHopeless);
        say(1, RankHopeless{{1, 0}, 1, "no memory"});
        exits({1, 0}, 9);
        exits({2, 0}, 0);
        EXPECT_THAT(facts<fact::IncidentOpened>(), IsEmpty());
        EXPECT_EQ(machine->phase(), JobPhase::kFinished);
        EXPECT_EQ(facts<fact::RunFinished>().back().why, "operator bo");
        everything.clear();
    }
}

TEST_F(OrdersTest, TheLogHasEveryOrderOfACheckpointUntilThatIsWritten) {
    train(2);
    for (int order = 0; order < 2; ++order) {
        operate(OperationKind::kCheckpoint);
        EXPECT_TRUE(logWantsCheckpoint());
        commit();
        const int32_t writer = askedToWrite().at(0);
        operate(OperationKind::kPause);
        EXPECT_TRUE(logWantsCheckpoint()) << "it is being written";
        wrote(writer);
        operate(OperationKind::kResume);
        EXPECT_TRUE(logWantsCheckpoint()) << "its state is not compared yet";
        commit();
        EXPECT_FALSE(logWantsCheckpoint());
        operate(OperationKind::kHoldRejoin, 2);
        operate(OperationKind::kReleaseRejoin, 2);
        EXPECT_FALSE(logWantsCheckpoint());
    }
}

TEST_F(OrdersTest, AnOrderThatCameWhileACheckpointWasBeingWrittenIsNotAnsweredByIt) {
    options.policies.checkpointEverySteps = 3;
    train(2);
    commit();
    const int32_t writer = askedToWrite().at(0);
    operate(OperationKind::kCheckpoint);
    wrote(writer);
    voteAll();
    ASSERT_THAT(logged<LogCheckpoint>(), SizeIs(1));
    EXPECT_TRUE(logWantsCheckpoint());
}

TEST_F(OrdersTest, AStepThatDoesNotEndHoldsAStopUpForSoLong) {
    train(2);
    vote(0);
    operate(OperationKind::kStop);
    pass(19 * kSecond, {}, {}, Phase::kExchange);
    EXPECT_EQ(machine->openStep(), 3u);
    pass(2 * kSecond, {}, {}, Phase::kExchange);
    EXPECT_EQ(machine->openStep(), 0u);
    ASSERT_THAT(factsNow<fact::StepRedone>(), SizeIs(1));
    EXPECT_THAT(factsNow<fact::StepRedone>()[0].why,
                HasSubstr("the job is stopping and its last step does not end"));
    EXPECT_THAT(sentNow<Abort>(1), SizeIs(1)) << "who still exchanges hears that it is over";
    EXPECT_THAT(askedToWrite(), SizeIs(1)) << "of the last step that counts";
}

/// An interpreter takes seconds to end, and beats no more.
TEST_F(OrdersTest, WhoeverWasToldToLeaveIsNotMissed) {
    train(2);
    stop(false, "operator bo");
    commit();
    ASSERT_THAT(sentNow<Leave>(1), SizeIs(1));
    pass(9 * kSecond, {0, 1, 2});
    EXPECT_THAT(facts<fact::IncidentOpened>(), IsEmpty());
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
    EXPECT_EQ(machine->phase(), JobPhase::kStopping);
    pass(2 * kSecond, {0, 1, 2});
    EXPECT_EQ(machine->phase(), JobPhase::kFinished) << "the stop has a limit";
}

TEST_F(OrdersTest, AStopWaitsForNoSuspectWhenSomebodyWhoAnswersHoldsTheState) {
    options.timeouts.massPauseMs = 5000;
    train(3);
    operate(OperationKind::kStop);
    pass(4 * kSecond, {1, 2}, {}, Phase::kExchange);
    say(0, no(0));
    pass(6 * kSecond, {1, 2}, {}, Phase::kExchange);
    for (const int32_t r : {1, 2}) EXPECT_THAT(sentTo<Expelled>(r), SizeIs(1)) << r;
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
}

/// A record that is being written is no step that hangs.
TEST_F(OrdersTest, AStopWaitsForTheRecordThatIsBeingWritten) {
    train(2);
    voteAll();
    operate(OperationKind::kStop);
    pass(30 * kSecond);
    EXPECT_EQ(machine->openStep(), 3u);
    durable();
    EXPECT_EQ(machine->committedStep(), 3u);
    EXPECT_THAT(facts<fact::StepRedone>(), IsEmpty());
}

TEST_F(OrdersTest, AStopWithNobodyLeftWhoHoldsTheStateSaysWhatIsLost) {
    train(3);
    operate(OperationKind::kStop);
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    const auto end = facts<fact::RunFinished>();
    ASSERT_THAT(end, SizeIs(1));
    EXPECT_FALSE(end[0].ok);
    EXPECT_THAT(end[0].why, HasSubstr("nobody is left who holds the state of step 3, the last "
                                      "checkpoint is of step 0"));
    EXPECT_EQ(machine->phase(), JobPhase::kFailed);
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty()) << "it goes back to nothing";
    const size_t actions = everything.size();
    step(Tick{});
    exits({0, 1});
    EXPECT_EQ(everything.size(), actions) << "it has ended";
}

// ---- experts move

class LayoutTest : public OrdersTest {
  protected:
    void order() {
        Operation o;
        o.kind = OperationKind::kChangeLayout;
        o.expertShard = {1, 0};
        o.domainShare = {0, 1};
        o.predictedRemote = 0.25;
        step(o);
    }
    void moved(int32_t replica, bool ok = true, uint64_t layout = 1) {
        say(replica, LayoutMoved{replica, view(replica).incarnation, machine->committedStep(),
                                 layout, ok, 10, ok ? "" : "no room"});
    }
    /// The word on the last move.
    fact::LayoutChanged word() const {
        const auto told = factsNow<fact::LayoutChanged>();
        EXPECT_THAT(told, SizeIs(1));
        return told.empty() ? fact::LayoutChanged{} : told[0];
    }
    /// Those who have moved go back now, and are told that nothing is open any more.
    void expectBack(const std::vector<int32_t>& replicas) const {
        for (const int32_t r : replicas) {
            const auto orders = sentNow<KeepSnapshot>(r);
            ASSERT_FALSE(orders.empty()) << r;
            EXPECT_FALSE(orders.back().keep);
            EXPECT_EQ(orders.back().step, 0u);
            EXPECT_EQ(orders.back().settled, 1u);
            EXPECT_EQ(orders.back().layout, 0u);
        }
    }
};

TEST_F(LayoutTest, AllMoveAfterTheStepInWorkAndTheNextQuorumNamesTheLayout) {
    train(2);
    order();
    EXPECT_EQ(answer(), "done");
    EXPECT_EQ(logged<LogLayoutTried>().at(0).layout, 1u) << "its number is used up";
    EXPECT_THAT(sentTo<ChangeLayout>(0), IsEmpty()) << "step 3 is in work";
    order();
    EXPECT_THAT(answer(), HasSubstr("being moved already"));
    moved(0, false);
    EXPECT_THAT(factsNow<fact::LayoutChanged>(), IsEmpty()) << "nobody was told to";
    voteAll();
    EXPECT_FALSE(quorums.contains(4)) << "the next quorum waits for the move";
    durable();
    for (const int32_t r : {0, 1, 2}) {
        ASSERT_THAT(sentNow<ChangeLayout>(r), SizeIs(1));
        const ChangeLayout c = sentNow<ChangeLayout>(r)[0];
        EXPECT_EQ(c.step, 3u);
        EXPECT_EQ(c.epoch, quorums.at(3).epoch);
        EXPECT_EQ(c.layout, 1u);
        EXPECT_THAT(c.expertShard, ElementsAre(1, 0));
    }
    EXPECT_EQ(machine->openStep(), 0u);
    moved(0);
    moved(1, true, 9);
    say(1, LayoutMoved{1, 9, 3, 1, false, 10, "another life's"});
    moved(1);
    EXPECT_THAT(facts<fact::LayoutChanged>(), IsEmpty()) << "r2 is still to come";
    EXPECT_THAT(machine->expertShard(), IsEmpty());
    moved(2);
    EXPECT_TRUE(word().ok);
    EXPECT_EQ(word().step, 3u);
    EXPECT_EQ(word().layout, 1u);
    EXPECT_EQ(word().bytesMoved, 30u);
    EXPECT_EQ(word().predictedRemote, 0.25);
    EXPECT_THAT(word().expertShard, ElementsAre(1, 0));
    EXPECT_THAT(word().domainShare, ElementsAre(0, 1));
    const LogLayout entry = logged<LogLayout>().at(0);
    EXPECT_EQ(entry.layout, 1u);
    EXPECT_EQ(entry.fromStep, 4u);
    EXPECT_THAT(entry.expertShard, ElementsAre(1, 0));
    EXPECT_THAT(entry.domainShare, ElementsAre(0, 1));
    EXPECT_EQ(entry.predictedRemote, 0.25);
    EXPECT_THAT(sentNow<KeepSnapshot>(0), IsEmpty()) << "the quorum says it";
    ASSERT_EQ(machine->openStep(), 4u);
    EXPECT_EQ(quorum().layout, 1u);
    EXPECT_GT(quorum().epoch, quorums.at(3).epoch) << "nothing of before the move counts";
    commit();
    order();
    EXPECT_EQ(answer(), "done");
}

TEST_F(LayoutTest, AQuorumThatIsAnnouncedAlreadyIsTakenBack) {
    train(2);
    voteAll();
    ASSERT_THAT(quorums.at(4).contributors, SizeIs(3));
    order();
    EXPECT_THAT(quorums.at(4).contributors, IsEmpty());
    durable();
    EXPECT_THAT(sentNow<ChangeLayout>(0), SizeIs(1));
    EXPECT_EQ(machine->openStep(), 0u);
}

TEST_F(LayoutTest, AnIdleJobMovesAtOnce) {
    train(2);
    operate(OperationKind::kPause);
    commit();
    order();
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentNow<ChangeLayout>(r), SizeIs(1));
    for (const int32_t r : {0, 1, 2}) moved(r);
    EXPECT_TRUE(word().ok);
    EXPECT_EQ(machine->openStep(), 0u) << "it is paused";
}

TEST_F(LayoutTest, AShareThatCannotBeIsRefused) {
    train(2);
    Operation o;
    o.kind = OperationKind::kChangeLayout;
    o.domainShare = {1, 2, 3};
    step(o);
    EXPECT_THAT(answer(), HasSubstr("domain_share has 3 entries"));
    EXPECT_THAT(logged<LogLayoutTried>(), IsEmpty());
}

TEST_F(LayoutTest, IfOneCannotNobodyDoesAndTheJobGoesOnAsItWas) {
    train(2);
    order();
    commit();
    moved(0);
    moved(1, false);
    EXPECT_FALSE(word().ok);
    EXPECT_EQ(word().layout, 0u);
    EXPECT_EQ(word().why, "r1: no room");
    expectBack({0, 1, 2});
    EXPECT_THAT(logged<LogLayout>(), IsEmpty());
    EXPECT_EQ(quorum().layout, 0u);
    EXPECT_THAT(machine->expertShard(), IsEmpty());
    EXPECT_GT(quorum().epoch, quorums.at(3).epoch);
    commit();
    order();
    EXPECT_EQ(logged<LogLayoutTried>().back().layout, 2u) << "no number is used again";
}

TEST_F(LayoutTest, WhoDoesNotMoveInTimeEndsTheMove) {
    options.timeouts.fetchMs = 4000;
    train(2);
    order();
    now += 100 * kMillisecond;
    commit();
    moved(0);
    pass(3900 * kMillisecond);
    EXPECT_THAT(factsNow<fact::LayoutChanged>(), IsEmpty());
    pass(200 * kMillisecond);
    EXPECT_FALSE(word().ok);
    EXPECT_EQ(word().why, "not every replica moved in time");
}

TEST_F(LayoutTest, WhoIsLostMeanwhileEndsTheMoveEvenIfItHadMoved) {
    for (const bool had : {false, true}) {
        now = kSecond;
        train(2);
        order();
        commit();
        if (had) moved(1);
        exits({1, 0});
        EXPECT_FALSE(word().ok);
        EXPECT_EQ(word().why, "r1 left meanwhile");
        EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
    }
}

TEST_F(LayoutTest, WhoIsLostBeforeTheMoveBeginsDoesNotEndIt) {
    train(2);
    order();
    exits({1, 0});
    EXPECT_THAT(factsNow<fact::LayoutChanged>(), IsEmpty());
    commit();
    EXPECT_THAT(sentNow<ChangeLayout>(0), SizeIs(1));
    EXPECT_THAT(sentNow<ChangeLayout>(1), IsEmpty());
    moved(0);
    moved(2);
    EXPECT_TRUE(word().ok);
}

TEST_F(LayoutTest, AStopEndsAMoveThatHasNotBegunAndWaitsForOneThatHas) {
    train(2);
    order();
    operate(OperationKind::kStop);
    EXPECT_FALSE(word().ok);
    EXPECT_EQ(word().why, "the job is stopping");
    commit();
    EXPECT_THAT(sentTo<ChangeLayout>(0), IsEmpty());

    now = kSecond;
    everything.clear();
    train(2);
    order();
    commit();
    operate(OperationKind::kStop);
    EXPECT_THAT(askedToWrite(), IsEmpty()) << "files would lie partly in one layout";
    for (const int32_t r : {0, 1}) moved(r);
    EXPECT_THAT(askedToWrite(), IsEmpty());
    moved(2);
    EXPECT_TRUE(word().ok);
    ASSERT_THAT(askedToWrite(), SizeIs(1));
    const int32_t writer = askedToWrite()[0];
    say(writer, CheckpointDone{writer, 1, 3, 1, "/c/3", 1, 1, true, ""});
    tell({0, 1, 2}, 3, 1);
    ASSERT_THAT(logged<LogCheckpoint>(), SizeIs(1));
    EXPECT_EQ(logged<LogCheckpoint>()[0].layout, 1u);
    EXPECT_THAT(logged<LogCheckpoint>()[0].expertShard, ElementsAre(1, 0));
    EXPECT_THAT(logged<LogCheckpoint>()[0].domainShare, ElementsAre(0, 1));
    EXPECT_THAT(sentNow<Leave>(0), SizeIs(1));
}

TEST_F(LayoutTest, ARollbackEndsAMoveAndGoesBackToTheLayoutOfItsCheckpoint) {
    train(2);
    operate(OperationKind::kCheckpoint);
    commit();
    const int32_t writer = askedToWrite().at(0);
    say(writer, CheckpointDone{writer, 1, 3, 0, "/c/3", 1, 1, true, ""});
    order();
    commit();
    for (const int32_t r : {0, 1, 2}) moved(r);
    ASSERT_TRUE(word().ok);
    commit();
    Operation o;
    o.kind = OperationKind::kChangeLayout;
    o.expertShard = {0, 0};
    step(o);
    ASSERT_EQ(answer(), "done");
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    found();
    const auto words = factsNow<fact::LayoutChanged>();
    ASSERT_THAT(words, SizeIs(2));
    EXPECT_FALSE(words[0].ok);
    EXPECT_THAT(words[0].why, HasSubstr("no replica holds the state any more"));
    EXPECT_TRUE(words[1].ok);
    EXPECT_EQ(words[1].layout, 0u);
    EXPECT_EQ(words[1].step, 3u);
    EXPECT_THAT(words[1].why, HasSubstr("as in the checkpoint"));
    EXPECT_THAT(words[1].expertShard, IsEmpty());
    EXPECT_THAT(machine->expertShard(), IsEmpty());
    EXPECT_THAT(machine->domainShare(), IsEmpty());
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 3));
    commit();
    order();
    EXPECT_EQ(logged<LogLayoutTried>().back().layout, 3u);
}

TEST_F(LayoutTest, WhoComesUpWhileOthersMoveMovesToo) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    for (const int32_t r : {0, 1}) say(r, reportOf(r, 3));
    order();
    EXPECT_THAT(sentNow<ChangeLayout>(1), SizeIs(1));
    EXPECT_THAT(sentNow<ChangeLayout>(2), IsEmpty());
    say(2, reportOf(2, 3));
    ASSERT_THAT(sentNow<ChangeLayout>(2), SizeIs(1));
    EXPECT_EQ(sentNow<ChangeLayout>(2)[0].layout, 1u);
    for (const int32_t r : {0, 1}) moved(r);
    EXPECT_THAT(factsNow<fact::LayoutChanged>(), IsEmpty());
    moved(2);
    EXPECT_TRUE(word().ok);
}

/// Experts moved while one replica had not told the new coordinator of its state, and all who moved
/// end before another step is committed.
class PlacedOtherwiseTest : public LayoutTest {
  protected:
    void moveWithoutLast(bool paused = true) {
        begin(past(3));
        for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
        step(InventoryDone{});
        if (paused) operate(OperationKind::kPause);
        for (const int32_t r : {0, 1}) say(r, reportOf(r, 3));
        order();
        for (const int32_t r : {0, 1}) moved(r);
        ASSERT_TRUE(word().ok);
    }
    /// r2 is told to move after the others.
    void expectFollows() const {
        ASSERT_THAT(sentNow<ChangeLayout>(2), SizeIs(1));
        EXPECT_EQ(sentNow<ChangeLayout>(2)[0].layout, 2u);
        EXPECT_EQ(sentNow<ChangeLayout>(2)[0].step, 3u);
        EXPECT_THAT(sentNow<ChangeLayout>(2)[0].expertShard, ElementsAre(1, 0));
        EXPECT_EQ(logged<LogLayoutTried>().back().layout, 2u);
    }
};

TEST_F(PlacedOtherwiseTest, ItMovesAfterThemInsteadOfGivingUpTheStep) {
    for (const bool before : {false, true}) {
        now = kSecond;
        everything.clear();
        moveWithoutLast();
        if (before) say(2, reportOf(2, 3));
        for (const int32_t r : {0, 1}) exits({r, 0});
        if (!before) say(2, reportOf(2, 3));
        expectFollows();
        operate(OperationKind::kResume);
        EXPECT_EQ(machine->openStep(), 0u);
        moved(2, true, 2);
        EXPECT_TRUE(word().ok);
        EXPECT_EQ(word().layout, 2u);
        EXPECT_EQ(logged<LogLayout>().back().layout, 2u);
        EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
        ASSERT_EQ(machine->openStep(), 4u);
        EXPECT_EQ(quorum().layout, 2u);
        EXPECT_THAT(members(quorum()), ElementsAre(2));
        commit();
    }
}

TEST_F(PlacedOtherwiseTest, SoDoesAFollowerThatTheNextCoordinatorHearsOfLate) {
    moveWithoutLast();
    for (const int32_t r : {0, 1}) exits({r, 0});
    say(2, following(2, 3));
    expectFollows();
    moved(2, true, 2);
    EXPECT_TRUE(word().ok);
    operate(OperationKind::kResume);
    EXPECT_THAT(members(quorum()), ElementsAre(2));
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
}

TEST_F(PlacedOtherwiseTest, AFollowerThatHeldTheStepMovesAfterThemToo) {
    options.policies.parityEverySteps = 0;
    train(2);
    loseAndReturn(2);
    operate(OperationKind::kPause);
    catchUp(2);
    ASSERT_EQ(machine->committedStep(), 4u);
    ASSERT_EQ(state(2), ReplicaState::kProven);
    order();
    for (const int32_t r : {0, 1}) moved(r);
    ASSERT_TRUE(word().ok);
    EXPECT_EQ(state(2), ReplicaState::kFetching);
    for (const int32_t r : {0, 1}) exits({r, 0});
    ASSERT_THAT(sentNow<ChangeLayout>(2), SizeIs(1));
    EXPECT_EQ(sentNow<ChangeLayout>(2)[0].layout, 2u);
    moved(2, true, 2);
    EXPECT_TRUE(word().ok);
    operate(OperationKind::kResume);
    EXPECT_THAT(members(quorum()), ElementsAre(2));
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
}

TEST_F(PlacedOtherwiseTest, WithTheOrderToFetchItGivesUpTheState) {
    options.policies.minReplicas = 3;
    moveWithoutLast(false);
    say(2, reportOf(2, 3));
    for (const int32_t r : {0, 1}) say(r, SnapshotReady{r, 1, 3});
    ASSERT_THAT(sentTo<Fetch>(2), SizeIs(1));
    for (const int32_t r : {0, 1}) exits({r, 0});
    EXPECT_THAT(sentTo<ChangeLayout>(2), IsEmpty());
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
}

TEST_F(PlacedOtherwiseTest, WhileTheJobIsPausedItIsNotSentForTheState) {
    moveWithoutLast();
    say(2, reportOf(2, 3));
    pass(3 * kSecond);
    EXPECT_THAT(sentTo<Fetch>(2), IsEmpty());
    size_t asked = 0;
    for (const KeepSnapshot& k : sentTo<KeepSnapshot>(0)) asked += k.keep;
    EXPECT_EQ(asked, 0u);
    operate(OperationKind::kResume);
    pass(kSecond, {}, {}, Phase::kCompute);
    asked = 0;
    for (const KeepSnapshot& k : sentTo<KeepSnapshot>(0)) asked += k.keep;
    EXPECT_NE(asked, 0u) << "the others go on without it";
}

TEST_F(PlacedOtherwiseTest, IfItCannotMoveTheJobGoesBackToItsCheckpoint) {
    moveWithoutLast();
    say(2, reportOf(2, 3));
    for (const int32_t r : {0, 1}) exits({r, 0});
    expectFollows();
    moved(2, false, 2);
    EXPECT_FALSE(word().ok);
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
}

/// It leaves when a checkpoint has the state, and that is written as experts lie now.
TEST_F(PlacedOtherwiseTest, DrainedItStaysUntilItsStateIsWritten) {
    moveWithoutLast();
    say(2, reportOf(2, 3));
    for (const int32_t r : {0, 1}) exits({r, 0});
    operate(OperationKind::kDrain, 2);
    EXPECT_THAT(sentTo<Leave>(2), IsEmpty());
    moved(2, true, 2);
    ASSERT_THAT(sentTo<Commit>(2), Not(IsEmpty()));
    EXPECT_TRUE(sentTo<Commit>(2).back().checkpoint);
    EXPECT_THAT(sentTo<Leave>(2), IsEmpty());
}

/// All trained replicas are gone before the move began, and a joiner holds the state.
TEST_F(LayoutTest, AMoveThatNobodyIsLeftForIsOver) {
    options.policies.parityEverySteps = 0;
    train(2);
    loseAndReturn(2);
    catchUp(2);
    ASSERT_EQ(state(2), ReplicaState::kProven) << "nothing is compared";
    order();
    for (const int32_t r : {0, 1}) exits({r, 0});
    EXPECT_FALSE(word().ok);
    EXPECT_EQ(word().why, "no replica holds the state");
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
    EXPECT_THAT(members(quorum()), ElementsAre(2));
}

// ---- what the next coordinator makes of it

class NextTermTest : public OrdersTest {
  protected:
    /// The coordinator before left these orders; all its replicas still run.
    void continues(RecoveredState before) {
        begin(std::move(before));
        for (int32_t r = 0; r < places(); ++r) runs(r), greets(r);
        step(InventoryDone{});
    }
    void reportAll() {
        for (int32_t r = 0; r < places(); ++r) say(r, reportOf(r, 3));
    }
};

TEST_F(NextTermTest, OrdersOutliveTheCoordinatorTheyWereGivenTo) {
    options.replicas = 5;
    RecoveredState before = past(3);
    before.orders = LogOrders{};
    before.orders->policies = options.policies;
    before.orders->policies.lr = LrPolicy::kLinear;
    before.orders->paused = true;
    before.orders->held = {0};
    before.orders->drained = {1};
    before.orders->givenUp = {2, 9};
    begin(std::move(before));
    EXPECT_EQ(machine->policies().lr, LrPolicy::kLinear);
    EXPECT_TRUE(machine->pauseOrdered());
    EXPECT_EQ(state(0), ReplicaState::kHeld);
    EXPECT_EQ(state(1), ReplicaState::kDrained);
    EXPECT_EQ(state(2), ReplicaState::kFailed);
    runs(3);
    step(InventoryDone{});
    for (const int32_t r : {0, 1, 2, 3}) EXPECT_EQ(startsNow(r), 0u) << r;
    EXPECT_EQ(startsNow(4), 1u);
    EXPECT_THAT(logged<LogOrders>(), IsEmpty()) << "the log has them";
    operate(OperationKind::kResume);
    const LogOrders now = logged<LogOrders>().back();
    EXPECT_FALSE(now.paused);
    EXPECT_THAT(now.held, ElementsAre(0));
    EXPECT_THAT(now.drained, ElementsAre(1));
    EXPECT_THAT(now.givenUp, ElementsAre(2));
    EXPECT_EQ(now.policies.lr, LrPolicy::kLinear);
    operate(OperationKind::kReleaseRejoin, 2);
    EXPECT_EQ(startsNow(2), 1u);
}

TEST_F(NextTermTest, AStopGoesOnWithItsCheckpointAndItsReason) {
    RecoveredState before = past(3);
    before.orders = LogOrders{};
    before.orders->policies = options.policies;
    before.orders->stopping = before.orders->stopCheckpoint = true;
    before.orders->stopWhy = "operator ana";
    before.lastSign = now - 5 * kSecond;
    continues(std::move(before));
    EXPECT_EQ(machine->phase(), JobPhase::kStopping);
    EXPECT_THAT(facts<fact::IncidentOpened>(), IsEmpty()) << "nobody trained any more";
    EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty()) << "they have not told what they hold";
    EXPECT_THAT(sentTo<Leave>(0), IsEmpty());
    say(0, reportOf(0, 3));
    const auto asked = sentTo<Commit>(0);
    EXPECT_TRUE(std::any_of(asked.begin(), asked.end(),
                            [](const Commit& c) { return c.checkpoint && c.record.step == 3; }));
    EXPECT_THAT(facts<fact::QuorumDecided>(), IsEmpty()) << "nothing is begun";
    tell({1, 2}, 3);
    say(0, CheckpointDone{0, 1, 3, 0, "/c/3", 1, 1, true, ""});
    ASSERT_THAT(sentNow<Leave>(1), SizeIs(1));
    EXPECT_EQ(sentNow<Leave>(1)[0].why, "operator ana");
}

TEST_F(NextTermTest, AStopWithoutACheckpointIsCarriedOutAtOnceAndStartsNobody) {
    RecoveredState before = past(3);
    before.orders = LogOrders{};
    before.orders->policies = options.policies;
    before.orders->stopping = true;
    before.orders->stopCheckpoint = false;
    before.orders->stopWhy = "operator ana";
    begin(std::move(before));
    EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
    step(InventoryDone{});
    EXPECT_THAT(actionsIn<StartReplica>(everything), IsEmpty());
    ASSERT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    EXPECT_TRUE(facts<fact::RunFinished>()[0].ok);
    EXPECT_EQ(facts<fact::RunFinished>()[0].why, "operator ana");
}

TEST_F(NextTermTest, AWishForACheckpointIsStillFulfilled) {
    RecoveredState before = past(3);
    before.orders = LogOrders{};
    before.orders->policies = options.policies;
    before.orders->checkpoint = true;
    continues(std::move(before));
    reportAll();
    commit();
    EXPECT_THAT(askedToWrite(), SizeIs(1));
}

TEST_F(NextTermTest, EpochsGoOnBehindThoseThatMayHaveBeenGivenOut) {
    const RecoveredState before = past(3);
    const uint64_t committed = before.last->epoch;
    const uint64_t used = before.epoch;
    continues(before);
    for (const int32_t r : {0, 1}) say(r, reportOf(r, 3));
    say(2, blank(2));
    // Nothing is in flight: the last commit's state is fetched, which an earlier term committed.
    for (const int32_t r : {0, 1}) say(r, SnapshotReady{r, 1, 3});
    ASSERT_THAT(sentTo<Fetch>(2), SizeIs(1));
    EXPECT_EQ(sentTo<Fetch>(2)[0].snapshotEpoch, committed);
    ASSERT_EQ(machine->openStep(), 4u);
    EXPECT_EQ(quorum().afterEpoch, committed);
    EXPECT_GT(quorum().epoch, used);
    EXPECT_EQ(machine->effectiveTime() > 0, true);
}

TEST_F(NextTermTest, WhatTheLogHasLostTakesEverybodyBack) {
    RecoveredState before = past(3);
    before.lost = "the log has lost step 4";
    begin(std::move(before));
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
    runs(0);
    step(InventoryDone{});
    ASSERT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
    found({checkpoint(2, "/c/2")});
    EXPECT_THAT(factsNow<fact::LineageOpened>().at(0).why, HasSubstr("the log has lost step 4"));
    EXPECT_EQ(machine->committedStep(), 2u);
}

TEST_F(NextTermTest, TimeWithoutACoordinatorIsOneIncidentOfTheWholeJobUntilItGoesOn) {
    RecoveredState before = past(3);
    before.lastSign = now - 5 * kSecond;
    continues(std::move(before));
    const auto opened = facts<fact::IncidentOpened>();
    ASSERT_THAT(opened, SizeIs(1));
    EXPECT_EQ(opened[0].replica, -1);
    EXPECT_EQ(opened[0].cause, EvidenceKind::kControllerLost);
    EXPECT_EQ(opened[0].title, "no controller for 5.0 s");
    reportAll();
    EXPECT_THAT(facts<fact::IncidentClosed>(), IsEmpty());
    commit();
    EXPECT_THAT(outcomes(), ElementsAre("went on at step 4"));
}

TEST_F(NextTermTest, APausedJobMissedNoCoordinator) {
    RecoveredState before = past(3);
    before.lastSign = now - 5 * kSecond;
    before.orders = LogOrders{};
    before.orders->policies = options.policies;
    before.orders->paused = true;
    continues(std::move(before));
    EXPECT_THAT(facts<fact::IncidentOpened>(), IsEmpty());
}

/// Reports a replica that went if it trained to the end and its loss is not known yet.
TEST_F(NextTermTest, WhoWentWhileNobodyLookedIsToldOnceAndOnlyIfOthersTrain) {
    options.replicas = 4;
    RecoveredState before = past(3);
    before.incarnations = {1, 1, 2, 1};  // r2 was started again, and trained no more
    before.incidents = {{7, 3, kSecond, kSecond, false, 0, 0, 2}};
    before.lastIncident = 7;
    RecoveredState same = before;
    begin(std::move(before));
    runs(0);
    greets(0);
    step(InventoryDone{});
    for (const int32_t r : {1, 2, 3}) EXPECT_EQ(startsNow(r), 1u) << r;
    const auto opened = factsNow<fact::IncidentOpened>();
    ASSERT_THAT(opened, SizeIs(1));
    EXPECT_EQ(opened[0].replica, 1);
    EXPECT_EQ(opened[0].incident, 8u);
    EXPECT_THAT(opened[0].title, HasSubstr("it went while no coordinator looked"));
    begin(std::move(same));
    step(InventoryDone{});
    EXPECT_THAT(factsNow<fact::IncidentOpened>(), IsEmpty()) << "nobody is left to notice";
}

// ---- a coordinator that was not run

/// Each waits for something whose time would be over, had the machine been run.
class AbsenceTest : public LayoutTest {
  protected:
    /// The machine was not run for so long; now it is.
    void away(MonoNs time) {
        now += time;
        step(Tick{});
    }
    void expectNothing() const {
        EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty());
        EXPECT_THAT(actionsIn<StartReplica>(last), IsEmpty());
        EXPECT_THAT(evidence(), IsEmpty());
        EXPECT_THAT(factsNow<fact::LayoutChanged>(), IsEmpty());
        EXPECT_THAT(factsNow<fact::QuorumDecided>(), IsEmpty());
        for (const int32_t r : {0, 1, 2}) {
            EXPECT_THAT(sentNow<Abort>(r), IsEmpty());
            EXPECT_THAT(sentNow<Fetch>(r), IsEmpty());
        }
    }
};

TEST_F(AbsenceTest, StartsFetchesAndSourcesAreGivenTheTimeBack) {
    train(2);
    loseAndReturn(2);
    away(70 * kSecond);
    expectNothing();
    say(2, blank(2));
    commit();
    say(1, SnapshotReady{1, 1, 4});
    away(10 * kSecond);
    expectNothing();
    EXPECT_EQ(state(2), ReplicaState::kFetching);
    say(0, SnapshotReady{0, 1, 4});
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    pass(200 * kMillisecond, {}, {}, Phase::kExchange);
    away(70 * kSecond);
    expectNothing();
}

TEST_F(AbsenceTest, WhoComputesOrExchangesIsNotBlamed) {
    train(2);
    pass(200 * kMillisecond, {}, {}, Phase::kCompute);
    away(20 * kSecond);
    expectNothing();
    pass(5 * kSecond, {}, {0, 1, 2}, Phase::kExchange);
    away(20 * kSecond);
    expectNothing();
}

TEST_F(AbsenceTest, SuspectsHaveAsLongAsTheyWouldHaveHad) {
    options.timeouts.massPauseMs = 5000;
    train(2);
    pass(4 * kSecond, {1, 2}, {}, Phase::kExchange);
    ASSERT_EQ(machine->phase(), JobPhase::kWaiting);
    away(20 * kSecond);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
    pass(6 * kSecond, {1, 2}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
}

TEST_F(AbsenceTest, AReplayThatDecidesATieIsWaitedFor) {
    options.replicas = 2;
    train(4);
    vote(0);
    ReplicaVote other = voteOf(1);
    other.hashes[1] ^= 1;
    say(1, other);
    ASSERT_THAT(sentNow<ReplayLast>(0), SizeIs(1));
    say(0, ReplayVerdict{0, 1, 4, {}});
    away(20 * kSecond);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
    say(1, ReplayVerdict{1, 1, 4, {1}});
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
}

TEST_F(AbsenceTest, AMoveOfExpertsIsWaitedFor) {
    train(2);
    order();
    commit();
    away(70 * kSecond);
    expectNothing();
    for (const int32_t r : {0, 1, 2}) moved(r);
    EXPECT_TRUE(word().ok);
}

TEST_F(AbsenceTest, WhoLeavesAStoppedJobHasItsTime) {
    options.timeouts.stopMs = 2000;
    train(2);
    operate(OperationKind::kStop, -1, /*checkpoint=*/false);
    commit();
    ASSERT_THAT(sentNow<Leave>(0), SizeIs(1));
    away(20 * kSecond);
    EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
    pass(2100 * kMillisecond);
    EXPECT_THAT(facts<fact::RunFinished>(), SizeIs(1));
}

TEST_F(AbsenceTest, AnInventoryIsWaitedFor) {
    begin(past(3));
    away(20 * kSecond);
    expectNothing();
}

TEST_F(AbsenceTest, TheFirstStepWaitsForAllAllTheSame) {
    begin();
    up(0);
    say(0, reportOf(0, 0));
    away(20 * kSecond);
    EXPECT_EQ(machine->openStep(), 0u);
}

}  // namespace
}  // namespace bulkhead::protocol
