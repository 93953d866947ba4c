// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "tests/protocol/simulated_job.h"

namespace bulkhead::protocol {
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
                    " applied " + std::to_string(job.appliedBy(v.replica));
        const size_t from = job.facts().size() > 40 ? job.facts().size() - 40 : 0;
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

}  // namespace
}  // namespace bulkhead::protocol
