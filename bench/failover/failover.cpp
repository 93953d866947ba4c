// SPDX-License-Identifier: Apache-2.0
// Cost of a failure on the live demo job: seeded kills in every phase of a step, other faults
// and the evidence that finds them, FT-HSDP against restarting everybody, and what faults do to the
// loss. `./dev bench failover`, see README.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "bench/failover/faults.h"
#include "bench/failover/memory.h"
#include "bench/report.h"

namespace bulkhead::bench {
namespace {

/// The longest that any other contributor was blocked in this step for `replica`, its connection
/// and all its frames together; 0 where each of them waited longer for somebody else.
double waitOn(const model::StepCommitted& step, int32_t replica) {
    double longest = 0;
    for (const model::ReplicaLedger& r : step.replicas)
        if (r.replica != replica && r.waitedOn == replica)
            longest = std::max(longest, r.waitedOnMs);
    return longest;
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
    std::vector<double> stalls, rejoins, joinWaits, detects;
    uint64_t redone = 0;
    for (const PlannedKill& kill : plannedKills(settings.seed, settings.kills)) {
        waitForSteps(*job, kill.stepsBefore);
        const model::FaultSpec& fault = kill.fault;
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
        report.row({std::to_string(stalls.size()),
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
            model::FaultSpec fault = seededKill(rng);
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

void loss(const Settings& settings, Report& report) {
    lossUnderKills(
        [&](uint64_t seed) {
            return startDemo(settings, "loss", [&](model::JobSpec& spec) {
                spec.seed = seed;
                spec.steps = settings.lossSteps;
            });
        },
        settings.lossSteps, 10, report);
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    Settings settings;
    CLI::App app("What a failure costs, on the live demo job");
    addPlace(app, settings);
    app.add_option("--seed", settings.seed);
    app.add_option("--kills", settings.kills);
    app.add_option("--memory-gb", settings.memoryGb, "of the rank that memory kills, ascending");
    app.add_option("--loss-steps", settings.lossSteps);
    app.add_option("--policy-seconds", settings.policySeconds);
    app.add_option("--part", settings.parts,
                   "kills, memory, evidence, policies, loss; default all");
    CLI11_PARSE(app, argc, argv);

    Report report("failover", {"#", "fault", "found by", "detect ms", "stall ms", "rejoin ms",
                               "wait on joiner ms", "outcome"});
    if (settings.wants("kills")) kills(settings, report);
    if (settings.wants("memory")) killsBySize(settings, report);
    if (settings.wants("evidence")) evidence(settings, report);
    if (settings.wants("policies")) policies(settings, report);
    if (settings.wants("loss")) loss(settings, report);
    return report.finish(settings.out);
}
