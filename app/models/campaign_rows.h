// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <vector>

#include "app/models/rows_model.h"
#include "backend/model/run_state.h"

/// A run's fault campaigns in an operator's words. `nowNs` is the time of the run's last event, so
/// that a replay says what was known then. Pure; thread: any.
namespace bulkhead::ui {

/// No., campaign, at, took, faults, effective time, outcome; newest first.
std::vector<RowsModel::Row> campaignRows(const model::RunState& state, int64_t nowNs);
/// Criterion, verdict, measured.
std::vector<RowsModel::Row> verdictRows(const model::RunState& state,
                                        const model::CampaignView& campaign, int64_t nowNs);
/// No., planned at, fault, incident, what came of it.
std::vector<RowsModel::Row> fateRows(const model::RunState& state,
                                     const model::CampaignView& campaign);

/// "Injecting, 3 min 12 s of 15 min", "Settling, ...", "Passed after ...".
QString stageWords(const model::RunState& state, const model::CampaignView& campaign,
                   int64_t nowNs);
Tone stageTone(const model::CampaignView& campaign);
/// 0..1000 of the campaign's duration; settling and over: 1000.
int stagePermille(const model::CampaignView& campaign, int64_t nowNs);

}  // namespace bulkhead::ui
