// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/front.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/expected_load.h"

namespace bulkhead::planner {

namespace {

constexpr double kSideEffort = 0.3;  ///< for points that are there to compare with
constexpr double kTighter = 0.07, kLooser = 0.15;
constexpr double kLoadTolerance = 0.01;

struct Wanted {
    std::string name;
    double sends, copies, cap, effort;
};

std::vector<Wanted> wantedPoints(const FrontOptions& options) {
    const double cap = options.joint.loadCap, effort = options.joint.effort;
    const bool copies = options.objective == Objective::kCopies;
    const auto named = [](const char* what, double load) {
        return absl::StrFormat("joint for %s, load %.2f", what, load);
    };
    std::vector<Wanted> wanted{{named(copies ? "copies" : "sends", cap), copies ? 0.0 : 1.0,
                                copies ? 1.0 : 0.02, cap, effort}};
    wanted.push_back({named(copies ? "sends" : "copies", cap), copies ? 1.0 : 0.0,
                      copies ? 0.02 : 1.0, cap, effort * kSideEffort});
    wanted.push_back({named("sends", std::max(1.03, cap - kTighter)), 1, 0.02,
                      std::max(1.03, cap - kTighter), effort * kSideEffort});
    wanted.push_back({named("sends", cap + kLooser), 1, 0.02, cap + kLooser, effort * kSideEffort});
    return wanted;
}

bool dominates(const FrontPoint& a, const FrontPoint& b) {
    const double x[] = {a.outcome.sendsPerToken, a.outcome.copiesPerToken,
                        a.outcome.nodeLoadMaxOverMean, a.outcome.gpuLoadMaxOverMean,
                        a.time.stepPaddedSeconds};
    const double y[] = {b.outcome.sendsPerToken, b.outcome.copiesPerToken,
                        b.outcome.nodeLoadMaxOverMean, b.outcome.gpuLoadMaxOverMean,
                        b.time.stepPaddedSeconds};
    bool better = false;
    for (size_t i = 0; i < std::size(x); ++i) {
        if (x[i] > y[i]) return false;
        better |= x[i] < y[i];
    }
    return better;
}

absl::StatusOr<FrontPoint> measured(std::string name, Plan plan, const RoutingView& view,
                                    const FrontOptions& options, double sends, double copies) {
    if (auto status = honourPlaceRules(plan, options.rules, countsOf(view)); !status.ok())
        return status;
    const CopyBytes bytes = copyBytes(plan.shape);
    if (plan.origin.bytesPerCopy <= 0) {
        plan.origin.bytesPerCopy = bytes.bytes;
        plan.origin.bytesAssumed = bytes.assumed;
    }
    auto held = heldOut(view, plan, {options.joint.prefix, options.homeCap, sends, copies});
    if (!held.ok()) return held.status();
    StepModel step = options.step;
    step.bytesPerCopy = plan.origin.bytesPerCopy;
    FrontPoint point{std::move(name), std::move(plan), held->outcome, {}, false};
    point.time = predictStep(held->layers, point.plan, step);
    return point;
}

}  // namespace

double figureOf(const FrontPoint& point, Objective objective) {
    switch (objective) {
        case Objective::kBalance:
            return point.outcome.gpuLoadMaxOverMean;
        case Objective::kCopies:
            return point.outcome.copiesPerToken;
        case Objective::kSends:
            return point.outcome.sendsPerToken;
        case Objective::kBytes: {
            double across = 0;
            for (size_t i = 1; i < point.outcome.bytesByLevel.size(); ++i)
                across += point.outcome.bytesByLevel[i].sends;
            return across;
        }
        case Objective::kLatency:
            return point.time.stepPaddedSeconds;
    }
    return 0;
}

absl::StatusOr<Front> solveFront(const RoutingView& view, const Topology& topology,
                                 const FrontOptions& options) {
    if (auto status = checkTopology(topology); !status.ok()) return status;
    if (options.joint.keepGroups && !options.rules.empty())
        return absl::InvalidArgumentError(
            "router groups cannot be kept whole while single experts are pinned or forbidden");
    if (auto status = checkPlaceRules(options.rules, view.routing->shape(), topology); !status.ok())
        return status;
    Front front;
    for (const Wanted& wanted : wantedPoints(options)) {
        JointOptions joint = options.joint;
        joint.sends = wanted.sends;
        joint.copies = wanted.copies;
        joint.loadCap = wanted.cap;
        joint.effort = wanted.effort;
        joint.homeCap = options.homeCap;
        auto plan = solveJoint(view, topology, joint);
        if (!plan.ok()) return plan.status();
        auto point =
            measured(wanted.name, *std::move(plan), view, options, wanted.sends, wanted.copies);
        if (!point.ok()) return point.status();
        front.points.push_back(*std::move(point));
    }
    for (const char* name : {"balance", "linear"}) {
        auto plan = baselinePlan(name, view, topology, options.joint.redundant);
        if (!plan.ok()) return plan.status();
        plan->origin.prefix = options.joint.prefix;
        plan->origin.homeCap = options.homeCap;
        auto point = measured(name, *std::move(plan), view, options, 1, 0.02);
        if (!point.ok()) return point.status();
        front.points.push_back(*std::move(point));
    }
    for (FrontPoint& point : front.points)
        point.onFront =
            std::none_of(front.points.begin(), front.points.end(),
                         [&](const FrontPoint& other) { return dominates(other, point); });
    const bool capped =
        options.objective != Objective::kBalance && options.objective != Objective::kLatency;
    const double least =
        options.joint.redundant > 0
            ? options.joint.loadCap
            : leastNodeLoad(countsOf(view), topology.nodes(), options.joint.loadCap);
    const double cap = least + kLoadTolerance;
    size_t best = front.points.size();
    for (size_t i = 0; i < front.points.size(); ++i) {
        if (capped && i > 0 && front.points[i].outcome.nodeLoadMaxOverMean > cap) continue;
        if (best == front.points.size() || figureOf(front.points[i], options.objective) <
                                               figureOf(front.points[best], options.objective))
            best = i;
    }
    front.recommended = best;
    const FrontPoint& chosen = front.points[best];
    const FrontPoint& linear = front.points.back();
    const double now = figureOf(chosen, options.objective),
                 was = figureOf(linear, options.objective);
    front.reason = absl::StrFormat(
        "%s: lowest %s of %d plans%s, %.1f%% below linear; node load %.2f of the mean, step "
        "%.3g ms padded against %.3g ms",
        chosen.name, std::string(enumName(options.objective)), front.points.size(),
        !capped ? ""
        : chosen.outcome.nodeLoadMaxOverMean <= cap
            ? absl::StrFormat(" whose fullest node has at most %.2f of the mean", least)
            : absl::StrFormat(", though its fullest node has more than %.2f of the mean", least),
        was > 0 ? (was - now) / was * 100 : 0.0, chosen.outcome.nodeLoadMaxOverMean,
        chosen.time.stepPaddedSeconds * 1e3, linear.time.stepPaddedSeconds * 1e3);
    if (capped && least > options.joint.loadCap + kLoadTolerance)
        front.reason +=
            absl::StrFormat("; no placement without redundant experts has less than %.2f", least);
    for (FrontPoint& point : front.points)
        point.plan.origin.objective = std::string(enumName(options.objective));
    front.points[best].plan.origin.reason = front.reason;
    return front;
}

}  // namespace bulkhead::planner
