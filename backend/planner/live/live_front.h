// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/live/live_plan.h"

/// Several plans for a running job, so that the operator sees what each costs. Pure; thread: any.
namespace bulkhead::planner {

struct LiveFrontPoint {
    std::string name;  ///< "load 1.15", "fewer moves, load 1.15", "as it is"
    LivePlan plan;
    double load = 1;         ///< copies that reach a shard's experts, max/mean, mean of the layers
    bool keepsRules = true;  ///< only what is in use may not: pins came after it
    bool onFront = true;     ///< no other has as few remote copies, as even a load and as few moves
};

struct LiveFront {
    std::vector<LiveFrontPoint> points;  ///< the first is what is in use; no two place alike
    size_t recommended = 0;
    std::string reason;  ///< "fewest remote copies, 48.2 %, with ..."
};

/// Plans for tighter and looser loads, each with moves cheap and dear, beside what is in use.
/// Recommends the one with the fewest remote copies whose load is at most `options.loadCap`, or,
/// where none is, the one with the most even load. Errors as recommendPlan.
[[nodiscard]] absl::StatusOr<LiveFront> liveFront(const LiveJob& job, const LiveOptions& options);

}  // namespace bulkhead::planner
