// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/schedule.h"

#include <algorithm>

#include "backend/runtime/simulation/rng.h"

namespace bulkhead::simulation {
namespace {

struct Weight {
    FaultKind kind;
    uint32_t weight;
    double fromMs;  ///< shortest duration
    double toMs;
};

constexpr Weight kWeights[] = {
    {FaultKind::kKillRank, 12, 0, 0},
    {FaultKind::kKillReplica, 8, 0, 0},
    {FaultKind::kCrashNode, 3, 200, 3000},
    {FaultKind::kHangRank, 6, 10, 1500},
    {FaultKind::kSlowRank, 4, 50, 1500},
    {FaultKind::kCutData, 6, 5, 800},
    {FaultKind::kCutDataOneWay, 4, 5, 800},
    {FaultKind::kCutControl, 6, 5, 1200},
    {FaultKind::kLoseUp, 4, 5, 800},
    {FaultKind::kLoseDown, 4, 5, 800},
    {FaultKind::kStall, 6, 5, 600},
    {FaultKind::kStorm, 8, 20, 1200},
    {FaultKind::kStormAll, 4, 20, 600},
    {FaultKind::kIsolate, 4, 20, 1500},
    {FaultKind::kLoseInner, 2, 5, 500},
    {FaultKind::kKillCoordinator, 6, 10, 500},
    {FaultKind::kKillCoordinatorLosingTail, 4, 10, 800},
    {FaultKind::kSlowDisk, 4, 50, 800},
    {FaultKind::kKillAgent, 3, 50, 2500},
    {FaultKind::kFailStart, 2, 0, 0},
    {FaultKind::kFlipParameter, 5, 0, 0},
    {FaultKind::kFlipGradient, 3, 0, 0},
    {FaultKind::kNanGradient, 4, 0, 0},
    {FaultKind::kPoisonSample, 2, 0, 0},
    {FaultKind::kOverflow, 2, 0, 0},
    {FaultKind::kFailFetch, 3, 0, 0},
    {FaultKind::kLoseDeltas, 3, 0, 0},
    {FaultKind::kFailCheckpoint, 2, 0, 0},
    {FaultKind::kFailLayoutMove, 1, 50, 1000},
    {FaultKind::kDrain, 2, 0, 0},
    {FaultKind::kHold, 1, 0, 0},
    {FaultKind::kRelease, 4, 0, 0},
    {FaultKind::kRestart, 3, 0, 0},
    {FaultKind::kPause, 2, 10, 500},
    {FaultKind::kCheckpoint, 2, 0, 0},
    {FaultKind::kPolicies, 2, 0, 0},
    {FaultKind::kChangeLayout, 4, 0, 0},
    {FaultKind::kFlipCopy, 4, 0, 0},
};

constexpr Weight kDriverWeights[] = {
    {FaultKind::kHangCoordinator, 8, 5, 4000}, {FaultKind::kSecondCoordinator, 2, 0, 0},
    {FaultKind::kCutAgent, 6, 5, 1500},        {FaultKind::kFullDisk, 6, 20, 6000},
    {FaultKind::kFreezeNode, 4, 20, 5000},
};

bool corrupts(FaultKind kind) {
    return kind == FaultKind::kFlipParameter || kind == FaultKind::kFlipGradient ||
           kind == FaultKind::kFlipCopy;
}

const Weight& drawKind(Rng& rng, const Setup& setup) {
    std::vector<const Weight*> choices;
    uint64_t total = 0;
    const auto add = [&](const Weight& w) {
        if (corrupts(w.kind) && !setup.corruption) return;
        // Real ranks forget deltas by their budget alone, and some setups leave it at three steps.
        if (w.kind == FaultKind::kLoseDeltas && setup.drivers) return;
        choices.push_back(&w);
        total += w.weight;
    };
    for (const Weight& w : kWeights) add(w);
    if (setup.drivers)
        for (const Weight& w : kDriverWeights) add(w);
    uint64_t at = rng.below(total);
    for (const Weight* w : choices) {
        if (at < w->weight) return *w;
        at -= w->weight;
    }
    return kWeights[0];
}

/// Kinds that came later are drawn by themselves: what a seed drew before stays as it was.
void addLater(uint64_t seed, MonoNs until, bool drivers, Schedule& out) {
    if (out.empty()) return;
    Rng rng(mix(seed, 79));
    for (uint64_t n = rng.chance(0.4) ? 0 : 1 + rng.below(4); n > 0; --n) {
        Fault f;
        f.kind = rng.chance(0.6) ? FaultKind::kHangCoordinator : FaultKind::kDamageCheckpoint;
        f.at = static_cast<MonoNs>(rng.below(static_cast<uint64_t>(until) + 1));
        f.duration = f.kind == FaultKind::kHangCoordinator ? rng.between(20, 4000) : 0;
        out.push_back(f);
    }
    Rng lies(mix(seed, 80));
    if (drivers && lies.chance(0.1)) {
        Fault f;
        f.kind = FaultKind::kLyingDisk;
        f.at = static_cast<MonoNs>(lies.below(static_cast<uint64_t>(until) + 1));
        f.duration = lies.between(10, lies.chance(0.7) ? 100 : 400);
        f.parameter = lies();
        out.push_back(f);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Fault& a, const Fault& b) { return a.at < b.at; });
}

template <class T>
T pick(Rng& rng, std::initializer_list<T> of) {
    return of.begin()[rng.below(of.size())];
}

}  // namespace

Setup drawSetup(uint64_t seed) {
    Rng rng(mix(seed, 77));
    Setup s;
    Options& o = s.options;
    o.replicas = pick(rng, {2u, 3u, 4u, 4u, 4u, 5u});
    o.shards = pick(rng, {1u, 2u, 2u, 3u});
    o.domains = pick(rng, {1u, 2u});
    o.secret.words[0] = rng() | 1;
    o.samplesPerReplica = pick(rng, {2u, 4u, 4u});
    o.optimizer->warmupSteps = 10;
    o.optimizer->decaySteps = 200;
    o.policies.lr = pick(rng, {LrPolicy::kSqrt, LrPolicy::kLinear, LrPolicy::kNone});
    o.policies.batch =
        pick(rng, {BatchPolicy::kShrink, BatchPolicy::kShrink, BatchPolicy::kConstant});
    o.policies.recovery = rng.chance(0.06) ? RecoveryPolicy::kRestartAll : RecoveryPolicy::kFt;
    o.policies.minReplicas = pick(rng, {1u, 1u, 1u, 2u});
    o.policies.parityEverySteps = pick(rng, {1u, 1u, 1u, 1u, 3u});
    o.policies.checkpointEverySteps = pick(rng, {4u, 10u, 25u});
    o.policies.restartLimit = 0;
    o.timeouts = {.beatMs = 50,
                  .heartbeatMs = 500,
                  .progressFloorMs = 600,
                  .progressMultiple = 8,
                  .chunkFloorMs = 120,
                  .chunkMultiple = 20,
                  .joinMs = 800,
                  .startMs = 2500,
                  .fetchMs = 1500,
                  .orphanMs = rng.chance(0.2) ? 700u : 20000u,
                  .backoffFirstMs = 20,
                  .backoffMaxMs = 400,
                  .restartWindowMs = 20000,
                  .stopMs = 1000,
                  .massPauseMs = 2500};
    s.environment.nodes = pick(rng, {1u, 2u, o.replicas, o.replicas});
    s.environment.clockDrift = pick(rng, {0.0, 0.02, 0.1});
    s.environment.deltaWindow = pick(rng, {size_t{40}, size_t{40}, size_t{3}});
    s.corruption = rng.chance(0.3);
    o.spares = pick(rng, {0u, 0u, 0u, 1u, 2u});
    if (rng.chance(0.1)) o.policies.restartLimit = 4;
    // Without parity nobody is told apart by a hash.
    if (!s.corruption && rng.chance(0.05)) o.policies.parityEverySteps = 0;
    s.environment.hashMs = pick(rng, {0.01, 0.05, 2.0, 10.0});
    if (o.policies.parityEverySteps == 1 && rng.chance(0.6))
        o.policies.parityEverySteps = kParityAuto;
    // A spare, for which nobody waits, would never have a state where no sum leaves in time.
    s.environment.slowSums = pick(rng, {0.0, 0.0, 0.3, o.spares == 0 ? 1.0 : 0.3});
    return s;
}

Schedule drawSchedule(uint64_t seed, const Setup& setup, size_t count) {
    Rng rng(mix(seed, 78));
    Schedule out;
    const uint32_t replicas = setup.options.replicas + setup.options.spares;
    MonoNs now = rng.between(0, 1200);
    // Some seeds are crowded, some give the job time to heal in between.
    const double mean = pick(rng, {40.0, 120.0, 120.0, 400.0});
    for (size_t i = 0; i < count; ++i) {
        const Weight& w = drawKind(rng, setup);
        Fault f;
        f.kind = w.kind;
        now += rng.chance(0.35) ? rng.between(0, 5) : rng.between(0, 2 * mean);
        f.at = now;
        f.replica = static_cast<int32_t>(rng.below(replicas));
        f.shard = static_cast<int32_t>(rng.below(setup.options.shards));
        f.other = static_cast<int32_t>(
            (static_cast<uint64_t>(f.replica) + 1 + rng.below(std::max(1u, replicas - 1))) %
            replicas);
        f.parameter = rng();
        if (w.toMs > 0) f.duration = rng.between(w.fromMs, w.toMs * (rng.chance(0.7) ? 0.3 : 1));
        if (f.kind == FaultKind::kHangRank && rng.chance(0.4)) f.duration = 0;
        if (f.kind == FaultKind::kSlowRank) f.parameter = 2 + f.parameter % 30;
        if (rng.chance(0.3)) {
            f.trigger = static_cast<Trigger>(1 + rng.below(EnumNames<Trigger>::kNames.size() - 1));
            if (rng.chance(0.5)) f.replica = -1;
        }
        out.push_back(f);
    }
    addLater(seed, now, setup.drivers, out);
    return out;
}

}  // namespace bulkhead::simulation
