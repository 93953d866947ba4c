// SPDX-License-Identifier: Apache-2.0
// State that a coordinator leaves to the next one: orders, quarantined data, the work survivors
// hold, the unreported figures of a step, incidents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/runtime/protocol/incident_book.h"
#include "backend/runtime/protocol/step_commit.h"
#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {
namespace {

using ::testing::IsEmpty;

class RecoveryTest : public ::testing::Test {
  protected:
    static Options options() {
        Options o;
        o.domains = 2;
        o.policies.checkpointEverySteps = 10;
        o.policies.restartLimit = 0;
        o.timeouts.joinMs = 2000;
        o.timeouts.backoffMaxMs = 500;
        return o;
    }
    static void reach(SimulatedJob& job, uint64_t step) {
        ASSERT_TRUE(job.runUntil([&] { return job.committed() >= step; }, 60 * kSecond))
            << job.coordinator().explanation();
    }
    static void another(SimulatedJob& job, MonoNs later = 30 * kMillisecond) {
        job.killCoordinator();
        job.runFor(later);
        job.startCoordinator();
    }
    static Operation operation(OperationKind kind, int32_t replica = -1) {
        Operation o;
        o.kind = kind;
        o.replica = replica;
        return o;
    }
    template <class T>
    static std::vector<T> all(const SimulatedJob& job) {
        std::vector<T> found;
        for (const Fact& f : job.facts())
            if (const T* t = std::get_if<T>(&f)) found.push_back(*t);
        return found;
    }
};

TEST_F(RecoveryTest, PoliciesAndAPauseOutliveTheCoordinator) {
    SimulatedJob job(options(), 1);
    job.start();
    reach(job, 5);
    Operation change = operation(OperationKind::kSetPolicies);
    change.policies = job.coordinator().policies();
    change.policies.lr = LrPolicy::kLinear;
    change.policies.minReplicas = 3;
    job.operate(change);
    job.operate(operation(OperationKind::kPause));
    job.runFor(kSecond);
    another(job);
    EXPECT_EQ(job.coordinator().policies(), change.policies);
    const uint64_t at = job.committed();
    job.runFor(5 * kSecond);
    EXPECT_EQ(job.committed(), at);
    EXPECT_EQ(job.coordinator().phase(), JobPhase::kPaused);
    job.operate(operation(OperationKind::kResume));
    reach(job, at + 3);
    EXPECT_THAT(job.failures(), IsEmpty());
}

TEST_F(RecoveryTest, WhoIsDrainedOrHeldStaysOut) {
    SimulatedJob job(options(), 2);
    job.start();
    reach(job, 5);
    job.operate(operation(OperationKind::kDrain, 3));
    job.operate(operation(OperationKind::kHoldRejoin, 2));
    job.killRank(2, 0);
    ASSERT_TRUE(job.runUntil([&] { return job.training() == 2; }, 10 * kSecond));
    another(job);
    reach(job, job.committed() + 20);
    EXPECT_EQ(job.training(), 2u);
    EXPECT_EQ(job.coordinator().replicas()[2].state, ReplicaState::kHeld);
    EXPECT_EQ(job.coordinator().replicas()[3].state, ReplicaState::kDrained);
    job.operate(operation(OperationKind::kReleaseRejoin, 2));
    job.operate(operation(OperationKind::kReleaseRejoin, 3));
    EXPECT_TRUE(job.runUntil([&] { return job.training() == 4; }, 60 * kSecond));
    EXPECT_THAT(job.failures(), IsEmpty());
}

TEST_F(RecoveryTest, AJobThatWasToldToStopStops) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
        SimulatedJob job(options(), 100 + seed);
        job.start();
        reach(job, 5);
        job.operate(operation(OperationKind::kStop));
        job.runFor(static_cast<MonoNs>(job.rng() % 100) * kMillisecond);
        if (!job.finished()) another(job);
        ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 120 * kSecond)) << seed;
        const auto finished = all<fact::RunFinished>(job);
        ASSERT_EQ(finished.size(), 1u) << seed;
        EXPECT_TRUE(finished[0].ok) << seed << ": " << finished[0].why;
        const LogCheckpoint* last = nullptr;
        for (const LogEntry& e : job.log())
            if (const auto* c = std::get_if<LogCheckpoint>(&e)) last = c;
        ASSERT_NE(last, nullptr) << seed;
        EXPECT_EQ(last->step, finished[0].step) << seed;
        EXPECT_THAT(job.failures(), IsEmpty()) << seed;
    }
}

/// A commit that reached one rank of each replica: nobody reports as a whole replica until the next
/// coordinator has told the others of it.
TEST_F(RecoveryTest, ACommitThatReachedHalfOfEveryReplicaIsNotLost) {
    for (const bool stops : {false, true}) {
        Options o = options();
        o.replicas = 2;
        SimulatedJob job(o, 200);
        uint64_t step = 0;
        job.onAction = [&](const Action& action) {
            const auto* append = std::get_if<AppendLog>(&action);
            const auto* commit = append ? std::get_if<LogCommit>(&append->entry) : nullptr;
            if (commit == nullptr || commit->record.step < 12 || step != 0) return;
            step = commit->record.step;
            for (const int32_t replica : {0, 1}) {
                Fault lose;
                lose.kind = FaultKind::kLoseDown;
                lose.replica = replica;
                lose.shard = 1;
                lose.duration = kSecond;
                job.strike(lose);
            }
        };
        job.start();
        ASSERT_TRUE(job.runUntil(
            [&] { return step != 0 && job.appliedBy(0) == step && job.appliedBy(1) == step; },
            10 * kSecond));
        another(job);
        if (stops) job.operate(operation(OperationKind::kStop));
        ASSERT_TRUE(
            job.runUntil([&] { return job.finished() || (!stops && job.committed() >= step + 5); },
                         10 * kSecond))
            << job.standing();
        EXPECT_EQ(job.coordinator().lineage(), 1u);
        for (const auto& end : all<fact::RunFinished>(job)) EXPECT_TRUE(end.ok) << end.why;
        EXPECT_THAT(job.failures(), IsEmpty());
    }
}

/// Everything is killed while its daemon is ending: nobody wanted the job itself to end.
TEST_F(RecoveryTest, AJobCutOffInTheEndOfItsDaemonGoesOnWithTheNext) {
    SimulatedJob job(options(), 3);
    job.start();
    reach(job, 25);
    Operation stop = operation(OperationKind::kStop);
    stop.thisTermOnly = true;
    job.operate(stop);
    ASSERT_EQ(job.coordinator().phase(), JobPhase::kStopping);
    for (int32_t r = 0; r < 4; ++r) job.killReplica(r);
    another(job);
    reach(job, 40);
    EXPECT_FALSE(job.finished());
    EXPECT_EQ(job.coordinator().lineage(), 2u);
    EXPECT_THAT(all<fact::IncidentOpened>(job), IsEmpty()) << "no survivor waited for anybody";
    EXPECT_THAT(job.failures(), IsEmpty());
}

TEST_F(RecoveryTest, QuarantinedDataStaysOutAfterARollbackToTheSeed) {
    Options o = options();
    o.policies.checkpointEverySteps = 0;
    SimulatedJob job(o, 8);
    job.start();
    reach(job, 5);
    job.poison(1, job.coordinator().ledger().highWater()[1] + 20);
    ASSERT_TRUE(
        job.runUntil([&] { return !all<fact::RangeQuarantined>(job).empty(); }, 20 * kSecond));
    reach(job, job.committed() + 3);
    const uint64_t withheld = job.coordinator().ledger().quarantinedSamples();
    const size_t told = all<fact::RangeQuarantined>(job).size();
    for (int32_t r = 0; r < 4; ++r) job.killReplica(r);
    ASSERT_TRUE(job.runUntil([&] { return job.coordinator().lineage() == 2; }, 20 * kSecond));
    EXPECT_EQ(job.coordinator().ledger().quarantinedSamples(), withheld);
    another(job);
    reach(job, 15);
    EXPECT_EQ(job.coordinator().ledger().quarantinedSamples(), withheld);
    EXPECT_EQ(all<fact::RangeQuarantined>(job).size(), told) << "it was trained on again";
    EXPECT_THAT(job.failures(), IsEmpty());
}

/// Also when leases came back to the pool before, or a replica was lost together with the
/// coordinator: handed out anew, the same ranges would go to others.
TEST_F(RecoveryTest, SurvivorsExchangeTheOpenStepAgainAndComputeNothingTwice) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
        SimulatedJob job(options(), 2000 + seed);
        job.start();
        reach(job, 4);
        if (seed % 2 == 1) {
            job.killRank(static_cast<int32_t>(job.rng() % 4), 0);
            ASSERT_TRUE(job.runUntil([&] { return job.training() == 3; }, 10 * kSecond));
            ASSERT_TRUE(job.runUntil([&] { return job.training() == 4; }, 60 * kSecond));
            reach(job, job.committed() + 3);
        }
        std::map<std::pair<RankId, uint64_t>, int> computed;
        job.onRankAction = [&](RankId rank, const RankAction& action) {
            const auto* begin = std::get_if<BeginStep>(&action);
            if (begin != nullptr && begin->compute) ++computed[{rank, begin->quorum.step}];
        };
        job.runFor(static_cast<MonoNs>(job.rng() % 120) * kMillisecond);
        const uint64_t step = job.committed();
        job.killCoordinator();
        job.runFor(30 * kMillisecond);
        const int32_t lost = seed % 3 == 0 ? 1 : -1;
        if (lost >= 0) job.killReplica(lost);
        job.startCoordinator();
        reach(job, step + 5);
        for (const auto& [what, times] : computed) {
            if (what.first.replica == lost) continue;
            EXPECT_EQ(times, 1) << "seed " << seed << ": r" << what.first.replica << "s"
                                << what.first.shard << " computed step " << what.second;
        }
        EXPECT_THAT(job.failures(), IsEmpty()) << seed;
        if (HasFailure()) return;
    }
}

TEST_F(RecoveryTest, TheLogCanTellOfEveryStepWhatWasTold) {
    SimulatedJob job(options(), 3);
    job.start();
    reach(job, 12);
    std::map<uint64_t, fact::StepCommitted> logged;
    for (const LogEntry& e : job.log())
        if (const auto* c = std::get_if<LogCommit>(&e))
            logged[c->record.step] = stepLine(c->record, c->figures);
    const auto told = all<fact::StepCommitted>(job);
    ASSERT_GE(told.size(), 12u);
    for (const fact::StepCommitted& line : told) {
        ASSERT_TRUE(logged.contains(line.record.step));
        const fact::StepCommitted& again = logged[line.record.step];
        EXPECT_EQ(again.record, line.record);
        EXPECT_EQ(again.loss, line.loss);
        EXPECT_EQ(again.gradNorm, line.gradNorm);
        EXPECT_EQ(again.learningRate, line.learningRate);
        EXPECT_EQ(again.domainLoss, line.domainLoss);
        ASSERT_EQ(again.votes.size(), line.votes.size());
        EXPECT_EQ(again.votes.front().hashes, line.votes.front().hashes);
        EXPECT_LE(again.stepMs, line.stepMs);
    }
}

TEST_F(RecoveryTest, AnIncidentLeftOpenGoesOnAndCloses) {
    IncidentBook book;
    book.resume({{7, 2, kSecond, 2 * kSecond, true, 1000, 16, 3}}, 9);
    std::vector<Fact> facts;
    book.committed(4 * kSecond, 50, facts);
    ASSERT_EQ(facts.size(), 1u);
    const auto& reform = std::get<fact::IncidentPhase>(facts[0]);
    EXPECT_EQ(reform.incident, 7u);
    EXPECT_EQ(reform.phase, IncidentPhaseKind::kReform);
    EXPECT_EQ(reform.begin, 2 * kSecond);
    facts.clear();
    book.close(6 * kSecond, 2, true, "rejoined at step 9", facts);
    ASSERT_EQ(facts.size(), 1u);
    const auto& closed = std::get<fact::IncidentClosed>(facts[0]);
    EXPECT_EQ(closed.incident, 7u);
    EXPECT_EQ(closed.rejoinMs, 5000);
    EXPECT_EQ(closed.survivorStallMs, 3000);
    EXPECT_EQ(closed.samplesRedone, 16u);
    facts.clear();
    book.open(7 * kSecond, 1, 2, 11, EvidenceKind::kProcessExit, "r1 lost", 7 * kSecond,
              7 * kSecond, true, 3, facts);
    EXPECT_EQ(std::get<fact::IncidentOpened>(facts[0]).incident, 10u);
}

}  // namespace
}  // namespace bulkhead::simulation
