// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/trial.h"

#include "absl/strings/str_cat.h"

namespace bulkhead::simulation {
namespace {

/// From the last fault until everything is as it should be. The longest way there that is in order:
/// a start that hangs (startMs), twice, behind a coordinator's join time and the longest back-off.
constexpr MonoNs kHealWithin = 40 * kSecond;
/// The job commits at least so many steps after the last fault.
constexpr uint64_t kStepsAfter = 6;

}  // namespace

Verdict runTrial(uint64_t seed, const Setup& setup, const Schedule& schedule,
                 const SimulatedJob::Story& story) {
    SimulatedJob job(setup.options, seed, setup.environment);
    job.story = story;
    job.keepFacts = false;
    job.start();
    const MonoNs begin = job.now();
    for (const Fault& f : schedule) {
        const MonoNs wait = begin + f.at - job.now();
        if (wait > 0) job.runFor(wait);
        if (!job.failures().empty()) break;
        job.strike(f);
    }
    if (job.failures().empty()) {
        // What strikes last also has its time.
        job.runFor(300 * kMillisecond);
        job.healAll();
        const uint64_t commits = job.oracle().commits();
        job.runUntil([&] { return job.oracle().commits() >= commits + kStepsAfter && job.whole(); },
                     kHealWithin);
        if (job.failures().empty() &&
            !(job.oracle().commits() >= commits + kStepsAfter && job.whole()))
            job.broken("I4",
                       absl::StrCat("the job is not whole ", kHealWithin / kSecond,
                                    " s after the last fault, with ",
                                    job.oracle().commits() - commits, " steps committed since"));
    }
    Verdict v;
    v.seed = seed;
    if (!job.failures().empty()) v.broken = job.failures().front();
    v.standing = job.standing();
    v.time = job.now();
    v.digest = job.digest();
    v.counts = job.counts();
    return v;
}

Verdict runTrial(uint64_t seed, size_t faults) {
    const Setup setup = drawSetup(seed);
    return runTrial(seed, setup, drawSchedule(seed, setup, faults));
}

}  // namespace bulkhead::simulation
