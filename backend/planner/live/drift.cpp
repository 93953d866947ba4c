// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/live/drift.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "backend/model/expert_rules.h"
#include "backend/planner/live/live_plan.h"

namespace bulkhead::planner {
namespace {

/// A move costs memory traffic and a moment of everybody's time: less than this part of the remote
/// copies is not worth an operator's look.
constexpr double kLeastDrift = 0.02;

/// Tokens that reach a shard's experts, max/mean, mean over layers.
double loadOf(const LiveJob& job, const std::vector<int32_t>& placement) {
    double sum = 0;
    for (const LayerFigures& layer : layerFigures(job, placement, {})) sum += layer.maxOverMean();
    return sum / job.counts.layers;
}

bool rests(const model::RunState& state, uint64_t now) {
    uint64_t last = state.layouts.back().step;
    if (!state.proposals.empty()) last = std::max(last, state.proposals.back().plan.step);
    return now < last + state.spec.plan.cooldownSteps;
}

const model::ExpertRule* brokenIn(const LiveJob& job) {
    return model::brokenRule(job.rules, job.expertShard, job.counts.experts);
}

std::optional<std::string> drifted(const model::RunState& state, const LiveJob& job) {
    const double drift = state.spec.plan.drift;
    const double predicted = model::predictedRemote(state, state.layout);
    const double measured = job.traffic.remoteShare();
    if (outgrows(measured, predicted, drift))
        return absl::StrFormat(
            "%.1f %% of copies leave their shard, %.1f %% were predicted of layout %d",
            measured * 100, predicted * 100, state.layout);
    if (const model::ExpertRule* broken = brokenIn(job))
        return absl::StrFormat("%s, and layout %d does not keep that",
                               model::ruleText(*broken, job.layerNumbers), state.layout);
    const double load = loadOf(job, job.expertShard);
    const double cap = LiveOptions{}.loadCap;
    if (outgrows(load, cap, drift))
        return absl::StrFormat(
            "the busiest shard gets %.2f times the mean, at most %.2f was asked "
            "of layout %d",
            load, cap, state.layout);
    return std::nullopt;
}

/// The job, when there is a plan to compare with and enough to compare.
std::optional<LiveJob> comparable(const model::RunState& state) {
    if (state.spec.plan.drift <= 0 || state.layouts.empty() || state.steps.empty())
        return std::nullopt;
    if (model::predictedRemote(state, state.layout) < 0) return std::nullopt;
    if (rests(state, state.steps.back().step)) return std::nullopt;
    auto job = liveJob(state);
    if (!job.ok() || job->traffic.steps < model::LayoutView::kWindow) return std::nullopt;
    return *std::move(job);
}

}  // namespace

std::optional<std::string> drifted(const model::RunState& state) {
    const auto job = comparable(state);
    return job ? drifted(state, *job) : std::nullopt;
}

std::function<std::optional<model::PlanProposed>()> proposal(const model::RunState& state) {
    auto job = comparable(state);
    if (!job) return {};
    auto why = drifted(state, *job);
    if (!why) return {};
    return [job = *std::move(job), why = *std::move(why)]() -> std::optional<model::PlanProposed> {
        auto made = recommendPlan(job, {});
        if (!made.ok()) return std::nullopt;
        const LivePreview& p = made->preview;
        const bool broken = brokenIn(job) != nullptr;
        const bool lighter = loadOf(job, made->action.expertShard) <
                             (1 - kLeastDrift) * loadOf(job, job.expertShard);
        if (p.forecast.remote.mean >= (1 - kLeastDrift) * p.remoteNow && !lighter && !broken)
            return std::nullopt;
        model::PlanProposed out;
        out.step = job.step;
        out.layout = job.layout;
        out.why = why;
        out.measuredRemote = p.remoteMeasured;
        out.predictedRemote = p.forecast.remote.mean;
        out.expertsMoved = p.expertsMoved;
        out.bytesMoved = p.bytesMoved;
        out.expertShard = std::move(made->action.expertShard);
        out.domainShare = std::move(made->action.domainShare);
        return out;
    };
}

}  // namespace bulkhead::planner
