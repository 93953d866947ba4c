// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <optional>
#include <vector>

#include "app/models/rows_model.h"
#include "backend/planner/live/live_front.h"

/// Where a job's experts lie, what each shard gets by the job's recent counts, and what another
/// placement would change; in an operator's words. Pure; thread: any.
namespace bulkhead::ui {

/// One placement beside the counts.
struct PlacementSide {
    std::vector<int32_t> expertShard;  ///< [layer][expert]
    std::vector<planner::LayerFigures> layers;
    /// Copies that reach a shard's experts, busiest over mean: mean of the layers, and the worst.
    double load() const;
    double worstLoad() const;
};

struct Placement {
    planner::LiveJob job;
    QStringList names;  ///< of the layers
    PlacementSide now;
    std::optional<PlacementSide> then;          ///< the proposed layout
    planner::LivePreview preview;               ///< of `then`, or of staying
    planner::LiveForecast staying;              ///< of what is in use
    bool grouped = false, groupedThen = false;  ///< samples go to the shards of their domain

    const PlacementSide& shown() const { return then ? *then : now; }
    int layers() const { return static_cast<int>(job.counts.layers); }
    int experts() const { return static_cast<int>(job.counts.experts); }
    int shards() const { return static_cast<int>(job.shards); }
    bool moves(int layer, int expert) const;
    /// Copies that reached an expert, all domains, and the same over the layer's mean.
    double tokens(int layer, int expert) const;
    double share(int layer, int expert) const;
};

/// A proposal's placement: planner::Action's two lists.
struct PlacementChange {
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;
    double optimism = 0;  ///< as in planner::LivePreview
};

/// Precondition: `change` fits the job.
Placement placementOf(const model::RunState& state, planner::LiveJob job,
                      const std::optional<PlacementChange>& change);

/// The summary sentence of the preview.
QString previewWords(const Placement& placement);
/// "Plan 3 of 11. Best so far: 48.2 % of copies remote. As long again would bring about 0.4 %."
QString progressWords(const planner::LiveFrontProgress& progress);
/// The gain that more search is expected to bring; empty where it is not known or nothing.
QString moreWords(double more);

/// Figure, now, proposed, its 5 to 95 %, the same in the counted steps alone, change; a dash where
/// nothing is proposed or known.
std::vector<RowsModel::Row> gainRows(const Placement& placement);
/// Layer, experts that move, remote copies and busiest shard, now and proposed.
std::vector<RowsModel::Row> layerRows(const Placement& placement);
/// Expert, shard, comes from, load, tokens; of one layer.
std::vector<RowsModel::Row> expertRows(const Placement& placement, int layer);
/// Domain, and the share of its samples on each shard, as proposed or in use.
std::vector<RowsModel::Row> homeRows(const Placement& placement);
/// Layer, expert, what was laid down for it, where it is shown, whether that is kept.
std::vector<RowsModel::Row> ruleRows(const Placement& placement);
/// "Proposed after step 812, 0:12:31" and why, with what it would do.
QString waitingHeadline(const model::RunState& state, const model::ProposalView& proposal);
QString waitingWords(const model::RunState& state, const model::ProposalView& proposal);
/// Plan, remote copies expected, 5 to 95 % of them, busiest shard, experts that move, and what else
/// to know of it.
std::vector<RowsModel::Row> frontRows(const planner::LiveFront& front);
/// The moves of a run, newest first, predicted beside measured.
std::vector<RowsModel::Row> layoutRows(const model::RunState& state);

}  // namespace bulkhead::ui
