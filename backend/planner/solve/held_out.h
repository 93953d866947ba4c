// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/token_sample.h"

namespace bulkhead::planner {

/// How requests that the plan was not made from find their homes.
struct HeldOutOptions {
    double prefix = 0.3;  ///< a request's home is chosen from this part, the rest is scored
    double homeCap = 1.15;
    double sends = 1;  ///< what a home is chosen to save
    double copies = 0.02;
    /// Which replica a home uses follows the requests at hand: chosen anew from their prefixes,
    /// under the plan's load cap. Slots stay as they are. Without: the plan's own dispatch weights.
    bool adaptDispatch = true;
};

struct HeldOut {
    RoutingView scored;           ///< points into the routing of the view
    std::vector<uint16_t> homes;  ///< of each scored range
    std::vector<LayerOutcome> layers;
    Outcome outcome;
};

/// The plan with the dispatch of its replicas fitted to a sample of tokens whose ranges are at home
/// on `homes`: least sends and copies with every node's load at most `loadCap` x mean. A plan
/// without replicas, or with nodes of different size, comes back as it is.
[[nodiscard]] Plan withDispatchFor(Plan plan, const TokenSample& sample,
                                   const std::vector<uint16_t>& homes, double sends, double copies,
                                   double loadCap);

/// The plan on requests as they come: the first part of each request says where it is served, under
/// a cap on each node's scored tokens, and the rest is measured. Requests of one token are left
/// out. InvalidArgument when the recording does not fit the plan, or nothing is left to score.
[[nodiscard]] absl::StatusOr<HeldOut> heldOut(const RoutingView& view, const Plan& plan,
                                              const HeldOutOptions& options);

}  // namespace bulkhead::planner
