// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/routing_view.h"
#include "backend/planner/evaluate/migration.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/place_rules.h"

namespace bulkhead::planner {

/// When a plan in use should give way.
struct ReplanOptions {
    double sends = 1;
    double copies = 0.02;
    bool weighLinks = false;  ///< as in JointOptions
    double loadWeight = 0;    ///< price of load above the cap; 0: sends + copies
    double loadCap = 1.15;
    double homeCap = 1.15;
    /// Gain that a layer must reach for each expert that moves, in sends a token of that layer.
    double pricePerMove = 0.0005;
    /// A layer keeps its experts unless it gains this part of what it costs now: hysteresis.
    double leastLayerGain = 0.01;
    /// ... and the whole plan stays unless it gains this part.
    double leastGain = 0.02;
    /// Of homes and experts in turn, as long as they gain; with more than one, also from requests
    /// grouped anew by their experts instead of from homes where the experts are.
    uint32_t rounds = 1;
    uint64_t seed = 1;
    uint64_t sampleTokens = 4000;
    uint32_t sweeps = 3;            ///< of a plan without replicas (LayerSearch::descend)
    std::vector<PlaceRule> rules;   ///< hold in the new plan, whether or not that pays
    double proposalsPerUnit = 120;  ///< of a plan with replicas (LayerSearch::anneal)
};

struct Replan {
    Plan plan;             ///< the current one where nothing pays
    bool changes = false;  ///< experts move
    /// The homes are those of the recording's domains, and the origin's tokens its own: whenever
    /// experts move, or when the plan in use was made for other domains.
    bool newHomes = false;
    double before = 0;  ///< weighted sends and copies a token and layer, and load above the cap,
    double after = 0;   ///< on the recording's requests with homes chosen anew
    uint32_t layersChanged = 0;
    Migration migration;
    std::string reason;
};

/// From the plan in use towards what new routing asks for, moving only experts that pay for their
/// move: homes for the recording's requests where the experts are, experts for those homes, and so
/// on. Experts that stay keep their slots. Plans with replicas keep their number of slots.
/// InvalidArgument when the recording does not fit the plan. Deterministic; thread: any.
[[nodiscard]] absl::StatusOr<Replan> replan(const Plan& current, const RoutingView& view,
                                            const ReplanOptions& options);

}  // namespace bulkhead::planner
