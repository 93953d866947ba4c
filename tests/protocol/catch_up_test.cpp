// SPDX-License-Identifier: Apache-2.0
// Catch-up of a replica that lost its state: the source of its snapshot, the snapshot's release,
// the joiner's proof, and the loss of its sources.
#include "tests/protocol/machine_script.h"

namespace bulkhead::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CatchUpTest : public MachineScript {
  protected:
    /// r2 was lost after two steps and is back without a state; the third is committed, the fourth
    /// is open, and the snapshots of it are ordered.
    void joinerAsks() {
        train(2);
        loseAndReturn(2);
        say(2, blank(2));
        snapshot = 4;
    }
    void sourceReady(int32_t replica) {
        say(replica, SnapshotReady{replica, view(replica).incarnation, snapshot});
    }
    /// The joiner pulls from r0 and r1.
    void fetching() {
        joinerAsks();
        commit();
        sourceReady(0);
        sourceReady(1);
        ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    }
    /// It has the state, and replays.
    void replaying() {
        fetching();
        say(2, FetchProgress{2, 2, snapshot, 0, 0, snapshot});
        ASSERT_THAT(shown(2), ElementsAre(ReplicaState::kReplaying));
    }
    void failed(bool outOfWindow, std::vector<int32_t> sources) {
        say(2, FetchFailed{2, 2, snapshot, outOfWindow, std::move(sources), "no answer"});
    }
    static std::vector<int32_t> sources(const Fetch& f) {
        std::vector<int32_t> ids;
        for (const Member& m : f.sources) ids.push_back(m.contribution.replica);
        return ids;
    }
    static std::vector<std::pair<uint64_t, bool>> orders(const std::vector<KeepSnapshot>& sent) {
        std::vector<std::pair<uint64_t, bool>> out;
        for (const KeepSnapshot& k : sent) out.emplace_back(k.step, k.keep);
        return out;
    }
    static std::pair<uint64_t, bool> keep(uint64_t step) { return {step, true}; }
    static std::pair<uint64_t, bool> drop(uint64_t step) { return {step, false}; }

    uint64_t snapshot = 0;
};

TEST_F(CatchUpTest, WhoTrainsKeepsTheStateAfterTheStepInFlightAndTheJoinerPullsJustThat) {
    joinerAsks();
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
    EXPECT_EQ(factsNow<fact::ReplicaChanged>()[0].why, "it has no state yet");
    ASSERT_EQ(machine->openStep(), 4u);
    for (const int32_t source : {0, 1})
        EXPECT_THAT(orders(sentNow<KeepSnapshot>(source)), ElementsAre(keep(4))) << source;
    EXPECT_THAT(sentNow<KeepSnapshot>(2), IsEmpty());
    const Secret key = sentNow<KeepSnapshot>(0)[0].key;
    EXPECT_FALSE(key == Secret{});
    // A source may be early: nobody pulls a step that is not committed.
    sourceReady(0);
    sourceReady(1);
    EXPECT_THAT(sentNow<Fetch>(2), IsEmpty());
    const uint64_t epoch = quorum().epoch;
    commit();
    ASSERT_THAT(sentTo<Fetch>(2), IsEmpty());
    sourceReady(1);
    const auto sent = sentNow<Fetch>(2);
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_THAT(sources(sent[0]), ElementsAre(0, 1));
    EXPECT_EQ(sent[0].snapshotStep, 4u);
    EXPECT_EQ(sent[0].snapshotEpoch, epoch);
    EXPECT_EQ(sent[0].key, key);
    EXPECT_EQ(sent[0].lineage, 1u);
    EXPECT_EQ(sent[0].sources[1].ranks.at(1).state, address({1, 1}));
}

TEST_F(CatchUpTest, WhoIsToBeDrainedIsNoSource) {
    train(2);
    exits({2, 0});
    operate(OperationKind::kDrain, 1);
    up(2);
    say(2, blank(2));
    EXPECT_THAT(sentTo<KeepSnapshot>(1), IsEmpty());
    EXPECT_THAT(sentTo<KeepSnapshot>(0), SizeIs(1));
}

TEST_F(CatchUpTest, AFetchBeginsWithoutALateSourceWhichThenSpeedsItUp) {
    joinerAsks();
    commit();
    sourceReady(1);
    EXPECT_THAT(sentNow<Fetch>(2), IsEmpty());
    pass(150 * kMillisecond);
    EXPECT_THAT(sentNow<Fetch>(2), IsEmpty());
    pass(250 * kMillisecond);
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(1));
    sourceReady(0);
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(0, 1));
    sourceReady(0);  // said again
    EXPECT_THAT(sentNow<Fetch>(2), IsEmpty());
}

TEST_F(CatchUpTest, ASnapshotOfAnotherStepOrFromSomebodyWhoWasNotAskedStartsNothing) {
    joinerAsks();
    commit();
    say(1, SnapshotReady{1, 1, 3});
    say(1, SnapshotReady{1, 9, 4});
    say(2, SnapshotReady{2, 2, 4});
    say(0, SnapshotReady{0, 1, 4});
    EXPECT_THAT(sentTo<Fetch>(2), IsEmpty()) << "r1 is still to come";
    say(1, SnapshotReady{1, 1, 4});
    EXPECT_THAT(sentTo<Fetch>(2), SizeIs(1));
}

TEST_F(CatchUpTest, ProgressIsToldWithItsSourcesAndOneOfAnOlderFetchIsNot) {
    fetching();
    say(2, FetchProgress{2, 2, 4, 300, 1000, 0});
    const auto told = factsNow<fact::CatchUpProgress>();
    ASSERT_THAT(told, SizeIs(1));
    EXPECT_EQ(told[0].bytesDone, 300u);
    EXPECT_EQ(told[0].bytesTotal, 1000u);
    EXPECT_EQ(told[0].snapshotStep, 4u);
    EXPECT_THAT(told[0].sources, ElementsAre(0, 1));
    EXPECT_THAT(shown(2), IsEmpty());
    say(2, FetchProgress{2, 2, 4, 0, 0, 0});
    EXPECT_THAT(shown(2), IsEmpty()) << "it does not know yet how much there is";
    say(2, FetchProgress{2, 2, 3, 400, 1000, 0});
    EXPECT_THAT(factsNow<fact::CatchUpProgress>(), IsEmpty());
    say(0, FetchProgress{0, 1, 4, 400, 1000, 0});
    EXPECT_THAT(factsNow<fact::CatchUpProgress>(), IsEmpty()) << "r0 trains";
    // The bytes are in; what it replays is told with as many.
    say(2, FetchProgress{2, 2, 4, 0, 0, 4});
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kReplaying));
    EXPECT_EQ(factsNow<fact::CatchUpProgress>().at(0).bytesDone, 300u);
    EXPECT_EQ(view(2).step, 4u);
    EXPECT_THAT(factsNow<fact::IncidentPhase>(), SizeIs(1)) << "the fetch's part of the incident";
}

TEST_F(CatchUpTest, ASourceThatDoesNotAnswerIsLeftOutAndMayForgetItsSnapshot) {
    fetching();
    failed(false, {0});
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(1));
    EXPECT_THAT(orders(sentNow<KeepSnapshot>(0)), ElementsAre(drop(4)));
    EXPECT_THAT(sentNow<KeepSnapshot>(1), IsEmpty());
    sourceReady(0);
    EXPECT_THAT(sentNow<Fetch>(2), IsEmpty()) << "it was told to drop it";
}

TEST_F(CatchUpTest, WithNobodyLeftOrDeltasGoneAYoungerSnapshotIsOrdered) {
    for (const bool outOfWindow : {false, true}) {
        now = kSecond;
        everything.clear();
        fetching();
        ASSERT_EQ(machine->openStep(), 5u);
        failed(outOfWindow, outOfWindow ? std::vector<int32_t>{} : std::vector<int32_t>{0, 1});
        EXPECT_THAT(sentNow<Fetch>(2), IsEmpty());
        for (const int32_t source : {0, 1})
            EXPECT_THAT(orders(sentNow<KeepSnapshot>(source)), ElementsAre(drop(4), keep(5)));
        EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
        EXPECT_THAT(factsNow<fact::ReplicaChanged>()[0].why, HasSubstr("no answer"));
        // Messages about the old snapshot are ignored.
        say(0, SnapshotReady{0, 1, 4});
        failed(true, {});
        EXPECT_THAT(sentNow<KeepSnapshot>(0), IsEmpty());
        commit();
        say(0, SnapshotReady{0, 1, 5});
        EXPECT_THAT(sentNow<Fetch>(2), IsEmpty()) << "r1 has not said that it has it";
        say(1, SnapshotReady{1, 1, 5});
        ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
        EXPECT_EQ(sentNow<Fetch>(2)[0].snapshotStep, 5u);
    }
}

TEST_F(CatchUpTest, ALostSourceIsReplacedByTheOthersWhateverTheJoinerIsAt) {
    fetching();
    exits({0, 0});
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(1));
}

TEST_F(CatchUpTest, ASourceThatIsLostBeforeItWasReadyIsNotWaitedFor) {
    joinerAsks();
    sourceReady(1);
    exits({0, 0});
    commit();
    pass(120 * kMillisecond);
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(1));
}

TEST_F(CatchUpTest, ALostReplicaThatWasNoSourceDisturbsNoFetch) {
    joinerAsks();
    commit();
    sourceReady(1);
    pass(300 * kMillisecond);
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    exits({0, 0});  // it was asked, and never ready
    EXPECT_THAT(sentNow<Fetch>(2), IsEmpty());
    EXPECT_THAT(shown(2), IsEmpty());
}

TEST_F(CatchUpTest, AJoinerThatReplaysTakesDeltasFromAnybodyWhenItsSourcesAreGone) {
    joinerAsks();
    commit();
    sourceReady(1);
    pass(300 * kMillisecond);
    say(2, FetchProgress{2, 2, snapshot, 0, 0, snapshot});
    exits({1, 0});
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(0));
    EXPECT_THAT(orders(sentNow<KeepSnapshot>(0)), ElementsAre(keep(4))) << "it carries the token";
    EXPECT_THAT(shown(2), IsEmpty()) << "its state is there, nothing is fetched anew";
}

TEST_F(CatchUpTest, HashesOfACommittedStepProveAJoinerAndItsSourcesForgetTheSnapshot) {
    replaying();
    commit();  // votes on 5 tell the hashes of 4
    everything.clear();
    say(2, following(2, 5));
    EXPECT_EQ(state(2), ReplicaState::kReplaying) << "nobody has told what 5 hashes to";
    say(2, following(2, 4));
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kProven));
    for (const int32_t source : {0, 1})
        EXPECT_THAT(orders(sentNow<KeepSnapshot>(source)), ElementsAre(drop(4)));
    EXPECT_THAT(factsNow<fact::IncidentPhase>(), SizeIs(1)) << "it replayed, now it joins";
    say(2, following(2, 5));
    EXPECT_THAT(shown(2), IsEmpty());
    EXPECT_THAT(sentNow<KeepSnapshot>(0), IsEmpty());
}

TEST_F(CatchUpTest, AJoinerIsProvenByTheVotesThatComeAfterItsReport) {
    replaying();
    say(2, following(2, 4));
    EXPECT_EQ(state(2), ReplicaState::kReplaying);
    vote(0);
    EXPECT_EQ(state(2), ReplicaState::kReplaying);
    vote(1);
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kProven));
}

TEST_F(CatchUpTest, AJoinerWhoseStateIsNotTheContributorsGoesAndTheReasonIsTold) {
    replaying();
    commit();
    Report wrong = following(2, 4);
    wrong.hashes[1] ^= 1;
    say(2, wrong);
    EXPECT_THAT(evidence(), ElementsAre("r2 parity_mismatch"));
    ASSERT_THAT(sentNow<Expelled>(2), SizeIs(1));
    EXPECT_THAT(factsNow<fact::IncidentOpened>(), SizeIs(1));
    EXPECT_THAT(orders(sentNow<KeepSnapshot>(0)), ElementsAre(drop(4)));
    EXPECT_EQ(machine->lineage(), 1u) << "the others are compared by their votes";
}

TEST_F(CatchUpTest, AProvenJoinerEntersTheNextExchangeAndContributesToTheOneAfter) {
    replaying();
    commit();
    say(2, following(2, 5));
    vote(0);
    vote(1);
    ASSERT_EQ(state(2), ReplicaState::kProven);
    const Quorum& next = quorums.at(7);
    ASSERT_THAT(members(next), ElementsAre(0, 1, 2));
    EXPECT_TRUE(next.contributors[2].entering);
    EXPECT_THAT(next.contributors[2].contribution.ranges, IsEmpty());
    durable();
    say(2, following(2, 6));
    commit();
    ASSERT_EQ(machine->openStep(), 8u);
    EXPECT_FALSE(quorum().contributors.at(2).entering);
    EXPECT_THAT(facts<fact::StepCommitted>().back().record.contributors, SizeIs(2));
    EXPECT_EQ(state(2), ReplicaState::kProven);
    EXPECT_THAT(facts<fact::IncidentClosed>(), IsEmpty());
    say(2, following(2, 7));
    commit();
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kTraining));
    EXPECT_THAT(factsNow<fact::IncidentClosed>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::IncidentClosed>()[0].outcome, "rejoined at step 8");
    for (int i = 0; i < 3; ++i) commit();
    EXPECT_THAT(facts<fact::StepCommitted>().back().record.contributors, SizeIs(3)) << "it stays";
}

TEST_F(CatchUpTest, RecordsGoToThoseWhoHoldTheSumAndToJoinersAndToNobodyElse) {
    train(2);
    loseAndReturn(2);
    commit();
    EXPECT_THAT(sentNow<Commit>(0), SizeIs(1));
    EXPECT_THAT(sentNow<Commit>(2), IsEmpty()) << "it has not said what it holds";
    say(2, blank(2));
    commit();
    EXPECT_THAT(sentNow<Commit>(2), SizeIs(1)) << "it will replay it";
}

/// A spare has taken its place: it is as good as back when it follows.
TEST_F(CatchUpTest, TheIncidentOfOneWhosePlaceIsTakenEndsWhenItFollowsInReserve) {
    options.replicas = 2;
    options.spares = 1;
    train(2);
    catchUp(2);
    const auto follow = [this](int32_t r) {
        if (state(r) != ReplicaState::kTraining) say(r, following(r, machine->committedStep()));
    };
    const auto reserve = [this] {
        size_t n = 0;
        for (const auto& c : facts<fact::IncidentClosed>())
            n += c.outcome.starts_with("in reserve from step");
        return n;
    };
    commit();
    follow(2);
    ASSERT_EQ(state(2), ReplicaState::kProven);
    exits({1, 0});
    for (int i = 0; i < 4; ++i) {
        voteAll();
        durable();
        follow(2);
    }
    ASSERT_THAT(members(quorum()), ElementsAre(0, 2));
    up(1);
    catchUp(1);
    EXPECT_EQ(reserve(), 0u);
    for (int i = 0; i < 2; ++i) {
        commit();
        follow(1);
    }
    EXPECT_EQ(state(1), ReplicaState::kProven);
    commit();
    EXPECT_EQ(reserve(), 1u);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
}

/// The state it is to be replaced with may be younger, or lie otherwise, than the one it tells of.
TEST_F(CatchUpTest, WhatAJoinerSaysOfTheStateItIsToReplaceProvesNothing) {
    fetching();
    commit();
    Report before = following(2, 4);
    before.snapshotStep = 2;
    say(2, before);
    EXPECT_EQ(state(2), ReplicaState::kFetching) << "the fetch before led there";
    Report elsewhere = following(2, 4);
    elsewhere.layout = 7;
    say(2, elsewhere);
    EXPECT_EQ(state(2), ReplicaState::kFetching);
    Report none = following(2, 4);
    none.hasState = false;
    say(2, none);
    EXPECT_EQ(state(2), ReplicaState::kFetching);
    Report loaded = following(2, 4);
    loaded.following = false;
    say(2, loaded);
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kReplaying)) << "the fetch is done";
    EXPECT_NE(state(2), ReplicaState::kProven);
    say(2, following(2, 4));
    EXPECT_EQ(state(2), ReplicaState::kProven);
}

TEST_F(CatchUpTest, ARankThatLostItsConnectionHearsAgainWhatItMissed) {
    fetching();
    everything.clear();
    hello({2, 1}, 2);
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    EXPECT_THAT(sources(sentNow<Fetch>(2)[0]), ElementsAre(0, 1));
    ASSERT_THAT(sentNow<Commit>(2), SizeIs(1));
    EXPECT_EQ(sentNow<Commit>(2)[0].record.step, 4u);
    EXPECT_THAT(sentNow<Quorum>(2), SizeIs(1));
    EXPECT_THAT(sentNow<Abort>(2), IsEmpty());
    failed(false, {0});
    hello({0, 1}, 1);
    EXPECT_THAT(orders(sentNow<KeepSnapshot>(0)), ElementsAre(drop(4)));
    EXPECT_THAT(sentNow<Fetch>(0), IsEmpty());
    // Ordered anew, it is no longer to be dropped.
    vote(0);
    hello({1, 1}, 1);
    EXPECT_THAT(sentNow<KeepSnapshot>(1), IsEmpty());
}

TEST_F(CatchUpTest, ASnapshotStaysAsLongAsAnotherJoinerNeedsIt) {
    options.replicas = 4;
    train(2);
    exits({2, 0});
    exits({3, 0});
    voteAll();
    durable();
    up(2);
    up(3);
    say(2, blank(2));
    say(3, blank(3));
    snapshot = 4;
    commit();
    sourceReady(0);
    sourceReady(1);
    ASSERT_THAT(sentTo<Fetch>(3), SizeIs(1));
    everything.clear();
    exits({2, 1});
    EXPECT_THAT(sentTo<KeepSnapshot>(0), IsEmpty());
    exits({3, 1});
    EXPECT_THAT(orders(sentTo<KeepSnapshot>(0)), ElementsAre(drop(4)));
}

TEST_F(CatchUpTest, ASnapshotThatDoesNotComeIsOrderedAgain) {
    joinerAsks();
    commit();
    ASSERT_EQ(machine->openStep(), 5u);
    pass(5 * kSecond, {}, {}, Phase::kExchange);
    EXPECT_THAT(sentNow<KeepSnapshot>(0), IsEmpty()) << "twice the bound on progress is not over";
    pass(1500 * kMillisecond, {}, {}, Phase::kExchange);
    EXPECT_THAT(orders(sentNow<KeepSnapshot>(0)), ElementsAre(drop(4), keep(5)));
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
}

TEST_F(CatchUpTest, AFetchThatStandsStillEndsTheJoinerAndOneThatGetsOnDoesNot) {
    for (const bool moves : {false, true}) {
        now = kSecond;
        options.timeouts.fetchMs = 4000;
        fetching();
        everything.clear();
        for (int i = 1; i <= 6; ++i) {
            pass(kSecond, {}, {}, Phase::kExchange);
            const uint64_t done = moves ? static_cast<uint64_t>(i) * 100 : 100;
            if (view(2).incarnation == 2) say(2, FetchProgress{2, 2, 4, done, 1000, 0});
        }
        EXPECT_EQ(sentTo<Expelled>(2).size(), moves ? 0u : 1u);
        if (!moves) {
            EXPECT_THAT(facts<fact::IncidentOpened>().back().title,
                        HasSubstr("its catch-up stands still"));
        }
    }
}

TEST_F(CatchUpTest, WhoEntersALongStepDoesNotStandStill) {
    options.timeouts.fetchMs = 4000;
    replaying();
    commit();
    say(2, following(2, 5));
    voteAll();
    durable();
    ASSERT_TRUE(quorum().contributors.at(2).entering);
    pass(6 * kSecond, {}, {}, Phase::kCompute);
    EXPECT_THAT(sentTo<Expelled>(2), SizeIs(1)) << "of its incarnation before";
    EXPECT_EQ(view(2).incarnation, 2u);
    commit();
}

/// Its memory is damaged, and it is gone before it is known who else runs.
TEST_F(CatchUpTest, TheFirstThatANewCoordinatorHearsOfDoesNotSayWhatTheStateIs) {
    begin(past(3));
    runs(0), greets(0);
    Report damaged = reportOf(0, 3);
    damaged.hashes[0] ^= 1;
    say(0, damaged);
    for (const int32_t r : {1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    operate(OperationKind::kPause);
    exits({0, 0});
    say(1, reportOf(1, 3));
    say(2, blank(2));
    say(1, SnapshotReady{1, 1, 3});
    say(2, following(2, 3));
    EXPECT_EQ(view(2).incarnation, 1u);
    say(1, reportOf(1, 3));
    EXPECT_EQ(state(2), ReplicaState::kProven);
}

/// Nothing is committed meanwhile that it could replay.
TEST_F(CatchUpTest, WhoFollowsInReserveDoesNotStandStillInALongStep) {
    options.spares = 1;
    options.timeouts.fetchMs = 4000;
    train(2);
    catchUp(3);
    commit();
    say(3, following(3, machine->committedStep()));
    ASSERT_EQ(state(3), ReplicaState::kProven);
    pass(6 * kSecond, {}, {}, Phase::kCompute);
    commit();
    pass(2 * kSecond, {}, {}, Phase::kCompute);
    EXPECT_EQ(view(3).incarnation, 1u) << "it has just been told of the commit";
    pass(3 * kSecond, {}, {}, Phase::kCompute);
    EXPECT_EQ(view(3).incarnation, 2u) << "it did not replay it";
}

TEST_F(CatchUpTest, WhoFollowsAJobThatWaitsDoesNotStandStill) {
    options.timeouts.fetchMs = 4000;
    options.replicas = options.policies.minReplicas = 4;
    train(2);
    for (const int32_t r : {2, 3}) exits({r, 0});
    for (const int32_t r : {0, 1}) say(r, no(r, {2}));
    ASSERT_EQ(machine->phase(), JobPhase::kWaiting);
    up(2);
    say(2, blank(2));
    for (const int32_t r : {0, 1}) say(r, SnapshotReady{r, 1, 2});
    say(2, following(2, 2));
    ASSERT_EQ(state(2), ReplicaState::kProven);
    pass(6 * kSecond, {3});
    EXPECT_EQ(view(2).incarnation, 2u);
    EXPECT_EQ(state(2), ReplicaState::kProven);
}

/// The job waits for its joiners, and they for the state: nothing else shows that it does not come.
TEST_F(CatchUpTest, WhoDoesNotGiveTheStateThatOthersWaitForIsSuspected) {
    options.timeouts.fetchMs = 4000;
    options.policies.minReplicas = 2;
    train(2);
    for (const int32_t r : {1, 2}) exits({r, 0});
    say(0, no(0, {1}));
    ASSERT_EQ(machine->phase(), JobPhase::kWaiting);
    up(1);
    say(1, blank(1));
    ASSERT_THAT(sentTo<KeepSnapshot>(0), Not(IsEmpty()));
    pass(3900 * kMillisecond, {2});
    EXPECT_THAT(machine->explanation(), Not(HasSubstr("suspected")));
    pass(400 * kMillisecond, {2});
    EXPECT_THAT(machine->explanation(), HasSubstr("r0 is suspected"));
    EXPECT_EQ(state(0), ReplicaState::kTraining) << "nobody else has the state: it stays";
    say(0, SnapshotReady{0, 1, 2});
    EXPECT_THAT(sentTo<Fetch>(1), SizeIs(1));
    pass(200 * kMillisecond, {2});
    EXPECT_THAT(machine->explanation(), Not(HasSubstr("suspected")));
}

/// With the order to fetch it gave up the state that it could have stood in with.
TEST_F(CatchUpTest, AFollowerThatWasToldToFetchStandsInForNobody) {
    begin(past(3));
    operate(OperationKind::kPause);
    for (const int32_t r : {0, 1}) runs(r), greets(r);
    step(InventoryDone{});
    say(0, reportOf(0, 3));
    say(1, following(1, 3));
    say(0, SnapshotReady{0, 1, 3});
    ASSERT_THAT(sentTo<Fetch>(1), SizeIs(1));
    exits({0, 0});
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
    EXPECT_NE(state(1), ReplicaState::kProven);
}

TEST_F(CatchUpTest, ExpertsThatMoveMakeJoinersBeginAnew) {
    replaying();
    operate(OperationKind::kChangeLayout);
    commit();
    ASSERT_THAT(sentTo<ChangeLayout>(0), SizeIs(1));
    EXPECT_THAT(sentTo<ChangeLayout>(2), IsEmpty());
    say(0, LayoutMoved{0, 1, 5, 1, true, 10, ""});
    EXPECT_THAT(factsNow<fact::LayoutChanged>(), IsEmpty());
    say(1, LayoutMoved{1, 1, 5, 1, true, 20, ""});
    ASSERT_THAT(factsNow<fact::LayoutChanged>(), SizeIs(1));
    EXPECT_TRUE(factsNow<fact::LayoutChanged>()[0].ok);
    EXPECT_EQ(factsNow<fact::LayoutChanged>()[0].bytesMoved, 30u);
    EXPECT_THAT(shown(2), ElementsAre(ReplicaState::kFetching));
    EXPECT_THAT(orders(sentNow<KeepSnapshot>(0)), ElementsAre(drop(4), keep(5)));
}

TEST_F(CatchUpTest, RanksThatGreetBeforeAndAfterAMoveBuildTheSameModel) {
    train(2);
    exits({2, 0});
    voteAll();
    durable();
    for (int32_t s = 0; s < shards(); ++s) step(RankRunning{{2, s}, 2, 1, "n"});
    hello({2, 0}, 2);
    EXPECT_EQ(sentNow<Welcome>(2).at(0).layout, 0u);
    operate(OperationKind::kChangeLayout);
    commit();
    for (const int32_t r : {0, 1}) say(r, LayoutMoved{r, 1, 4, 1, true, 10, ""});
    ASSERT_TRUE(factsNow<fact::LayoutChanged>().at(0).ok);
    hello({2, 1}, 2);
    ASSERT_THAT(sentNow<ReplicaFormed>(2), SizeIs(1));
    std::map<int32_t, uint64_t> builds;  // shard, layout of its last word before it is formed
    for (const Action& a : last) {
        const auto* one = std::get_if<SendRank>(&a);
        const auto* all = std::get_if<SendReplica>(&a);
        if (all != nullptr && std::holds_alternative<ReplicaFormed>(all->message)) break;
        if (one != nullptr)
            if (const auto* w = std::get_if<Welcome>(&one->message))
                builds[one->rank.shard] = w->layout;
        if (all != nullptr)
            if (const auto* w = std::get_if<Welcome>(&all->message))
                for (int32_t s = 0; s < shards(); ++s) builds[s] = w->layout;
    }
    EXPECT_EQ(builds, (std::map<int32_t, uint64_t>{{0, 1}, {1, 1}}));
}

/// A joiner that is eight steps behind for ever, where nobody waits for it.
class SlowJoinerTest : public CatchUpTest {
  protected:
    /// The others commit a step every 100 ms, and it has replayed what `has` says then.
    template <class Has>
    bool waitedFor(int steps, Has has) {
        for (int i = 0; i < steps; ++i) {
            if (machine->openStep() == 0) return true;
            commit();
            pass(100 * kMillisecond);
            say(2, FetchProgress{2, 2, snapshot, 0, 0, has(machine->committedStep())});
        }
        return machine->openStep() == 0;
    }
    uint64_t eightBehind(uint64_t committed) const {
        return std::max(snapshot, committed - std::min<uint64_t>(committed, 8));
    }
};

TEST_F(SlowJoinerTest, TheNextQuorumWaitsUntilItHasReplayedWhatItLacks) {
    replaying();
    ASSERT_TRUE(waitedFor(60, [this](uint64_t c) { return eightBehind(c); }));
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
    EXPECT_THAT(machine->explanation(), HasSubstr("waiting for r2, "));
    EXPECT_THAT(machine->explanation(), HasSubstr("would never get there"));
    const uint64_t committed = machine->committedStep();
    say(2, following(2, committed));
    tell({0, 1}, committed);
    ASSERT_EQ(machine->openStep(), committed + 1) << machine->explanation();
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
}

TEST_F(SlowJoinerTest, TheOthersGoOnWithoutOneThatDoesNotComeAndDoNotWaitAgainSoon) {
    replaying();
    const auto eight = [this](uint64_t c) { return eightBehind(c); };
    ASSERT_TRUE(waitedFor(60, eight));
    const MonoNs since = now;
    while (machine->openStep() == 0 && now - since < 10 * kSecond) pass(100 * kMillisecond);
    EXPECT_LT(now - since, 4 * kSecond) << "twice what it needs, and four beats";
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1));
    EXPECT_FALSE(waitedFor(300, eight));
}

/// A joiner whose fetch takes longer than its sources keep deltas.
class LongFetchTest : public CatchUpTest {
  protected:
    /// It fetches for a second, in which the others commit ten steps.
    void fetchesInVain() {
        snapshot = machine->openStep();
        commit();
        sourceReady(0);
        sourceReady(1);
        for (int i = 0; i < 10; ++i) {
            pass(100 * kMillisecond);
            commit();
        }
        failed(true, {});
    }
};

TEST_F(LongFetchTest, WhenItsDeltasAreGoneTheNextQuorumWaitsWhileItFetchesAYoungerState) {
    joinerAsks();
    fetchesInVain();
    EXPECT_NE(machine->openStep(), 0u);
    snapshot = machine->openStep();
    commit();
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
    EXPECT_THAT(machine->explanation(), HasSubstr("waiting for r2, "));
    EXPECT_THAT(machine->explanation(), HasSubstr("would never get there"));
    sourceReady(0);
    sourceReady(1);
    pass(800 * kMillisecond);
    say(2, following(2, snapshot));
    tell({0, 1}, snapshot);
    ASSERT_EQ(machine->openStep(), snapshot + 1) << machine->explanation();
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
}

TEST_F(LongFetchTest, NobodyWaitsAgainSoonForOneThatDidNotComeInTwiceTheTime) {
    joinerAsks();
    fetchesInVain();
    commit();
    ASSERT_EQ(machine->openStep(), 0u);
    const MonoNs since = now;
    while (machine->openStep() == 0 && now - since < 10 * kSecond) pass(100 * kMillisecond);
    EXPECT_LT(now - since, 3 * kSecond);
    EXPECT_GT(now - since, 1500 * kMillisecond);
    for (int i = 0; i < 5; ++i) {
        failed(true, {});
        fetchesInVain();
        EXPECT_NE(machine->openStep(), 0u);
    }
}

TEST_F(SlowJoinerTest, NobodyWaitsForOneThatGains) {
    replaying();
    waitedFor(30, [this](uint64_t) { return snapshot; });
    uint64_t has = snapshot;
    EXPECT_FALSE(waitedFor(25, [&](uint64_t) { return has += 2; }));
}

TEST_F(SlowJoinerTest, OneThatIsFarBehindFetchesAYoungerStateWhileTheOthersWait) {
    replaying();
    waitedFor(40, [this](uint64_t) { return snapshot; });
    const uint64_t before = machine->committedStep();
    ASSERT_TRUE(waitedFor(100, [](uint64_t c) { return c - 40; }));
    const uint64_t committed = machine->committedStep();
    ASSERT_GT(committed, before);
    EXPECT_THAT(machine->explanation(), HasSubstr("would never get there"));
    EXPECT_EQ(orders(sentTo<KeepSnapshot>(0)).back(), keep(committed));
    snapshot = committed;
    sourceReady(0);
    sourceReady(1);
    say(2, following(2, committed));
    tell({0, 1}, committed);
    ASSERT_EQ(machine->openStep(), committed + 1) << machine->explanation();
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace bulkhead::protocol
