// SPDX-License-Identifier: Apache-2.0
// Facts about committed steps, the checkpoints that the coordinator machine orders and releases,
// and the effect of a rollback.
#include <cmath>
#include <set>

#include "backend/runtime/protocol/membership.h"
#include "tests/protocol/machine_script.h"

namespace bulkhead::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StepTest : public MachineScript {
  protected:
    fact::StepCommitted line() const { return facts<fact::StepCommitted>().back(); }
    static std::vector<int32_t> voters(const fact::StepCommitted& line) {
        std::vector<int32_t> ids;
        for (const ReplicaVote& v : line.votes) ids.push_back(v.replica);
        return ids;
    }
    /// Replicas that the last input ordered to write a checkpoint, and its step.
    std::vector<std::pair<int32_t, uint64_t>> askedToWrite() const {
        std::vector<std::pair<int32_t, uint64_t>> asked;
        for (int32_t r = 0; r < places(); ++r)
            for (const Commit& c : sentNow<Commit>(r))
                if (c.checkpoint) asked.emplace_back(r, c.record.step);
        return asked;
    }
    void written(int32_t by, uint64_t step, bool ok = true, uint64_t layout = 0) {
        say(by, CheckpointDone{by, view(by).incarnation, step, layout, "/c/" + std::to_string(step),
                               1, 1, ok, ok ? "" : "disk full", hashes(step)});
    }
    /// A checkpoint of the step that is open now; it counts by the votes on the next.
    uint64_t writeOne() {
        operate(OperationKind::kCheckpoint);
        const uint64_t step = commit();
        EXPECT_THAT(askedToWrite(), SizeIs(1));
        for (const auto& [by, of] : askedToWrite()) written(by, of);
        voteAll();
        return step;
    }
    void loseAll() {
        for (int32_t r = 0; r < places(); ++r) exits({r, 0});
    }
};

TEST_F(StepTest, ItsLineSaysWhatItTookWhoVotedAndWhen) {
    train(2);
    const MonoNs before = now - kMillisecond;  // when step 2 was decided
    const std::vector<double> exchange = {7, 900, 8};
    for (const int32_t r : {0, 1, 2}) {
        ReplicaVote v = voteOf(r);
        v.exchangeMs = exchange[static_cast<size_t>(r)];
        v.lossSum = 8.0 * (r + 1);
        v.tokens = 4;
        say(r, v);
    }
    const MonoNs decided = now;
    EXPECT_EQ(quorums.at(4).chunkTimeoutMs, 1800u) << "the slowest exchange counts";
    now += 5 * kMillisecond;
    durable();
    const auto l = line();
    EXPECT_EQ(l.record.step, 3u);
    EXPECT_DOUBLE_EQ(l.stepMs, static_cast<double>(decided - before) / kMillisecond);
    EXPECT_DOUBLE_EQ(l.commitMs, 6);
    EXPECT_THAT(l.voteMs, ElementsAre(8, 7, 6));
    EXPECT_THAT(voters(l), ElementsAre(0, 1, 2));
    EXPECT_DOUBLE_EQ(l.gradNorm, std::sqrt(2) / static_cast<double>(l.record.tokens));
    EXPECT_DOUBLE_EQ(l.loss, 4);
    EXPECT_GT(l.tokensPerSecond, 0);
    ASSERT_THAT(l.parity, SizeIs(1));
    EXPECT_EQ(l.parity[0].hashes, hashes(2));
    EXPECT_THAT(l.parity[0].replicas, ElementsAre(0, 1, 2));
    EXPECT_THAT(l.parity[0].incarnations, ElementsAre(1, 1, 1));
    EXPECT_THAT(logged<LogCommit>().back().figures.parity, SizeIs(1));
    EXPECT_EQ(logged<LogCommit>().back().link, l.link);
}

TEST_F(StepTest, AStepThatComparesNothingTellsNoHashes) {
    options.policies.parityEverySteps = 2;
    train(3);
    EXPECT_THAT(line().parity, IsEmpty());
    // A replica with another state is expelled at the next step that compares.
    ReplicaVote other = voteOf(1);
    other.hashes[0] ^= 1;
    say(1, other);
    vote(0);
    vote(2);
    EXPECT_THAT(evidence(), ElementsAre("r1 parity_mismatch"));
    commit();
    EXPECT_THAT(line().parity, SizeIs(1));
}

TEST_F(StepTest, TheStateIsKeptBeforeStepsWhoseResultIsComparedUnlessThatTakesTooLong) {
    options.policies.parityEverySteps = 2;
    train(3);
    const auto kept = [&](double keepMs) {
        std::vector<uint64_t> steps;
        for (int i = 0; i < 16; ++i) {
            const Quorum q = quorum();
            if (q.keepBefore) steps.push_back(q.step);
            say(1, Beat{{1, 0}, 1, Phase::kIdle, 0, 0, keepMs});
            for (int32_t r = 0; r < 3; ++r) vote(r);
            durable();
        }
        return steps;
    };
    const auto distances = [](const std::vector<uint64_t>& steps) {
        std::set<uint64_t> all;
        for (size_t i = 1; i < steps.size(); ++i) all.insert(steps[i] - steps[i - 1]);
        return all;
    };
    const std::vector<uint64_t> all = kept(0);
    EXPECT_THAT(distances(all), ElementsAre(2));
    for (const uint64_t step : all) EXPECT_EQ(step % 2, 1u) << "the step before a comparison";
    EXPECT_THAT(quorum().explanation, Not(HasSubstr("kept")));
    const double stepMs = line().stepMs;
    (void)kept(stepMs * 0.05);
    EXPECT_THAT(distances(kept(stepMs * 0.05)), ElementsAre(8));
    EXPECT_THAT(quorum().explanation, HasSubstr("the state before one step of 8 is kept"));
    (void)kept(stepMs * 0.001);
    EXPECT_THAT(distances(kept(stepMs * 0.001)), ElementsAre(2));
    EXPECT_THAT(quorum().explanation, Not(HasSubstr("kept")));
}

TEST_F(StepTest, NoStateIsKeptForJudgingATieUntilSoFewAreLeftThatOneLossMayMakeOne) {
    options.replicas = 4;
    options.policies.parityEverySteps = 1;
    train(3);
    EXPECT_FALSE(quorum().keepBefore);
    exits({3, 0});
    for (int32_t r = 0; r < 3; ++r) vote(r);
    durable();
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
    EXPECT_TRUE(quorum().keepBefore);
}

/// The job's policy leaves it to the coordinator how often states are compared.
class PaceTest : public StepTest {
  protected:
    PaceTest() { options.policies.parityEverySteps = kParityAuto; }
    /// Commits a step before which every rank says what a hash takes; did it compare?
    bool compares(double hashMs) {
        const bool compared = quorum().checkParity;
        for (int32_t r = 0; r < places(); ++r) {
            Beat beat{{r, 0}, view(r).incarnation, Phase::kIdle, 0, ++progress};
            beat.hashMs = hashMs;
            say(r, beat);
        }
        for (const int32_t r : members(quorum())) {
            ReplicaVote v = voteOf(r);
            if (!compared) v.hashes.clear();
            say(r, v);
        }
        durable();
        return compared;
    }
    std::vector<uint64_t> compared(double hashMs, int steps) {
        std::vector<uint64_t> which;
        for (int i = 0; i < steps; ++i) {
            const uint64_t step = machine->openStep();
            if (compares(hashMs)) which.push_back(step);
        }
        return which;
    }
    /// Returns the duration of a step in ms, once all steps take as long.
    double warmUp() {
        train(3);
        (void)compared(0, 30);
        return line().stepMs;
    }
    /// Until only every `every`-th step compares, by a hash that takes so much of a step.
    double settle(uint32_t every, double ofAStep) {
        const double hashMs = warmUp() * ofAStep;
        (void)compared(hashMs, 4);
        EXPECT_EQ(facts<fact::ParityPaced>().back().everySteps, every);
        while (machine->openStep() % every != 1 || quorum().checkParity) (void)compares(hashMs);
        everything.clear();
        return hashMs;
    }
    CheckpointDone written(int32_t by, uint64_t step) const {
        return {by, view(by).incarnation, step, 0, "/c/" + std::to_string(step), 1, 1, true,
                "", hashes(step)};
    }
};

TEST_F(PaceTest, StatesAreComparedAsOftenAsCostsAHundredthOfTheSteps) {
    const double stepMs = warmUp();
    EXPECT_THAT(facts<fact::ParityPaced>(), IsEmpty()) << "no time is known";
    EXPECT_THAT(compared(stepMs * 0.009, 4), SizeIs(4));
    ASSERT_THAT(facts<fact::ParityPaced>(), SizeIs(1)) << "what was chosen is told";
    EXPECT_EQ(facts<fact::ParityPaced>()[0].everySteps, 1u);
    (void)compared(stepMs * 0.05, 3);
    const std::vector<uint64_t> seldom = compared(stepMs * 0.05, 40);
    EXPECT_THAT(seldom, SizeIs(5));
    for (const uint64_t step : seldom) EXPECT_EQ(step % 8, 0u);
    ASSERT_THAT(facts<fact::ParityPaced>(), SizeIs(2)) << "once for each change";
    const fact::ParityPaced pace = facts<fact::ParityPaced>()[1];
    EXPECT_EQ(pace.everySteps, 8u);
    EXPECT_DOUBLE_EQ(pace.hashMs, stepMs * 0.05);
    EXPECT_GT(pace.stepMs, 0);
    EXPECT_LE(pace.hashMs / (8 * pace.stepMs), 0.01);
    EXPECT_GT(pace.hashMs / (4 * pace.stepMs), 0.01) << "the fewest steps that do";
    (void)compared(stepMs * 0.035, 20);
    EXPECT_THAT(facts<fact::ParityPaced>(), SizeIs(2)) << "it does not go to and fro";
    (void)compared(stepMs * 1000, 3);
    EXPECT_EQ(facts<fact::ParityPaced>().back().everySteps, 256u) << "so many at most";
    (void)compared(stepMs * 0.001, 3);
    EXPECT_EQ(facts<fact::ParityPaced>().back().everySteps, 1u);
    EXPECT_THAT(compared(stepMs * 0.001, 5), SizeIs(5));
}

TEST_F(PaceTest, ANumberOfStepsIsKeptToWhateverAHashTakes) {
    options.policies.parityEverySteps = 3;
    train(3);
    const std::vector<uint64_t> steps = compared(line().stepMs, 12);
    EXPECT_THAT(steps, SizeIs(4));
    for (const uint64_t step : steps) EXPECT_EQ(step % 3, 0u);
    EXPECT_THAT(facts<fact::ParityPaced>(), IsEmpty());
}

TEST_F(PaceTest, ANewCoordinatorMeasuresAnewAndMissesNoComparisonThatWasDue) {
    const double hashMs = warmUp() * 0.05;
    while (machine->committedStep() < 52) (void)compares(hashMs);
    EXPECT_EQ(facts<fact::ParityPaced>().back().everySteps, 8u);
    std::vector<LogEntry> entries;
    for (const auto& append : actionsIn<AppendLog>(everything)) entries.push_back(append.entry);
    everything.clear();
    begin(*recoverState(entries, options.replicas, options.domains));
    for (const int32_t r : {0, 1, 2}) runs(r), greets(r);
    step(InventoryDone{});
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 52));
    EXPECT_TRUE(quorum().checkParity) << "no time is known";
    (void)compared(hashMs, 3);
    EXPECT_EQ(facts<fact::ParityPaced>().back().everySteps, 8u);
    EXPECT_THAT(compared(hashMs, 8), ElementsAre(56u));
}

TEST_F(PaceTest, ACheckpointCountsOnceItsStateWasCompared) {
    const double hashMs = settle(64, 0.5);
    operate(OperationKind::kCheckpoint);
    EXPECT_FALSE(compares(hashMs));
    while (askedToWrite().empty()) (void)compares(hashMs);
    const auto [by, step] = askedToWrite().at(0);
    EXPECT_TRUE(quorum().checkParity) << "the votes on the step after it";
    say(by, written(by, step));
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    voteAll();
    ASSERT_THAT(logged<LogCheckpoint>(), SizeIs(1));
    EXPECT_EQ(logged<LogCheckpoint>()[0].step, step);
    durable();
    EXPECT_FALSE(quorum().checkParity);
}

TEST_F(PaceTest, ACheckpointOfAnotherStateThanWasAgreedOnIsNotGoneBackTo) {
    const double hashMs = settle(64, 0.5);
    operate(OperationKind::kCheckpoint);
    while (askedToWrite().empty()) (void)compares(hashMs);
    const auto [by, step] = askedToWrite().at(0);
    voteAll();
    CheckpointDone other = written(by, step);
    other.hashes[1] ^= 1;
    say(by, other);
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    ASSERT_THAT(logged<LogCheckpointsDropped>(), SizeIs(1));
    EXPECT_TRUE(logged<LogCheckpointsDropped>()[0].unusable);
    ASSERT_THAT(factsNow<fact::CheckpointWritten>(), SizeIs(1));
    EXPECT_FALSE(factsNow<fact::CheckpointWritten>()[0].done.ok);
}

TEST_F(PaceTest, WhatWhoeverDivergedWroteIsNotGoneBackTo) {
    const double hashMs = settle(64, 0.5);
    operate(OperationKind::kCheckpoint);
    while (askedToWrite().empty()) (void)compares(hashMs);
    const auto [by, step] = askedToWrite().at(0);
    say(by, written(by, step));
    ReplicaVote odd = voteOf(by);
    odd.hashes[0] ^= 1;
    say(by, odd);
    voteAll({by});
    EXPECT_THAT(sentTo<Expelled>(by), SizeIs(1));
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    ASSERT_THAT(logged<LogCheckpointsDropped>(), SizeIs(1));
    EXPECT_THAT(logged<LogCheckpointsDropped>()[0].paths,
                ElementsAre("/c/" + std::to_string(step)));
}

TEST_F(PaceTest, TheLastStatesAreComparedByReportsBeforeTheLastCheckpointCounts) {
    (void)settle(64, 0.5);
    operate(OperationKind::kStop);
    voteAll();
    durable();
    ASSERT_THAT(askedToWrite(), SizeIs(1));
    const auto [by, step] = askedToWrite().at(0);
    say(by, written(by, step));
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    for (const int32_t r : {0, 1}) say(r, reportOf(r, step));
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty()) << "r2 has not told";
    say(2, reportOf(2, step));
    EXPECT_THAT(logged<LogCheckpoint>(), SizeIs(1));
}

TEST_F(PaceTest, AStopDoesNotWaitForEverForAStateThatNobodyTells) {
    (void)settle(64, 0.5);
    operate(OperationKind::kStop);
    voteAll();
    durable();
    const auto [by, step] = askedToWrite().at(0);
    say(by, written(by, step));
    pass(options.timeouts.progressFloorMs / 2 * kMillisecond);
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    EXPECT_FALSE(sentTo<Welcome>(0).empty()) << "they are asked";
    pass(options.timeouts.progressFloorMs * kMillisecond);
    EXPECT_THAT(logged<LogCheckpoint>(), SizeIs(1));
}

TEST_F(PaceTest, AJoinerNeedNotWaitForTheNextComparison) {
    const double hashMs = settle(64, 0.5);
    loseAndReturn(2);
    say(2, blank(2));
    const uint64_t snapshot = sentNow<KeepSnapshot>(0).at(0).step;
    while (machine->committedStep() < snapshot) (void)compares(hashMs);
    for (const int32_t r : {0, 1}) say(r, SnapshotReady{r, view(r).incarnation, snapshot});
    say(2, following(2, snapshot));
    EXPECT_EQ(state(2), ReplicaState::kReplaying);
    int more = 0;
    for (; state(2) == ReplicaState::kReplaying && more < 5; ++more) {
        (void)compares(hashMs);
        say(2, following(2, machine->committedStep()));
    }
    EXPECT_LT(more, 4);
    EXPECT_EQ(state(2), ReplicaState::kProven);
    (void)compares(hashMs);
    EXPECT_FALSE(compares(hashMs)) << "it is proven";
}

/// Of two replicas, compared only now and then: nobody is in the majority.
class SeldomTieTest : public PaceTest {
  protected:
    uint64_t agreed = 0;
    uint64_t last = 0;

    /// They differ in what they vote on; the step before was not compared.
    void differ() {
        options.replicas = 2;
        const double hashMs = settle(64, 0.5);
        while (!quorum().checkParity) (void)compares(hashMs);
        agreed = machine->committedStep();
        (void)compares(hashMs);
        while (!quorum().checkParity) (void)compares(hashMs);
        everything.clear();
        ReplicaVote odd = voteOf(1);
        odd.hashes[0] ^= 1;
        say(1, odd);
        vote(0);
        last = machine->committedStep();
    }
    void expectBackToWhatWasAgreed() {
        ASSERT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(1));
        found({checkpoint(agreed, "/c/agreed"), checkpoint(last - 1, "/c/since")});
        EXPECT_EQ(machine->committedStep(), agreed);
        EXPECT_EQ(logged<LogLineage>().back().resumeFrom, "/c/agreed");
    }
};

/// All match their own replays: the difference is older than the last step.
TEST_F(SeldomTieTest, WhenNobodyKnowsWhichIsRightNothingWrittenSinceStatesAgreedCounts) {
    differ();
    ASSERT_THAT(factsNow<fact::StepsSuspect>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::StepsSuspect>()[0].first, agreed);
    EXPECT_EQ(factsNow<fact::StepsSuspect>()[0].last, last);
    for (const int32_t r : {0, 1}) say(r, ReplayVerdict{r, 1, last, {}});
    expectBackToWhatWasAgreed();
}

TEST_F(SeldomTieTest, WhoDiffersFromItsReplayOfTheLastStepIsNamed) {
    differ();
    say(0, ReplayVerdict{0, 1, last, {1}});
    say(1, ReplayVerdict{1, 1, last, {}});
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
    EXPECT_THAT(sentTo<Expelled>(0), SizeIs(1));
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
}

TEST_F(SeldomTieTest, WhoMatchesItsReplayIsNotRightByThatWhenTheOtherIsLost) {
    differ();
    exits({1, 0});
    say(0, ReplayVerdict{0, 1, last, {}});
    expectBackToWhatWasAgreed();
}

TEST_F(SeldomTieTest, WhoMatchesItsReplayIsNotRightByThatWhenTheOtherCouldNotReplay) {
    differ();
    say(0, ReplayVerdict{0, 1, last, {}});
    say(1, ReplayVerdict{1, 1, last, {}, false});
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
    expectBackToWhatWasAgreed();
}

TEST_F(SeldomTieTest, WhoMatchesItsReplayIsNotRightByThatWhenTheOtherTellsNothing) {
    differ();
    say(0, ReplayVerdict{0, 1, last, {}});
    pass(2 * options.timeouts.progressFloorMs * kMillisecond);
    expectBackToWhatWasAgreed();
}

TEST_F(PaceTest, AReplayProvesWhoeverMatchesItWhereTheStateBeforeWasAgreedOn) {
    options.replicas = 2;
    (void)warmUp();
    const uint64_t last = machine->committedStep();
    ReplicaVote odd = voteOf(1);
    odd.hashes[0] ^= 1;
    say(1, odd);
    vote(0);
    say(0, ReplayVerdict{0, 1, last, {}});
    exits({1, 0});
    EXPECT_THAT(actionsIn<FindCheckpoints>(everything), IsEmpty());
    voteAll();
    durable();
    EXPECT_EQ(machine->committedStep(), last + 1);
}

/// With a number too: the log's newest checkpoint is where a job goes back to.
TEST_F(PaceTest, ACheckpointCountsOnceItsStateWasComparedWithANumberOfStepsToo) {
    options.policies.parityEverySteps = 10;
    options.policies.checkpointEverySteps = 0;
    train(11);
    operate(OperationKind::kCheckpoint);
    while (askedToWrite().empty()) {
        ASSERT_LT(machine->openStep(), 15u);
        voteAll();
        durable();
    }
    const auto [by, step] = askedToWrite().at(0);
    EXPECT_TRUE(quorum().checkParity);
    say(by, written(by, step));
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    pass(20 * options.timeouts.progressFloorMs * kMillisecond);
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty()) << "however long that takes";
    voteAll();
    EXPECT_THAT(logged<LogCheckpoint>(), SizeIs(1));
}

/// The log has no word of a checkpoint that was still to be compared when its coordinator ended.
TEST_F(PaceTest, WhatWasWrittenBeforeADisputeIsNotGoneBackToWhateverEndedTheJobThen) {
    const double hashMs = warmUp() * 0.05;
    (void)compares(hashMs);
    while (!quorum().checkParity) (void)compares(hashMs);
    const uint64_t agreed = machine->committedStep();
    (void)compares(hashMs);
    while (!quorum().checkParity) (void)compares(hashMs);
    const uint64_t of = machine->committedStep();
    ASSERT_GT(of, agreed + 1);
    ReplicaVote odd = voteOf(1);
    odd.hashes[0] ^= 1;
    say(1, odd);
    voteAll({1});
    voteAll();
    durable();
    ASSERT_EQ(machine->committedStep(), of + 1) << "the majority goes on";
    std::vector<LogEntry> entries;
    for (const auto& append : actionsIn<AppendLog>(everything)) entries.push_back(append.entry);
    everything.clear();
    begin(*recoverState(entries, options.replicas, options.domains));
    step(InventoryDone{});
    ASSERT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(1));
    found({checkpoint(agreed, "/c/agreed"), checkpoint(agreed + 1, "/c/either"),
           checkpoint(of, "/c/odd")});
    EXPECT_EQ(machine->committedStep(), agreed);
    EXPECT_EQ(logged<LogLineage>().back().resumeFrom, "/c/agreed");
}

/// Ranks without a coordinator write what they have by then.
TEST_F(PaceTest, WhatIsFoundOfAnotherStateThanWasAgreedOnIsNotGoneBackTo) {
    for (const bool again : {false, true}) {
        SCOPED_TRACE(again ? "by the next coordinator" : "by this one");
        everything.clear();
        train(6);
        if (again) {
            std::vector<LogEntry> entries;
            for (const auto& append : actionsIn<AppendLog>(everything))
                entries.push_back(append.entry);
            everything.clear();
            begin(*recoverState(entries, options.replicas, options.domains));
            step(InventoryDone{});
        } else {
            loseAll();
        }
        ASSERT_THAT(actionsIn<FindCheckpoints>(everything), SizeIs(1));
        LogCheckpoint good = checkpoint(4, "/c/4");
        good.hashes = hashes(4);
        LogCheckpoint bad = checkpoint(5, "/c/5");
        bad.hashes = hashes(6);
        found({good, bad});
        EXPECT_EQ(machine->committedStep(), 4u);
        EXPECT_EQ(logged<LogLineage>().back().resumeFrom, "/c/4");
    }
}

TEST_F(PaceTest, WhatAJoinerFetchesIsCompared) {
    const double hashMs = settle(64, 0.5);
    loseAndReturn(2);
    say(2, blank(2));
    const uint64_t snapshot = sentNow<KeepSnapshot>(0).at(0).step;
    while (machine->committedStep() < snapshot) (void)compares(hashMs);
    ASSERT_EQ(machine->openStep(), snapshot + 1);
    EXPECT_TRUE(quorum().checkParity);
}

TEST_F(StepTest, WhoDiedOrOnlyEntersHasNoVoteInTheLine) {
    train(2);
    say(2, no(2));
    exits({2, 0});
    vote(0);
    vote(1);
    durable();
    EXPECT_THAT(line().record.contributors, SizeIs(3)) << "its part is in the sum";
    EXPECT_THAT(voters(line()), ElementsAre(0, 1));
    EXPECT_THAT(line().parity.at(0).replicas, ElementsAre(0, 1));
    up(2);
    catchUp(2);
    bool entered = false;
    for (int i = 0; i < 6 && !entered; ++i) {
        say(2, following(2, machine->committedStep()));
        commit();
        const auto& now = quorum();
        for (const Member& m : now.contributors) entered = entered || m.entering;
    }
    ASSERT_TRUE(entered);
    ReplicaVote zeros = voteOf(2);
    zeros.hashes = {1, 2};
    say(2, zeros);
    vote(0);
    vote(1);
    durable();
    EXPECT_THAT(voters(line()), ElementsAre(0, 1));
    EXPECT_THAT(line().parity.at(0).replicas, ElementsAre(0, 1))
        << "it has no say in what is right";
    EXPECT_THAT(facts<fact::ParityDisputed>(), IsEmpty());
}

TEST_F(StepTest, TheJobsEffectiveTimeIsThatOfUndisturbedStepsOfAllItsReplicas) {
    const MonoNs begun = now;
    train(3);
    double productive = 0;
    AdaptiveLimits limits(options.timeouts);
    for (const auto& l : facts<fact::StepCommitted>()) {
        productive += l.stepMs;
        limits.observe(l.stepMs, 0);
    }
    const auto share = [&](double inputs = 1) {  // so many after it was decided
        return productive / (static_cast<double>(now - begun) / kMillisecond - inputs);
    };
    EXPECT_DOUBLE_EQ(line().effectiveTime, share());
    EXPECT_DOUBLE_EQ(machine->effectiveTime(), share());
    now += 100 * kMillisecond;  // something stands still
    commit();
    productive += limits.stepMs();
    EXPECT_DOUBLE_EQ(line().effectiveTime, share());
    limits.observe(line().stepMs, 0);
    exits({2, 0});
    commit();
    productive += line().stepMs;
    EXPECT_DOUBLE_EQ(line().effectiveTime, share(2)) << "all three had computed";
    commit();
    productive += line().stepMs * 2 / 3;
    EXPECT_DOUBLE_EQ(line().effectiveTime, share());
}

TEST_F(StepTest, WhatARollbackTakesBackWasNotProductive) {
    const MonoNs begun = now;
    train(3);
    const double first = facts<fact::StepCommitted>()[0].stepMs;
    loseAll();
    found({checkpoint(1, "/c/1")});
    EXPECT_EQ(factsNow<fact::LineageOpened>().at(0).undone, 2u);
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 1));
    ASSERT_EQ(machine->openStep(), 2u);
    const MonoNs opened = now;
    commit();
    const MonoNs decided = now - kMillisecond;
    const auto ms = [](MonoNs t) { return static_cast<double>(t) / kMillisecond; };
    EXPECT_DOUBLE_EQ(line().effectiveTime, (first + ms(decided - opened)) / ms(decided - begun));
    EXPECT_EQ(line().record.updates, 2u) << "the optimizer is where the checkpoint left it";
    commit();
    EXPECT_EQ(machine->committedStep(), 3u);
}

/// A checkpoint ends what may be taken back: only what came since it is remembered.
TEST_F(StepTest, ARollbackToACheckpointTakesBackWhatCameAfterIt) {
    train(2);
    ASSERT_EQ(writeOne(), 3u);
    durable();
    const MonoNs begun = kSecond;
    double productive = 0;
    for (const auto& l : facts<fact::StepCommitted>())
        if (l.record.step <= 3) productive += l.stepMs;
    loseAll();
    found();
    ASSERT_EQ(machine->committedStep(), 3u);
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) {
        EXPECT_EQ(sentTo<Welcome>(r).back().resumeFrom, "/c/3");
        EXPECT_EQ(sentTo<Welcome>(r).back().resumeStep, 3u);
        EXPECT_THAT(sentTo<Welcome>(r).back().resumeHashes, testing::Eq(hashes(3)));
    }
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 3));
    const MonoNs opened = now;
    commit();
    const MonoNs decided = now - kMillisecond;
    const auto ms = [](MonoNs t) { return static_cast<double>(t) / kMillisecond; };
    EXPECT_DOUBLE_EQ(line().effectiveTime,
                     (productive + ms(decided - opened)) / ms(decided - begun));
}

// ---- checkpoints

TEST_F(StepTest, EverySoManyStepsOneIsWrittenAndContributorsTakeTurns) {
    options.policies.checkpointEverySteps = 2;
    train(0);
    std::vector<std::pair<int32_t, uint64_t>> all;
    for (int i = 0; i < 8; ++i) {
        commit();
        for (const auto& asked : askedToWrite()) all.push_back(asked);
    }
    ASSERT_THAT(all, SizeIs(4));
    std::set<int32_t> writers;
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].second, 2 * (i + 1));
        writers.insert(all[i].first);
    }
    EXPECT_THAT(writers, ElementsAre(0, 1, 2));
}

TEST_F(StepTest, AnOperatorsWishIsFulfilledOnceAndByAnotherWhenItsWriterIsLost) {
    train(2);
    commit();
    EXPECT_THAT(askedToWrite(), IsEmpty());
    operate(OperationKind::kCheckpoint);
    EXPECT_TRUE(logged<LogOrders>().back().checkpoint);
    commit();
    ASSERT_THAT(askedToWrite(), SizeIs(1));
    const auto [writer, of] = askedToWrite()[0];
    const int32_t other = otherThan(writer);
    exits({other, 0});
    commit();
    EXPECT_THAT(askedToWrite(), IsEmpty()) << "its writer lives";
    exits({writer, 0});
    const uint32_t gone = 1;
    commit();
    ASSERT_THAT(askedToWrite(), SizeIs(1));
    const int32_t next = askedToWrite()[0].first;
    EXPECT_NE(next, writer);
    EXPECT_NE(next, other);
    // Late or strange answers are nobody's checkpoint.
    say(writer, CheckpointDone{writer, gone, of, 0, "/late", 1, 1, true, ""});
    say(next, CheckpointDone{next, 1, of, 0, "/strange", 1, 1, true, ""});
    EXPECT_THAT(facts<fact::CheckpointWritten>(), IsEmpty());
    const uint64_t step = machine->committedStep();
    say(other, CheckpointDone{other, 1, step, 0, "/another's", 1, 1, true, ""});
    say(next, CheckpointDone{next, 7, step, 0, "/another life's", 1, 1, true, ""});
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    written(next, step);
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    voteAll();
    EXPECT_THAT(logged<LogCheckpoint>(), SizeIs(1));
    durable();
    EXPECT_THAT(askedToWrite(), IsEmpty());
}

TEST_F(StepTest, WhoIsToLeaveWritesNothingWhileOthersCan) {
    train(2);
    const int32_t turn = static_cast<int32_t>(3 % 3);  // of step 3
    operate(OperationKind::kCheckpoint);
    operate(OperationKind::kDrain, turn);
    commit();
    ASSERT_THAT(askedToWrite(), SizeIs(1));
    EXPECT_NE(askedToWrite()[0].first, turn);
}

TEST_F(StepTest, FilesInAnotherLayoutThanTheJobsAreNoCheckpoint) {
    train(2);
    operate(OperationKind::kCheckpoint);
    const uint64_t step = commit();
    written(askedToWrite().at(0).first, step, true, 7);
    ASSERT_THAT(factsNow<fact::CheckpointWritten>(), SizeIs(1));
    EXPECT_FALSE(factsNow<fact::CheckpointWritten>()[0].done.ok);
    EXPECT_THAT(factsNow<fact::CheckpointWritten>()[0].done.error, HasSubstr("layout 7"));
    EXPECT_THAT(logged<LogCheckpoint>(), IsEmpty());
    EXPECT_EQ(machine->checkpointStep(), 0u);
    EXPECT_EQ(machine->phase(), JobPhase::kTraining) << "a job that trains waits for none";
    operate(OperationKind::kCheckpoint);
    const uint64_t again = commit();
    written(askedToWrite().at(0).first, again, false);
    EXPECT_FALSE(factsNow<fact::CheckpointWritten>().at(0).done.ok);
    EXPECT_EQ(factsNow<fact::CheckpointWritten>()[0].done.error, "disk full");
}

TEST_F(StepTest, TheOldestGoAndThoseBeforeAreNamedAgainForSoLong) {
    options.policies.checkpointsKept = 1;
    train(1);
    std::vector<std::string> told;
    for (int i = 0; i < 19; ++i) {
        const uint64_t step = writeOne();
        EXPECT_EQ(machine->checkpointStep(), step);
        for (const int32_t r : {0, 1, 2})
            for (const DiscardCheckpoints& d : sentNow<DiscardCheckpoints>(r)) told = d.paths;
        if (i == 0) {
            EXPECT_THAT(told, IsEmpty());
        }
        if (i == 2) {
            EXPECT_THAT(told, ElementsAre("/c/2", "/c/3"));
        }
    }
    EXPECT_THAT(told, SizeIs(kDiscardedKept));
    EXPECT_EQ(told.front(), "/c/4");
    EXPECT_EQ(told.back(), "/c/19");
    EXPECT_THAT(logged<LogCheckpointsDropped>(), SizeIs(18));
    // Nobody goes back to one that may be half removed.
    durable();
    loseAll();
    found({checkpoint(19, "/c/19"), checkpoint(20, "/c/20"), checkpoint(21, "/c/21")});
    EXPECT_EQ(machine->committedStep(), 21u) << "which ranks without a coordinator wrote";
    EXPECT_EQ(factsNow<fact::LineageOpened>().at(0).fromStep, 21u);
    std::vector<std::string> known;
    for (const LogCheckpoint& c : logged<LogCheckpoint>()) known.push_back(c.path);
    EXPECT_EQ(std::count(known.begin(), known.end(), "/c/19"), 1);
    EXPECT_EQ(std::count(known.begin(), known.end(), "/c/20"), 1);
}

TEST_F(StepTest, AJobOfSoManyStepsEndsWithACheckpointOfTheLast) {
    options.steps = 3;
    train(2);
    EXPECT_THAT(askedToWrite(), IsEmpty());
    voteAll();
    EXPECT_FALSE(quorums.contains(4)) << "there is no step 4";
    durable();
    ASSERT_THAT(askedToWrite(), SizeIs(1));
    EXPECT_EQ(machine->phase(), JobPhase::kStopping);
    EXPECT_TRUE(logged<LogOrders>().back().stopping);
    EXPECT_EQ(logged<LogOrders>().back().stopWhy, "all 3 steps are done");
    EXPECT_THAT(sentTo<Leave>(0), IsEmpty());
    written(askedToWrite()[0].first, 3);
    EXPECT_THAT(sentTo<Leave>(0), IsEmpty());
    tell({0, 1, 2}, 3);
    EXPECT_THAT(sentNow<Leave>(0), SizeIs(1));
    for (const int32_t r : {0, 1, 2}) exits({r, 0}, 0);
    ASSERT_THAT(facts<fact::RunFinished>(), SizeIs(1));
    EXPECT_TRUE(facts<fact::RunFinished>()[0].ok);
    EXPECT_EQ(facts<fact::RunFinished>()[0].why, "all 3 steps are done");
    EXPECT_EQ(facts<fact::RunFinished>()[0].step, 3u);
}

TEST_F(StepTest, AStopWithoutACheckpointAsksForNone) {
    train(2);
    operate(OperationKind::kStop, -1, /*checkpoint=*/false);
    commit();
    EXPECT_THAT(askedToWrite(), IsEmpty());
    EXPECT_THAT(sentTo<Leave>(0), SizeIs(1));
}

/// Samples with non-finite gradients stay quarantined, whatever the job goes back to.
TEST_F(StepTest, WhatIsQuarantinedStaysSoOverARollback) {
    train(2);
    const auto bad = [this](int32_t replica) {
        for (const int32_t r : {0, 1, 2}) {
            ReplicaVote v = no(r);
            v.nonFiniteLocal = r == replica;
            say(r, v);
        }
    };
    bad(1);
    bad(2);
    ASSERT_EQ(machine->ledger().quarantinedSamples(), options.samplesPerReplica);
    const SampleRange range = facts<fact::RangeQuarantined>().at(0).range;
    loseAll();
    found();
    EXPECT_EQ(machine->committedStep(), 0u);
    EXPECT_EQ(machine->ledger().quarantinedSamples(), options.samplesPerReplica);
    for (const int32_t r : {0, 1, 2}) up(r);
    for (const int32_t r : {0, 1, 2}) say(r, reportOf(r, 0));
    for (int i = 0; i < 4; ++i) {
        for (const Member& m : quorum().contributors)
            for (const SampleRange& r : m.contribution.ranges)
                EXPECT_TRUE(r.end <= range.begin || r.begin >= range.end);
        commit();
    }
    EXPECT_EQ(line().record.updates, 4u) << "it began anew";
}

/// People see what the job waits for, and for how long still.
TEST_F(StepTest, AWaitIsExplainedOnceASecond) {
    options.timeouts.joinMs = 5000;
    begin();
    up(0);
    say(0, reportOf(0, 0));
    pass(4 * kSecond, {1, 2});
    const auto told = factsNow<fact::JobPhaseChanged>();
    ASSERT_THAT(told, SizeIs(4));
    for (const auto& t : told) EXPECT_EQ(t.phase, JobPhase::kStarting);
    EXPECT_NE(told[0].why, told[1].why) << "the time that is left";
}

}  // namespace
}  // namespace bulkhead::protocol
