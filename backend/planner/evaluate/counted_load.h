// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// The part of an Outcome that counts alone can tell: how even the load is. Where tokens come from
/// and which experts one uses together is not in counts, so copies, sends, bytes and times are not.
/// Counts of a domain come from the nodes that the plan's homes name, others equally from all;
/// replicas share an expert's tokens by the plan's dispatch weights, in the mean, and no router
/// evens them out. InvalidArgument when the recording has no windows or is of another model
/// (checkFit). Precondition: checkPlan. Thread: any.
[[nodiscard]] absl::StatusOr<LoadFigures> loadFromCounts(const Recording& recording,
                                                         const Plan& plan);

}  // namespace bulkhead::planner
