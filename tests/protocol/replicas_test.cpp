// SPDX-License-Identifier: Apache-2.0
// Replicas come and go, as the coordinator machine sees them: who is let in, what becomes of who is
// lost, what an operator is told, and the ways back when nobody holds the state.
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

class ReplicasTest : public MachineScript {};

// ---- hellos

TEST_F(ReplicasTest, OnlyTheRanksOfTheCurrentIncarnationAreWelcome) {
    begin();
    for (const RankId stranger : {RankId{9, 0}, RankId{-1, 0}, RankId{0, 2}, RankId{0, -1}}) {
        hello(stranger, 1);
        ASSERT_THAT(sentNow<Expelled>(stranger.replica), SizeIs(1));
        EXPECT_EQ(sentNow<Expelled>(stranger.replica)[0].why, "there is no such rank");
    }
    for (const uint32_t incarnation : {0u, 2u}) {
        hello({1, 0}, incarnation);
        EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
        EXPECT_THAT(sentNow<Welcome>(1), IsEmpty());
        EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty()) << "the current one is not harmed";
    }
    hello({1, 0}, 1);
    EXPECT_THAT(sentNow<Welcome>(1), SizeIs(1));
    EXPECT_THAT(sentNow<ReplicaFormed>(1), IsEmpty());
    hello({1, 0}, 1);  // its connection broke
    EXPECT_THAT(sentNow<ReplicaFormed>(1), IsEmpty()) << "shard 1 is still to come";
    hello({1, 1}, 1);
    ASSERT_THAT(sentNow<ReplicaFormed>(1), SizeIs(1));
    const ReplicaFormed formed = sentNow<ReplicaFormed>(1)[0];
    EXPECT_FALSE(formed.blank);
    ASSERT_THAT(formed.ranks, SizeIs(2));
    EXPECT_EQ(formed.ranks[1].state, address({1, 1}));
}

TEST_F(ReplicasTest, ARankThatComputesElsewhereOrReadsAnotherTextIsOutWithItsReplica) {
    for (const bool text : {true, false}) {
        now = kSecond;
        begin();
        hello({0, 0}, 1);
        Hello h;
        h.endpoint.rank = {1, 1};
        h.endpoint.incarnation = 1;
        h.corpusHash = text ? 77 : 0;
        h.corpusNewest = "b.txt";
        h.device = text ? "cpu" : "cuda";
        options.corpusHash = 0;
        if (text) {
            h.corpusHash = 5;
            Hello first = h;
            first.endpoint.rank = {0, 1};
            step(Received{{0, 1}, first});
            h.corpusHash = 6;
        }
        step(Received{{1, 1}, h});
        ASSERT_THAT(sentNow<Expelled>(1), SizeIs(1));
        EXPECT_THAT(sentNow<Expelled>(1)[0].why, HasSubstr(text ? "b.txt" : "cuda"));
        EXPECT_THAT(sentNow<Welcome>(1), IsEmpty());
        EXPECT_THAT(factsNow<fact::IncidentOpened>(), SizeIs(1));
    }
}

TEST_F(ReplicasTest, ARankThatWasAwayHearsOfTheStepInFlightAndOfItsEnd) {
    train(2);
    hello({1, 1}, 1);
    EXPECT_THAT(sentNow<Commit>(1), SizeIs(1));
    ASSERT_THAT(sentNow<Quorum>(1), SizeIs(1));
    EXPECT_EQ(sentNow<Quorum>(1)[0].step, 3u);
    EXPECT_THAT(sentNow<Abort>(1), IsEmpty());
    EXPECT_THAT(sentNow<Fetch>(1), IsEmpty());
    say(0, no(0));
    hello({1, 1}, 1);
    ASSERT_THAT(sentNow<Abort>(1), SizeIs(1));
    EXPECT_EQ(sentNow<Abort>(1)[0].step, 3u);
    vote(1);
    vote(2);
    voteAll();
    // The record is written: what counts is the next step's quorum.
    hello({1, 1}, 1);
    ASSERT_THAT(sentNow<Quorum>(1), SizeIs(1));
    EXPECT_EQ(sentNow<Quorum>(1)[0].step, 4u);
}

TEST_F(ReplicasTest, NobodyHearsOfARecordBeforeALineageHasOne) {
    begin();
    up(0);
    hello({0, 0}, 1);
    EXPECT_THAT(sentNow<Commit>(0), IsEmpty());
    EXPECT_THAT(sentNow<Quorum>(0), IsEmpty());
}

// ---- reports

TEST_F(ReplicasTest, AStateOfAnotherLineageOrAheadOfTheLogIsFenced) {
    train(2);
    Report other = reportOf(1, 2);
    other.lineage = 9;
    say(1, other);
    ASSERT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_THAT(sentNow<Expelled>(1)[0].why, HasSubstr("abandoned lineage"));
    EXPECT_THAT(factsNow<fact::InvariantBroken>(), IsEmpty());
    say(2, reportOf(2, 3));
    ASSERT_THAT(sentNow<Expelled>(2), SizeIs(1));
    ASSERT_THAT(factsNow<fact::InvariantBroken>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::InvariantBroken>()[0].invariant, "I6");
}

/// A record may be on disk, and told to nobody, when the ranks that it is sent to apply it.
TEST_F(ReplicasTest, WhoIsAheadByTheStepThatIsBeingWrittenIsNotBlamed) {
    train(2);
    voteAll();
    say(2, reportOf(2, 3));
    EXPECT_THAT(sentNow<Expelled>(2), IsEmpty());
    EXPECT_THAT(factsNow<fact::InvariantBroken>(), IsEmpty());
}

TEST_F(ReplicasTest, ABlankReplicaThatSaysAStepHasNoneAndIsServed) {
    train(2);
    loseAndReturn(2);
    Report b = blank(2);
    b.step = 77;
    say(2, b);
    EXPECT_THAT(sentNow<Expelled>(2), IsEmpty());
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
}

TEST_F(ReplicasTest, AReplicaIsJudgedWhenAllItsRanksHaveSaidHello) {
    train(2);
    exits({2, 0});
    voteAll();
    durable();
    hello({2, 0}, 2);
    say(2, blank(2));
    EXPECT_THAT(sentTo<KeepSnapshot>(0), IsEmpty());
}

TEST_F(ReplicasTest, AContributorThatCouldNotApplyTheLastCommitFetches) {
    train(2);
    Report r = reportOf(1, 1);
    say(1, r);
    EXPECT_THAT(shown(1), IsEmpty()) << "it is a step behind, and will apply";
    r.ready = false;
    say(1, r);
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kFetching));
    EXPECT_EQ(factsNow<fact::ReplicaChanged>()[0].why, "it could not apply the last commit");
    EXPECT_THAT(sentNow<Abort>(0), SizeIs(1)) << "it cannot give what the others wait for";
    EXPECT_THAT(sentNow<Expelled>(1), IsEmpty());
}

TEST_F(ReplicasTest, OneRankThatCouldNotApplyTheLastCommitMakesItsReplicaFetch) {
    train(2);
    say(1, CommitMissed{{1, 1}, 1, 1});
    say(1, CommitMissed{{1, 1}, 7, 2});
    EXPECT_EQ(state(1), ReplicaState::kTraining) << "of an earlier step, of another life";
    say(1, CommitMissed{{1, 1}, 1, 2});
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kFetching));
    EXPECT_EQ(factsNow<fact::ReplicaChanged>()[0].why, "r1s1 could not apply the last commit");
    EXPECT_THAT(sentNow<Abort>(0), SizeIs(1)) << "it cannot give what the others wait for";
    EXPECT_THAT(sentNow<KeepSnapshot>(2), SizeIs(1));
    say(1, CommitMissed{{1, 1}, 1, 2});
    EXPECT_THAT(sentNow<KeepSnapshot>(2), IsEmpty()) << "it fetches already";
}

// ---- what a new coordinator finds

TEST_F(ReplicasTest, ANewCoordinatorGoesOnWithThoseWhoHoldTheLastCommit) {
    begin(past(3));
    EXPECT_EQ(machine->phase(), JobPhase::kStarting);
    for (const int32_t r : {0, 1, 2}) {
        runs(r);
        greets(r);
        EXPECT_THAT(sentNow<ReplicaFormed>(r), SizeIs(1));
        EXPECT_TRUE(sentNow<ReplicaFormed>(r)[0].blank) << "nobody begins from the seed";
    }
    step(InventoryDone{});
    EXPECT_THAT(actionsIn<StartReplica>(everything), IsEmpty());
    say(0, reportOf(0, 3));
    say(1, reportOf(1, 3));
    EXPECT_EQ(machine->openStep(), 0u) << "r2 has not told what it holds";
    say(2, reportOf(2, 3));
    EXPECT_EQ(machine->openStep(), 4u);
    commit();
    EXPECT_THAT(shown(0), ElementsAre(ReplicaState::kTraining));
}

TEST_F(ReplicasTest, WhoLacksTheLastCommitHearsItOnceMoreAndFetchesIfThatDoesNotHelp) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    ASSERT_THAT(sentTo<Commit>(2), SizeIs(1)) << "its ranks may be at different steps";
    EXPECT_EQ(sentTo<Commit>(2)[0].record.step, 3u);
    step(InventoryDone{});
    say(0, reportOf(0, 3));
    say(1, reportOf(1, 3));
    say(2, reportOf(2, 2));  // said before it heard
    EXPECT_THAT(sentNow<Commit>(2), IsEmpty());
    EXPECT_THAT(shown(2), IsEmpty());
    Report cannot = reportOf(2, 2);
    cannot.ready = false;
    say(2, cannot);
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
    EXPECT_EQ(factsNow<fact::ReplicaChanged>()[0].why, "it is behind");
}

/// Its move may not count yet, or no longer: what it stands in and what it could go back to are
/// told.
TEST_F(ReplicasTest, AStateThatLiesOrCanLieAsTheJobsDoesIsUpToDate) {
    RecoveredState before = past(3);
    before.layout = 2;
    begin(std::move(before));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    const auto lies = [this](int32_t replica, uint64_t layout, uint64_t moved) {
        Report r = reportOf(replica, 3);
        r.layout = layout;
        r.moved = moved;
        say(replica, r);
    };
    lies(0, 2, 3);
    EXPECT_THAT(shown(0), ElementsAre(ReplicaState::kProven));
    lies(1, 1, 2);
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kProven));
    lies(2, 1, 1);
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
    EXPECT_EQ(factsNow<fact::ReplicaChanged>().at(0).why, "experts moved without it");
}

TEST_F(ReplicasTest, WhoIsNotReadyOrHasNothingToBeToldAgainIsTakenAsItIs) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    Report busy = reportOf(1, 3);
    busy.ready = false;
    say(1, busy);
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kFetching)) << "it cannot contribute";
    // A lineage without a step has no record to send again.
    now = kSecond;
    everything.clear();
    begin(past(0));
    runs(0);
    greets(0);
    EXPECT_THAT(sentNow<ReplicaFormed>(0), SizeIs(1));
    EXPECT_THAT(sentTo<Commit>(0), IsEmpty());
}

TEST_F(ReplicasTest, AJobThatBeginsFromAnothersCheckpointLiesAsThatDoesAndNeverRemovesIt) {
    options.policies.checkpointsKept = 1;
    train(1);
    LogCheckpoint resume = checkpoint(1, "/other/1");
    resume.layout = 4;
    resume.expertShard = {1, 0};
    resume.domainShare = {0, 1};
    everything.clear();
    quorums.clear();
    this->resume(resume);
    EXPECT_EQ(logged<LogLineage>().at(0).layout, 4u);
    EXPECT_EQ(logged<LogLineage>()[0].expertShard, resume.expertShard);
    EXPECT_EQ(machine->committedStep(), 1u);
    for (const int32_t r : {0, 1, 2}) up(r);
    EXPECT_EQ(sentTo<Welcome>(0).at(0).resumeFrom, "/other/1");
    EXPECT_EQ(sentTo<Welcome>(0)[0].layout, 4u);
    for (const int32_t r : {0, 1, 2}) {
        Report report = reportOf(r, 1);
        report.layout = report.moved = 4;
        say(r, report);
    }
    for (int i = 0; i < 2; ++i) {
        operate(OperationKind::kCheckpoint);
        const uint64_t step = commit();
        for (const int32_t r : {0, 1, 2})
            for (const Commit& c : sentNow<Commit>(r))
                if (c.checkpoint)
                    say(r, CheckpointDone{r, 1, step, 4, "/own/" + std::to_string(step), 1, 1, true,
                                          ""});
        voteAll();
        durable();
    }
    ASSERT_THAT(logged<LogCheckpoint>(), SizeIs(2));
    std::vector<std::string> dropped;
    for (const auto& d : logged<LogCheckpointsDropped>())
        dropped.insert(dropped.end(), d.paths.begin(), d.paths.end());
    EXPECT_THAT(dropped, ElementsAre("/own/2"));
}

TEST_F(ReplicasTest, GradientsThatSurvivorsHoldOfTheOpenStepAreLeasedToThemAgain) {
    RecoveredState before = past(3);
    const auto leases = machine->ledger().state().leases;
    ASSERT_THAT(leases, SizeIs(3));
    begin(std::move(before));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    // r0 and r1 hold each other's; r2 holds some of another step.
    for (const int32_t r : {0, 1, 2}) {
        Report report = reportOf(r, 3);
        report.retainedStep = r == 2 ? 3 : 4;
        report.retained = leases[static_cast<size_t>(r == 2 ? 2 : 1 - r)].ranges;
        say(r, report);
    }
    ASSERT_EQ(machine->openStep(), 4u);
    EXPECT_EQ(quorum().contributors[0].contribution.ranges, leases[1].ranges);
    EXPECT_EQ(quorum().contributors[1].contribution.ranges, leases[0].ranges);
}

/// A disk that lied may have taken with it that a number was given out; a process still has it.
TEST_F(ReplicasTest, ANumberThatTheLogHasLostIsNotGivenOutAgain) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r);
    for (const int32_t r : {0, 1, 2}) greets(r);
    hello({1, 0}, 4);
    step(RankRunning{{2, 1}, 3, 1, "n"});
    EXPECT_EQ(view(1).incarnation, 1u) << "the one before is whole";
    step(InventoryDone{});
    exits({1, 0});
    exits({2, 0});
    pass(2 * options.timeouts.backoffFirstMs * kMillisecond, {1, 2});
    EXPECT_EQ(view(1).incarnation, 5u);
    EXPECT_EQ(view(2).incarnation, 4u);
}

/// A fetch was under way when the coordinator before ended: one rank has the new state, one not.
TEST_F(ReplicasTest, OneWhoseRanksDifferFetchesAnewWhenOthersHoldTheState) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r);
    for (const int32_t r : {0, 1, 2}) greets(r);
    for (const int32_t r : {0, 1}) say(r, reportOf(r, 3));
    step(InventoryDone{});
    ASSERT_NE(view(2).state, ReplicaState::kFetching);
    pass((options.timeouts.joinMs + 1000) * kMillisecond, {}, {}, Phase::kIdle);
    EXPECT_EQ(view(2).state, ReplicaState::kFetching);
    EXPECT_EQ(view(2).incarnation, 1u) << "it need not start again";
}

/// The only replica known to hold the state is kept, even if others may turn out to hold it.
TEST_F(ReplicasTest, TheOnlyOneKnownToHoldTheStateIsWaitedForWhateverOthersMayHave) {
    begin(past(3));
    for (const int32_t r : {0, 1}) runs(r);
    for (const int32_t r : {0, 1}) greets(r);
    say(1, reportOf(1, 3));
    step(InventoryDone{});
    Evidence evidence;
    evidence.kind = EvidenceKind::kTransportReset;
    evidence.accused = {1, 0};
    evidence.incarnation = 1;
    evidence.reporter = "r1/s1";
    evidence.detail = "its control connection";
    say(1, evidence);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
    EXPECT_EQ(view(1).incarnation, 1u);
}

TEST_F(ReplicasTest, WhatIsGoneOrHalfGoneSinceIsStartedAgainAndTheLossIsToldOnce) {
    begin(past(3));
    runs(0);
    greets(0);
    step(RankRunning{{1, 0}, 1, 1, "n"});
    step(RankRunning{{1, 0}, 0, 1, "n"});
    ASSERT_THAT(actionsIn<StopReplica>(last), SizeIs(1)) << "an older incarnation";
    EXPECT_EQ(actionsIn<StopReplica>(last)[0].incarnation, 0u);
    step(RankRunning{{9, 0}, 1, 1, "n"});
    EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty());
    step(InventoryDone{});
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_EQ(startsNow(0), 0u);
    EXPECT_EQ(startsNow(1), 1u);
    EXPECT_EQ(startsNow(2), 1u);
    const auto opened = factsNow<fact::IncidentOpened>();
    ASSERT_THAT(opened, SizeIs(2));
    std::set<int32_t> who;
    for (const auto& o : opened) who.insert(o.replica);
    EXPECT_THAT(who, ElementsAre(1, 2));
    EXPECT_EQ(view(2).incarnation, 2u);
    step(InventoryDone{});
    EXPECT_THAT(actionsIn<StartReplica>(last), IsEmpty());
}

/// Otherwise whoever adds up what losses cost misses the last ones.
TEST_F(ReplicasTest, AnIncidentThatIsOpenWhenTheRunEndsIsClosedBeforeIt) {
    train(2);
    exits({1, 0});
    ASSERT_THAT(factsNow<fact::IncidentOpened>(), SizeIs(1));
    const uint64_t incident = factsNow<fact::IncidentOpened>()[0].incident;
    commit();
    Operation stop;
    stop.kind = OperationKind::kStop;
    stop.checkpoint = false;
    step(stop);
    commit();
    ASSERT_EQ(machine->openStep(), 0u) << machine->explanation();
    step(Tick{});
    for (const int32_t r : {0, 1, 2})
        for (int32_t s = 0; s < shards(); ++s) exits({r, s}, 0);
    EXPECT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    const auto closed = facts<fact::IncidentClosed>();
    ASSERT_THAT(closed, SizeIs(1));
    EXPECT_EQ(closed[0].incident, incident);
    EXPECT_EQ(closed[0].outcome, "the run ended first");
    EXPECT_EQ(closed[0].rejoinMs, 0);
    EXPECT_GT(closed[0].replicaSeconds, 0);
}

/// The coordinator before had lost it and was starting it: the same incident goes on.
TEST_F(ReplicasTest, AStartThatTheCoordinatorBeforeBeganIsBegunAgainWithoutASecondIncident) {
    RecoveredState before = past(3);
    before.incarnations[1] = 2;
    before.incidents = {{7, 1, kSecond, kSecond, true, 0, 0, 2}};
    before.lastIncident = 7;
    begin(std::move(before));
    for (const int32_t r : {0, 2}) runs(r), greets(r);
    step(RankRunning{{1, 0}, 2, 1, "n"});  // its other rank never came up
    step(InventoryDone{});
    EXPECT_THAT(factsNow<fact::IncidentOpened>(), IsEmpty());
    EXPECT_THAT(factsNow<fact::IncidentClosed>(), IsEmpty());
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    ASSERT_THAT(actionsIn<StopReplica>(last), SizeIs(1));
    EXPECT_EQ(actionsIn<StopReplica>(last)[0].incarnation, 2u);
    EXPECT_EQ(startsNow(1), 1u);
    EXPECT_EQ(view(1).incarnation, 3u);
    EXPECT_EQ(state(1), ReplicaState::kStarting);
}

TEST_F(ReplicasTest, AReplicaThatDoesNotFindTheNewCoordinatorGoes) {
    options.timeouts.joinMs = 3000;
    begin(past(3));
    for (const int32_t r : {0, 1}) runs(r), greets(r);
    runs(2);
    step(InventoryDone{});
    for (const int32_t r : {0, 1}) say(r, reportOf(r, 3));
    pass(2900 * kMillisecond, {2});
    EXPECT_THAT(sentNow<Expelled>(2), IsEmpty());
    pass(300 * kMillisecond, {2});
    EXPECT_THAT(sentNow<Expelled>(2), SizeIs(1));
    EXPECT_THAT(sentNow<Expelled>(0), IsEmpty());
}

TEST_F(ReplicasTest, AnInventoryThatIsNotTakenIsNotWaitedForForEver) {
    options.timeouts.joinMs = 3000;
    options.timeouts.massPauseMs = 2000;
    begin(past(3));
    pass(4900 * kMillisecond);
    EXPECT_THAT(actionsIn<StartReplica>(last), IsEmpty());
    pass(400 * kMillisecond);
    found();
    EXPECT_FALSE(actionsIn<StartReplica>(last).empty());
}

/// Their host may be frozen, not gone: with them would go what no checkpoint has.
TEST_F(ReplicasTest, AStopWaitsForThoseWhomTheNextCoordinatorHasNotHeardOf) {
    options.timeouts.joinMs = 3000;
    options.timeouts.massPauseMs = 5000;
    const std::map<int32_t, std::string> away = {{0, "n0"}, {1, "n0"}, {2, "n7"}};
    const auto recover = [&](bool told) {
        now = kSecond;
        everything.clear();
        RecoveredState before = past(3);
        before.orders = LogOrders{};
        before.orders->stopping = true;
        before.orders->stopWhy = "operator ana";
        begin(std::move(before));
        if (told) step(InventoryDone{away});
    };
    for (const bool told : {true, false}) {
        SCOPED_TRACE(told ? "its driver says who is away" : "its driver says nothing");
        recover(told);
        pass(300 * kSecond, {0, 1, 2});
        EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
        EXPECT_THAT(actionsIn<StopReplica>(everything), IsEmpty());
        EXPECT_EQ(machine->phase(), JobPhase::kStopping);
        EXPECT_THAT(machine->explanation(),
                    HasSubstr(told ? "the agent of n7 is away" : "is away"));
        EXPECT_THAT(machine->explanation(), HasSubstr("the job waits until one answers"));
    }
    // One wakes: it writes the checkpoint, and nobody else is waited for.
    runs(1);
    greets(1);
    say(1, reportOf(1, 3));
    std::vector<Commit> asked = sentNow<Commit>(1);
    ASSERT_THAT(asked, SizeIs(1)) << machine->explanation();
    EXPECT_TRUE(asked[0].checkpoint);
    EXPECT_THAT(sentTo<Expelled>(0), SizeIs(1));
    say(1, CheckpointDone{1, 1, 3, 0, "/c/3", 1, 1, true, ""});
    pass(options.timeouts.progressFloorMs * 2 * kMillisecond, {0, 2});
    for (int32_t s = 0; s < shards(); ++s) exits({1, s}, 0);
    ASSERT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    EXPECT_TRUE(facts<fact::RunFinished>()[0].ok);

    // Their agents are back, and know nothing of them.
    recover(true);
    step(InventoryDone{{{2, "n7"}}});
    pass(60 * kSecond, {0, 1, 2});
    EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
    step(InventoryDone{});
    pass(kSecond, {0, 1, 2});
    ASSERT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    EXPECT_FALSE(facts<fact::RunFinished>()[0].ok);

    recover(true);
    operate(OperationKind::kStop, -1, /*checkpoint=*/false);
    EXPECT_THAT(facts<fact::RunFinished>(), SizeIs(1)) << "it waits for nobody";
}

/// Their agents say that they run; none of them may go before one has said what it holds.
TEST_F(ReplicasTest, AStopWaitsForAllWhoRunAndDoNotFindTheNextCoordinator) {
    options.timeouts.joinMs = 3000;
    options.timeouts.massPauseMs = 5000;
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r);
    step(InventoryDone{});
    operate(OperationKind::kStop);
    pass(60 * kSecond, {0, 1, 2});
    EXPECT_THAT(actionsIn<StopReplica>(everything), IsEmpty());
    EXPECT_THAT(machine->explanation(), HasSubstr("the job waits until one answers"));
    greets(2);
    say(2, reportOf(2, 3));
    EXPECT_THAT(sentTo<Commit>(2), Contains(::testing::Field(&Commit::checkpoint, true)));
}

TEST_F(ReplicasTest, WithoutAStopThoseWhoAreNotHeardOfAreGivenUpAfterMassPause) {
    options.timeouts.joinMs = 3000;
    options.timeouts.massPauseMs = 5000;
    begin(past(3));
    step(InventoryDone{{{0, "n0"}, {1, "n1"}, {2, "n1"}}});
    pass(4900 * kMillisecond, {0, 1, 2});
    EXPECT_THAT(actionsIn<StartReplica>(everything), IsEmpty());
    EXPECT_THAT(machine->explanation(), HasSubstr("taken for lost in"));
    pass(400 * kMillisecond, {0, 1, 2});
    EXPECT_THAT(actionsIn<StopReplica>(everything), SizeIs(3));
    found();
    EXPECT_EQ(machine->lineage(), 2u);

    // A replica that holds the state ends the wait.
    now = kSecond;
    everything.clear();
    begin(past(3));
    runs(0);
    greets(0);
    step(InventoryDone{{{1, "n1"}, {2, "n1"}}});
    EXPECT_THAT(actionsIn<StopReplica>(everything), IsEmpty()) << "it may be behind";
    say(0, reportOf(0, 3));
    EXPECT_EQ(startsNow(1) + startsNow(2), 2u);
}

/// Nobody who trained lives any more; those who followed agree on a state.
TEST_F(ReplicasTest, FollowersWhoAgreeAreTheJobWhenNobodyElseIsLeft) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    for (const int32_t r : {0, 1, 2}) {
        Report f = following(r, 3);
        if (r == 1) f.hashes[0] ^= 1;
        say(r, f);
    }
    EXPECT_EQ(machine->lineage(), 1u);
    EXPECT_EQ(state(1), ReplicaState::kFetching);
    for (const int32_t r : {0, 2}) {
        EXPECT_EQ(state(r), ReplicaState::kProven);
    }
    const auto told = facts<fact::ReplicaChanged>();
    EXPECT_TRUE(std::any_of(told.begin(), told.end(), [](const fact::ReplicaChanged& c) {
        return c.state == ReplicaState::kProven && c.why == "nobody who trained is left";
    }));
    pass(11 * kSecond);
    EXPECT_EQ(machine->openStep(), 4u);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
}

// ---- losses, restarts, giving up

TEST_F(ReplicasTest, WhatEndedAProcessIsToldInItsAgentsWords) {
    train(2);
    step(RankExited{{2, 1}, 1, 0, 9, "n7", 0, "killed by the kernel"});
    ASSERT_THAT(factsNow<fact::EvidenceSeen>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::EvidenceSeen>()[0].reporter, "agent n7");
    EXPECT_EQ(factsNow<fact::EvidenceSeen>()[0].shard, 1);
    EXPECT_EQ(factsNow<fact::IncidentOpened>().at(0).title,
              "r2 lost: r2s1 ended on signal 9: killed by the kernel");
    EXPECT_EQ(factsNow<fact::IncidentOpened>()[0].step, 3u);
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kBackingOff, ReplicaState::kStarting));
    step(RankExited{{2, 0}, 1, 1, 0, "n7", 0});
    EXPECT_THAT(factsNow<fact::EvidenceSeen>(), IsEmpty()) << "that incarnation is gone already";
    EXPECT_THAT(factsNow<fact::IncidentOpened>(), IsEmpty());
}

TEST_F(ReplicasTest, RestartsComeLaterEachTimeAndEndWithTheLimit) {
    train(2);
    for (int i = 0; i < 3; ++i) {
        step(StartFailed{2, view(2).incarnation, "no room"});
        if (i == 0) {
            exits({2, 0});
            voteAll();
            durable();
        }
        const uint32_t before = view(2).incarnation;
        if (state(2) == ReplicaState::kBackingOff) {
            pass((i == 0 ? 90 : 190) * kMillisecond, {}, {}, Phase::kExchange);
            EXPECT_EQ(view(2).incarnation, before);
            pass(20 * kMillisecond, {}, {}, Phase::kExchange);
            EXPECT_EQ(view(2).incarnation, before + 1);
        }
    }
    EXPECT_EQ(state(2), ReplicaState::kFailed);
    EXPECT_THAT(outcomes(), ElementsAre("lost again", "given up"));
    EXPECT_THAT(facts<fact::ReplicaChanged>().back().why, HasSubstr("given up after 3 restarts"));
    EXPECT_THAT(facts<fact::ReplicaChanged>().back().why, HasSubstr("no room"));
    EXPECT_THAT(logged<LogOrders>().back().givenUp, ElementsAre(2));
    pass(10 * kSecond, {}, {}, Phase::kExchange);
    EXPECT_THAT(actionsIn<StartReplica>(last), IsEmpty());
    operate(OperationKind::kReleaseRejoin, 2);
    EXPECT_EQ(answer(), "done");
    EXPECT_EQ(startsNow(2), 1u);
    EXPECT_THAT(logged<LogOrders>().back().givenUp, IsEmpty());
}

TEST_F(ReplicasTest, AReplicaThatTrainsAgainHasItsRestartsBack) {
    options.policies.restartLimit = 2;
    train(2);
    for (int i = 0; i < 4; ++i) {
        loseAndReturn(2);
        ASSERT_EQ(state(2), ReplicaState::kStarting) << i;
        catchUp(2);
        for (int n = 0; n < 8 && state(2) != ReplicaState::kTraining; ++n) {
            commit();
            say(2, following(2, machine->committedStep()));
        }
        ASSERT_EQ(state(2), ReplicaState::kTraining) << i;
    }
}

TEST_F(ReplicasTest, WhatIsHeldOrDrainedStaysOutAndItsIncidentEnds) {
    for (const bool drain : {false, true}) {
        now = kSecond;
        train(2);
        operate(drain ? OperationKind::kDrain : OperationKind::kHoldRejoin, 2);
        EXPECT_THAT(shown(2), IsEmpty()) << "it trains on";
        exits({2, 0});
        EXPECT_THAT(outcomes(), ElementsAre(drain ? "drained" : "held back"));
        EXPECT_THAT(shown(2), ElementsAre(drain ? ReplicaState::kDrained : ReplicaState::kHeld));
        voteAll();
        durable();
        pass(5 * kSecond, {}, {}, Phase::kExchange);
        EXPECT_THAT(actionsIn<StartReplica>(last), IsEmpty());
        operate(OperationKind::kReleaseRejoin, 2);
        EXPECT_EQ(startsNow(2), 1u);
        EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kStarting));
    }
}

/// Its loss is over: nobody waits for it to come back.
TEST_F(ReplicasTest, WhatBacksOffAndIsHeldOrDrainedEndsItsIncident) {
    for (const bool drain : {false, true}) {
        now = kSecond;
        train(2);
        exits({2, 0});
        exits({2, 0});
        ASSERT_EQ(state(2), ReplicaState::kBackingOff);
        operate(drain ? OperationKind::kDrain : OperationKind::kHoldRejoin, 2);
        EXPECT_THAT(outcomes(), ElementsAre(drain ? "drained" : "held back"));
        EXPECT_THAT(shown(2), ElementsAre(drain ? ReplicaState::kDrained : ReplicaState::kHeld));
        voteAll();
        durable();
        pass(2 * kSecond, {}, {}, Phase::kExchange);
        EXPECT_THAT(actionsIn<StartReplica>(last), IsEmpty());
    }
}

TEST_F(ReplicasTest, WhoIsOutIsDrainedOrHeldAtOnce) {
    options.policies.restartLimit = 1;
    for (const bool drain : {false, true}) {
        now = kSecond;
        train(2);
        exits({2, 0});
        exits({2, 0});
        ASSERT_EQ(state(2), ReplicaState::kFailed);
        operate(drain ? OperationKind::kDrain : OperationKind::kHoldRejoin, 2);
        EXPECT_EQ(answer(), "done");
        EXPECT_THAT(shown(2), ElementsAre(drain ? ReplicaState::kDrained : ReplicaState::kHeld));
    }
}

TEST_F(ReplicasTest, WhatCannotBeDoneIsAnsweredAndChangesNothing) {
    train(2);
    const auto refused = [this](OperationKind kind, int32_t replica = -1) {
        const uint64_t revision = machine->revision();
        const size_t orders = logged<LogOrders>().size();
        operate(kind, replica);
        EXPECT_EQ(machine->revision(), revision);
        EXPECT_EQ(logged<LogOrders>().size(), orders);
        EXPECT_FALSE(factsNow<fact::OperatorAnswered>().at(0).ok);
        return answer();
    };
    for (const auto kind : {OperationKind::kDrain, OperationKind::kHoldRejoin,
                            OperationKind::kReleaseRejoin, OperationKind::kRestartReplica})
        EXPECT_EQ(refused(kind, 9), "there is no replica 9");
    EXPECT_EQ(refused(OperationKind::kReleaseRejoin, 1),
              "r1 is neither held nor drained nor given up");
    EXPECT_EQ(refused(OperationKind::kResume), "the job is not paused");
    operate(OperationKind::kPause);
    EXPECT_EQ(answer(), "done");
    EXPECT_TRUE(logged<LogOrders>().back().paused);
    EXPECT_EQ(refused(OperationKind::kPause), "the job is paused already");
    operate(OperationKind::kResume);
    operate(OperationKind::kDrain, 2);
    EXPECT_EQ(refused(OperationKind::kDrain, 2), "r2 is drained already");
    voteAll();
    durable();
    ASSERT_EQ(state(2), ReplicaState::kDrained);
    EXPECT_EQ(refused(OperationKind::kRestartReplica, 2), "r2 is out; release it first");
    operate(OperationKind::kStop);
    EXPECT_EQ(refused(OperationKind::kPause), "the job is stopping");
    EXPECT_EQ(refused(OperationKind::kStop), "the job is stopping");
}

TEST_F(ReplicasTest, AnOperatorsRestartBeginsAtOnceAlsoWhileTheReplicaBacksOff) {
    train(2);
    operate(OperationKind::kRestartReplica, 2);
    EXPECT_EQ(answer(), "done");
    EXPECT_EQ(startsNow(2), 1u);
    EXPECT_EQ(factsNow<fact::IncidentOpened>().at(0).cause, EvidenceKind::kOperator);
    exits({2, 0});
    ASSERT_EQ(state(2), ReplicaState::kBackingOff);
    operate(OperationKind::kRestartReplica, 2);
    EXPECT_EQ(startsNow(2), 1u);
}

TEST_F(ReplicasTest, TheOnlyHolderOfAStepIsNotRestartedBeforeACheckpointHasIt) {
    options.replicas = 1;
    train(3);
    operate(OperationKind::kRestartReplica, 0);
    EXPECT_THAT(answer(), HasSubstr("r0 alone holds step 3, which is in no checkpoint"));
    EXPECT_EQ(state(0), ReplicaState::kTraining);
    options.replicas = 2;
    train(3);
    operate(OperationKind::kRestartReplica, 0);
    EXPECT_EQ(answer(), "done") << "r1 holds it as well";
}

TEST_F(ReplicasTest, AStartThatTakesTooLongEndsAndOneThatGetsOnDoesNot) {
    options.timeouts.startMs = 3000;
    train(2);
    exits({2, 0});
    voteAll();
    durable();
    ASSERT_EQ(state(2), ReplicaState::kStarting);
    pass(2900 * kMillisecond, {2}, {}, Phase::kExchange);
    EXPECT_EQ(view(2).incarnation, 2u);
    pass(400 * kMillisecond, {2}, {}, Phase::kExchange);
    EXPECT_THAT(sentNow<Expelled>(2), SizeIs(1));
}

// ---- drains that would lose a step

TEST_F(ReplicasTest, TheLastThatHoldsTheStateLeavesWhenItsCheckpointIsWritten) {
    options.replicas = 1;
    train(3);
    operate(OperationKind::kDrain, 0);
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty());
    voteAll();
    durable();
    ASSERT_EQ(machine->committedStep(), 4u);
    std::vector<Commit> asked;
    for (const Commit& c : sentNow<Commit>(0))
        if (c.checkpoint) asked.push_back(c);
    ASSERT_THAT(asked, SizeIs(1));
    EXPECT_EQ(asked[0].record.step, 4u);
    EXPECT_FALSE(asked[0].dataPosition.empty());
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty());
    CheckpointDone done{0, 1, 4, 0, "/c/4", 1, 1, false, "disk full"};
    say(0, done);
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty());
    EXPECT_THAT(sentNow<Commit>(0), IsEmpty()) << "it is not tried again at once";
    pass(600 * kMillisecond);
    ASSERT_THAT(sentNow<Commit>(0), SizeIs(1)) << "but soon";
    done.ok = true;
    done.incarnation = 9;
    say(0, done);
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty()) << "not of this incarnation";
    done.incarnation = 1;
    say(0, done);
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty()) << "it told no hash of that state";
    tell({0}, 4);
    EXPECT_THAT(sentNow<Leave>(0), SizeIs(1));
    EXPECT_THAT(shown(0), ElementsAre(ReplicaState::kDrained));
    EXPECT_EQ(logged<LogCheckpoint>().at(0).path, "/c/4");
    EXPECT_EQ(logged<LogCheckpoint>().at(0).step, 4u);
}

/// Its state is sound and all there is: it goes into a checkpoint before the process is replaced.
TEST_F(ReplicasTest, TheLastThatHoldsTheStateIsNotPutOutForItsGradients) {
    options.replicas = 1;
    train(3);
    for (int i = 0; i < 3; ++i) {
        EXPECT_NE(machine->openStep(), 0u);
        ReplicaVote v = no(0);
        v.nonFiniteLocal = true;
        say(0, v);
    }
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
    EXPECT_EQ(machine->openStep(), 0u) << "nothing more is asked of it";
    EXPECT_THAT(machine->explanation(), HasSubstr("nobody but r0 holds it"));
    const auto asked = sentNow<Commit>(0);
    ASSERT_THAT(asked, SizeIs(1));
    EXPECT_TRUE(asked[0].checkpoint);
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty());
    const LogCheckpoint written = [&] {
        tell({0}, 3);
        say(0, CheckpointDone{0, 1, 3, 0, "/c/3", 1, 1, true, ""});
        return logged<LogCheckpoint>().at(0);
    }();
    EXPECT_THAT(sentTo<Leave>(0), SizeIs(1));
    EXPECT_EQ(facts<fact::IncidentOpened>().back().cause, EvidenceKind::kNonFinite);
    pass(100 * kMillisecond, {0});
    found({written});
    EXPECT_EQ(machine->committedStep(), 3u);
    pass(2 * options.timeouts.backoffFirstMs * kMillisecond, {0});
    EXPECT_EQ(view(0).incarnation, 2u);
}

/// Its ranks stay with their votes on the step that was made void, and tell nothing else.
TEST_F(ReplicasTest, TheLastThatHoldsTheStateLeavesThoughItNeverTellsItsHash) {
    options.replicas = 1;
    train(3);
    for (int i = 0; i < 3; ++i) {
        ReplicaVote v = no(0);
        v.nonFiniteLocal = true;
        say(0, v);
    }
    ASSERT_THAT(sentNow<Commit>(0), SizeIs(1));
    say(0, CheckpointDone{0, 1, 3, 0, "/c/3", 1, 1, true, ""});
    pass(100 * kMillisecond, {0});
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty()) << "it is asked for its hash";
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty());
    for (int i = 0; i < 100 && sentTo<Leave>(0).empty(); ++i) pass(100 * kMillisecond, {0});
    EXPECT_THAT(logged<LogCheckpoint>(), SizeIs(1));
    EXPECT_THAT(sentTo<Leave>(0), SizeIs(1));
}

/// Another holds the state by the time that it leaves: by the policy it does not go alone.
TEST_F(ReplicasTest, WhoLeavesForItsGradientsTakesAllBackWhereThePolicySaysSo) {
    for (const auto recovery : {RecoveryPolicy::kFt, RecoveryPolicy::kRestartAll}) {
        everything.clear();
        options.replicas = 2;
        train(3);
        loseAndReturn(1);
        catchUp(1);
        Operation change;
        change.kind = OperationKind::kSetPolicies;
        change.policies = machine->policies();
        change.policies.recovery = recovery;
        step(change);
        for (int i = 0; i < 3; ++i) {
            ReplicaVote v = no(0);
            v.nonFiniteLocal = true;
            say(0, v);
        }
        ASSERT_EQ(machine->openStep(), 0u);
        EXPECT_THAT(sentTo<Leave>(0), IsEmpty());
        say(0, reportOf(0, machine->committedStep()));
        ASSERT_EQ(state(1), ReplicaState::kProven);
        EXPECT_THAT(sentTo<Leave>(0), SizeIs(1));
        const bool back = !actionsIn<FindCheckpoints>(everything).empty();
        pass(10 * kMillisecond, {0});
        EXPECT_EQ(back || !actionsIn<FindCheckpoints>(last).empty(),
                  recovery == RecoveryPolicy::kRestartAll);
    }
}

TEST_F(ReplicasTest, OneOfSeveralIsPutOutForItsGradientsAtOnce) {
    train(3);
    for (int i = 0; i < 2; ++i)
        for (const int32_t r : {0, 1, 2}) {
            ReplicaVote v = no(r);
            v.nonFiniteLocal = r == 1;
            say(r, v);
        }
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
}

/// Attempts that fail with nobody to blame are made again, not in a tight loop.
TEST_F(ReplicasTest, AttemptsThatFailUnexplainedAreMadeMoreAndMoreSeldom) {
    options.replicas = 1;
    train(3);
    const auto attempt = [&] { return quorum().attempt; };
    say(0, no(0));
    EXPECT_EQ(attempt(), 2u) << "the first again at once";
    std::vector<double> took;  // ms
    for (uint32_t n = 2; n < 12; ++n) {
        say(0, no(0));
        const MonoNs from = now;
        while (attempt() == n && now - from < 10 * kSecond) pass(kMillisecond);
        ASSERT_EQ(attempt(), n + 1);
        took.push_back(inMs(now - from));
    }
    EXPECT_NEAR(took.front(), 20, 2);
    EXPECT_TRUE(std::is_sorted(took.begin(), took.end()));
    EXPECT_NEAR(took.back(), 1000, 2);
    EXPECT_EQ(view(0).incarnation, 1u);
    commit();
}

TEST_F(ReplicasTest, OfTwoThatAreDrainedTogetherTheLastOneWritesTheState) {
    options.replicas = 2;
    train(3);
    operate(OperationKind::kDrain, 0);
    operate(OperationKind::kDrain, 1);
    voteAll();
    durable();
    size_t writing = 0;
    for (const int32_t r : {0, 1})
        for (const Commit& c : sentNow<Commit>(r)) writing += c.checkpoint;
    EXPECT_GE(writing, 1u);
    EXPECT_THAT(sentTo<Leave>(0).size() + sentTo<Leave>(1).size(), ::testing::Le(1u));
}

TEST_F(ReplicasTest, WhoHoldsNothingThatOthersDoNotLeavesAtOnce) {
    train(3);
    loseAndReturn(2);
    say(2, blank(2));
    operate(OperationKind::kDrain, 2);
    EXPECT_THAT(sentNow<Leave>(2), SizeIs(1));
    EXPECT_THAT(outcomes(), ElementsAre("drained"));
    EXPECT_THAT(sentNow<Abort>(0), IsEmpty());
}

// ---- back to a checkpoint

TEST_F(ReplicasTest, WhenNobodyHoldsTheStateTheJobGoesBackAsFarAsTheDiskSays) {
    train(3);
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    ASSERT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
    const uint64_t term = machine->term();
    LogCheckpoint c = checkpoint(2, "/c/2");
    found({c});
    EXPECT_EQ(machine->lineage(), 2u);
    EXPECT_EQ(machine->committedStep(), 2u);
    ASSERT_THAT(factsNow<fact::LineageOpened>(), SizeIs(1));
    const auto opened = factsNow<fact::LineageOpened>()[0];
    EXPECT_EQ(opened.fromStep, 2u);
    EXPECT_EQ(opened.term, term);
    EXPECT_THAT(opened.why, HasSubstr("back from step 3 to 2"));
    EXPECT_EQ(opened.link, logged<LogLineage>().back().link);
    EXPECT_EQ(logged<LogCheckpoint>().back().path, "/c/2") << "the log did not know it";
    found({c});
    EXPECT_EQ(machine->lineage(), 2u) << "nobody asked";
    for (const int32_t r : {0, 1, 2}) up(r);
    EXPECT_EQ(sentTo<Welcome>(1).back().resumeFrom, "/c/2");
    EXPECT_FALSE(sentTo<ReplicaFormed>(1).back().blank);
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 2));
    EXPECT_EQ(machine->openStep(), 3u);
    EXPECT_EQ(quorum().lineage, 2u);
    EXPECT_EQ(quorum().afterEpoch, 0u);
    commit();
    // Hashes of before count no more: whoever joins now is compared with this lineage's.
    EXPECT_EQ(machine->committedStep(), 3u);
}

TEST_F(ReplicasTest, EverybodyWhoRunsIsFencedByARollbackExceptWhoHasOnlyJustBegun) {
    options.policies.recovery = RecoveryPolicy::kRestartAll;
    options.replicas = 4;
    train(3);
    operate(OperationKind::kHoldRejoin, 1);
    exits({3, 0});
    found();
    ASSERT_EQ(machine->lineage(), 2u);
    for (const int32_t r : {0, 1, 2}) {
        EXPECT_THAT(sentNow<Expelled>(r), SizeIs(1)) << r;
        EXPECT_EQ(startsNow(r), r == 1 ? 0u : 1u);
    }
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kHeld));
    EXPECT_EQ(view(0).incarnation, 2u);
    // No rank of theirs has said hello: another rollback does not cost them their start.
    step(StartFailed{0, 2, "no room"});
    EXPECT_EQ(view(2).incarnation, 2u);
}

/// A step that was committed before, and undone since, is no progress.
TEST_F(ReplicasTest, AJobThatFailsBehindTheSameStepEachTimeIsGivenUp) {
    for (const bool restartAll : {false, true}) {
        options.policies.restartLimit = 3;
        if (restartAll) options.policies.recovery = RecoveryPolicy::kRestartAll;
        train(3);
        for (int32_t i = 0; i < 3; ++i) {
            for (const int32_t r : {0, 1, 2})
                if (!restartAll || r == i) exits({r, 0});
            found();
            now += 2 * kSecond;
            step(Tick{});
            for (const int32_t r : {0, 1, 2}) up(r);
            for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 0));
            while (machine->committedStep() < 3) commit();
            for (const int32_t r : {0, 1, 2}) ASSERT_EQ(state(r), ReplicaState::kTraining) << i;
        }
        for (const int32_t r : {0, 1, 2})
            if (!restartAll || r == 0) exits({r, 0});
        found();
        const auto why = facts<fact::ReplicaChanged>().back().why;
        for (const int32_t r : {1, 2}) EXPECT_EQ(state(r), ReplicaState::kFailed);
        if (restartAll)
            EXPECT_THAT(why, HasSubstr("went back 4 times and came no further than step 3"));
        else
            EXPECT_THAT(why, HasSubstr("given up after 3 restarts"));
        if (restartAll) continue;
        const auto waits = [this] {
            now += 2 * kSecond;
            step(Tick{});
            return facts<fact::JobPhaseChanged>();
        };
        const auto told = waits();
        EXPECT_THAT(told.back().why, HasSubstr("an operator to release r0, r1, r2, the last one"));
        EXPECT_THAT(waits(), SizeIs(told.size())) << "what does not change is told once";
    }
}

TEST_F(ReplicasTest, ACheckpointThatNobodyCanReadIsDroppedForTheOneBefore) {
    train(3);
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    const LogCheckpoint one = checkpoint(1, "/c/1");
    found({one, checkpoint(2, "/c/2")});
    ASSERT_EQ(machine->committedStep(), 2u);
    for (const int32_t r : {0, 1, 2}) up(r);
    say(0, CheckpointUnusable{0, 2, "/c/1", "another one"});
    say(0, CheckpointUnusable{0, 9, "/c/2", "stale"});
    EXPECT_THAT(evidence(), IsEmpty());
    for (const int32_t r : {0, 1}) {
        say(r, CheckpointUnusable{r, 2, "/c/2", "bad magic"});
        EXPECT_THAT(evidence(), SizeIs(1));
        say(r, blank(r));
        EXPECT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(1)) << "others may be able to";
    }
    say(2, CheckpointUnusable{2, 2, "/c/2", "bad magic"});
    ASSERT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
    found({one, checkpoint(2, "/c/2")});
    EXPECT_EQ(machine->lineage(), 3u);
    EXPECT_EQ(machine->committedStep(), 1u) << "the damaged one is on disk still";
    ASSERT_THAT(logged<LogCheckpointsDropped>(), SizeIs(1));
    EXPECT_TRUE(logged<LogCheckpointsDropped>()[0].unusable);
    EXPECT_THAT(logged<LogCheckpointsDropped>()[0].paths, ElementsAre("/c/2"));
}

TEST_F(ReplicasTest, WhoCannotReadTheCheckpointFetchesFromWhoCould) {
    train(3);
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    found({checkpoint(2, "/c/2")});
    for (const int32_t r : {0, 1, 2}) up(r);
    say(0, CheckpointUnusable{0, 2, "/c/2", "bad magic"});
    say(1, reportOf(1, 2));
    say(0, blank(0));
    EXPECT_THAT(shown(0), ElementsAre(ReplicaState::kFetching));
    EXPECT_EQ(sentNow<KeepSnapshot>(1).size(), 1u);
    say(2, CheckpointUnusable{2, 2, "/c/2", "bad magic"});
    say(2, blank(2));
    EXPECT_EQ(machine->lineage(), 2u);
    say(1, SnapshotReady{1, 2, 2});
    EXPECT_THAT(sentNow<Fetch>(0), SizeIs(1));
    exits({0, 0});
    pass(2 * options.timeouts.backoffFirstMs * kMillisecond);
    ASSERT_EQ(view(0).incarnation, 3u);
    up(0);
    EXPECT_TRUE(sentTo<ReplicaFormed>(0).back().blank) << "it would only fail to read it again";
}

TEST_F(ReplicasTest, WithNoOtherCheckpointTheJobEndsAndNeverBeginsAnew) {
    options.replicas = 1;
    train(3);
    exits({0, 0});
    found({checkpoint(2, "/c/2")});
    up(0);
    say(0, CheckpointUnusable{0, 2, "/c/2", "bad magic"});
    found({checkpoint(2, "/c/2")});
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), IsEmpty());
    const auto end = facts<fact::RunFinished>();
    ASSERT_THAT(end, SizeIs(1));
    EXPECT_FALSE(end[0].ok);
    EXPECT_THAT(end[0].why, HasSubstr("/c/2 is damaged: bad magic"));
    EXPECT_THAT(end[0].why, HasSubstr("there is no other checkpoint"));
    EXPECT_EQ(machine->lineage(), 2u);
}

TEST_F(ReplicasTest, ExpertsMayMoveAgainAtAStepThatALineageBeforeMovedAt) {
    train(2);
    operate(OperationKind::kChangeLayout);
    commit();
    for (const int32_t r : {0, 1, 2}) say(r, LayoutMoved{r, 1, 3, 1, r != 1, 0, "no room"});
    ASSERT_FALSE(facts<fact::LayoutChanged>().at(0).ok);
    operate(OperationKind::kChangeLayout);
    EXPECT_THAT(answer(), HasSubstr("the last move is not part of a step yet"));
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    found();
    operate(OperationKind::kChangeLayout);
    EXPECT_THAT(answer(), HasSubstr("no step is committed yet"));
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 0));
    operate(OperationKind::kPause);
    for (int i = 0; i < 3; ++i) {
        if (machine->openStep() == 0) operate(OperationKind::kResume);
        if (machine->committedStep() == 2) operate(OperationKind::kPause);
        commit();
    }
    ASSERT_EQ(machine->committedStep(), 3u);
    operate(OperationKind::kChangeLayout);
    EXPECT_EQ(answer(), "done");
}

TEST_F(ReplicasTest, ARankThatIsAskedToEndTakesNoStepWithItAndReturns) {
    train(2);
    say(2, LeaveAsked{{2, 1}, 1});
    EXPECT_THAT(sentTo<Leave>(2), IsEmpty()) << "it is in the open step";
    commit();
    EXPECT_THAT(sentTo<Leave>(2), SizeIs(1)) << "others hold the state";
    EXPECT_EQ(view(2).state, ReplicaState::kBackingOff);
    for (const int32_t r : {0, 1}) say(r, LeaveAsked{{r, 0}, 1});
    commit();
    const uint64_t last = machine->committedStep();
    for (const int32_t r : {0, 1}) say(r, reportOf(r, last));
    EXPECT_THAT(sentTo<Leave>(0), IsEmpty()) << "nobody else will have it";
    EXPECT_THAT(sentTo<Leave>(1), IsEmpty());
    int32_t writer = -1;
    for (const int32_t r : {0, 1})
        for (const auto& c : sentTo<Commit>(r))
            if (c.checkpoint) writer = r;
    ASSERT_NE(writer, -1);
    say(writer, CheckpointDone{writer, 1, last, 0, "/c", 1, 1, true, ""});
    for (const int32_t r : {0, 1}) EXPECT_THAT(sentTo<Leave>(r), SizeIs(1)) << r;
    EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
}

// ---- while the job waits, reports tell what votes would

class WaitingTest : public ReplicasTest {
  protected:
    /// Too few to go on; those who train are idle, r3 is back and follows.
    void waits() {
        options.replicas = 4;
        train(3);
        operate(OperationKind::kPause);
        commit();
        ASSERT_EQ(machine->openStep(), 0u);
    }
};

TEST_F(WaitingTest, TheMinorityOfIdleContributorsGoesAndTheReasonIsTold) {
    waits();
    say(0, reportOf(0, 4));
    Report odd = reportOf(1, 4);
    odd.hashes[0] ^= 1;
    say(1, odd);
    say(2, reportOf(2, 4));
    EXPECT_THAT(evidence(), IsEmpty()) << "one is still to tell";
    Report old = reportOf(3, 3);
    say(3, old);
    EXPECT_THAT(evidence(), IsEmpty());
    say(3, reportOf(3, 4));
    EXPECT_THAT(evidence(), ElementsAre("r1 parity_mismatch"));
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_THAT(factsNow<fact::ParityDisputed>(), SizeIs(1));
    EXPECT_EQ(machine->lineage(), 1u);
}

TEST_F(WaitingTest, WhenIdleContributorsTieTheJobGoesBack) {
    waits();
    for (const int32_t r : {0, 1, 2, 3}) {
        Report report = reportOf(r, 4);
        report.hashes[1] += static_cast<uint64_t>(r % 2);
        say(r, report);
    }
    EXPECT_THAT(factsNow<fact::ParityDisputed>(), SizeIs(1));
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
    found();
    EXPECT_EQ(machine->lineage(), 2u);
    EXPECT_THAT(factsNow<fact::LineageOpened>().at(0).why,
                HasSubstr("states differ while the job waits"));
}

TEST_F(WaitingTest, AJoinerAsksForHashesAndIsProvenByThoseWhoTrain) {
    waits();
    exits({3, 0});
    up(3);
    say(3, blank(3));
    for (const int32_t r : {0, 1, 2}) say(r, SnapshotReady{r, 1, 4});
    ASSERT_THAT(sentNow<Fetch>(3), SizeIs(1));
    pass(150 * kMillisecond);
    EXPECT_THAT(sentNow<Welcome>(0), IsEmpty()) << "nobody needs to know";
    say(3, following(3, 4));
    EXPECT_EQ(state(3), ReplicaState::kReplaying);
    pass(150 * kMillisecond);
    for (const int32_t r : {0, 1, 2}) {
        EXPECT_THAT(sentNow<Welcome>(r), ::testing::Not(IsEmpty())) << r;
        EXPECT_THAT(sentNow<KeepSnapshot>(r), ::testing::Not(IsEmpty())) << r;
    }
    EXPECT_THAT(sentNow<Welcome>(3), IsEmpty());
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 4));
    EXPECT_THAT(shown(3), ElementsAre(ReplicaState::kProven));
    pass(250 * kMillisecond);
    EXPECT_THAT(sentNow<Welcome>(0), IsEmpty()) << "it is known now";
    operate(OperationKind::kResume);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2, 3));
    EXPECT_FALSE(quorum().contributors[3].entering) << "there is nothing to miss";
}

TEST_F(WaitingTest, ThreeJoinersThatComeToAnotherStateCondemnTheServedOne) {
    options.policies.restartLimit = 0;
    waits();
    for (const int32_t r : {0, 1, 2, 3}) say(r, reportOf(r, 4));
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(machine->lineage(), 1u);
        if (i == 0) exits({3, 0});
        if (state(3) == ReplicaState::kBackingOff) pass(2 * kSecond);
        up(3);
        say(3, blank(3));
        for (const int32_t r : {0, 1, 2}) say(r, SnapshotReady{r, 1, 4});
        Report wrong = following(3, 4);
        wrong.hashes[0] ^= 1;
        say(3, wrong);
        EXPECT_THAT(evidence(), ElementsAre("r3 parity_mismatch"));
    }
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
    found();
    EXPECT_EQ(machine->lineage(), 2u);
}

// ---- the end

TEST_F(ReplicasTest, AStoppedJobWritesItsLastStepSaysGoodbyeAndIsOverWhenAllHaveLeft) {
    train(3);
    operate(OperationKind::kStop);
    EXPECT_EQ(machine->phase(), JobPhase::kStopping);
    EXPECT_TRUE(logged<LogOrders>().back().stopping);
    voteAll();
    EXPECT_FALSE(quorums.contains(5)) << "nothing is begun any more";
    durable();
    int32_t writer = -1;
    for (const int32_t r : {0, 1, 2})
        for (const Commit& c : sentNow<Commit>(r))
            if (c.checkpoint) writer = r;
    ASSERT_GE(writer, 0);
    EXPECT_THAT(sentNow<Leave>(0), IsEmpty());
    tell({0, 1, 2}, 4);
    say(writer, CheckpointDone{writer, 1, 4, 0, "/c/4", 1, 1, true, ""});
    EXPECT_EQ(factsNow<fact::CheckpointWritten>().size(), 1u);
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentNow<Leave>(r), SizeIs(1));
    for (const auto& stop : actionsIn<StopReplica>(last)) EXPECT_FALSE(stop.kill);
    for (const int32_t r : {0, 1, 2}) {
        EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
        exits({r, 0}, 0);
        EXPECT_THAT(shown(r), ElementsAre(ReplicaState::kAbsent));
        EXPECT_THAT(factsNow<fact::IncidentOpened>(), IsEmpty()) << "it was told to";
    }
    ASSERT_THAT(factsNow<fact::RunFinished>(), SizeIs(1));
    EXPECT_TRUE(factsNow<fact::RunFinished>()[0].ok);
    EXPECT_EQ(factsNow<fact::RunFinished>()[0].step, 4u);
    EXPECT_THAT(logged<LogFinished>(), SizeIs(1));
}

TEST_F(ReplicasTest, WhoDoesNotLeaveAStoppedJobIsKilledAndHoldsItUpNoLonger) {
    options.timeouts.stopMs = 2000;
    train(3);
    Operation stop;
    stop.kind = OperationKind::kStop;
    stop.checkpoint = false;
    step(stop);
    voteAll();
    durable();
    exits({0, 0}, 0);
    exits({1, 0}, 0);
    pass(1900 * kMillisecond);
    EXPECT_THAT(facts<fact::RunFinished>(), IsEmpty());
    pass(300 * kMillisecond);
    ASSERT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    EXPECT_TRUE(facts<fact::RunFinished>()[0].ok);
    std::vector<int32_t> killed;
    for (const auto& s : actionsIn<StopReplica>(last))
        if (s.kill) killed.push_back(s.replica);
    EXPECT_THAT(killed, ElementsAre(2));
}

TEST_F(ReplicasTest, AReplicaThatIsLostWhileTheJobStopsIsNotStartedAgain) {
    train(3);
    operate(OperationKind::kStop);
    exits({1, 0});
    EXPECT_EQ(startsNow(1), 0u);
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kAbsent));
    pass(5 * kSecond);
    EXPECT_EQ(startsNow(1), 0u);
}

TEST_F(ReplicasTest, ACheckpointThatCannotBeWrittenIsTriedByTurnsAndEverMoreSeldom) {
    options.replicas = 2;
    train(3);
    operate(OperationKind::kStop);
    voteAll();
    durable();
    const auto asked = [this] {
        std::vector<int32_t> who;
        for (const int32_t r : {0, 1})
            for (const Commit& c : sentTo<Commit>(r))
                if (c.checkpoint) who.push_back(r);
        return who;
    };
    ASSERT_THAT(asked(), SizeIs(1));
    int32_t writer = asked()[0];
    for (const MonoNs pause : {500, 1000, 2000, 4000, 8000, 16000, 16000}) {
        everything.clear();
        say(writer, CheckpointDone{writer, 1, 4, 0, "", 0, 0, false, "disk full"});
        EXPECT_EQ(machine->phase(), JobPhase::kStopping);
        EXPECT_THAT(machine->explanation(), HasSubstr("disk full"));
        pass((pause - 50) * kMillisecond);
        EXPECT_THAT(asked(), IsEmpty()) << pause;
        pass(300 * kMillisecond);
        ASSERT_THAT(asked(), ElementsAre(1 - writer)) << pause;
        writer = 1 - writer;
    }
    EXPECT_THAT(sentTo<Leave>(0), IsEmpty());
    tell({0, 1}, 4);
    say(writer, CheckpointDone{writer, 1, 4, 0, "/c/4", 1, 1, true, ""});
    EXPECT_THAT(sentNow<Leave>(0), SizeIs(1));
    for (const int32_t r : {0, 1}) exits({r, 0}, 0);
    ASSERT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    EXPECT_TRUE(facts<fact::RunFinished>()[0].ok);
}

TEST_F(ReplicasTest, ACoordinatorThatWasNotRunBlamesNobodyForItsOwnAbsence) {
    train(2);
    say(0, no(0));
    now += 20 * kSecond;
    step(Tick{});
    EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty());
    EXPECT_THAT(evidence(), IsEmpty());
    pass(kSecond, {1}, {}, Phase::kVote);
    EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty());
    pass(1500 * kMillisecond, {1}, {}, Phase::kVote);
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1)) << "what is missed since then counts";
}

TEST_F(ReplicasTest, TheFirstStepWaitsForAllSoLongAndNoLonger) {
    options.timeouts.joinMs = 3000;
    begin();
    const MonoNs begun = now;
    up(0);
    say(0, reportOf(0, 0));
    EXPECT_EQ(machine->openStep(), 0u);
    EXPECT_EQ(machine->phase(), JobPhase::kStarting);
    EXPECT_THAT(machine->explanation(), HasSubstr("waiting for r1 (starting), r2 (starting)"));
    pass(2900 * kMillisecond - (now - begun), {1, 2});
    EXPECT_EQ(machine->openStep(), 0u);
    pass(150 * kMillisecond, {1, 2});
    EXPECT_EQ(machine->openStep(), 1u);
    EXPECT_THAT(members(quorum()), ElementsAre(0));
    EXPECT_EQ(machine->phase(), JobPhase::kTraining);
}

TEST_F(ReplicasTest, TheDeadlineOfTheFirstStepIsMetToTheMillisecond) {
    options.timeouts.joinMs = 3030;
    begin();
    const MonoNs begun = now;
    up(0);
    say(0, reportOf(0, 0));
    pass(3029 * kMillisecond - (now - begun), {1, 2});
    EXPECT_EQ(machine->openStep(), 0u);
    pass(2 * kMillisecond, {1, 2});
    EXPECT_EQ(machine->openStep(), 1u);
}

// ---- which processes are its own

TEST_F(ReplicasTest, ProcessesOfAnotherLifeAreEndedAndOnlyOfAnEarlierOne) {
    train(2);
    step(RankRunning{{1, 0}, 1, 1, "n"});
    EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty());
    step(RankRunning{{1, 0}, 9, 1, "n"});
    EXPECT_THAT(actionsIn<StopReplica>(last), IsEmpty()) << "of which nothing is known";
    EXPECT_EQ(view(1).incarnation, 1u) << "no inventory is taken: it is not adopted";
    exits({1, 0});
    step(RankRunning{{1, 1}, 1, 1, "n"});
    ASSERT_THAT(actionsIn<StopReplica>(last), SizeIs(1));
    EXPECT_EQ(actionsIn<StopReplica>(last)[0].incarnation, 1u);
    hello({1, 1}, 1);
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
}

TEST_F(ReplicasTest, ANewCoordinatorAdoptsByAHelloAndTakesNobodyBackItHasLetGo) {
    begin(past(3));
    greets(0);
    EXPECT_THAT(sentTo<Welcome>(0), SizeIs(2));
    EXPECT_THAT(sentTo<ReplicaFormed>(0), SizeIs(1));
    runs(1);
    exits({1, 0});
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    hello({1, 1}, 1);
    EXPECT_THAT(sentNow<Welcome>(1), IsEmpty()) << "it was let go";
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    hello({2, 0}, 0);
    EXPECT_THAT(sentNow<Welcome>(2), IsEmpty()) << "an earlier life";
    step(InventoryDone{});
    EXPECT_EQ(startsNow(0), 0u);
    EXPECT_EQ(startsNow(2), 1u);
}

TEST_F(ReplicasTest, ATextThatTheJobNamesIsAskedOfTheFirstRankToo) {
    options.corpusHash = 77;
    begin();
    hello({0, 0}, 1);
    EXPECT_THAT(sentNow<Expelled>(0), SizeIs(1));
    Hello h;
    h.endpoint.rank = {1, 0};
    h.endpoint.incarnation = 1;
    h.corpusHash = 77;
    h.device = "cpu";
    step(Received{{1, 0}, h});
    EXPECT_THAT(sentNow<Welcome>(1), SizeIs(1));
}

TEST_F(ReplicasTest, ALossBeginsWhenItsAgentSawItAndCostsAllWhoWaited) {
    train(2);
    const MonoNs seen = now - 3 * kMillisecond;
    step(RankExited{{2, 1}, 1, 0, 0, "n7", seen, "", false});
    EXPECT_EQ(factsNow<fact::IncidentOpened>().at(0).title,
              "r2 lost: r2s1 is gone, and nobody saw how it ended");
    EXPECT_EQ(factsNow<fact::IncidentPhase>().at(0).begin, seen);
    EXPECT_EQ(factsNow<fact::IncidentPhase>()[0].end, now);
    const MonoNs decided = now;
    say(0, no(0));
    say(1, no(1));
    const double stall = static_cast<double>(now - decided + decided - seen) / kMillisecond;
    commit();
    operate(OperationKind::kHoldRejoin, 2);
    exits({2, 0});
    const auto closed = facts<fact::IncidentClosed>();
    ASSERT_FALSE(closed.empty());
    EXPECT_DOUBLE_EQ(closed[0].survivorStallMs, stall);
    EXPECT_DOUBLE_EQ(closed[0].replicaSeconds,
                     (static_cast<double>(now - seen) / kMillisecond + 2 * stall) / 1000)
        << "two were waiting";
    EXPECT_EQ(closed[0].samplesRedone, options.samplesPerReplica);
}

// ---- who is waited for

TEST_F(ReplicasTest, WhoStaysOutIsNotWaitedForAndWhoIsOnItsWayIs) {
    begin();
    up(0);
    say(0, reportOf(0, 0));
    operate(OperationKind::kHoldRejoin, 1);
    operate(OperationKind::kDrain, 2);
    EXPECT_EQ(machine->openStep(), 0u) << "r1 is held when it is lost, not before";
    EXPECT_THAT(machine->explanation(), HasSubstr("waiting for r1 (starting)"));
    exits({1, 0});
    EXPECT_EQ(machine->openStep(), 1u);
    EXPECT_THAT(members(quorum()), ElementsAre(0));
}

TEST_F(ReplicasTest, NobodyWaitsForASpareNorForWhoWasGivenUp) {
    options.spares = 1;
    options.policies.restartLimit = 1;
    begin();
    for (const int32_t r : {0, 1}) up(r), say(r, reportOf(r, 0));
    EXPECT_EQ(machine->openStep(), 0u);
    exits({2, 0});
    exits({2, 0});
    ASSERT_EQ(state(2), ReplicaState::kFailed);
    EXPECT_EQ(machine->openStep(), 1u);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1));
}

TEST_F(ReplicasTest, PeopleSeeWhenTheLastRankOfAReplicaWasHeard) {
    begin();
    for (const int32_t r : {0, 1}) up(r);
    const MonoNs heard = now;
    say(0, reportOf(0, 0));
    EXPECT_EQ(view(2).oldestBeat, 0) << "none came yet";
    for (int i = 0; i < 3; ++i) {
        now += 99 * kMillisecond;
        step(Received{{1, 0}, Beat{{1, 0}, 1, Phase::kIdle, 0, 0}});
        step(Received{{1, 9}, Beat{{1, 9}, 1, Phase::kIdle, 0, 0}});
        step(Received{{1, -1}, Beat{{1, -1}, 1, Phase::kIdle, 0, 0}});
        step(Received{{1, 2}, Beat{{1, 2}, 1, Phase::kIdle, 0, 0}});
    }
    EXPECT_EQ(view(1).oldestBeat, heard) << "r1s1 says nothing";
    pass(kSecond, {1, 2});
    EXPECT_THAT(machine->explanation(), HasSubstr("r1 (starting, last beat 1."));
    EXPECT_THAT(machine->explanation(), HasSubstr("r2 (starting), "));
}

TEST_F(ReplicasTest, PeopleSeeThatARankOfASuspectIsAwayWhileTheOthersBeat) {
    options.shards = 2;
    options.policies.minReplicas = 1;
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r);
    for (const RankId there : {RankId{0, 0}, {1, 0}, {2, 1}}) hello(there, 1);
    step(InventoryDone{});
    for (int i = 0; i < 400 && machine->explanation().find("suspected") == std::string::npos; ++i) {
        now += 50 * kMillisecond;
        for (const RankId there : {RankId{0, 0}, {1, 0}, {2, 1}})
            step(Received{there, Beat{there, 1, Phase::kIdle, 0, 0}});
        step(Tick{});
    }
    EXPECT_THAT(machine->explanation(),
                HasSubstr("r0 (suspected, 1 of 2 ranks is heard of, last "));
}

TEST_F(ReplicasTest, AReplicaThatIsUpAndNeverTellsWhatItHoldsGoes) {
    options.timeouts.startMs = 3000;
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    for (const int32_t r : {0, 1}) say(r, reportOf(r, 3));
    pass(2900 * kMillisecond);
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
    pass(300 * kMillisecond);
    EXPECT_THAT(sentTo<Expelled>(2), SizeIs(1));
}

// ---- leaving

TEST_F(ReplicasTest, WhoAsksToLeaveWhileAStepIsWrittenIsNotInTheNext) {
    train(2);
    voteAll();
    say(2, LeaveAsked{{2, 1}, 1});
    ASSERT_THAT(factsNow<fact::EvidenceSeen>(), SizeIs(1));
    EXPECT_THAT(factsNow<fact::EvidenceSeen>()[0].detail,
                HasSubstr("r2s1 was asked to end by a signal"));
    EXPECT_THAT(members(quorums.at(4)), ElementsAre(0, 1));
    say(2, LeaveAsked{{2, 0}, 1});
    EXPECT_THAT(factsNow<fact::EvidenceSeen>(), IsEmpty()) << "it is known";
    say(2, LeaveAsked{{2, 0}, 7});
    durable();
    EXPECT_THAT(sentNow<Leave>(2), SizeIs(1));
    const auto opened = factsNow<fact::IncidentOpened>();
    ASSERT_THAT(opened, SizeIs(1));
    EXPECT_EQ(opened[0].title, "r2 left: asked to end by a signal");
    EXPECT_THAT(facts<fact::StepRedone>(), IsEmpty());
    step(Tick{});
    EXPECT_EQ(startsNow(2), 1u);
}

TEST_F(ReplicasTest, WhoAsksToLeaveAJobThatStopsLeavesWithTheOthers) {
    train(2);
    say(2, LeaveAsked{{2, 1}, 1});
    operate(OperationKind::kStop);
    voteAll();
    durable();
    EXPECT_THAT(sentTo<Leave>(2), IsEmpty()) << "a checkpoint is written first";
    int32_t writer = -1;
    for (const int32_t r : {0, 1, 2})
        for (const Commit& c : sentNow<Commit>(r))
            if (c.checkpoint) writer = r;
    ASSERT_GE(writer, 0);
    tell({0, 1, 2}, 3);
    say(writer, CheckpointDone{writer, 1, 3, 0, "/c/3", 1, 1, true, ""});
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentTo<Leave>(r), SizeIs(1)) << r;
    EXPECT_THAT(facts<fact::IncidentOpened>(), IsEmpty());
}

// ---- ways back

TEST_F(ReplicasTest, NumbersThatACheckpointShowsAreNotUsedAgain) {
    train(3);
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    LogCheckpoint c = checkpoint(2, "/c/2");
    c.lineage = 7;
    c.layout = 5;
    c.expertShard = {1, 0};
    found({c});
    EXPECT_EQ(machine->lineage(), 8u);
    EXPECT_EQ(factsNow<fact::LayoutChanged>().at(0).layout, 5u);
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) {
        Report report = reportOf(r, 2);
        report.layout = report.moved = 5;
        say(r, report);
    }
    commit();
    operate(OperationKind::kChangeLayout);
    EXPECT_EQ(logged<LogLayoutTried>().back().layout, 6u);
}

TEST_F(ReplicasTest, ACheckpointIsGivenUpWhenNobodyWhoMayComeCanReadIt) {
    for (const bool held : {true, false}) {
        SCOPED_TRACE(held);
        now = kSecond;
        everything.clear();
        options.timeouts.joinMs = 3000;
        train(3);
        for (const int32_t r : {0, 1, 2}) exits({r, 0});
        found({checkpoint(1, "/c/1"), checkpoint(2, "/c/2")});
        everything.clear();
        if (held) {
            operate(OperationKind::kHoldRejoin, 2);
            exits({2, 0});
        }
        for (const int32_t r : {0, 1}) {
            up(r);
            EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
            say(r, CheckpointUnusable{r, view(r).incarnation, "/c/2", "bad magic"});
            if (!held || r == 0) say(r, blank(r));
        }
        EXPECT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(held ? 1 : 0));
        if (held) continue;
        pass(3300 * kMillisecond, {2});
        EXPECT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(1)) << "r2 does not come";
    }
}

TEST_F(ReplicasTest, AComplaintOfACheckpointAfterStepsWereCommittedChangesNothing) {
    train(3);
    for (const int32_t r : {0, 1, 2}) exits({r, 0});
    found({checkpoint(2, "/c/2")});
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 2));
    commit();
    say(2, CheckpointUnusable{2, view(2).incarnation, "/c/2", "bad magic"});
    EXPECT_THAT(evidence(), IsEmpty());
    for (const int32_t r : {0, 1}) say(r, CheckpointUnusable{r, view(r).incarnation, "/c/2", "x"});
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), IsEmpty());
    commit();
}

TEST_F(ReplicasTest, WithRestartAllOnlyWhoTrainedTakesEverybodyBack) {
    options.policies.recovery = RecoveryPolicy::kRestartAll;
    begin();
    up(0);
    say(0, reportOf(0, 0));
    step(StartFailed{2, 1, "no room"});
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
    step(StartFailed{2, 9, "of another life"});
    step(StartFailed{9, 1, "nobody's"});
    exits({0, 0});
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(1));
}

TEST_F(ReplicasTest, OnlyFollowersOfTheLastCommitAsItLiesStandInForWhoTrained) {
    begin(past(3));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    Report behind = following(0, 1);
    say(0, behind);
    Report elsewhere = following(1, 3);
    elsewhere.layout = 4;
    say(1, elsewhere);
    Report idle = following(2, 3);
    idle.ready = false;
    say(2, idle);
    for (const int32_t r : {0, 1, 2}) EXPECT_NE(state(r), ReplicaState::kProven) << r;
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1)) << "nobody holds the state";
}

}  // namespace
}  // namespace bulkhead::protocol
