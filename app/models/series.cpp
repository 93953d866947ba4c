// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/series.h"

#include <algorithm>
#include <cmath>

namespace bulkhead::ui {
namespace {

double figure(const model::StepPoint& point, Metric metric) {
    switch (metric) {
        case Metric::kLoss:
            return point.loss;
        case Metric::kGradNorm:
            return point.gradNorm;
        case Metric::kTokensPerSecond:
            return point.tokensPerSecond;
        case Metric::kContributors:
            return point.contributors;
        case Metric::kLearningRate:
            return point.learningRate;
        case Metric::kEffectiveTime:
            return point.effectiveTime * 100;
        case Metric::kStepMs:
            return point.stepMs;
        case Metric::kStallMs:
            return point.stallMs;
    }
    return 0;
}

template <class Get>
Points collect(const model::RunState& state, Get get) {
    Points points;
    points.reserve(state.steps.size());
    for (const model::StepPoint& point : state.steps) {
        if (point.superseded) continue;
        const double y = get(point);
        if (std::isfinite(y)) points.emplace_back(static_cast<double>(point.step), y);
    }
    return points;
}

}  // namespace

Points seriesOf(const model::RunState& state, Metric metric) {
    return collect(state, [metric](const model::StepPoint& p) { return figure(p, metric); });
}

Points domainLoss(const model::RunState& state, size_t domain) {
    return collect(state, [domain](const model::StepPoint& p) {
        return domain < p.domainLoss.size() && p.domainLoss[domain] >= 0 ? p.domainLoss[domain]
                                                                         : std::nan("");
    });
}

Points imbalance(const model::RunState& state, bool worst) {
    Points points;
    for (const model::ImbalancePoint& p : state.experts.history)
        points.emplace_back(static_cast<double>(p.step), worst ? p.worst : p.mean);
    return points;
}

Points smoothed(const Points& raw, double weight) {
    Points result;
    result.reserve(raw.size());
    double average = 0;
    double weightOfAll = 0;
    for (const QPointF& point : raw) {
        average = weight * average + (1 - weight) * point.y();
        weightOfAll = weight * weightOfAll + (1 - weight);
        result.emplace_back(point.x(), average / weightOfAll);
    }
    return result;
}

Points decimated(const Points& points, size_t buckets) {
    if (buckets == 0 || points.size() <= 2 * buckets) return points;
    const double begin = points.front().x();
    const double width = (points.back().x() - begin) / static_cast<double>(buckets);
    if (width <= 0) return {points.front(), points.back()};
    Points result;
    result.reserve(2 * buckets + 2);
    result.push_back(points.front());
    size_t at = 1;
    const size_t last = points.size() - 1;
    for (size_t bucket = 0; bucket < buckets && at < last; ++bucket) {
        const double end = begin + width * static_cast<double>(bucket + 1);
        size_t least = at;
        size_t greatest = at;
        const size_t first = at;
        for (; at < last && (points[at].x() < end || bucket + 1 == buckets); ++at) {
            if (points[at].y() < points[least].y()) least = at;
            if (points[at].y() > points[greatest].y()) greatest = at;
        }
        if (at == first) continue;
        result.push_back(points[std::min(least, greatest)]);
        if (least != greatest) result.push_back(points[std::max(least, greatest)]);
    }
    result.push_back(points.back());
    return result;
}

uint64_t stepAt(const model::RunState& state, int64_t timeNs) {
    uint64_t step = 0;
    for (const model::StepPoint& point : state.steps) {
        if (point.timeNs > timeNs) break;
        step = point.step;
    }
    return step;
}

int64_t timeOfStep(const model::RunState& state, double step) {
    int64_t best = 0;
    double distance = 0;
    for (const model::StepPoint& point : state.steps) {
        if (point.superseded) continue;
        const double d = std::abs(static_cast<double>(point.step) - step);
        if (best == 0 || d < distance) {
            best = point.timeNs;
            distance = d;
        }
    }
    return best;
}

std::optional<double> valueAt(const Points& points, double x) {
    const auto after = std::upper_bound(points.begin(), points.end(), x,
                                        [](double v, const QPointF& p) { return v < p.x(); });
    if (after == points.begin()) return std::nullopt;
    return std::prev(after)->y();
}

}  // namespace bulkhead::ui
