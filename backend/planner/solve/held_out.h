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

/// Assignment of homes to requests that the plan was not made from.
struct HeldOutOptions {
    double prefix = 0.3;  ///< a request's home is chosen from this part, the rest is scored
    double homeCap = 1.15;
    double sends = 1;  ///< weight of a send in the choice of a home
    double copies = 0.02;
    std::optional<Router> router = std::nullopt;  ///< instead of the one that the plan is made for
};

/// Homes as a server chooses them with a plan made for `objective` (PlanOrigin::objective): those
/// with the fewest sends or, for copies, with the fewest copies.
[[nodiscard]] HeldOutOptions homesFor(std::string_view objective, double prefix, double homeCap);

/// Requests that came to a server with the plan.
struct Arrival {
    RoutingView scored;  ///< the rest of each request, behind the prefix that homes are chosen from
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

/// Returns whether sends of a plan for `objective` (PlanOrigin::objective) are weighted by the cost
/// of their links: those for bytes and latency are.
[[nodiscard]] bool weighsLinks(std::string_view objective);

/// Requests as they come: the first part of each says where it is served, under a cap on each
/// node's scored tokens, with sends weighed as weighsLinks() says for the plan's objective, and the
/// rest is to be measured. Requests of one token are left out. InvalidArgument when the recording
/// does not fit the plan, FailedPrecondition when nothing is left to score.
[[nodiscard]] absl::StatusOr<Arrival> arrive(const RoutingView& view, const Plan& plan,
                                             const HeldOutOptions& options);

/// arrive(), and what becomes of them.
[[nodiscard]] absl::StatusOr<HeldOut> heldOut(const RoutingView& view, const Plan& plan,
                                              const HeldOutOptions& options);

}  // namespace bulkhead::planner
