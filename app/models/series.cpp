// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/series.h"

#include <algorithm>
#include <cmath>

namespace bulkhead::ui {
namespace {

using OfStep = double (*)(const model::StepPoint&);
using OfStretch = const model::Extent& (*)(const model::StepStretch&);

struct Figure {
    OfStep ofStep;
    OfStretch ofStretch;
};

Figure figureOf(Metric metric) {
    using P = const model::StepPoint&;
    using S = const model::StepStretch&;
    using E = const model::Extent&;
    switch (metric) {
        case Metric::kLoss:
            return {[](P p) { return p.loss; }, [](S s) -> E { return s.loss; }};
        case Metric::kGradNorm:
            return {[](P p) { return p.gradNorm; }, [](S s) -> E { return s.gradNorm; }};
        case Metric::kTokensPerSecond:
            return {[](P p) { return p.tokensPerSecond; },
                    [](S s) -> E { return s.tokensPerSecond; }};
        case Metric::kContributors:
            return {[](P p) { return static_cast<double>(p.contributors); },
                    [](S s) -> E { return s.contributors; }};
        case Metric::kLearningRate:
            return {[](P p) { return p.learningRate; }, [](S s) -> E { return s.learningRate; }};
        case Metric::kEffectiveTime:
            return {[](P p) { return p.effectiveTime; }, [](S s) -> E { return s.effectiveTime; }};
        case Metric::kStepMs:
            return {[](P p) { return p.stepMs; }, [](S s) -> E { return s.stepMs; }};
        case Metric::kStallMs:
            return {[](P p) { return p.stallMs; }, [](S s) -> E { return s.stallMs; }};
    }
    return {};
}

double domainFigure(const model::StepPoint& p, size_t domain) {
    return domain < p.domainLoss.size() && p.domainLoss[domain] >= 0 ? p.domainLoss[domain]
                                                                     : std::nan("");
}

model::Extent domainExtent(const model::StepStretch& s, size_t domain) {
    return domain < s.domainLoss.size() ? s.domainLoss[domain] : model::Extent{};
}

/// The whole run: `takeStretch` for those before the steps that are kept one by one.
template <class OfStep, class OfStretch, class TakeStretch, class TakeStep>
void walk(const model::RunState& state, OfStep ofStep, OfStretch ofStretch, TakeStretch takeStretch,
          TakeStep takeStep) {
    for (const model::StepStretch& stretch : state.earlierSteps)
        if (const model::Extent& extent = ofStretch(stretch); extent.count > 0)
            takeStretch(stretch, extent);
    for (const model::StepPoint& point : state.steps) {
        if (point.superseded) continue;
        const double y = ofStep(point);
        if (std::isfinite(y)) takeStep(static_cast<double>(point.step), y);
    }
}

template <class OfStep, class OfStretch>
Points raw(const model::RunState& state, OfStep ofStep, OfStretch ofStretch) {
    Points points;
    points.reserve(state.steps.size() + 2 * state.earlierSteps.size());
    walk(
        state, ofStep, ofStretch,
        [&](const model::StepStretch& stretch, const model::Extent& extent) {
            points.emplace_back(static_cast<double>(stretch.first), extent.least);
            if (stretch.last > stretch.first)
                points.emplace_back(static_cast<double>(stretch.last), extent.greatest);
        },
        [&](double step, double y) { points.emplace_back(step, y); });
    return points;
}

/// Exponential moving average with the bias of its start removed.
class Average {
  public:
    explicit Average(double weight) : weight_(weight) {}
    /// `y` came so many times in a row.
    double add(double y, double times = 1) {
        const double kept = times == 1 ? weight_ : std::pow(weight_, times);
        value_ = kept * value_ + (1 - kept) * y;
        all_ = kept * all_ + (1 - kept);
        return value_ / all_;
    }

  private:
    double weight_;
    double value_ = 0;
    double all_ = 0;
};

template <class OfStep, class OfStretch>
Points averaged(const model::RunState& state, OfStep ofStep, OfStretch ofStretch, double weight) {
    Points points;
    points.reserve(state.steps.size() + state.earlierSteps.size());
    Average average(weight);
    walk(
        state, ofStep, ofStretch,
        [&](const model::StepStretch& stretch, const model::Extent& extent) {
            points.emplace_back(static_cast<double>(stretch.last),
                                average.add(extent.mean, static_cast<double>(extent.count)));
        },
        [&](double step, double y) { points.emplace_back(step, average.add(y)); });
    return points;
}

}  // namespace

Points seriesOf(const model::RunState& state, Metric metric) {
    const Figure figure = figureOf(metric);
    Points points = raw(state, figure.ofStep, figure.ofStretch);
    if (metric == Metric::kEffectiveTime)
        for (QPointF& point : points) point.ry() *= 100;
    return points;
}

Points smoothedSeries(const model::RunState& state, Metric metric, double weight) {
    const Figure figure = figureOf(metric);
    return averaged(state, figure.ofStep, figure.ofStretch, weight);
}

Points domainLoss(const model::RunState& state, size_t domain, double weight) {
    return averaged(
        state, [domain](const model::StepPoint& p) { return domainFigure(p, domain); },
        [domain](const model::StepStretch& s) { return domainExtent(s, domain); }, weight);
}

Points imbalance(const model::RunState& state, bool worst) {
    Points points;
    for (const model::ImbalancePoint& p : state.experts.history)
        points.emplace_back(static_cast<double>(p.step), worst ? p.worst : p.mean);
    return points;
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
    for (const model::StepStretch& stretch : state.earlierSteps) {
        if (stretch.beginNs > timeNs) return step;
        step = timeNs >= stretch.endNs
                   ? stretch.last
                   : stretch.first +
                         static_cast<uint64_t>(static_cast<double>(stretch.last - stretch.first) *
                                               model::durationMs(stretch.beginNs, timeNs) /
                                               model::durationMs(stretch.beginNs, stretch.endNs));
    }
    for (const model::StepPoint& point : state.steps) {
        if (point.timeNs > timeNs) break;
        step = point.step;
    }
    return step;
}

int64_t timeOfStep(const model::RunState& state, double step) {
    for (const model::StepStretch& stretch : state.earlierSteps) {
        const auto first = static_cast<double>(stretch.first);
        const auto last = static_cast<double>(stretch.last);
        if (step > last) continue;
        const double part = last > first ? std::max(step - first, 0.0) / (last - first) : 0;
        return stretch.beginNs +
               static_cast<int64_t>(part * model::durationMs(stretch.beginNs, stretch.endNs) * 1e6);
    }
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
