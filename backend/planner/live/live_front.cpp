// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/live/live_front.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/model/expert_rules.h"
#include "backend/planner/solve/front.h"

namespace bulkhead::planner {
namespace {

constexpr double kLoads[] = {1.05, 1.15, 1.3, 1.6};
constexpr double kDearMoves = 10;  // times the usual price
constexpr double kSamePlan = 1e-9;

LiveFrontPoint pointOf(const LiveJob& job, std::string name, LivePlan plan) {
    LiveFrontPoint point{std::move(name), std::move(plan), 0, true, true};
    const model::Action& action = point.plan.action;
    point.keepsRules =
        model::brokenRule(job.rules, action.expertShard, job.counts.experts) == nullptr;
    point.load = point.plan.preview.forecast.loadInSample;
    return point;
}

bool placesAlike(const LiveFrontPoint& a, const LiveFrontPoint& b) {
    return a.plan.action.expertShard == b.plan.action.expertShard &&
           a.plan.action.domainShare == b.plan.action.domainShare;
}

bool atLeastAsGood(const LiveFrontPoint& a, const LiveFrontPoint& b) {
    return a.plan.preview.forecast.remote.mean <= b.plan.preview.forecast.remote.mean + kSamePlan &&
           a.load <= b.load + kSamePlan &&
           a.plan.preview.expertsMoved <= b.plan.preview.expertsMoved;
}

void markFront(std::vector<LiveFrontPoint>& points) {
    for (LiveFrontPoint& p : points)
        p.onFront = std::none_of(points.begin(), points.end(), [&](const LiveFrontPoint& q) {
            return atLeastAsGood(q, p) && !atLeastAsGood(p, q);
        });
}

void recommend(LiveFront& front, double cap) {
    const auto less = [](double a, double b) { return a < b - kSamePlan; };
    const auto better = [&](const LiveFrontPoint& a, const LiveFrontPoint& b) {
        if (a.keepsRules != b.keepsRules) return a.keepsRules;
        const double most = a.mostLoad(), others = b.mostLoad();
        const bool within = most <= cap + kSamePlan, other = others <= cap + kSamePlan;
        if (within != other) return within;
        if (!within) return less(most, others);
        const double ra = a.plan.preview.forecast.remote.mean,
                     rb = b.plan.preview.forecast.remote.mean;
        if (less(ra, rb) || less(rb, ra)) return less(ra, rb);
        return a.plan.preview.expertsMoved < b.plan.preview.expertsMoved;
    };
    for (size_t i = 1; i < front.points.size(); ++i)
        if (better(front.points[i], front.points[front.recommended])) front.recommended = i;
    const LiveFrontPoint& best = front.points[front.recommended];
    const char* range = best.plan.preview.forecast.hasRange ? " by the upper end of its range" : "";
    front.reason =
        best.mostLoad() <= cap + kSamePlan
            ? absl::StrFormat(
                  "fewest remote copies, %.1f %%, with %.2f of the mean load on the "
                  "busiest shard%s, at most %.2f",
                  best.plan.preview.forecast.remote.mean * 100, best.mostLoad(), range, cap)
            : absl::StrFormat(
                  "no plan found keeps the busiest shard within %.2f of the mean load; "
                  "this one comes nearest, at %.2f%s",
                  cap, best.mostLoad(), range);
}

}  // namespace

absl::StatusOr<LiveFront> liveFront(
    const LiveJob& job, const LiveOptions& options,
    const std::function<bool(const LiveFrontProgress&)>& onProgress) {
    std::vector<double> caps{options.loadCap};
    for (const double load : kLoads)
        if (load != options.loadCap) caps.push_back(load);
    LiveFront front;
    LiveFrontProgress at;
    at.of = static_cast<uint32_t>(1 + 2 * caps.size());
    std::vector<double> values;  // of the first plan's groupings
    const auto goOn = [&] {
        if (!front.stopped && onProgress) front.stopped = !onProgress(at);
        return !front.stopped;
    };
    LiveOptions wanted = options;
    wanted.goOn = goOn;
    front.points.push_back(
        pointOf(job, "as it is", planWith(job, job.expertShard, job.domainShare)));
    const double optimism = optimismOf(job, wanted);
    for (const double dear : {1.0, kDearMoves})
        for (const double cap : caps) {
            ++at.done;
            if (!goOn()) break;
            wanted.loadCap = cap;
            wanted.pricePerMove = options.pricePerMove * dear;
            if (at.done == 1)
                wanted.onStart = [&](double value) { values.push_back(value); };
            else
                wanted.onStart = {};
            absl::StatusOr<LivePlan> plan = recommendPlan(job, wanted, optimism);
            if (!plan.ok()) return plan.status();
            if (at.done == 1) at.more = gainOfMore(values);
            LiveFrontPoint point =
                pointOf(job, absl::StrFormat("%sload %.2f", dear > 1 ? "fewer moves, " : "", cap),
                        *std::move(plan));
            const double remote = point.plan.preview.forecast.remote.mean;
            if (point.mostLoad() <= options.loadCap + kSamePlan &&
                (at.best < 0 || remote < at.best))
                at.best = remote;
            if (std::none_of(front.points.begin(), front.points.end(),
                             [&](const auto& other) { return placesAlike(other, point); }))
                front.points.push_back(std::move(point));
        }
    front.more = at.more;
    markFront(front.points);
    recommend(front, options.loadCap);
    if (front.stopped) front.reason += "; stopped before the search was through";
    return front;
}

}  // namespace bulkhead::planner
