// SPDX-License-Identifier: Apache-2.0
#include "bench/failover/memory.h"

#include <cmath>
#include <cstdlib>
#include <thread>

namespace bulkhead::bench {
namespace {

constexpr int32_t kVictim = 2;
constexpr double kMostDetectMs = 5;
constexpr double kMostStallMs = 15;  ///< and one exchange
constexpr uint64_t kStepMs = 70;
/// Two medians of the same kills may differ by so much.
constexpr double kMostGrowthMs = 5;

struct Cost {
    std::vector<double> detect, stall, rejoin;
    double exchangeMs = 0;  ///< median, before the kills
};

Cost costOfKills(const Settings& settings, const std::string& name, uint32_t nodes, double gb) {
    const auto mib = static_cast<uint64_t>(std::llround(gb * 1024));
    const std::string ballast = std::to_string(kVictim) + ":" + std::to_string(mib);
    ::setenv("BULKHEAD_BENCH_BALLAST", ballast.c_str(), 1);
    ::setenv("LD_PRELOAD", BALLAST_LIBRARY, 1);  // of the agents, and so of their ranks
    auto job = startDemo(settings, name, {}, nodes);
    ::unsetenv("LD_PRELOAD");

    Cost cost;
    waitForSteps(*job, 10);
    const uint64_t from = job->state().seq;
    waitForSteps(*job, 40);
    std::vector<double> exchangeMs;
    for (const model::StepCommitted& step : committed(job->events(from)))
        for (const auto& r : step.replicas) exchangeMs.push_back(r.exchangeMs);
    cost.exchangeMs = spreadOf(exchangeMs).median;
    model::FaultSpec fault;  // no phase: the agent kills, so that the moment is known exactly
    fault.kind = model::FaultKind::kKillRank;
    fault.replica = kVictim;
    fault.shard = 0;
    std::mt19937_64 rng(settings.seed);
    for (const PlannedKill& kill : plannedKills(settings.seed, settings.kills)) {
        waitForSteps(*job, kill.stepsBefore);
        // Somewhere in a step.
        std::this_thread::sleep_for(std::chrono::milliseconds(rng() % kStepMs));
        uint64_t id = 0;
        const auto events = throughFault(*job, fault, id);
        const auto opened = incidentOf(events, id);
        const auto* closed = opened ? closedOf(events, opened->incident) : nullptr;
        if (closed == nullptr) die(absl::InternalError("a kill left no closed incident"));
        cost.detect.push_back(phaseMs(events, opened->incident, model::IncidentPhaseKind::kDetect));
        cost.stall.push_back(closed->survivorStallMs);
        cost.rejoin.push_back(closed->rejoinMs);
    }
    return cost;
}

std::string medianOf(const std::vector<double>& values, int decimals = 1) {
    const Spread s = spreadOf(values);
    return number(s.median, decimals) + " (" + number(s.min, decimals) + " to " +
           number(s.max, decimals) + ")";
}

}  // namespace

void killsBySize(const Settings& settings, Report& report) {
    for (const uint32_t nodes : {1u, 2u}) {
        const std::string way = nodes == 1 ? "shared memory" : "TCP, two nodes";
        double least = 0, most = 0;
        for (const double gb : settings.memoryGb) {
            const std::string size = number(gb) + " GB, " + way;
            const Cost cost = costOfKills(settings, "memory", nodes, gb);
            report.row({"", std::to_string(cost.detect.size()) + " kills, " + size, "",
                        medianOf(cost.detect), medianOf(cost.stall), medianOf(cost.rejoin, 0), "",
                        "exchange " + number(cost.exchangeMs) + " ms"});
            const double detect = spreadOf(cost.detect).median;
            report.atMost("median detection, " + size, detect, kMostDetectMs, "ms");
            report.atMost("median survivors' stall, " + size, spreadOf(cost.stall).median,
                          kMostStallMs + cost.exchangeMs, "ms");
            if (gb == settings.memoryGb.front()) least = detect;
            most = detect;
        }
        report.atMost("detection, most against least memory, " + way, most - least, kMostGrowthMs,
                      "ms");
    }
}

}  // namespace bulkhead::bench
