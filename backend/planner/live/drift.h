// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "backend/model/run_state.h"

/// When a plan in use should be made anew. Pure; thread: any.
namespace bulkhead::planner {

/// The rule for every plan in use: `measured` is above what was predicted of it, the upper end
/// where that is a range, by more than the part `drift` of it.
[[nodiscard]] inline bool outgrows(double measured, double predicted, double drift) {
    return measured > predicted * (1 + drift);
}

/// In which way the plan in use does not do any more what was predicted of it, in words; nullopt:
/// it does, nobody predicted anything, too few steps ran in it to say (LayoutView::kWindow), or the
/// cool-down since the last move or proposal is not over. By the job's [plan] drift: remote copies
/// are so much more than predicted, or the busiest shard's tokens so much more than a plan allows
/// (LiveOptions::loadCap), both over the last steps.
[[nodiscard]] std::optional<std::string> drifted(const model::RunState& state);

/// Empty unless drifted(). Else makes a plan for the job as it is now, with default options,
/// whenever and on whatever thread it is called: nullopt when that plan is hardly better.
[[nodiscard]] std::function<std::optional<model::PlanProposed>()> proposal(
    const model::RunState& state);

}  // namespace bulkhead::planner
