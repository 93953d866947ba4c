// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/run_state.h"
#include "backend/planner/live/live_plan.h"

/// Live plans for terminals. Pure; thread: any.
namespace bulkhead::cli {

/// Several lines: what would move, and what is predicted beside what is measured.
std::string previewText(const planner::LivePreview& preview);
/// A run's moves, one line each, and the plans that the backend proposed.
std::string layoutsText(const model::RunState& state);

}  // namespace bulkhead::cli
