// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// More text is no plan: one of 58 layers of 256 experts, all twice, on 32 nodes has 5 MB.
inline constexpr uint64_t kMostPlanBytes = uint64_t{256} << 20;

/// The plan as one JSON object, "format": "bulkhead.plan", "version": 1. Everything that Plan
/// holds.
[[nodiscard]] std::string formatPlan(const Plan& plan);

/// The way back; what was written is read as an equal plan. InvalidArgument "FILE: at KEY: ..." for
/// text that is no such object, has a key of no field, or is a plan that checkPlan refuses. At most
/// kMostPlanBytes of text. Thread: any.
[[nodiscard]] absl::StatusOr<Plan> parsePlan(std::string_view text, const std::string& file);

}  // namespace bulkhead::planner
