// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/live_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/text.h"
#include "backend/model/expert_rules.h"

namespace bulkhead::cli {
namespace {

std::string partText(double share) {
    return share < 0 ? "-" : absl::StrFormat("%.1f %%", share * 100);
}

/// Megabytes per step of the all-to-all, summed over all contributors.
std::string megabytesPerStep(const model::TrafficSum& sum) {
    if (sum.steps == 0) return "-";
    return absl::StrFormat("%.3f",
                           static_cast<double>(sum.bytes) / static_cast<double>(sum.steps) / 1e6);
}

std::string loadText(double load) {
    return absl::StrFormat("%.3f", load);
}

std::string rangeTable(const planner::LiveForecast& f) {
    const auto row = [&](const char* name, std::string (*text)(double), const planner::Range& range,
                         double inSample) {
        const auto end = [&](double x) { return f.hasRange ? text(x) : "-"; };
        return std::vector<std::string>{name, text(range.mean), end(range.low), end(range.high),
                                        text(inSample)};
    };
    std::string out =
        table({{"IN STEPS TO COME", "EXPECTED", "5 %", "95 %", "IN THE COUNTED STEPS"},
               row("remote copies", partText, f.remote, f.remoteInSample),
               row("busiest shard over mean", loadText, f.load, f.loadInSample)});
    if (f.hasRange)
        absl::StrAppend(&out, "for as many steps as were counted; from ", f.stretches,
                        " stretches of them\n");
    for (const std::string& note : planner::forecastNotes(f))
        absl::StrAppend(&out, "note: ", note, "\n");
    return out;
}

std::string proposalsText(const model::RunState& state) {
    if (state.proposals.empty()) return "";
    std::vector<std::vector<std::string>> rows{
        {"PROPOSED AT", "FOR LAYOUT", "EXPERTS", "REMOTE NOW", "PREDICTED", "", "WHY"}};
    for (size_t i = 0; i < state.proposals.size(); ++i) {
        const model::ProposalView& v = state.proposals[i];
        rows.push_back({absl::StrCat(v.plan.step), absl::StrCat(v.plan.layout),
                        absl::StrCat(v.plan.expertsMoved), partText(v.plan.measuredRemote),
                        partText(v.plan.predictedRemote), proposalFate(state, i), v.plan.why});
    }
    const char* next = "apply it with bulkheadctl plan apply --proposed, or plan dismiss\n";
    return "\n" + table(rows) + (model::openProposal(state) != nullptr ? next : "");
}

/// Bytes that a replica moves, computed as a preview.
std::string eachText(const model::RunState& state, const model::LayoutView& v) {
    if (state.model.expertBytes == 0) return "-";
    return absl::StrFormat("%.1f",
                           static_cast<double>(v.expertsMoved * state.model.expertBytes) / 1e6);
}

}  // namespace

std::string previewText(const planner::LivePreview& p) {
    const planner::LiveForecast& f = p.forecast;
    std::string out = absl::StrFormat(
        "moves %d of %d experts in each replica, %.1f MB each\n"
        "remote copies: %s measured, %s by the counts up to step %d, %s predicted (%+.1f %%)\n",
        p.expertsMoved, p.experts, static_cast<double>(p.bytesMoved) / 1e6,
        partText(p.remoteMeasured), partText(p.remoteNow), p.step, partText(f.remote.mean),
        p.remoteNow > 0 ? (f.remote.mean / p.remoteNow - 1) * 100 : 0.0);
    absl::StrAppend(&out, rangeTable(f));
    if (planner::routingMoves(p))
        absl::StrAppend(&out, "routing moves: the plan has ", partText(p.remoteOlder),
                        " by the older of the counted steps, ", partText(p.remoteNewer),
                        " by the newer; expect the prediction to be off by as much\n");
    if (p.bytesPerStep >= 0)
        absl::StrAppendFormat(&out, "all-to-all: %.3f MB a step measured, %.3f MB predicted\n",
                              p.bytesPerStep / 1e6, p.bytesPerStepPredicted / 1e6);
    if (p.homes.empty()) return out + "samples of any domain go to any shard\n";
    std::vector<std::vector<std::string>> rows{{"DOMAIN"}};
    for (size_t s = 0; s < p.homes.front().share.size(); ++s)
        rows[0].push_back(absl::StrCat("SHARD ", s));
    for (const planner::DomainHomeRow& home : p.homes) {
        rows.push_back({home.domain});
        for (const double x : home.share) rows.back().push_back(partText(x));
    }
    return out + table(rows);
}

std::string rulesText(const std::vector<model::ExpertRule>& rules, const planner::LiveJob& job) {
    const std::vector<int32_t>& placement = job.expertShard;
    const uint32_t experts = job.counts.experts;
    if (rules.empty()) return "no expert is pinned or forbidden anywhere\n";
    std::vector<std::vector<std::string>> rows{{"LAYER", "EXPERT", "", "SHARD", "NOW ON", ""}};
    for (const model::ExpertRule& rule : rules) {
        const bool kept = model::brokenRule({&rule, 1}, placement, experts) == nullptr;
        const uint32_t layer = job.layerNumbers.empty() ? rule.layer : job.layerNumbers[rule.layer];
        rows.push_back({absl::StrCat(layer), absl::StrCat(rule.expert),
                        rule.pins ? "pinned to" : "forbidden on", absl::StrCat(rule.shard),
                        absl::StrCat(placement[size_t{rule.layer} * experts + rule.expert]),
                        kept ? "kept" : "not kept yet; the next plan moves it"});
    }
    return table(rows);
}

const char* proposalFate(const model::RunState& state, size_t i) {
    const model::ProposalView& v = state.proposals[i];
    if (v.dismissed) return "dismissed";
    if (&v == model::openProposal(state)) return "waiting";
    const model::LayoutView* next = nullptr;
    for (const model::LayoutView& move : state.layouts)
        if (next == nullptr && move.ok && move.layout > v.plan.layout) next = &move;
    const bool last =
        i + 1 == state.proposals.size() || state.proposals[i + 1].plan.layout != v.plan.layout;
    if (next == nullptr || !last || next->timeNs < v.timeNs) return "replaced";
    const bool sameExperts =
        next->layout != state.layout || state.expertShard == v.plan.expertShard;
    return sameExperts && next->expertsMoved == v.plan.expertsMoved ? "applied" : "replaced";
}

std::string layoutsText(const model::RunState& state) {
    const std::string proposals = proposalsText(state);
    if (state.layouts.empty()) return "no expert has moved\n" + proposals;
    std::vector<std::vector<std::string>> rows{{"LAYOUT", "AFTER STEP", "EXPERTS",
                                                "MB EACH REPLICA", "MB IN ALL", "SAMPLES",
                                                "REMOTE BEFORE", "PREDICTED", "MEASURED", "OFF",
                                                "MB/STEP BEFORE", "AFTER", "STEPS", "NOW", ""}};
    const std::string now = partText(model::latestTraffic(state).remoteShare());
    for (const model::LayoutView& v : state.layouts) {
        const double measured = v.after.remoteShare();
        const bool both = measured >= 0 && v.predictedRemote > 0;
        rows.push_back(
            {absl::StrCat(v.layout), absl::StrCat(v.step), absl::StrCat(v.expertsMoved),
             eachText(state, v), absl::StrFormat("%.1f", static_cast<double>(v.bytesMoved) / 1e6),
             v.grouped ? "by domain" : "anywhere", partText(v.before.remoteShare()),
             partText(v.predictedRemote), partText(measured),
             both ? absl::StrFormat("%+.1f %%", (measured / v.predictedRemote - 1) * 100) : "-",
             megabytesPerStep(v.before), megabytesPerStep(v.after), absl::StrCat(v.after.steps),
             v.ok && v.layout == state.layout ? now : "-", v.ok ? v.why : "failed: " + v.why});
    }
    return table(rows) + proposals;
}

}  // namespace bulkhead::cli
