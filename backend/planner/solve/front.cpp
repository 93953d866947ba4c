// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/front.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/cross_validation.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/link_costs.h"

namespace bulkhead::planner {

namespace {

constexpr double kSideEffort = 0.3;  ///< for points that are there to compare with
constexpr double kTighterCap = 0.07, kLooserCap = 0.15;
constexpr double kLoadTolerance = 0.01;
constexpr double kShownLoad = 0.005;  ///< that a range ends above its cap and is said to
constexpr double kAlike = 0.005;      ///< figures so close, relative to the best, are equal

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
    // Only the cap that was asked for is known to hold for other mixtures.
    if (options.joint.mixtures.empty() && !options.joint.otherKinds)
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

/// Tells of the searches, and ends them once it was asked to.
class Watch {
  public:
    explicit Watch(const FrontOptions& options) : options_(options) {}
    void expect(size_t plans) { at_.of = static_cast<uint32_t>(plans); }
    void enter(const std::string& part) { at_.part = part; }
    void made() { at_.done = std::min(at_.done + 1, at_.of); }
    void found(double figure) { at_.best = at_.best > 0 ? std::min(at_.best, figure) : figure; }
    /// Another of the first point's searches ended at this value.
    void searched(double value) {
        values_.push_back(value);
        at_.more = gainOfMore(values_);
    }
    double more() const { return at_.more; }
    bool goOn() {
        if (!stopped_ && options_.onProgress) stopped_ = !options_.onProgress(at_);
        return !stopped_;
    }
    bool stopped() const { return stopped_; }

  private:
    const FrontOptions& options_;
    FrontProgress at_;
    std::vector<double> values_;
    bool stopped_ = false;
};

/// Method by which a point's plan is made from some requests.
struct Recipe {
    std::string name;
    PlanMaker make;
};

HeldOutOptions homesOf(const FrontOptions& options) {
    return homesFor(enumName(options.objective), options.joint.prefix, options.homeCap);
}

CrossValidationOptions validationOf(const FrontOptions& options) {
    CrossValidationOptions made;
    made.homes = homesOf(options);
    made.seed = options.joint.seed;
    made.mixtures = options.joint.mixtures;
    made.otherKinds = options.joint.otherKinds;
    return made;
}

/// `make` and what every point of the front has.
PlanMaker finished(PlanMaker make, const FrontOptions& options) {
    return [make = std::move(make), &options](const RoutingView& view) -> absl::StatusOr<Plan> {
        auto plan = make(view);
        if (!plan.ok()) return plan;
        plan->origin.objective = std::string(enumName(options.objective));
        plan->origin.prefix = options.joint.prefix;
        plan->origin.router = options.joint.router;
        plan->origin.homeCap = options.homeCap;
        if (auto status = honourPlaceRules(*plan, options.rules, countsOf(view)); !status.ok())
            return status;
        return plan;
    };
}

Recipe jointRecipe(const Wanted& wanted, const Topology& topology, const FrontOptions& options,
                   double effort, const LoadGap& gap, bool told, Watch& watch) {
    JointOptions how = options.joint;
    how.sends = wanted.sends;
    how.copies = wanted.copies;
    how.loadCap = wanted.cap;
    how.effort = wanted.effort * effort;
    how.homeCap = options.homeCap;
    how.weighLinks = weighsLinks(enumName(options.objective));
    how.loadGap = gap;
    how.goOn = [&watch] { return watch.goOn(); };
    if (told) how.onSearch = [&watch](double value) { watch.searched(value); };
    return {wanted.name, finished(
                             [how, &topology](const RoutingView& view) {
                                 auto plan = solveJoint(view, topology, how);
                                 if (plan.ok() && how.redundant > 0)
                                     partReplicas(*plan, countsOf(view));
                                 return plan;
                             },
                             options)};
}

/// Of every point, linear last; `effort`: part of the usual one of a joint search.
std::vector<Recipe> recipes(const Topology& topology, const FrontOptions& options, double effort,
                            const LoadGap& gap, Watch& watch) {
    std::vector<Recipe> made;
    const bool joint = options.algorithm == "joint";
    for (const Wanted& wanted : joint ? wantedPoints(options) : std::vector<Wanted>())
        made.push_back(jointRecipe(wanted, topology, options, effort, gap,
                                   made.empty() && effort == 1, watch));
    std::vector<std::string> baselines{joint ? "balance" : options.algorithm};
    if (options.algorithm != "linear") baselines.push_back("linear");
    for (const std::string& name : baselines)
        made.push_back({name, finished(
                                  [name, &topology, &options](const RoutingView& view) {
                                      return baselinePlan(name, view, topology,
                                                          options.joint.redundant);
                                  },
                                  options)});
    return made;
}

absl::Status addForecast(FrontPoint& point, const RoutingView& view,
                         const CrossValidation& validated, const FrontOptions& options) {
    auto forecast = forecastOf(view, point.plan, validated, validationOf(options));
    if (forecast.ok()) point.plan.forecast = *std::move(forecast);
    return forecast.status();
}

/// Fills in FrontPoint::loadEnd. `validated`: of the first; what gap it found between resampling
/// and requests left out counts for all.
absl::Status addLoadEnds(std::vector<FrontPoint>& points, const RoutingView& view,
                         const CrossValidation& validated, const FrontOptions& options) {
    for (FrontPoint& point : points) {
        point.loadEnd = point.outcome.nodeLoadMaxOverMean;
        if (point.plan.origin.algorithm != "joint" || options.joint.otherKinds) continue;
        const auto forecast = forecastOf(view, point.plan, validated, validationOf(options));
        if (!forecast.ok()) return forecast.status();
        point.loadEnd = forecast->expected.nodeLoad.high;
    }
    return absl::OkStatus();
}

/// Ratio, at least 1, of a joint plan's expected figure on requests not seen to its in-sample one.
double fadingOf(const Forecast& forecast, Objective objective) {
    const auto part = [](double expected, double inSample) {
        return inSample > 0 ? std::max(expected / inSample, 1.0) : 1.0;
    };
    const auto& expected = forecast.expected;
    const auto& inSample = forecast.inSample;
    if (objective == Objective::kCopies) return part(expected.copies.mean, inSample.copies);
    if (objective == Objective::kBalance) return part(expected.gpuLoad.mean, inSample.gpuLoad);
    return part(expected.sends.mean, inSample.sends);
}

bool capped(const FrontOptions& options) {
    return options.objective != Objective::kBalance && options.objective != Objective::kLatency;
}

/// Selects the point to recommend, with its reason.
class Choice {
  public:
    /// `fading`: what the figures of joint plans become on requests not seen, in parts.
    Choice(const std::vector<FrontPoint>& points, const FrontOptions& options, double cap,
           double fading)
        : points_(points), options_(options), cap_(cap), fading_(fading) {
        limit_ = capped(options) ? std::max(cap + kLoadTolerance, load(0)) : INFINITY;
        upperLimit_ =
            capped(options) ? std::max(cap + kLoadTolerance, points[0].loadEnd) : INFINITY;
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

    /// `fading`: the chosen plan's own.
    std::string reason(double fading) const {
        const size_t linear = points_.size() - 1;
        const double now =
            figureOf(points_[chosen_], options_.objective) * (isJoint(chosen_) ? fading : 1);
        const double was = figure(linear);
        return absl::StrFormat(
            "%s: %s; on requests not seen %s; node load %.2f of the mean, step %.3g ms padded "
            "against %.3g ms",
            points_[chosen_].name, whatItIs(),
            now <= was ? absl::StrFormat("%.1f%% below linear", was > 0 ? (1 - now / was) * 100 : 0)
                       : absl::StrFormat("%.1f%% above linear, whose fullest node has %.2f",
                                         was > 0 ? (now / was - 1) * 100 : 100, load(linear)),
            load(chosen_), points_[chosen_].time.stepPaddedSeconds * 1e3,
            points_[linear].time.stepPaddedSeconds * 1e3);
    }

  private:
    bool isJoint(size_t i) const { return points_[i].plan.origin.algorithm == "joint"; }
    double figure(size_t i) const {
        return figureOf(points_[i], options_.objective) * (isJoint(i) ? fading_ : 1);
    }
    double load(size_t i) const { return points_[i].outcome.nodeLoadMaxOverMean; }
    /// A plan for a looser cap may look even on the very requests that it fits.
    bool counts(size_t i) const { return load(i) <= limit_ && points_[i].loadEnd <= upperLimit_; }

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
            "%s%d of %d plans, those whose fullest node has at most %.3f of the mean, and %.3f at "
            "the end of its range%s",
            text, inside, points_.size(), limit_, upperLimit_,
            std::max(limit_, upperLimit_) > cap_ + kLoadTolerance
                ? absl::StrFormat(", as the plan made for %.2f came to", cap_)
                : "");
    }

    const std::vector<FrontPoint>& points_;
    const FrontOptions& options_;
    double cap_, fading_;
    double limit_ = 0, upperLimit_ = 0;  ///< plans with fuller nodes do not count
    size_t chosen_ = points_.size();
    bool isLowest_ = true;
};

}  // namespace

double gainOfMore(std::span<const double> values) {
    if (values.size() < 2) return -1;
    const auto count = static_cast<double>(values.size());
    const double least = *std::min_element(values.begin(), values.end());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (double value : values) squares += (value - mean) * (value - mean);
    if (least <= 0) return -1;
    constexpr uint32_t kMany = 1000;  // degrees of freedom: as good as normal
    const auto below = [](double n) {
        return deviationsOf(2 * (n - 3.0 / 8) / (n + 1.0 / 4) - 1, kMany);
    };
    return std::sqrt(squares / (count - 1)) * (below(2 * count) - below(count)) / least;
}

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
                                    const FrontOptions& options) {
    const CopyBytes bytes = copyBytes(plan.shape);
    if (plan.origin.bytesPerCopy <= 0) {
        plan.origin.bytesPerCopy = bytes.bytes;
        plan.origin.bytesAssumed = bytes.assumed;
    }
    auto held = heldOut(view, plan, homesOf(options));
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
    const bool joint = options.algorithm == "joint";
    Watch watch(options);
    const auto folded = [&](const Recipe& recipe) {
        watch.enter("cross-validation");
        const auto counted = [&](const RoutingView& others) {
            watch.made();
            return recipe.make(others);
        };
        return crossValidate(view, counted, validationOf(options));
    };
    const std::vector<Recipe> folds =
        recipes(topology, options, kFoldEffort, options.joint.loadGap, watch);
    watch.expect(CrossValidationOptions().folds + folds.size());
    const auto validated = folded(folds[0]);
    if (!validated.ok()) return validated.status();
    const std::vector<Recipe> whole = recipes(topology, options, 1, validated->node, watch);
    Front front;
    std::vector<size_t> recipeOf;  // [point]
    for (size_t i = 0; i < whole.size(); ++i) {
        const Recipe& recipe = whole[i];
        if (watch.stopped() && i > 0 && i + 1 < whole.size()) continue;
        recipeOf.push_back(i);
        watch.enter(recipe.name);
        auto plan = recipe.make(view);
        if (!plan.ok()) return plan.status();
        auto point = measured(recipe.name, *std::move(plan), view, options);
        if (!point.ok()) return point.status();
        watch.made();
        watch.found(figureOf(*point, options.objective));
        front.points.push_back(*std::move(point));
    }
    if (auto status = addForecast(front.points[0], view, *validated, options); !status.ok())
        return status;
    for (FrontPoint& point : front.points)
        point.onFront =
            std::none_of(front.points.begin(), front.points.end(),
                         [&](const FrontPoint& other) { return dominates(other, point); });
    const double least =
        options.joint.redundant > 0 || !joint
            ? options.joint.loadCap
            : leastNodeLoad(countsOf(view), topology.nodes(), options.joint.loadCap);
    if (auto status = addLoadEnds(front.points, view, *validated, options); !status.ok())
        return status;
    const Choice choice(front.points, options, least,
                        fadingOf(front.points[0].plan.forecast, options.objective));
    front.recommended = choice.chosen();
    if (const size_t chosen = front.recommended; chosen != 0) {
        const auto its = folded(folds[recipeOf[chosen]]);
        if (!its.ok()) return its.status();
        if (auto status = addForecast(front.points[chosen], view, *its, options); !status.ok())
            return status;
    }
    front.stopped = watch.stopped();
    front.more = watch.more();
    const Forecast& forecast = front.points[front.recommended].plan.forecast;
    front.reason = choice.reason(fadingOf(forecast, options.objective));
    if (front.stopped) front.reason += "; stopped before the search was through";
    if (least > options.joint.loadCap + kLoadTolerance)
        front.reason +=
            absl::StrFormat("; no placement without redundant experts has less than %.2f", least);
    else if (forecast.expected.nodeLoad.high > least + kShownLoad)
        front.reason += absl::StrFormat(
            "; a cap of %.2f is not kept by the whole range of its node load, which ends at %.3f",
            options.joint.loadCap, forecast.expected.nodeLoad.high);
    front.points[front.recommended].plan.origin.reason = front.reason;
    return front;
}

}  // namespace bulkhead::planner
