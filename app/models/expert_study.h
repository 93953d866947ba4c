// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QPointF>
#include <QStringList>
#include <optional>
#include <vector>

#include "app/models/expert_grid.h"
#include "app/models/rows_model.h"
#include "backend/model/run_state.h"
#include "backend/planner/characterise/characterise.h"

/// Figures of routing beyond loads: how far domains are apart, which experts a token uses together,
/// and whether the prompt tells what is generated. A running job tells counts by domain only; a
/// recording of routing tells the rest. Pure; thread: any.
namespace bulkhead::ui {

struct ExpertStudy {
    QString source;
    QStringList domains;
    std::vector<ExpertGrid> loads;  ///< all domains, then each; of a recording
    /// Jensen-Shannon distance, 0 alike to 1 nothing in common, mean of the layers; empty: fewer
    /// than two domains. NaN where it is not known.
    std::vector<std::vector<double>> distance;
    bool diagonalIsHalves = false;
    std::optional<planner::PairLoad> together;
    std::optional<planner::PhaseCorrelation> phases;
    QStringList layers;
    /// [layer][expert]: share of the prompt's tokens and of the generated ones, over the mean.
    std::vector<std::vector<QPointF>> byPhase;
};

ExpertStudy studyOf(const model::RunState& state);
ExpertStudy studyOf(const planner::Recording& recording);

/// A row for each domain, a column for each domain beside its name.
std::vector<RowsModel::Row> distanceRows(const ExpertStudy& study);
/// Layer, the two experts, tokens, and how often by what chance would give.
std::vector<RowsModel::Row> togetherRows(const ExpertStudy& study);
/// Expert, share in prefill, share in decode; of one layer.
std::vector<RowsModel::Row> phaseRows(const ExpertStudy& study, int layer);

/// The statement of each, or the reason for which the source cannot tell.
QString distanceWords(const ExpertStudy& study);
QString togetherWords(const ExpertStudy& study);
QString phaseWords(const ExpertStudy& study);

}  // namespace bulkhead::ui
