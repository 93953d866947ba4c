// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/demo_job.h"
#include "bench/report.h"

/// Faults upon the live demo job, and what its events say of each.
namespace bulkhead::bench {

struct Settings : Place {
    uint64_t seed = 1;
    uint32_t kills = 20;
    uint64_t lossSteps = 600;
    double policySeconds = 60;
    std::vector<double> memoryGb = {0.1, 1, 4};  ///< of a killed rank, ascending
    std::vector<std::string> parts;
    bool wants(const std::string& part) const {
        return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
    }
    std::string folder(const std::string& name) const { return out + "/failover-" + name; }
};

uint64_t lastStep(const model::RunState& s);
bool allContribute(const model::RunState& s);
/// Waits for so many more steps, and for the last of them to be everybody's.
void waitForSteps(DemoJob& job, uint64_t more);
/// Starts as DemoJob::start; returns once all replicas have contributed.
std::unique_ptr<DemoJob> startDemo(const Settings& settings, const std::string& name,
                                   const std::function<void(model::JobSpec&)>& change = {},
                                   uint32_t nodes = 1);

/// Any rank of the demo's 4 x 2, in any phase of a step.
model::FaultSpec seededKill(std::mt19937_64& rng);
struct PlannedKill {
    uint64_t stepsBefore = 0;  ///< committed by everybody, since the one before
    model::FaultSpec fault;
};
/// Same seed: same victims, phases and steps between them.
std::vector<PlannedKill> plannedKills(uint64_t seed, uint32_t kills);

/// Injects, waits until its incident is closed and all contribute again; the events since.
std::vector<model::Event> throughFault(DemoJob& job, const model::FaultSpec& fault,
                                       uint64_t& faultId);
/// The incident that `fault` caused, once it is open.
std::optional<model::IncidentOpened> incidentOf(const std::vector<model::Event>& events,
                                                uint64_t fault);
/// Three seeds without a fault and the first of them with so many kills at equal distances, each to
/// the end of its `steps`: rows, and the bar that kills move the loss no further than seeds do.
void lossUnderKills(const std::function<std::unique_ptr<DemoJob>(uint64_t seed)>& start,
                    uint64_t steps, uint32_t kills, Report& report);

const model::IncidentClosed* closedOf(const std::vector<model::Event>& events, uint64_t incident);
double phaseMs(const std::vector<model::Event>& events, uint64_t incident,
               model::IncidentPhaseKind kind);

}  // namespace bulkhead::bench
