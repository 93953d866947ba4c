// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {
namespace {

Options fourByTwo() {
    Options o;
    o.replicas = 4;
    o.shards = 2;
    o.domains = 2;
    o.policies.checkpointEverySteps = 10;
    o.policies.restartLimit = 0;
    o.timeouts.joinMs = 2000;
    o.timeouts.backoffMaxMs = 500;
    return o;
}

class SimulatedJobTest : public ::testing::Test {
  protected:
    void startAndReach(SimulatedJob& job, uint64_t step) {
        job.start();
        ASSERT_TRUE(job.runUntil([&] { return job.committed() >= step; }, 60 * kSecond))
            << explain(job);
    }
    static void wholeAgain(SimulatedJob& job, size_t replicas = 4) {
        const uint64_t from = job.committed();
        ASSERT_TRUE(
            job.runUntil([&] { return job.training() == replicas && job.committed() >= from + 5; },
                         120 * kSecond))
            << explain(job);
        EXPECT_THAT(job.failures(), ::testing::IsEmpty());
    }
    static std::string explain(SimulatedJob& job) {
        std::string text = absl::StrJoin(job.failures(), "\n");
        if (!job.coordinatorUp()) return text + "\nno coordinator";
        text += "\nstep " + std::to_string(job.committed()) + " open " +
                std::to_string(job.coordinator().openStep()) + ": " +
                job.coordinator().explanation();
        for (const ReplicaView& v : job.coordinator().replicas())
            text += "\nr" + std::to_string(v.replica) + " #" + std::to_string(v.incarnation) + " " +
                    std::string(enumName(v.state)) + " step " + std::to_string(v.step) +
                    " applied " + std::to_string(job.appliedBy(v.replica)) + job.ranksOf(v.replica);
        size_t from = job.facts().size();
        for (int left = 40; from > 0 && left > 0; --from)
            left -= !std::holds_alternative<fact::JobPhaseChanged>(job.facts()[from - 1]);
        for (size_t i = from; i < job.facts().size(); ++i) text += "\n" + describe(job.facts()[i]);
        return text;
    }
    static std::string describe(const Fact& f) {
        if (auto* q = std::get_if<fact::QuorumDecided>(&f))
            return "quorum " + std::to_string(q->step) + "/" + std::to_string(q->epoch) + "/" +
                   std::to_string(q->attempt) + " " + q->explanation;
        if (auto* r = std::get_if<fact::ReplicaChanged>(&f))
            return "r" + std::to_string(r->replica) + " " + std::string(enumName(r->state)) + " " +
                   r->why;
        if (auto* e = std::get_if<fact::EvidenceSeen>(&f))
            return "evidence r" + std::to_string(e->replica) + " by " + e->reporter + " " +
                   e->detail;
        if (auto* c = std::get_if<fact::StepCommitted>(&f))
            return "committed " + std::to_string(c->record.step);
        if (auto* d = std::get_if<fact::StepRedone>(&f))
            return "redo " + std::to_string(d->step) + " " + d->why;
        if (auto* p = std::get_if<fact::CatchUpProgress>(&f))
            return "catch-up r" + std::to_string(p->replica) + " at " + std::to_string(p->step);
        return "fact " + std::to_string(f.index());
    }
};

template <class F>
std::vector<F> all(const SimulatedJob& job) {
    std::vector<F> out;
    for (const Fact& f : job.facts())
        if (const auto* x = std::get_if<F>(&f)) out.push_back(*x);
    return out;
}

TEST_F(SimulatedJobTest, AnUndisturbedJobCommitsStepAfterStepOnAllReplicas) {
    SimulatedJob job(fourByTwo(), 1);
    startAndReach(job, 30);
    EXPECT_EQ(job.training(), 4u);
    EXPECT_THAT(job.failures(), ::testing::IsEmpty());
    EXPECT_EQ(job.coordinator().ledger().pooledSamples(), 0u);
}

TEST_F(SimulatedJobTest, AKilledRankCostsItsReplicaARoundTripAndNobodyElseAStep) {
    SimulatedJob job(fourByTwo(), 2);
    startAndReach(job, 5);
    job.killRank(2, 1);
    wholeAgain(job);
}

TEST_F(SimulatedJobTest,
       AReturningReplicaEntersByOneExchangeAndComputesOnlyWhatItCanComputeInTime) {
    SimulatedJob job(fourByTwo(), 2);
    startAndReach(job, 5);
    uint64_t entered = 0, own = 0, computed = 0;
    job.onRankAction = [&](RankId id, const RankAction& a) {
        if (id.replica != 2 || id.shard != 1) return;
        if (const auto* b = std::get_if<BeginStep>(&a)) {
            if (b->enter) entered = b->quorum.step;
            if (b->compute && computed == 0) computed = b->quorum.step;
        }
        if (const auto* r = std::get_if<ReplayCommit>(&a); r && r->exchanged) own = r->record.step;
    };
    job.killReplica(2);
    wholeAgain(job);
    EXPECT_GT(entered, 0u);
    EXPECT_EQ(own, entered);
    EXPECT_EQ(computed, entered + 1);
}

/// Catching up, following, or just before it is let in: wherever it stops, nobody waits for it.
TEST_F(SimulatedJobTest, AJoinerThatHangsWhileItCatchesUpCostsTheOthersNothing) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        SimulatedJob job(fourByTwo(), 300 + seed);
        startAndReach(job, 5);
        job.killReplica(2);
        bool entering = false, fetching = false;
        job.onRankAction = [&](RankId id, const RankAction& a) {
            if (id.replica != 2) return;
            fetching = fetching || std::holds_alternative<BeginFetch>(a);
            const auto* begin = std::get_if<BeginStep>(&a);
            entering = entering || (begin && begin->enter);
        };
        ASSERT_TRUE(job.runUntil([&] { return fetching; }, 10 * kSecond)) << explain(job);
        job.runFor(static_cast<MonoNs>(job.rng() % 15) * kMillisecond);
        ASSERT_FALSE(entering) << "seed " << seed;
        job.hangRank(2, 1);
        const size_t redone = all<fact::StepRedone>(job).size();
        const uint64_t from = job.committed();
        ASSERT_TRUE(job.runUntil([&] { return job.committed() >= from + 20; }, 2 * kSecond))
            << explain(job);
        EXPECT_EQ(all<fact::StepRedone>(job).size(), redone) << "seed " << seed << explain(job);
        wholeAgain(job);
    }
}

TEST_F(SimulatedJobTest, NoSnapshotOutlivesTheCatchUpItWasTakenFor) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
        SimulatedJob job(fourByTwo(), 700 + seed);
        std::map<RankId, std::set<uint64_t>> kept;
        job.onRankAction = [&](RankId id, const RankAction& a) {
            if (std::holds_alternative<BuildReplica>(a)) kept[id].clear();
            if (const auto* take = std::get_if<TakeSnapshot>(&a)) kept[id].insert(take->step);
            if (const auto* drop = std::get_if<DropSnapshot>(&a)) kept[id].erase(drop->step);
        };
        startAndReach(job, 5);
        for (int i = 0; i < 6; ++i) {  // joiners and their sources go while they catch up
            job.killReplica(static_cast<int32_t>(job.rng() % 4));
            job.runFor(static_cast<MonoNs>(20 + job.rng() % 150) * kMillisecond);
        }
        wholeAgain(job);
        for (const auto& [id, steps] : kept)
            EXPECT_THAT(steps, ::testing::IsEmpty()) << "seed " << seed << " r" << id.replica;
    }
}

TEST_F(SimulatedJobTest, RandomKillsAndRejoinsKeepTheInvariants) {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        SimulatedJob job(fourByTwo(), seed);
        startAndReach(job, 3);
        for (int i = 0; i < 4; ++i) {
            job.runFor(static_cast<MonoNs>(job.rng() % 300) * kMillisecond);
            const auto replica = static_cast<int32_t>(job.rng() % 4);
            if (job.rng() % 3 == 0)
                job.killReplica(replica);
            else
                job.killRank(replica, static_cast<int32_t>(job.rng() % 2));
        }
        wholeAgain(job);
        if (HasFailure()) {
            ADD_FAILURE() << "seed " << seed;
            return;
        }
    }
}

bool saw(const SimulatedJob& job, EvidenceKind kind, int32_t replica) {
    for (const auto& e : all<fact::EvidenceSeen>(job))
        if (e.kind == kind && e.replica == replica) return true;
    return false;
}

Operation operation(OperationKind kind, int32_t replica = -1) {
    Operation o;
    o.kind = kind;
    o.replica = replica;
    o.requestId = "test";
    return o;
}

TEST_F(SimulatedJobTest, CoordinatorDeathsAndReplicaDeathsTogetherLoseNoStep) {
    for (uint64_t seed = 1; seed <= 100; ++seed) {
        SimulatedJob job(fourByTwo(), 1000 + seed);
        startAndReach(job, 3);
        for (int i = 0; i < 3; ++i) {
            job.runFor(static_cast<MonoNs>(job.rng() % 200) * kMillisecond);
            if (job.rng() % 2 == 0)
                job.killRank(static_cast<int32_t>(job.rng() % 4),
                             static_cast<int32_t>(job.rng() % 2));
            const uint64_t before = job.committed();
            job.killCoordinator();
            job.runFor(static_cast<MonoNs>(job.rng() % 100) * kMillisecond);
            job.startCoordinator();
            if (job.coordinator().lineage() == 1) {
                EXPECT_GE(job.committed(), before);
            }
        }
        wholeAgain(job);
        if (HasFailure()) {
            ADD_FAILURE() << "seed " << seed;
            return;
        }
    }
}

/// At every action between the append of a record and the last of its commits the coordinator dies.
TEST_F(SimulatedJobTest, ACoordinatorThatDiesAnywhereBetweenAppendAndSendCommitsOnce) {
    for (int point = 0; point < 14; ++point) {
        SimulatedJob job(fourByTwo(), 77);
        startAndReach(job, 6);
        int countdown = -1;
        job.onAction = [&](const Action& a) {
            const auto* append = std::get_if<AppendLog>(&a);
            if (countdown < 0 && append != nullptr &&
                std::holds_alternative<LogCommit>(append->entry))
                countdown = point + 1;
            if (countdown > 0 && --countdown == 0) job.killCoordinator();
        };
        ASSERT_TRUE(job.runUntil([&] { return !job.coordinatorUp(); }, 10 * kSecond)) << point;
        job.onAction = nullptr;
        job.runFor(30 * kMillisecond);
        job.startCoordinator();
        wholeAgain(job);
        EXPECT_EQ(job.coordinator().lineage(), 1u) << point;
    }
}

/// Everything at once, also while the job still heals from the fault before.
TEST_F(SimulatedJobTest, AnyMixtureOfFaultsHealsAndKeepsTheInvariants) {
    for (uint64_t seed = 1; seed <= 150; ++seed) {
        SimulatedJob job(fourByTwo(), 5000 + seed);
        startAndReach(job, 3);
        std::string story;
        for (int i = 0; i < 6; ++i) {
            job.runFor(static_cast<MonoNs>(job.rng() % 400) * kMillisecond);
            const auto replica = static_cast<int32_t>(job.rng() % 4);
            const auto shard = static_cast<int32_t>(job.rng() % 2);
            const auto fault = job.rng() % 9;
            story += std::to_string(fault) + ":r" + std::to_string(replica) + " ";
            switch (fault) {
                case 0:
                    job.killRank(replica, shard);
                    break;
                case 1:
                    job.killReplica(replica);
                    break;
                case 2:
                    job.hangRank(replica, shard);
                    break;
                case 3:
                    job.nextGradientNotFinite(replica);
                    break;
                case 4:
                    job.flipState(replica, shard);
                    break;
                case 5:
                    job.cutData(replica, true);
                    job.runFor(300 * kMillisecond);
                    job.cutData(replica, false);
                    break;
                case 6:
                    job.killCoordinator();
                    job.runFor(static_cast<MonoNs>(job.rng() % 100) * kMillisecond);
                    job.startCoordinator();
                    break;
                case 7:
                    job.operate(operation(OperationKind::kRestartReplica, replica));
                    break;
                default: {
                    Operation move = operation(OperationKind::kChangeLayout);
                    move.expertShard = {0, 1};
                    job.operate(move);
                }
            }
        }
        wholeAgain(job);
        if (HasFailure()) {
            ADD_FAILURE() << "seed " << seed << ": " << story;
            return;
        }
    }
}

TEST_F(SimulatedJobTest, AHungRankIsFoundByItsSilenceAndFencedWhenItWakes) {
    Options o = fourByTwo();
    o.timeouts.chunkFloorMs = 10000;  // its peers would speak first
    SimulatedJob job(o, 5);
    startAndReach(job, 5);
    job.hangRank(1, 1);
    wholeAgain(job);
    EXPECT_TRUE(saw(job, EvidenceKind::kMissedHeartbeat, 1));
    EXPECT_EQ(job.coordinator().replicas()[1].incarnation, 2u);
}

TEST_F(SimulatedJobTest, AReplicaWithACutDataPlaneIsTheOneThatGoes) {
    SimulatedJob job(fourByTwo(), 6);
    startAndReach(job, 5);
    job.cutData(2, true);
    ASSERT_TRUE(job.runUntil([&] { return job.coordinator().replicas()[2].incarnation == 2; },
                             20 * kSecond))
        << explain(job);
    job.cutData(2, false);
    wholeAgain(job);
    for (int32_t r : {0, 1, 3})
        EXPECT_EQ(job.coordinator().replicas()[static_cast<size_t>(r)].incarnation, 1u);
}

TEST_F(SimulatedJobTest, AGradientThatIsNotFiniteIsComputedElsewhereAndCostsNoReplica) {
    SimulatedJob job(fourByTwo(), 7);
    startAndReach(job, 5);
    job.nextGradientNotFinite(3);
    wholeAgain(job);
    EXPECT_TRUE(saw(job, EvidenceKind::kNonFinite, 3));
    EXPECT_EQ(job.coordinator().replicas()[3].incarnation, 1u);
    EXPECT_EQ(job.coordinator().ledger().quarantinedSamples(), 0u);
}

TEST_F(SimulatedJobTest, DataThatIsNotFiniteForTwoReplicasIsQuarantinedAndNamed) {
    SimulatedJob job(fourByTwo(), 8);
    startAndReach(job, 5);
    const uint64_t ahead = job.coordinator().ledger().highWater()[1] + 20;
    job.poison(1, ahead);
    ASSERT_TRUE(
        job.runUntil([&] { return !all<fact::RangeQuarantined>(job).empty(); }, 20 * kSecond))
        << explain(job);
    wholeAgain(job);
    const auto named = all<fact::RangeQuarantined>(job);
    EXPECT_TRUE(std::any_of(named.begin(), named.end(), [&](const auto& q) {
        return q.range.domain == 1 && q.range.begin <= ahead && ahead < q.range.end;
    }));
    for (const ReplicaView& v : job.coordinator().replicas()) EXPECT_EQ(v.incarnation, 1u);
    job.killCoordinator();
    job.startCoordinator();
    EXPECT_GT(job.coordinator().ledger().quarantinedSamples(), 0u);
}

TEST_F(SimulatedJobTest, AFlippedParameterBitIsFoundByParityAndTheMinorityHeals) {
    SimulatedJob job(fourByTwo(), 9);
    startAndReach(job, 5);
    job.flipState(1, 0);
    wholeAgain(job);
    EXPECT_TRUE(saw(job, EvidenceKind::kParityMismatch, 1));
    ASSERT_FALSE(all<fact::StepsSuspect>(job).empty());
    EXPECT_EQ(job.coordinator().lineage(), 1u);
    EXPECT_EQ(job.coordinator().replicas()[1].incarnation, 2u);
}

TEST_F(SimulatedJobTest, OnAParityTieWhoeverMatchesItsOwnReplayStays) {
    Options o = fourByTwo();
    o.replicas = 2;
    SimulatedJob job(o, 10);
    startAndReach(job, 5);
    job.flipState(0, 1);
    wholeAgain(job, 2);
    EXPECT_TRUE(saw(job, EvidenceKind::kParityMismatch, 0));
    EXPECT_FALSE(saw(job, EvidenceKind::kParityMismatch, 1));
    EXPECT_EQ(job.coordinator().lineage(), 1u);
}

TEST_F(SimulatedJobTest, WhenEveryReplicaDiesTheJobGoesBackToItsCheckpointInANewLineage) {
    SimulatedJob job(fourByTwo(), 11);
    startAndReach(job, 25);
    for (int32_t r = 0; r < 4; ++r) job.killReplica(r);
    wholeAgain(job);
    EXPECT_EQ(job.coordinator().lineage(), 2u);
    const auto opened = all<fact::LineageOpened>(job);
    ASSERT_EQ(opened.size(), 2u);
    EXPECT_EQ(opened.back().fromStep, 20u);
}

TEST_F(SimulatedJobTest, WithRestartAllEveryLossTakesEverybodyBack) {
    Options o = fourByTwo();
    o.policies.recovery = RecoveryPolicy::kRestartAll;
    SimulatedJob job(o, 12);
    startAndReach(job, 25);
    job.killRank(2, 0);
    ASSERT_TRUE(job.runUntil([&] { return job.coordinator().lineage() == 2; }, 10 * kSecond));
    wholeAgain(job);
    for (const ReplicaView& v : job.coordinator().replicas()) EXPECT_EQ(v.incarnation, 2u);
}

TEST_F(SimulatedJobTest, ADrainedReplicaLeavesAfterItsCommitAndComesBackWhenReleased) {
    SimulatedJob job(fourByTwo(), 13);
    startAndReach(job, 5);
    job.operate(operation(OperationKind::kDrain, 3));
    ASSERT_TRUE(job.runUntil([&] { return job.training() == 3; }, 10 * kSecond)) << explain(job);
    const uint64_t at = job.committed();
    job.runUntil([&] { return job.committed() >= at + 5; }, 10 * kSecond);
    EXPECT_TRUE(all<fact::StepRedone>(job).empty());
    EXPECT_EQ(job.coordinator().replicas()[3].state, ReplicaState::kDrained);
    job.operate(operation(OperationKind::kReleaseRejoin, 3));
    wholeAgain(job);
}

TEST_F(SimulatedJobTest, APausedJobCommitsNothingUntilItIsResumed) {
    SimulatedJob job(fourByTwo(), 14);
    startAndReach(job, 5);
    job.operate(operation(OperationKind::kPause));
    job.runFor(kSecond);
    const uint64_t at = job.committed();
    EXPECT_EQ(job.coordinator().phase(), JobPhase::kPaused);
    job.runFor(5 * kSecond);
    EXPECT_EQ(job.committed(), at);
    EXPECT_EQ(job.training(), 4u);
    job.operate(operation(OperationKind::kResume));
    wholeAgain(job);
}

TEST_F(SimulatedJobTest, AJoinerIsLetInWhileTheJobWaitsForIt) {
    Options o = fourByTwo();
    o.replicas = 2;
    o.policies.minReplicas = 2;
    SimulatedJob job(o, 15);
    startAndReach(job, 5);
    job.killReplica(1);
    wholeAgain(job, 2);
    EXPECT_EQ(job.coordinator().lineage(), 1u);
}

TEST_F(SimulatedJobTest, AStoppedJobEndsWithACheckpointOfItsLastStep) {
    SimulatedJob job(fourByTwo(), 16);
    startAndReach(job, 13);
    job.operate(operation(OperationKind::kStop));
    ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 60 * kSecond)) << explain(job);
    const auto end = all<fact::RunFinished>(job);
    ASSERT_EQ(end.size(), 1u);
    EXPECT_TRUE(end[0].ok) << end[0].why;
    EXPECT_EQ(all<fact::CheckpointWritten>(job).back().done.step, end[0].step);
}

TEST_F(SimulatedJobTest, AJobOfSoManyStepsEndsByItself) {
    Options o = fourByTwo();
    o.steps = 12;
    SimulatedJob job(o, 17);
    job.start();
    ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 60 * kSecond)) << explain(job);
    EXPECT_EQ(all<fact::RunFinished>(job).at(0).step, 12u);
    EXPECT_THAT(job.failures(), ::testing::IsEmpty());
}

TEST_F(SimulatedJobTest, ALayoutIsNamedOnlyWhenEveryReplicaMoved) {
    for (const bool fails : {false, true}) {
        SimulatedJob job(fourByTwo(), 18);
        startAndReach(job, 5);
        if (fails) job.failNextLayoutMove(2);
        Operation move = operation(OperationKind::kChangeLayout);
        move.expertShard = {1, 0};
        job.operate(move);
        wholeAgain(job);
        const auto changed = all<fact::LayoutChanged>(job);
        ASSERT_EQ(changed.size(), 1u);
        EXPECT_EQ(changed[0].ok, !fails);
        EXPECT_EQ(all<fact::StepCommitted>(job).back().record.layout, fails ? 0u : 1u);
    }
}

TEST_F(SimulatedJobTest, AWarmSpareTakesTheNextStepAndWhoReturnsStaysInReserve) {
    Options o = fourByTwo();
    o.spares = 1;
    SimulatedJob job(o, 23);
    startAndReach(job, 12);
    const size_t before = all<fact::StepCommitted>(job).size();
    job.killRank(1, 0);
    ASSERT_TRUE(job.runUntil(
        [&] { return all<fact::IncidentClosed>(job).size() == 1 && job.committed() >= 30; },
        120 * kSecond))
        << explain(job);
    EXPECT_THAT(all<fact::IncidentClosed>(job)[0].outcome, ::testing::HasSubstr("in reserve"));
    const auto commits = all<fact::StepCommitted>(job);
    size_t withoutIt = 0;
    for (size_t i = before; i < commits.size(); ++i) {
        const size_t n = commits[i].record.contributors.size();
        EXPECT_LE(n, 4u);
        withoutIt += n < 4;
    }
    EXPECT_LE(withoutIt, 2u) << "the step in flight, and perhaps its successor";
    std::vector<int32_t> last;
    for (const Contribution& c : commits.back().record.contributors) last.push_back(c.replica);
    EXPECT_THAT(last, ::testing::ElementsAre(0, 2, 3, 4));
    EXPECT_THAT(job.failures(), ::testing::IsEmpty());
}

TEST_F(SimulatedJobTest, SilenceOfHalfTheJobPausesItAndNobodyIsExpelledOnHearsay) {
    SimulatedJob job(fourByTwo(), 19);
    startAndReach(job, 5);
    for (int32_t r : {0, 1, 2})
        for (int32_t s : {0, 1}) job.hangRank(r, s);
    job.runFor(10 * kSecond);
    EXPECT_NE(job.coordinator().phase(), JobPhase::kTraining);
    for (const ReplicaView& v : job.coordinator().replicas()) EXPECT_EQ(v.incarnation, 1u);
    for (int32_t r : {0, 1, 2})
        for (int32_t s : {0, 1}) job.wakeRank(r, s);
    wholeAgain(job);
}

/// The facts alone suffice to derive the state, the phase and the losses of the job.
TEST_F(SimulatedJobTest, WhatIsToldIsWhatIs) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        SimulatedJob job(fourByTwo(), 4000 + seed);
        startAndReach(job, 3);
        const auto toldIsTrue = [&] {
            std::map<int32_t, fact::ReplicaChanged> told;
            for (const auto& f : all<fact::ReplicaChanged>(job)) told[f.replica] = f;
            for (const ReplicaView& v : job.coordinator().replicas()) {
                EXPECT_EQ(told[v.replica].state, v.state) << "r" << v.replica;
                EXPECT_EQ(told[v.replica].incarnation, v.incarnation) << "r" << v.replica;
            }
            EXPECT_EQ(all<fact::JobPhaseChanged>(job).back().phase, job.coordinator().phase());
            EXPECT_EQ(all<fact::StepCommitted>(job).back().record.step, job.committed());
        };
        for (int i = 0; i < 5; ++i) {
            const auto replica = static_cast<int32_t>(job.rng() % 4);
            const uint64_t revision = job.coordinator().revision();
            job.killReplica(replica);
            ASSERT_TRUE(job.runUntil([&] { return job.coordinator().revision() != revision; },
                                     10 * kSecond))
                << "an operator's view of before the loss is out of date";
            toldIsTrue();
            job.runFor(static_cast<MonoNs>(job.rng() % 400) * kMillisecond);
            toldIsTrue();
        }
        wholeAgain(job);
        toldIsTrue();
        // Every incident has its number and comes to an end.
        std::set<uint64_t> open;
        for (const Fact& f : job.facts()) {
            if (const auto* o = std::get_if<fact::IncidentOpened>(&f)) {
                EXPECT_TRUE(open.insert(o->incident).second);
            }
            if (const auto* c = std::get_if<fact::IncidentClosed>(&f)) {
                EXPECT_EQ(open.erase(c->incident), 1u);
            }
        }
        EXPECT_THAT(open, ::testing::IsEmpty()) << "seed " << seed;
        // Steps are told in order, each with its quorum, and none of its attempts twice.
        uint64_t step = 0;
        std::set<std::tuple<uint64_t, uint64_t, uint32_t>> quorums;
        for (const Fact& f : job.facts()) {
            if (const auto* q = std::get_if<fact::QuorumDecided>(&f)) {
                EXPECT_TRUE(quorums.insert({q->step, q->epoch, q->attempt}).second);
            }
            if (const auto* c = std::get_if<fact::StepCommitted>(&f)) {
                const CommitRecord& r = c->record;
                EXPECT_EQ(r.step, ++step);
                EXPECT_TRUE(quorums.contains({r.step, r.epoch, r.attempt})) << "step " << step;
                EXPECT_FALSE(c->votes.empty());
            }
        }
        if (HasFailure()) {
            ADD_FAILURE() << "seed " << 4000 + seed << explain(job);
            return;
        }
    }
}

TEST_F(SimulatedJobTest, AnIncidentTellsBothSidesAndCloses) {
    SimulatedJob job(fourByTwo(), 20);
    startAndReach(job, 5);
    job.killReplica(2);
    wholeAgain(job);
    const auto closed = all<fact::IncidentClosed>(job);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_THAT(closed[0].outcome, ::testing::HasSubstr("rejoined"));
    std::set<IncidentPhaseKind> seen;
    for (const auto& p : all<fact::IncidentPhase>(job)) {
        EXPECT_LE(p.begin, p.end);
        seen.insert(p.phase);
    }
    for (IncidentPhaseKind k :
         {IncidentPhaseKind::kDetect, IncidentPhaseKind::kDecide, IncidentPhaseKind::kRestart,
          IncidentPhaseKind::kInit, IncidentPhaseKind::kFetch, IncidentPhaseKind::kReplay,
          IncidentPhaseKind::kJoin})
        EXPECT_TRUE(seen.contains(k)) << enumName(k);
}

}  // namespace
}  // namespace bulkhead::simulation
