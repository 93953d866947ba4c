// SPDX-License-Identifier: Apache-2.0
#include "bench/failover/faults.h"

#include <cmath>

#include "absl/strings/str_cat.h"

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

namespace {

/// The mean of the last 30 steps.
double finalLoss(DemoJob& job, uint64_t steps, uint32_t kills) {
    std::mt19937_64 rng(1);
    for (uint32_t k = 1; k <= kills; ++k) {
        model::FaultSpec fault = seededKill(rng);
        fault.shard %= static_cast<int32_t>(job.state().spec.shards);
        fault.atStep = k * steps / (kills + 1);
        (void)value(job.inject(fault));
    }
    need(job.wait("end of the run", 900,
                  [](const model::RunState& s) { return s.finished.has_value(); }));
    const auto done = committed(job.events());
    double sum = 0;
    const size_t last = std::min<size_t>(30, done.size());
    for (size_t i = done.size() - last; i < done.size(); ++i) sum += done[i].loss;
    return sum / static_cast<double>(last);
}

}  // namespace

void lossUnderKills(const std::function<std::unique_ptr<DemoJob>(uint64_t seed)>& start,
                    uint64_t steps, uint32_t kills, Report& report) {
    std::vector<double> quiet;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
        quiet.push_back(finalLoss(*start(seed), steps, 0));
        report.note(absl::StrCat("no faults, seed ", seed, ": final loss ", number(quiet.back(), 4),
                                 " nats/byte"));
    }
    const double faulty = finalLoss(*start(1), steps, kills);
    report.note(
        absl::StrCat(kills, " kills, seed 1: final loss ", number(faulty, 4), " nats/byte"));
    const Spread s = spreadOf(quiet);
    const double mean = (quiet[0] + quiet[1] + quiet[2]) / 3;
    report.atMost(
        absl::StrCat("loss with ", kills, " kills, distance from the mean of three quiet seeds"),
        std::abs(faulty - mean), std::max(s.max - s.min, 0.02 * mean), "nats/byte");
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
