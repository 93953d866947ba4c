// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/run_state.h"
#include "backend/planner/live/live_plan.h"

/// Live plans for terminals. Pure; thread: any.
namespace bulkhead::cli {

/// Several lines: what would move, and what is predicted beside what is measured.
std::string previewText(const planner::LivePreview& preview);
/// Pins and bans, and whether the job's placement keeps each. Precondition: they fit it.
std::string rulesText(const std::vector<model::ExpertRule>& rules, const planner::LiveJob& job);
/// A run's moves, one line each, and the plans that the backend proposed.
std::string layoutsText(const model::RunState& state);
/// The outcome of a proposal: "waiting", "dismissed", "applied", or "replaced" by a later one or by
/// another move. `i` is its place among the state's. A run does not keep which plan a move was made
/// from: it is this one when it was the last proposed for the layout before and moves as many
/// experts (and, where they are still there, the same ones).
const char* proposalFate(const model::RunState& state, size_t i);

}  // namespace bulkhead::cli
