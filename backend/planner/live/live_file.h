// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "backend/planner/live/live_plan.h"

namespace bulkhead::planner {

/// A placement of a running job as a plan, for a file or another engine: each shard is a node of
/// one GPU. planFromFile takes it back. InvalidArgument naming layer and shard where a shard holds
/// more or fewer experts than in the first layer, which a plan cannot say. Precondition: the two
/// lists, as in model::Action, fit the job. Thread: any.
[[nodiscard]] absl::StatusOr<Plan> fileOf(const LiveJob& job, const model::ModelInfo& model,
                                          const std::vector<int32_t>& expertShard,
                                          const std::vector<uint32_t>& domainShare);

}  // namespace bulkhead::planner
