// SPDX-License-Identifier: Apache-2.0
#include "bench/failover/faults.h"

namespace bulkhead::bench {

uint64_t lastStep(const model::RunState& s) {
    return s.lastCommit ? s.lastCommit->record.step : 0;
}

bool allContribute(const model::RunState& s) {
    return s.lastCommit && s.lastCommit->record.contributors.size() == s.spec.replicas;
}

void waitForSteps(DemoJob& job, uint64_t more) {
    const uint64_t target = lastStep(job.state()) + more;
    need(job.wait("steps with all replicas", 120, [&](const model::RunState& s) {
        return lastStep(s) >= target && allContribute(s);
    }));
}

std::unique_ptr<DemoJob> startDemo(const Settings& settings, const std::string& name,
                                   const std::function<void(model::JobSpec&)>& change,
                                   uint32_t nodes) {
    auto job = value(DemoJob::start(settings.root, settings.folder(name), change, nodes));
    need(job->wait("the first step of all replicas", 60, allContribute));
    return job;
}

model::FaultSpec seededKill(std::mt19937_64& rng) {
    static const std::vector<std::string> phases = {"compute", "exchange", "vote", "apply"};
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillRank;
    fault.replica = static_cast<int32_t>(rng() % 4);
    fault.shard = static_cast<int32_t>(rng() % 2);
    fault.atPhase = phases[rng() % phases.size()];
    return fault;
}

std::vector<PlannedKill> plannedKills(uint64_t seed, uint32_t kills) {
    std::mt19937_64 rng(seed);
    std::vector<PlannedKill> plan(kills);
    for (PlannedKill& kill : plan) {
        kill.stepsBefore = 3 + rng() % 5;
        kill.fault = seededKill(rng);
    }
    return plan;
}

const model::IncidentClosed* closedOf(const std::vector<model::Event>& events, uint64_t incident) {
    for (const model::Event& e : events)
        if (const auto* c = std::get_if<model::IncidentClosed>(&e.body))
            if (c->incident == incident) return c;
    return nullptr;
}

double phaseMs(const std::vector<model::Event>& events, uint64_t incident,
               model::IncidentPhaseKind kind) {
    double ms = 0;
    for (const model::Event& e : events)
        if (const auto* p = std::get_if<model::IncidentPhase>(&e.body))
            if (p->incident == incident && p->phase == kind)
                ms += static_cast<double>(p->endNs - p->beginNs) / 1e6;
    return ms;
}

std::optional<model::IncidentOpened> incidentOf(const std::vector<model::Event>& events,
                                                uint64_t fault) {
    for (const model::Event& e : events)
        if (const auto* i = std::get_if<model::IncidentOpened>(&e.body))
            if (i->fault == fault) return *i;
    return std::nullopt;
}

std::vector<model::Event> throughFault(DemoJob& job, const model::FaultSpec& fault,
                                       uint64_t& faultId) {
    const uint64_t before = job.state().seq;
    faultId = value(job.inject(fault));
    uint64_t incident = 0;
    need(job.wait("incident closed and all replicas back", 120, [&](const model::RunState& s) {
        for (const auto& i : s.incidents)
            if (i.fault == faultId) incident = i.incident;
        const model::IncidentView* view = model::findIncident(s, incident);
        return view != nullptr && view->closedNs != 0 && allContribute(s);
    }));
    return job.events(before);
}

}  // namespace bulkhead::bench
