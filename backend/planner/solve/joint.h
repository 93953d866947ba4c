// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/routing_view.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/layer_search.h"
#include "backend/planner/solve/mixtures.h"

namespace bulkhead::planner {

/// Objective and effort of a joint search.
struct JointOptions {
    double sends = 1;      ///< weight of a send
    double copies = 0.02;  ///< weight of a copy
    uint32_t redundant = 0;
    /// That will choose among replicas. For a router that makes little of them the plan without any
    /// is taken if that sends less on the requests it is made from; redundant slots then hold
    /// second replicas on the experts' own nodes, which costs no send and evens out GPUs.
    Router router = Router::kTokenAware;
    /// Node load max/mean to be kept on requests not seen: by the upper end of a range that holds
    /// `confidence` of what comes. The search aims lower by what sampling requests adds to its load
    /// (estimated by resampling the requests it has) and by `loadGap` beside that (loadRange). Where
    /// requests come by lot it pays up to 15 % of what it minimises for the cap.
    double loadCap = 1.15;
    double confidence = 0.9;  ///< more than 0, less than 1
    LoadGap loadGap;
    /// The load cap is kept for each of these. Empty: for requests that come by lot, of which it is
    /// luck how many are of each domain. What is sent is always that of the recorded mixture.
    std::vector<Mixture> mixtures;
    /// For requests of kinds that were not recorded, instead of `mixtures`: each recorded request
    /// alone is to leave nodes even, at a price that is the higher the fewer domains were recorded.
    /// Experts that one kind uses together are then apart, so that another kind, which may ask for
    /// all of them at once, fills no node; that costs most of what a plan saves. Without
    /// `redundant`.
    bool otherKinds = false;
    double homeCap = 1.15;  ///< home tokens max/mean
    double prefix = 0.3;    ///< homes of new requests will be chosen from this part of them
    /// A send counts what its link costs (linkCosts). Either way nodes that exchange most are near
    /// each other in the topology.
    bool weighLinks = false;
    bool keepGroups = false;  ///< router groups stay whole on a node
    uint64_t seed = 1;
    /// 1 is the usual length. Up to kSearchEffort the proposals of one search scale with it; of
    /// more, where requests are few, as many searches are made and the best plan is taken.
    double effort = 1;
    uint64_t sampleTokens = 40000;  ///< tokens a layer is searched with
    /// Asked before every layer of a round. After the first false no layer is annealed any more,
    /// only descended from, and the search ends with that round.
    std::function<bool()> goOn;
    /// Called after every round with a plan that could be used.
    std::function<void(uint32_t round, double objective)> onRound;
    /// Called after every search with what is minimised, by its own requests.
    std::function<void(double value)> onSearch;
};

/// Searches that begin from other groupings end at other plans, of which the best is better than
/// what one of them finds in as much time.
inline constexpr double kSearchEffort = 1.0 / 3;

/// Joint plan: groups requests by their experts, places experts for the groups, groups again by
/// what the placement makes cheap, and so on; all layers share the groups. Deterministic for a
/// seed. InvalidArgument when slots do not divide, when keepGroups and groups do not divide over
/// nodes, or when there is no token. Time: about 26 layers x 64 experts, 8,000 tokens: seconds.
[[nodiscard]] absl::StatusOr<Plan> solveJoint(const RoutingView& view, const Topology& topology,
                                              const JointOptions& options);

/// Assigns slots and dispatch from the experts of every node and the node routes of a layer: a
/// node's GPUs are evened out by `load`, [expert].
[[nodiscard]] LayerPlan layOut(const NodePlacement& placement, const std::vector<double>& load,
                               const Topology& topology, const std::vector<uint32_t>& firstSlot);

/// The way back for one layer: each node's different experts, and `route` (as in NodeRoutes). Every
/// node has as many slots as the others.
[[nodiscard]] NodePlacement nodePlacementOf(const Plan& plan, uint32_t layer,
                                            const std::vector<uint16_t>& route);

}  // namespace bulkhead::planner
