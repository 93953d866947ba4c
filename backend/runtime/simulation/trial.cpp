// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/trial.h"

#include "absl/strings/str_cat.h"

namespace bulkhead::simulation {
namespace {

/// The job commits at least so many steps after the last fault.
constexpr uint64_t kStepsAfter = 6;
/// Then so many that nothing disturbs, each well within a second.
constexpr uint64_t kQuietSteps = 8;
constexpr MonoNs kQuietWithin = 8 * kSecond;

size_t processesOf(const Setup& setup) {
    return size_t{setup.options.shards} * (setup.options.replicas + setup.options.spares);
}

/// I4: the job comes back to what it was, and nothing else runs.
void heal(SimulatedJob& job, const Setup& setup) {
    job.healAll();
    // Bytes that were late on a stream stay late, and so do those behind them.
    if (setup.drivers) job.runFor(2 * kSecond);
    const uint64_t commits = job.oracle().commits();
    const auto healed = [&] {
        return job.oracle().commits() >= commits + kStepsAfter && job.whole() &&
               job.living() == processesOf(setup) &&
               job.now() > job.struckUntil();  // messages in flight have arrived
    };
    if (job.runUntil(healed, setup.healWithin) || !job.failures().empty()) return;
    job.broken("I4", absl::StrCat("the job is not whole ", setup.healWithin / kSecond,
                                  " s after the last fault: ", job.living(), " of ",
                                  processesOf(setup), " processes run, with ",
                                  job.oracle().commits() - commits, " steps committed since"));
}

/// Without a fault nobody is lost, no step is done twice, every replica contributes, and nothing
/// is left of the faults that were.
void stayWhole(SimulatedJob& job, const Setup& setup) {
    const SimulatedJob::Counts before = job.counts();
    const auto quiet = [&] { return job.oracle().commits() >= before.commits + kQuietSteps; };
    bool all = true;
    uint64_t seen = before.commits + 1;  // the step in flight may have begun with fewer
    const auto watch = [&] {
        const CommitRecord* last = job.oracle().last();
        if (job.oracle().commits() > seen && last != nullptr) {
            seen = job.oracle().commits();
            all = all && last->contributors.size() == setup.options.replicas;
        }
        return quiet();
    };
    const bool done = job.runUntil(watch, kQuietWithin);
    if (!job.failures().empty()) return;
    const SimulatedJob::Counts after = job.counts();
    if (!done)
        job.broken("I4", absl::StrCat("a whole job commits ", after.commits - before.commits,
                                      " steps in ", kQuietWithin / kSecond, " s"));
    else if (job.tainted())
        return;  // parity may have acted
    else if (after.redone != before.redone || after.starts != before.starts)
        job.broken("I4", absl::StrCat("a whole job loses ", after.starts - before.starts,
                                      " replicas and does ", after.redone - before.redone,
                                      " steps again, with no fault"));
    else if (!all)
        job.broken("I4", "a whole job commits a step without all its replicas");
    else if (job.living() != processesOf(setup))
        job.broken("I5",
                   absl::StrCat(job.living(), " processes run instead of ", processesOf(setup)));
    // A storm may turn a keep and a drop round; a spare that fetches has its own, again and again
    // where it cannot follow.
    else if (job.whole() && job.snapshots() > setup.options.shards &&
             (setup.environment.slowSums == 0 || setup.options.spares == 0))
        job.broken("I4", absl::StrCat(job.snapshots(), " snapshots are left over"));
}

/// In the end it stops with a checkpoint of its last step, over a coordinator's death in some
/// seeds.
void stop(SimulatedJob& job, const Setup& setup, bool coordinatorDies) {
    Operation o;
    o.kind = OperationKind::kStop;
    job.operate(o);
    if (coordinatorDies) {
        job.runFor(job.rng.between(0, 60));
        job.killCoordinator();
        job.runFor(job.rng.between(10, 200));
        job.startCoordinator();
    }
    const bool done =
        job.runUntil([&] { return job.finished() && job.living() == 0; }, setup.stopWithin);
    if (!job.failures().empty()) return;
    if (!done)
        job.broken("I4", absl::StrCat("told to stop, the job ",
                                      job.finished() ? "leaves " : "goes on with ", job.living(),
                                      " processes"));
    else if (job.oracle().checkpointed() != job.oracle().durableStep())
        job.broken("I4", absl::StrCat("the job stopped after step ", job.oracle().durableStep(),
                                      " with a checkpoint of step ", job.oracle().checkpointed()));
}

}  // namespace

Verdict runTrial(uint64_t seed, const Setup& setup, const Schedule& schedule,
                 const SimulatedJob::Story& story) {
    const std::unique_ptr<SimulatedJob> made =
        setup.make ? setup.make(setup, seed)
                   : std::make_unique<SimulatedJob>(setup.options, seed, setup.environment);
    SimulatedJob& job = *made;
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
        // The last fault also gets its time.
        job.runFor(300 * kMillisecond);
        if (job.failures().empty()) heal(job, setup);
        if (job.failures().empty()) stayWhole(job, setup);
        if (job.failures().empty()) stop(job, setup, seed % 3 == 0);
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
