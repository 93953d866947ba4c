// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/model/what_if.h"
#include "backend/runtime/simulation/simulated_job.h"

/// The model of `backend/model/what_if.h` against the protocol's own machines, at a size that both
/// can do. What one failure alone costs is measured first; the model has to say from that what many
/// failures cost that come by chance, into each other's recovery too.
namespace bulkhead::simulation {
namespace {

/// So many that a few that are lost together are no half of the job: that the protocol looks at
/// for up to Timeouts::massPauseMs, which the model leaves out.
constexpr uint32_t kReplicas = 8;
/// Tolerance as a share of the job's time. A run of 250 losses strays by 0.4 points from seed to
/// seed, since when they come and whom they hit is chance; what the model leaves out (losses that
/// share a stall, a victim hit again before it is back) must fit into the rest. The losses cost 3.5
/// and 7 points in all.
constexpr double kTolerance = 0.01;

Options eightByOne() {
    Options o;
    o.replicas = kReplicas;
    o.shards = 1;
    o.policies.restartLimit = 0;
    // A replica that fails often waits no longer than one that fails once, as in the model.
    o.timeouts.backoffMaxMs = o.timeouts.backoffFirstMs;
    return o;
}

/// A job and what it has committed.
struct Job {
    explicit Job(uint64_t seed) : job(eightByOne(), seed) {
        job.keepFacts = false;
        job.onAction = [this](const Action& action) {
            const auto* emit = std::get_if<Emit>(&action);
            const auto* step = emit ? std::get_if<fact::StepCommitted>(&emit->fact) : nullptr;
            if (step == nullptr) return;
            samples += step->record.samples;
            steps += 1;
            whole = step->record.samples == kReplicas * eightByOne().samplesPerReplica;
            lacked = lacked || !whole;
            stepBegan = std::exchange(committed, job.now());
        };
        job.start();
        EXPECT_TRUE(job.runUntil([this] { return steps >= 50; }, 60 * kSecond));
        samples = steps = 0;
        began = job.now();
    }
    double seconds() const { return static_cast<double>(job.now() - began) / kSecond; }
    void kill() { job.killReplica(static_cast<int32_t>(job.rng.below(kReplicas))); }

    SimulatedJob job;
    uint64_t samples = 0;
    uint64_t steps = 0;
    bool whole = false;   ///< everybody contributed to the last step
    bool lacked = false;  ///< somebody did not, since this was last put back
    MonoNs began = 0;
    MonoNs stepBegan = 0;  ///< the step that was committed last
    MonoNs committed = 0;
};

/// Figures of an undisturbed job.
struct Undisturbed {
    double samplesPerSecond;
    double stepS;
};

Undisturbed measureUndisturbed() {
    Job j(1);
    j.job.runFor(30 * kSecond);
    return {static_cast<double>(j.samples) / j.seconds(),
            j.seconds() / static_cast<double>(j.steps)};
}

struct OneFailure {
    double stallS = 0;   ///< in which nobody trains
    double outageS = 0;  ///< until the replica contributes again
};

/// Failures that wait for each other, at any moment of a step.
OneFailure measureOneFailure(const Undisturbed& usual) {
    constexpr int kTimes = 100;
    Job j(2);
    double outage = 0;
    for (int i = 0; i < kTimes; ++i) {
        j.job.runFor(j.job.rng.between(200, 230));
        const MonoNs struck = j.job.now();
        j.lacked = false;
        j.kill();
        EXPECT_TRUE(j.job.runUntil([&] { return j.lacked && j.whole; }, struck + 60 * kSecond));
        outage += static_cast<double>(j.stepBegan - struck) / kSecond;
    }
    EXPECT_TRUE(j.job.failures().empty());
    // Lost per failure: everybody's stall, one replica of all for the rest of its outage, and half
    // a step of its work.
    const double lost =
        (j.seconds() - static_cast<double>(j.samples) / usual.samplesPerSecond) / kTimes;
    OneFailure one;
    one.outageS = outage / kTimes;
    one.stallS = (lost - (one.outageS + usual.stepS / 2) / kReplicas) / (1 - 1.0 / kReplicas);
    one.stallS = std::max(one.stallS, 0.0);
    return one;
}

/// Effective training time of the machines under failures by chance, of anyone, at any time.
double measure(const Undisturbed& usual, double intervalS, uint64_t seed) {
    Job j(seed);
    for (int i = 0; i < 250; ++i) {
        const double wait = -intervalS * std::log(1 - j.job.rng.unit());
        j.job.runFor(static_cast<MonoNs>(wait * kSecond));
        j.kill();
    }
    EXPECT_TRUE(j.job.failures().empty());
    return static_cast<double>(j.samples) / usual.samplesPerSecond / j.seconds();
}

double predict(const Undisturbed& usual, const OneFailure& one, double intervalS) {
    model::WhatIf s;
    s.replicas = kReplicas;
    s.intervalS = intervalS;
    s.stepS = usual.stepS;
    s.lostStepShare = 0.5;
    s.detectS = one.stallS;
    s.restartS = one.outageS;
    return model::simulate(s, 20'000 * intervalS / 86400, 1).effective;
}

TEST(WhatIfCheck, SaysFromOneLossWhatTheMachinesMakeOfMany) {
    const Undisturbed usual = measureUndisturbed();
    const OneFailure one = measureOneFailure(usual);
    ASSERT_GT(one.outageS, one.stallS);
    for (const double outages : {4.0, 2.0}) {
        const double interval = outages * one.outageS;
        const double model = predict(usual, one, interval);
        for (const uint64_t seed : {3, 4, 5}) {
            const double machines = measure(usual, interval, seed);
            EXPECT_NEAR(machines, model, kTolerance)
                << "a loss every " << interval << " s, each with a stall of " << one.stallS
                << " s and an outage of " << one.outageS << " s; seed " << seed;
            EXPECT_LT(machines, 0.98);  // there was something to predict
        }
    }
}

}  // namespace
}  // namespace bulkhead::simulation
