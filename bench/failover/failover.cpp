// SPDX-License-Identifier: Apache-2.0
// What a failure costs, on the live demo job: seeded kills in every phase of a step, other faults
// and the evidence that finds them, FT-HSDP against restarting everybody, and what faults do to the
// loss. `./dev bench failover [--part kills|evidence|policies|loss]...`
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <random>

#include "bench/demo_job.h"
#include "bench/report.h"

namespace bulkhead::bench {
namespace {

struct Settings {
    std::string root;
    std::string out;
    uint64_t seed = 1;
    uint32_t kills = 20;
    uint64_t lossSteps = 600;
    double policySeconds = 60;
    std::vector<std::string> parts;
    bool wants(const std::string& part) const {
        return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
    }
    std::string folder(const std::string& name) const { return out + "/failover-" + name; }
};

[[noreturn]] void die(const absl::Status& status) {
    std::fprintf(stderr, "failover: %s\n", std::string(status.message()).c_str());
    std::exit(2);
}

template <class T>
T value(absl::StatusOr<T> result) {
    if (!result.ok()) die(result.status());
    return *std::move(result);
}

void need(const absl::Status& status) {
    if (!status.ok()) die(status);
}

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
                                   const std::function<void(model::JobSpec&)>& change = {}) {
    auto job = value(DemoJob::start(settings.root, settings.folder(name), change));
    need(job->wait("the first step of all replicas", 60, allContribute));
    return job;
}

/// The longest that any other contributor was blocked in this step for `replica`, its connection
/// and all its frames together; 0 where each of them waited longer for somebody else.
double waitOn(const model::StepCommitted& step, int32_t replica) {
    double longest = 0;
    for (const model::ReplicaLedger& r : step.replicas)
        if (r.replica != replica && r.waitedOn == replica)
            longest = std::max(longest, r.waitedOnMs);
    return longest;
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

/// The incident that `fault` caused, once it is open.
std::optional<model::IncidentOpened> incidentOf(const std::vector<model::Event>& events,
                                                uint64_t fault) {
    for (const model::Event& e : events)
        if (const auto* i = std::get_if<model::IncidentOpened>(&e.body))
            if (i->fault == fault) return *i;
    return std::nullopt;
}

/// Injects, waits until its incident is closed and all contribute again; the events since.
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

model::FaultSpec seededKill(std::mt19937_64& rng, uint32_t replicas, uint32_t shards) {
    static const std::vector<std::string> phases = {"compute", "exchange", "vote", "apply"};
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillRank;
    fault.replica = static_cast<int32_t>(rng() % replicas);
    fault.shard = static_cast<int32_t>(rng() % shards);
    fault.atPhase = phases[rng() % phases.size()];
    return fault;
}

void kills(const Settings& settings, Report& report) {
    // The control: the same job, nobody joins. What survivors wait for any one peer, and the step.
    std::vector<double> stepMs, controlWait, exchangeMs;
    {
        auto control = startDemo(settings, "control");
        waitForSteps(*control, 10);
        const uint64_t from = control->state().seq;
        waitForSteps(*control, 60);
        const std::vector<model::StepCommitted> steps = committed(control->events(from));
        for (size_t i = 0; i < steps.size(); ++i) {
            const model::StepCommitted& s = steps[i];
            stepMs.push_back(s.stepMs);
            // A rejoin is two steps, so the control's figure is of two as well.
            if (i > 0)
                for (const auto& c : s.record.contributors)
                    controlWait.push_back(waitOn(steps[i - 1], c.replica) + waitOn(s, c.replica));
            for (const auto& r : s.replicas) exchangeMs.push_back(r.exchangeMs);
        }
    }
    const double step = spreadOf(stepMs).median;
    const double quiet = spreadOf(controlWait).median;
    const double exchange = spreadOf(exchangeMs).median;

    auto job = startDemo(settings, "kills");
    std::mt19937_64 rng(settings.seed);
    std::vector<double> stalls, rejoins, joinWaits, detects;
    uint64_t redone = 0;
    for (uint32_t k = 0; k < settings.kills; ++k) {
        waitForSteps(*job, 3 + rng() % 5);
        const model::FaultSpec fault = seededKill(rng, 4, 2);
        uint64_t id = 0;
        const auto events = throughFault(*job, fault, id);
        const auto opened = incidentOf(events, id);
        const auto* closed = opened ? closedOf(events, opened->incident) : nullptr;
        if (closed == nullptr) die(absl::InternalError("a kill left no closed incident"));
        const double detect = phaseMs(events, opened->incident, model::IncidentPhaseKind::kDetect);
        double joinWait = 0;
        bool away = false;
        for (const auto& s : committed(events)) {
            const bool in = std::any_of(s.record.contributors.begin(), s.record.contributors.end(),
                                        [&](const auto& c) { return c.replica == fault.replica; });
            if (!in) away = true;
            // The step it enters by, which does not name it, and the first that it contributes to.
            if (away) joinWait += waitOn(s, fault.replica);
            if (in && away) break;
        }
        stalls.push_back(closed->survivorStallMs);
        rejoins.push_back(closed->rejoinMs);
        joinWaits.push_back(joinWait);
        detects.push_back(detect);
        redone += closed->samplesRedone;
        report.row({std::to_string(k + 1),
                    "r" + std::to_string(fault.replica) + "s" + std::to_string(fault.shard) +
                        " in " + fault.atPhase,
                    std::string(enumName(opened->cause)), number(detect),
                    number(closed->survivorStallMs), number(closed->rejoinMs, 0), number(joinWait),
                    closed->outcome});
    }
    const model::RunState end = job->state();
    report.note("control: step " + number(step) + " ms, exchange " + number(exchange) +
                " ms, wait for a given peer in two steps " + number(quiet) + " ms (medians)");
    report.note("kills: detection " + number(spreadOf(detects).median) + " ms, stall " +
                number(spreadOf(stalls).median) + " ms (" + number(spreadOf(stalls).min) + " to " +
                number(spreadOf(stalls).max) + "), rejoin " + number(spreadOf(rejoins).median, 0) +
                " ms (medians); samples computed again: " + std::to_string(redone));
    report.atMost("median survivors' stall", spreadOf(stalls).median, 300 + exchange, "ms");
    report.atMost("wait caused by a rejoin, of a median step",
                  100 * std::max(0.0, spreadOf(joinWaits).median - quiet) / step, 5, "%");
    report.atMost("invariants broken", static_cast<double>(end.broken.size()), 0, "");
}

void evidence(const Settings& settings, Report& report) {
    struct Case {
        std::string text;
        model::FaultSpec fault;
        std::vector<model::EvidenceKind> meant;
    };
    using model::EvidenceKind;
    using model::FaultKind;
    const auto fault = [](FaultKind kind, int32_t replica, int32_t shard, uint64_t ms) {
        model::FaultSpec f;
        f.kind = kind;
        f.replica = replica;
        f.shard = shard;
        f.durationMs = ms;
        return f;
    };
    const std::vector<Case> cases = {
        // Whichever bound is shorter: its peers miss its chunks, or the coordinator its beats.
        {"hang r1s1",
         fault(FaultKind::kHang, 1, 1, 0),
         {EvidenceKind::kMissedHeartbeat, EvidenceKind::kChunkTimeout}},
        {"cut network r3",
         fault(FaultKind::kCutNetwork, 3, -1, 8000),
         {EvidenceKind::kMissedHeartbeat, EvidenceKind::kChunkTimeout,
          EvidenceKind::kTransportReset}},
        {"flip parameter r2",
         fault(FaultKind::kFlipParameter, 2, 0, 0),
         {EvidenceKind::kParityMismatch}},
    };
    auto job = startDemo(settings, "evidence");
    double wrong = 0;
    for (const Case& c : cases) {
        waitForSteps(*job, 5);
        uint64_t id = 0;
        const auto events = throughFault(*job, c.fault, id);
        const auto opened = incidentOf(events, id);
        const auto* closed = opened ? closedOf(events, opened->incident) : nullptr;
        if (closed == nullptr) die(absl::InternalError(c.text + " left no closed incident"));
        if (std::find(c.meant.begin(), c.meant.end(), opened->cause) == c.meant.end()) ++wrong;
        report.row({"", c.text, std::string(enumName(opened->cause)),
                    number(phaseMs(events, opened->incident, model::IncidentPhaseKind::kDetect)),
                    number(closed->survivorStallMs), number(closed->rejoinMs, 0), "",
                    closed->outcome});
    }
    // A NaN costs nobody his place: the range is computed again elsewhere.
    waitForSteps(*job, 5);
    const uint64_t before = job->state().seq;
    (void)value(job->inject(fault(FaultKind::kNanGradient, 1, 0, 0)));
    waitForSteps(*job, 5);
    bool seen = false;
    for (const model::Event& e : job->events(before))
        if (const auto* v = std::get_if<model::EvidenceSeen>(&e.body))
            seen |= v->kind == EvidenceKind::kNonFinite && v->replica == 1;
    if (!seen) ++wrong;
    report.row({"", "NaN in gradient r1", seen ? "non_finite" : "not found", "", "", "", "",
                "range recomputed"});
    report.atMost("faults found by other evidence than meant", wrong, 0, "");
}

struct PolicyRun {
    double effective = 0;
    uint64_t redone = 0;
    uint64_t steps = 0;
};

/// Samples of committed steps that a later lineage went back behind.
uint64_t rolledBack(const std::vector<model::Event>& events) {
    uint64_t samples = 0;
    std::map<uint64_t, uint64_t> standing;  // by step
    for (const model::Event& e : events) {
        if (const auto* step = std::get_if<model::StepCommitted>(&e.body))
            standing[step->record.step] = step->record.samples;
        if (const auto* lineage = std::get_if<model::LineageOpened>(&e.body)) {
            const auto first = standing.upper_bound(lineage->fromStep);
            for (auto it = first; it != standing.end(); ++it) samples += it->second;
            standing.erase(first, standing.end());
        }
    }
    return samples;
}

PolicyRun underPolicy(const Settings& settings, model::RecoveryPolicy policy) {
    auto job = startDemo(settings, std::string(enumName(policy)), [&](model::JobSpec& spec) {
        spec.policies.recovery = policy;
        spec.policies.checkpointEverySteps = 20;
    });
    std::mt19937_64 rng(settings.seed);
    const uint64_t first = lastStep(job->state());
    const auto began = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    double nextKill = 5;
    while (elapsed() < settings.policySeconds) {
        const double until = std::min(nextKill, settings.policySeconds);
        while (elapsed() < until)
            (void)job->wait("time", std::max(0.01, until - elapsed()),
                            [](const model::RunState&) { return false; });
        if (elapsed() < settings.policySeconds) {
            model::FaultSpec fault = seededKill(rng, 4, 2);
            fault.atPhase.clear();
            (void)job->inject(fault);
        }
        nextKill += 10;
    }
    PolicyRun result;
    const model::RunState end = job->state();
    result.effective = end.effectiveTime;
    result.steps = lastStep(end) > first ? lastStep(end) - first : 0;
    const auto events = job->events();
    result.redone = rolledBack(events);
    for (const model::Event& e : events)
        if (const auto* c = std::get_if<model::IncidentClosed>(&e.body))
            result.redone += c->samplesRedone;
    return result;
}

void policies(const Settings& settings, Report& report) {
    const PolicyRun all = underPolicy(settings, model::RecoveryPolicy::kRestartAll);
    const PolicyRun ft = underPolicy(settings, model::RecoveryPolicy::kFt);
    const auto row = [&](const char* name, const PolicyRun& r) {
        report.row({"", std::string("a kill every 10 s, ") + name, "", "", "", "", "",
                    "effective " + number(100 * r.effective) + " %, samples redone " +
                        std::to_string(r.redone) + ", steps " + std::to_string(r.steps)});
    };
    row("restart_all", all);
    row("ft", ft);
    report.atLeast("effective training time, ft over restart_all", ft.effective - all.effective, 0,
                   "");
}

double finalLoss(const Settings& settings, uint64_t seed, uint32_t faults) {
    auto job = startDemo(settings, "loss", [&](model::JobSpec& spec) {
        spec.seed = seed;
        spec.steps = settings.lossSteps;
    });
    std::mt19937_64 rng(seed);
    const uint64_t gap = settings.lossSteps / (faults + 1);
    for (uint32_t k = 1; k <= faults; ++k) {
        model::FaultSpec fault = seededKill(rng, 4, 2);
        fault.atStep = k * gap;
        (void)value(job->inject(fault));
    }
    need(job->wait("end of the run", 900,
                   [](const model::RunState& s) { return s.finished.has_value(); }));
    const auto steps = committed(job->events());
    double sum = 0;
    const size_t last = std::min<size_t>(30, steps.size());
    for (size_t i = steps.size() - last; i < steps.size(); ++i) sum += steps[i].loss;
    return sum / static_cast<double>(last);
}

void loss(const Settings& settings, Report& report) {
    std::vector<double> quiet;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
        quiet.push_back(finalLoss(settings, seed, 0));
        report.row({"", "no faults, seed " + std::to_string(seed), "", "", "", "", "",
                    "final loss " + number(quiet.back(), 4) + " nats/byte"});
    }
    const double faulty = finalLoss(settings, 1, 10);
    report.row({"", "10 kills, seed 1", "", "", "", "", "",
                "final loss " + number(faulty, 4) + " nats/byte"});
    const Spread s = spreadOf(quiet);
    const double mean = (quiet[0] + quiet[1] + quiet[2]) / 3;
    report.atMost("loss with 10 kills, distance from the mean of three quiet seeds",
                  std::abs(faulty - mean), std::max(s.max - s.min, 0.02 * mean), "nats/byte");
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    Settings settings;
    CLI::App app("What a failure costs, on the live demo job");
    app.add_option("--root", settings.root, "the project's folder")->required();
    app.add_option("--out", settings.out, "folder for results and scratch")->required();
    app.add_option("--seed", settings.seed);
    app.add_option("--kills", settings.kills);
    app.add_option("--loss-steps", settings.lossSteps);
    app.add_option("--policy-seconds", settings.policySeconds);
    app.add_option("--part", settings.parts, "kills, evidence, policies, loss; default all");
    CLI11_PARSE(app, argc, argv);

    Report report("failover", {"#", "fault", "found by", "detect ms", "stall ms", "rejoin ms",
                               "wait on joiner ms", "outcome"});
    if (settings.wants("kills")) kills(settings, report);
    if (settings.wants("evidence")) evidence(settings, report);
    if (settings.wants("policies")) policies(settings, report);
    if (settings.wants("loss")) loss(settings, report);
    need(report.finish(settings.out));
    return report.allHold() ? 0 : 1;
}
