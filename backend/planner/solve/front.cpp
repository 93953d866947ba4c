// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/front.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/link_costs.h"

namespace bulkhead::planner {

namespace {

constexpr double kSideEffort = 0.3;  ///< for points that are there to compare with
constexpr double kTighterCap = 0.07, kLooserCap = 0.15;
constexpr double kLoadTolerance = 0.01;
constexpr double kAlike = 0.005;  ///< figures so close, relative to the best, are equal

struct Wanted {
    std::string name;
    double sends, copies, cap, effort;
};

std::vector<Wanted> wantedPoints(const FrontOptions& options) {
    const double cap = options.joint.loadCap, effort = options.joint.effort;
    const bool copies = options.objective == Objective::kCopies;
    const char* sends = weighsLinks(enumName(options.objective)) ? "bytes" : "sends";
    const auto named = [](const char* what, double load) {
        return absl::StrFormat("joint for %s, load %.2f", what, load);
    };
    std::vector<Wanted> wanted{{named(copies ? "copies" : sends, cap), copies ? 0.0 : 1.0,
                                copies ? 1.0 : 0.02, cap, effort}};
    wanted.push_back({named(copies ? sends : "copies", cap), copies ? 1.0 : 0.0,
                      copies ? 0.02 : 1.0, cap, effort * kSideEffort});
    wanted.push_back({named(sends, std::max(1.03, cap - kTighterCap)), 1, 0.02,
                      std::max(1.03, cap - kTighterCap), effort * kSideEffort});
    wanted.push_back(
        {named(sends, cap + kLooserCap), 1, 0.02, cap + kLooserCap, effort * kSideEffort});
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

absl::StatusOr<std::vector<FrontPoint>> allPoints(const RoutingView& view, const Topology& topology,
                                                  const FrontOptions& options) {
    std::vector<FrontPoint> points;
    const auto add = [&](std::string name, absl::StatusOr<Plan> plan, double sends, double copies) {
        if (!plan.ok()) return plan.status();
        plan->origin.objective = std::string(enumName(options.objective));
        plan->origin.prefix = options.joint.prefix;
        plan->origin.homeCap = options.homeCap;
        if (auto status = honourPlaceRules(*plan, options.rules, countsOf(view)); !status.ok())
            return status;
        auto point = measured(std::move(name), *std::move(plan), view, options, sends, copies);
        if (point.ok()) points.push_back(*std::move(point));
        return point.status();
    };
    const bool joint = options.algorithm == "joint";
    for (const Wanted& wanted : joint ? wantedPoints(options) : std::vector<Wanted>()) {
        JointOptions how = options.joint;
        how.sends = wanted.sends;
        how.copies = wanted.copies;
        how.loadCap = wanted.cap;
        how.effort = wanted.effort;
        how.homeCap = options.homeCap;
        how.weighLinks = weighsLinks(enumName(options.objective));
        auto status =
            add(wanted.name, solveJoint(view, topology, how), wanted.sends, wanted.copies);
        if (!status.ok()) return status;
    }
    std::vector<std::string> baselines{joint ? "balance" : options.algorithm};
    if (options.algorithm != "linear") baselines.push_back("linear");
    for (const std::string& name : baselines) {
        auto plan = baselinePlan(name, view, topology, options.joint.redundant);
        if (auto status = add(name, std::move(plan), 1, 0.02); !status.ok()) return status;
    }
    return points;
}

bool capped(const FrontOptions& options) {
    return options.objective != Objective::kBalance && options.objective != Objective::kLatency;
}

/// Which of the points to recommend, and why.
class Choice {
  public:
    Choice(const std::vector<FrontPoint>& points, const FrontOptions& options, double cap)
        : points_(points), options_(options), cap_(cap) {
        limit_ = capped(options) ? std::max(cap + kLoadTolerance, load(0)) : INFINITY;
        double best = INFINITY;
        for (size_t i = 0; i < points.size(); ++i)
            if (counts(i)) best = std::min(best, figure(i));
        // Nor may evenness cost more than linear does.
        const double alike =
            std::min(best * (1 + kAlike), std::max(best, figure(points.size() - 1)));
        for (size_t i = 0; i < points.size(); ++i) {
            if (!counts(i) || figure(i) > alike) continue;
            if (chosen_ == points.size() || load(i) < load(chosen_)) chosen_ = i;
        }
        if (options.algorithm != "joint") chosen_ = 0;
        isLowest_ = figure(chosen_) <= best;
    }

    size_t chosen() const { return chosen_; }

    std::string reason() const {
        const size_t linear = points_.size() - 1;
        const double now = figure(chosen_), was = figure(linear);
        return absl::StrFormat(
            "%s: %s; %s; node load %.2f of the mean, step %.3g ms padded against %.3g ms",
            points_[chosen_].name, whatItIs(),
            now <= was ? absl::StrFormat("%.1f%% below linear", was > 0 ? (1 - now / was) * 100 : 0)
                       : absl::StrFormat("%.1f%% above linear, whose fullest node has %.2f",
                                         was > 0 ? (now / was - 1) * 100 : 100, load(linear)),
            load(chosen_), points_[chosen_].time.stepPaddedSeconds * 1e3,
            points_[linear].time.stepPaddedSeconds * 1e3);
    }

  private:
    double figure(size_t i) const { return figureOf(points_[i], options_.objective); }
    double load(size_t i) const { return points_[i].outcome.nodeLoadMaxOverMean; }
    bool counts(size_t i) const { return load(i) <= limit_; }

    std::string whatItIs() const {
        if (options_.algorithm != "joint") return "the plan that --algorithm names";
        size_t inside = 0;
        for (size_t i = 0; i < points_.size(); ++i) inside += counts(i);
        const std::string figureName(enumName(options_.objective));
        const std::string text =
            isLowest_ ? absl::StrFormat("lowest %s of ", figureName)
                      : absl::StrFormat("the most even nodes within %.1f%% of the lowest %s of ",
                                        kAlike * 100, figureName);
        if (!capped(options_)) return absl::StrCat(text, points_.size(), " plans");
        return absl::StrFormat(
            "%s%d of %d plans, those whose fullest node has at most %.3f of the mean%s", text,
            inside, points_.size(), limit_,
            limit_ > cap_ + kLoadTolerance
                ? absl::StrFormat(", as the plan made for %.2f came to", cap_)
                : "");
    }

    const std::vector<FrontPoint>& points_;
    const FrontOptions& options_;
    double cap_;
    double limit_ = 0;  ///< plans with fuller nodes do not count
    size_t chosen_ = points_.size();
    bool isLowest_ = true;
};

}  // namespace

double figureOf(const FrontPoint& point, Objective objective) {
    switch (objective) {
        case Objective::kBalance:
            return point.outcome.gpuLoadMaxOverMean;
        case Objective::kCopies:
            return point.outcome.copiesPerToken;
        case Objective::kSends:
            return point.outcome.sendsPerToken;
        case Objective::kBytes:
            return point.weighedBytes;
        case Objective::kLatency:
            return point.time.stepPaddedSeconds;
    }
    return 0;
}

absl::StatusOr<FrontPoint> measured(std::string name, Plan plan, const RoutingView& view,
                                    const FrontOptions& options, double sends, double copies) {
    const CopyBytes bytes = copyBytes(plan.shape);
    if (plan.origin.bytesPerCopy <= 0) {
        plan.origin.bytesPerCopy = bytes.bytes;
        plan.origin.bytesAssumed = bytes.assumed;
    }
    auto held = heldOut(view, plan, {options.joint.prefix, options.homeCap, sends, copies});
    if (!held.ok()) return held.status();
    StepModel step = options.step;
    step.bytesPerCopy = plan.origin.bytesPerCopy;
    FrontPoint point;
    point.name = std::move(name);
    point.outcome = held->outcome;
    point.time = predictStep(held->layers, plan, step);
    point.weighedBytes = weighedBytes(held->layers, plan.topology, plan.origin.bytesPerCopy);
    point.plan = std::move(plan);
    return point;
}

absl::StatusOr<Front> solveFront(const RoutingView& view, const Topology& topology,
                                 const FrontOptions& options) {
    if (auto status = checkTopology(topology); !status.ok()) return status;
    if (options.joint.keepGroups && !options.rules.empty())
        return absl::InvalidArgumentError(
            "router groups cannot be kept whole while single experts are pinned or forbidden");
    if (auto status = checkPlaceRules(options.rules, view.routing->shape(), topology); !status.ok())
        return status;
    auto points = allPoints(view, topology, options);
    if (!points.ok()) return points.status();
    Front front;
    front.points = *std::move(points);
    for (FrontPoint& point : front.points)
        point.onFront =
            std::none_of(front.points.begin(), front.points.end(),
                         [&](const FrontPoint& other) { return dominates(other, point); });
    const bool joint = options.algorithm == "joint";
    const double least =
        options.joint.redundant > 0 || !joint
            ? options.joint.loadCap
            : leastNodeLoad(countsOf(view), topology.nodes(), options.joint.loadCap);
    const Choice choice(front.points, options, least);
    front.recommended = choice.chosen();
    front.reason = choice.reason();
    if (capped(options) && least > options.joint.loadCap + kLoadTolerance)
        front.reason +=
            absl::StrFormat("; no placement without redundant experts has less than %.2f", least);
    front.points[front.recommended].plan.origin.reason = front.reason;
    return front;
}

}  // namespace bulkhead::planner
