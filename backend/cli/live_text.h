// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/run_state.h"
#include "backend/planner/live/live_plan.h"

/// Live plans for terminals. Pure; thread: any.
namespace bulkhead::cli {

/// Several lines: what would move, and what is predicted beside what is measured.
std::string previewText(const planner::LivePreview& preview);
/// Pins and bans, and whether `placement`, [layer][expert] the shard, keeps each. Precondition:
/// they fit it.
std::string rulesText(const std::vector<model::ExpertRule>& rules,
                      const std::vector<int32_t>& placement, uint32_t experts);
/// A run's moves, one line each, and the plans that the backend proposed.
std::string layoutsText(const model::RunState& state);

}  // namespace bulkhead::cli
