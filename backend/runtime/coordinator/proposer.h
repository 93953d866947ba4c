// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "backend/model/run_state.h"

namespace bulkhead::runtime {

/// Makes one plan, which may take seconds; nullopt when none is worth a move. Any thread.
using ProposalTask = std::function<std::optional<model::PlanProposed>()>;

/// Looks at a job's state; empty unless its plan should be made anew. Called on the coordinator's
/// thread, so it must be quick: the task it returns keeps what it needs and runs on another thread.
/// The planner's, handed in by the program: the runtime does not look at the planner.
using Proposer = std::function<ProposalTask(const model::RunState&)>;

}  // namespace bulkhead::runtime
