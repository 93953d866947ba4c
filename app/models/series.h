// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QPointF>
#include <cstdint>
#include <vector>

#include "backend/model/run_state.h"

/// Figures over steps, ready for a chart. Pure; thread: any.
namespace bulkhead::ui {

using Points = std::vector<QPointF>;  ///< x: step, y: figure; ascending in x

enum class Metric {
    kLoss,  ///< nats per token
    kGradNorm,
    kTokensPerSecond,
    kContributors,
    kLearningRate,
    kEffectiveTime,  ///< percent
    kStepMs,
    kStallMs,
};

/// The whole run; steps that a rollback superseded and figures that are not finite are left out.
/// A stretch of RunState::earlierSteps has two points, its least and its greatest figure.
Points seriesOf(const model::RunState& state, Metric metric);
/// Exponential moving average of every step's figure, with the bias of its start removed; `weight`
/// 0 (off) to just below 1. A stretch counts as so many steps of its mean.
Points smoothedSeries(const model::RunState& state, Metric metric, double weight);
/// Loss of one domain, smoothed likewise; steps without tokens of it are left out.
Points domainLoss(const model::RunState& state, size_t domain, double weight);
/// Worst and mean imbalance of the expert layers over steps.
Points imbalance(const model::RunState& state, bool worst);

/// At most 2 x `buckets` points that paint the same line: the least and the greatest of each bucket
/// of equal width in x, in order, first and last kept.
Points decimated(const Points& points, size_t buckets);

/// The step whose commit was the last at or before `timeNs`; 0 before the first. Within a stretch
/// of RunState::earlierSteps, as if its steps had taken equally long; likewise below.
uint64_t stepAt(const model::RunState& state, int64_t timeNs);
/// When the step nearest to `step` was committed; 0 when there is none.
int64_t timeOfStep(const model::RunState& state, double step);
/// Figure at the last x at or before `x`; nothing before the first.
std::optional<double> valueAt(const Points& points, double x);

}  // namespace bulkhead::ui
