// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/peer.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/torch/timeline.h"

namespace bulkhead::bench {
namespace {

/// Each job is measured in so many stretches, in turn, so that a drifting machine decides nothing.
constexpr size_t kTurns = 2;

using Plan = std::vector<PlannedKill>;

/// Timeouts for torchft's lighthouse, managers and Gloo, in ms.
struct Bounds {
    const char* name;
    int heartbeat, heartbeatTimeout, tick, join, gloo;
};
/// The first: as its README starts the lighthouse and its example makes the process group, all else
/// by default. The second: half a second of silence is enough, as in Bulkhead's own job, so that
/// not only somebody's caution is compared.
constexpr Bounds kBounds[] = {{"torchft, README's bounds", 100, 5000, 100, 10000, 5000},
                              {"torchft, short bounds", 50, 500, 10, 1000, 1000}};

/// Events of our own job as a timeline: a commit is seen by all contributors as the coordinator
/// writes it; what a redone step gives back beyond the batches of the lost is thrown away.
void append(const std::vector<model::Event>& events, uint32_t samplesPerReplica, Timeline& out) {
    for (const model::Event& e : events) {
        if (const auto* c = std::get_if<model::StepCommitted>(&e.body))
            for (const auto& r : c->record.contributors)
                out.commits.push_back({e.timeNs, r.replica, true});
        if (const auto* s = std::get_if<model::RankStarted>(&e.body))
            out.starts.push_back({e.timeNs, s->rank.replica});
        if (const auto* p = std::get_if<model::IncidentPhase>(&e.body);
            p != nullptr && p->phase == model::IncidentPhaseKind::kDetect)
            for (const model::Event& o : events)
                if (const auto* i = std::get_if<model::IncidentOpened>(&o.body);
                    i != nullptr && i->incident == p->incident)
                    out.kills.push_back({p->beginNs, i->replica});
        if (const auto* r = std::get_if<model::StepRedone>(&e.body))
            for (uint64_t n = r->lost.size() * samplesPerReplica; n < r->samplesReturned;
                 n += samplesPerReplica)
                out.thrown.push_back({e.timeNs, -1});
    }
}

Timeline runOurs(const GptOptions& o, const std::string& text, const Plan& plan) {
    auto job = startGpt(o, kKilledGpt, "beside-torchft", text, 0);
    need(job->wait("the first step of all replicas", 120, allContribute));
    waitForSteps(*job, 60);
    for (PlannedKill kill : plan) {
        waitForSteps(*job, kill.stepsBefore);
        kill.fault.shard = 0;
        uint64_t id = 0;
        (void)throughFault(*job, kill.fault, id);
    }
    waitForSteps(*job, 5);
    Timeline timeline;
    append(job->events(), kKilledGpt.batch, timeline);
    return timeline;
}

std::string lastLine(const std::string& path) {
    std::ifstream in(path);
    std::string last;
    for (std::string line; std::getline(in, line);)
        if (!line.empty()) last = line;
    return last;
}

absl::StatusOr<Timeline> runTorchft(const GptOptions& o, const std::string& text, const Bounds& b,
                                    const Plan& plan) {
    const std::string base = o.folder("torchft");
    nlohmann::json kills = nlohmann::json::array();
    for (const PlannedKill& k : plan)
        kills.push_back({k.stepsBefore, k.fault.replica, k.fault.atPhase});
    std::ofstream(base + "-plan.json") << kills.dump() << std::endl;
    const std::string command = absl::StrCat(
        o.python, " ", o.root, "/bench/torch/torchft_job.py --plan ", base, "-plan.json --out ",
        base, ".json --replicas ", kGptReplicas, " --heartbeat-ms ", b.heartbeat,
        " --heartbeat-timeout-ms ", b.heartbeatTimeout, " --tick-ms ", b.tick, " --join-ms ",
        b.join, " --gloo-ms ", b.gloo, " -- ", absl::StrJoin(gptArguments(kKilledGpt, text), " "),
        " 2>", base, ".err");
    if (std::system(command.c_str()) != 0) return absl::UnavailableError(lastLine(base + ".err"));
    std::ifstream in(base + ".json");
    const auto json = nlohmann::json::parse(in, nullptr, false);
    if (json.is_discarded()) return absl::DataLossError(base + ".json is not JSON");
    Timeline timeline;
    for (const auto& s : json["steps"]) {
        const bool committed = s[3], contributed = s[4];
        if (committed)
            timeline.commits.push_back({s[0], s[1], contributed});
        else
            timeline.thrown.push_back({s[0], s[1]});
    }
    for (const auto& k : json["kills"]) timeline.kills.push_back({k[0], k[1]});
    for (const auto& s : json["starts"]) timeline.starts.push_back({s[0], s[1]});
    return timeline;
}

/// All that one job showed, over its turns.
struct Figures {
    std::vector<double> stepMs, stall, batches, back, afterStart;
    size_t unplanned = 0;  ///< processes that ended without being killed
};

void add(const Timeline& timeline, const std::string& job, const Plan& plan, size_t first,
         Figures& f, Report& report) {
    f.stepMs.push_back(medianStepMs(timeline));
    f.unplanned += timeline.starts.size() - kGptReplicas -
                   std::min(timeline.kills.size(), timeline.starts.size() - kGptReplicas);
    for (size_t k = 0; k < std::min(plan.size(), timeline.kills.size()); ++k) {
        const std::string victim =
            absl::StrCat("r", timeline.kills[k].replica, " in ", plan[k].fault.atPhase);
        const auto cost = costOf(timeline, timeline.kills[k]);
        if (!cost) {
            report.row({std::to_string(first + k + 1), victim, job, "not back"});
            continue;
        }
        f.stall.push_back(cost->stallMs);
        f.batches.push_back(cost->batchesLost);
        f.back.push_back(cost->backMs);
        f.afterStart.push_back(cost->afterStartMs);
        report.row({std::to_string(first + k + 1), victim, job, number(cost->stallMs),
                    number(cost->batchesLost, 0), number(cost->backMs, 0),
                    number(cost->afterStartMs, 0)});
    }
}

std::string cell(const std::vector<double>& values) {
    const Spread s = spreadOf(values);
    return absl::StrCat(number(s.median, 0), " (", number(s.min, 0), "-", number(s.max, 0), ")");
}

double sum(const std::vector<double>& values) {
    double all = 0;
    for (const double v : values) all += v;
    return all;
}

void summarise(const std::string& job, const Figures& f, Report& report) {
    report.row({"all", absl::StrCat(f.stall.size(), " kills"), job, cell(f.stall),
                number(sum(f.batches), 0), cell(f.back), cell(f.afterStart)});
    report.note(absl::StrCat(job, ": median step ", number(spreadOf(f.stepMs).median), " ms, ",
                             f.unplanned, " processes ended that nobody had killed"));
}

/// Ratio of the better of torchft's figures to ours.
void compare(const std::string& what, double ours, double theirs, Report& report) {
    report.atLeast(what + ", torchft's over ours", theirs / std::max(ours, 0.1), 1, "x");
}

}  // namespace

Report besideTorchft(const GptOptions& o) {
    Report report("torch-torchft", {"#", "fault", "job", "stall ms", "batches lost",
                                    "back after kill ms", "back after restart ms"});
    const std::string ours = "Bulkhead";
    const std::string text = drawnText(o, kKilledGpt, 100);
    const Plan plan = plannedKills(o.seed, o.kills);
    std::map<std::string, Figures> figures;
    std::map<std::string, std::string> failed;
    for (size_t turn = 0; turn < kTurns; ++turn) {
        const size_t first = turn * plan.size() / kTurns;
        const size_t end = (turn + 1) * plan.size() / kTurns;
        const Plan part(plan.begin() + static_cast<ptrdiff_t>(first),
                        plan.begin() + static_cast<ptrdiff_t>(end));
        add(runOurs(o, text, part), ours, part, first, figures[ours], report);
        for (const Bounds& b : kBounds) {
            if (!o.whyNoPeer.empty() || failed.contains(b.name)) continue;
            const auto timeline = runTorchft(o, text, b, part);
            if (timeline.ok())
                add(*timeline, b.name, part, first, figures[b.name], report);
            else
                failed[b.name] = std::string(timeline.status().message());
        }
    }
    report.note(
        "examples/gpt as 4 replicas of one process; a process killed is started again at once.");
    for (const auto& [job, f] : figures) summarise(job, f, report);
    if (!o.whyNoPeer.empty()) report.note("No torchft here: " + o.whyNoPeer);
    for (const auto& [job, why] : failed) report.note(job + ": " + why);
    Figures best;
    for (const auto& [job, f] : figures) {
        if (job == ours || f.stall.empty()) continue;
        best.stall.push_back(spreadOf(f.stall).median);
        best.back.push_back(spreadOf(f.back).median);
        best.batches.push_back(sum(f.batches));
    }
    if (best.stall.empty()) return report;
    const Figures& own = figures[ours];
    compare("median stall", spreadOf(own.stall).median, spreadOf(best.stall).min, report);
    compare("median time from kill to back", spreadOf(own.back).median, spreadOf(best.back).min,
            report);
    report.atMost("batches that survivors lost", sum(own.batches), spreadOf(best.batches).min, "");
    return report;
}

}  // namespace bulkhead::bench
