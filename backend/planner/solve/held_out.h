// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
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
    std::optional<Router> router = std::nullopt;  ///< instead of the one that the plan is made for
};

/// Requests that came to a server with the plan.
struct Arrival {
    RoutingView scored;  ///< what is left of them behind the part that homes are chosen from
    std::vector<uint16_t> homes;  ///< of each range of `scored`
    Plan plan;                    ///< with the dispatch weights of its router
    /// Chooses replicas token by token, under the plan's load cap where it can; none: the dispatch
    /// weights do.
    std::optional<RouterPolicy> router;
};

struct HeldOut {
    RoutingView scored;           ///< points into the routing of the view
    std::vector<uint16_t> homes;  ///< of each scored range
    std::vector<LayerOutcome> layers;
    Outcome outcome;
};

/// Whether sends of a plan for `objective` (PlanOrigin::objective) count what their links cost:
/// those for bytes and latency do.
[[nodiscard]] bool weighsLinks(std::string_view objective);

/// Requests as they come: the first part of each says where it is served, under a cap on each
/// node's scored tokens, with sends weighed as weighsLinks() says for the plan's objective, and the
/// rest is to be measured. Requests of one token are left out. InvalidArgument when the recording
/// does not fit the plan, or nothing is left to score.
[[nodiscard]] absl::StatusOr<Arrival> arrive(const RoutingView& view, const Plan& plan,
                                             const HeldOutOptions& options);

/// arrive(), and what becomes of them.
[[nodiscard]] absl::StatusOr<HeldOut> heldOut(const RoutingView& view, const Plan& plan,
                                              const HeldOutOptions& options);

}  // namespace bulkhead::planner
