// SPDX-License-Identifier: Apache-2.0
// The cost of a failure, in virtual time: a job that heals, but late or by way of others, is
// wrong. The bounds are what it cost at worst when this was written, with a fifth of the time to
// spare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {
namespace {

struct Cost {
    double stillMs = 0;  ///< longest time without a commit
    double healMs = 0;   ///< from the fault until all train again
    size_t redone = 0;
    size_t evidence = 0;
    size_t incidents = 0;
    size_t starts = 0;     ///< of replicas
    size_t stops = 0;      ///< ordered by the coordinator
    size_t fetches = 0;    ///< begun by ranks
    size_t snapshots = 0;  ///< taken by ranks
    size_t lineages = 0;
    size_t fewestIncidents = 0;  ///< a lower bound: unreported losses are wrong as well
};

constexpr uint64_t kSeeds = 25;

class CostTest : public testing::Test {
  protected:
    static Options fourByTwo() {
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
    /// The worst of each figure over the seeds, of `strike` at any moment of a job at work.
    Cost worstOf(const std::function<void(SimulatedJob&)>& strike) {
        Cost worst;
        worst.fewestIncidents = SIZE_MAX;
        for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
            const Cost c = costOf(seed, strike);
            const auto raise = [](auto& most, auto value) { most = std::max(most, value); };
            raise(worst.stillMs, c.stillMs);
            raise(worst.healMs, c.healMs);
            raise(worst.redone, c.redone);
            raise(worst.evidence, c.evidence);
            raise(worst.incidents, c.incidents);
            raise(worst.starts, c.starts);
            raise(worst.stops, c.stops);
            raise(worst.fetches, c.fetches);
            raise(worst.snapshots, c.snapshots);
            raise(worst.lineages, c.lineages);
            worst.fewestIncidents = std::min(worst.fewestIncidents, c.incidents);
        }
        return worst;
    }
    Cost costOf(uint64_t seed, const std::function<void(SimulatedJob&)>& strike) {
        SimulatedJob job(fourByTwo(), 9000 + seed);
        job.start();
        EXPECT_TRUE(job.runUntil([&] { return job.committed() >= 5; }, 60 * kSecond));
        job.runFor(static_cast<MonoNs>(job.rng() % 300) * kMillisecond);
        const size_t before = job.facts().size();
        Cost c;
        job.onAction = [&](const Action& a) {
            c.starts += std::holds_alternative<StartReplica>(a);
            c.stops += std::holds_alternative<StopReplica>(a);
        };
        job.onRankAction = [&](RankId, const RankAction& a) {
            c.fetches += std::holds_alternative<BeginFetch>(a);
            c.snapshots += std::holds_alternative<TakeSnapshot>(a);
        };
        const MonoNs from = job.now();
        MonoNs last = from;
        uint64_t step = job.committed();
        const auto watch = [&] {
            if (job.coordinatorUp() && job.committed() != step) {
                c.stillMs = std::max(c.stillMs, inMs(job.now() - last));
                last = job.now();
                step = job.committed();
            }
        };
        strike(job);
        job.runUntil(
            [&] {
                watch();
                return job.now() > from + 200 * kMillisecond && job.whole();
            },
            60 * kSecond);
        c.healMs = inMs(job.now() - from);
        const MonoNs end = job.now() + 2 * kSecond;
        job.runUntil(
            [&] {
                watch();
                return job.now() > end;
            },
            10 * kSecond);
        EXPECT_TRUE(job.whole() || job.training() == 4) << "seed " << 9000 + seed;
        EXPECT_THAT(job.failures(), testing::IsEmpty()) << "seed " << 9000 + seed;
        for (size_t i = before; i < job.facts().size(); ++i) {
            const Fact& f = job.facts()[i];
            c.redone += std::holds_alternative<fact::StepRedone>(f);
            // A jump accuses nobody, and sums of made-up gradients do jump.
            const auto* seen = std::get_if<fact::EvidenceSeen>(&f);
            c.evidence += seen != nullptr && seen->kind != EvidenceKind::kGradientJump;
            c.incidents += std::holds_alternative<fact::IncidentOpened>(f);
            c.lineages += std::holds_alternative<fact::LineageOpened>(f);
        }
        return c;
    }
    static double inMs(MonoNs t) { return static_cast<double>(t) / kMillisecond; }
    static void within(const Cost& c, const Cost& bound) {
        EXPECT_LE(c.stillMs, bound.stillMs);
        EXPECT_LE(c.healMs, bound.healMs);
        EXPECT_LE(c.redone, bound.redone);
        EXPECT_LE(c.evidence, bound.evidence);
        EXPECT_LE(c.incidents, bound.incidents);
        EXPECT_LE(c.starts, bound.starts);
        EXPECT_LE(c.stops, bound.stops);
        EXPECT_LE(c.fetches, bound.fetches);
        EXPECT_LE(c.snapshots, bound.snapshots);
        EXPECT_LE(c.lineages, bound.lineages);
        EXPECT_GE(c.fewestIncidents, bound.fewestIncidents);
    }
    static Operation operation(OperationKind kind, int32_t replica) {
        Operation o;
        o.kind = kind;
        o.replica = replica;
        o.requestId = "test";
        return o;
    }
};

TEST_F(CostTest, Nothing) {
    within(worstOf([](SimulatedJob&) {}), {51, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}
TEST_F(CostTest, AKilledReplica) {
    within(worstOf([](SimulatedJob& job) { job.killReplica(2); }),
           {51, 319, 1, 3, 1, 1, 1, 2, 6, 0, 1});
}
TEST_F(CostTest, AKilledRank) {
    within(worstOf([](SimulatedJob& job) { job.killRank(1, 1); }),
           {51, 324, 2, 3, 1, 1, 1, 2, 6, 0, 1});
}
TEST_F(CostTest, TwoKilledReplicas) {
    within(worstOf([](SimulatedJob& job) {
               job.killReplica(0);
               job.runFor(30 * kMillisecond);
               job.killReplica(3);
           }),
           {51, 391, 2, 6, 2, 2, 2, 4, 8, 0, 2});
}
TEST_F(CostTest, AHungRank) {
    within(worstOf([](SimulatedJob& job) { job.hangRank(3, 0); }),
           {2461, 2748, 1, 1, 1, 1, 1, 2, 6, 0, 1});
}
TEST_F(CostTest, ALostCoordinator) {
    within(worstOf([](SimulatedJob& job) {
               job.killCoordinator();
               job.runFor(100 * kMillisecond);
               job.startCoordinator();
           }),
           {304, 304, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}
TEST_F(CostTest, ALostCoordinatorAndAReplica) {
    within(worstOf([](SimulatedJob& job) {
               job.killCoordinator();
               job.killReplica(2);
               job.runFor(100 * kMillisecond);
               job.startCoordinator();
           }),
           {325, 568, 0, 0, 1, 1, 0, 2, 6, 0, 1});
}
TEST_F(CostTest, AGradientThatIsNotFinite) {
    within(worstOf([](SimulatedJob& job) { job.nextGradientNotFinite(1); }),
           {80, 247, 1, 1, 0, 0, 0, 0, 0, 0, 0});
}
TEST_F(CostTest, AFlippedParameter) {
    within(worstOf([](SimulatedJob& job) { job.flipState(1, 1); }),
           {60, 432, 1, 1, 1, 1, 1, 2, 6, 0, 1});
}
TEST_F(CostTest, AReplicaThatIsRestarted) {
    within(worstOf([](SimulatedJob& job) {
               job.operate(operation(OperationKind::kRestartReplica, 1));
           }),
           {50, 322, 1, 0, 1, 1, 1, 2, 6, 0, 0});
}
TEST_F(CostTest, ADrainAndAReturn) {
    within(worstOf([](SimulatedJob& job) {
               job.operate(operation(OperationKind::kDrain, 1));
               job.runFor(kSecond);
               job.operate(operation(OperationKind::kReleaseRejoin, 1));
           }),
           {1200, 1528, 0, 0, 0, 1, 1, 2, 6, 0, 0});
}
TEST_F(CostTest, AllOfThemKilled) {
    within(worstOf([](SimulatedJob& job) {
               for (const int32_t r : {0, 1, 2, 3}) job.killReplica(r);
           }),
           {151, 248, 1, 4, 4, 4, 4, 0, 0, 1, 4});
}

}  // namespace
}  // namespace bulkhead::simulation
