// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/random.h"
#include "backend/planner/solve/token_sample.h"

/// Assignment of requests to nodes. Pure; any thread.
namespace bulkhead::planner {

/// Requests with what each gains on each node.
struct HomeProblem {
    uint32_t nodes = 0;
    std::vector<double> gain;    ///< requests x nodes; more is better
    std::vector<double> tokens;  ///< [request] load it brings
    double cap = 1.15;           ///< tokens of a node at most this x mean, where that is possible

    uint32_t requests() const { return static_cast<uint32_t>(tokens.size()); }
};

/// Node of each request: exactly for requests that may be divided over nodes (a transportation
/// problem by successive shortest paths), whole again in the best way, then moves and swaps while
/// any improves. Beyond 20,000 requests x nodes, prices on full nodes (a Lagrangian of the cap)
/// begin instead. Within 0.5% of the optimum on small cases (tests/planner compares with an exact
/// solver). When one request alone exceeds the cap, its node holds it alone.
[[nodiscard]] std::vector<uint16_t> assignHomes(const HomeProblem& problem);

/// Groups requests with similar experts: spherical K-means with a cap on each cluster's tokens.
/// `features`: requests x width, any scale. Best of `restarts` seedings.
[[nodiscard]] std::vector<uint16_t> groupRequests(std::span<const float> features, uint32_t width,
                                                  std::span<const double> tokens, uint32_t nodes,
                                                  double cap, uint32_t restarts, Random& random);

/// Cost of each range of a sample on each node, summed over its sampled tokens and layers:
/// node-deduplicated sends, each times `linkCosts` from the home (empty: 1), and copies. ranges x
/// nodes each.
struct HomeCosts {
    std::vector<double> sends;
    std::vector<double> copies;
};
[[nodiscard]] HomeCosts homeCosts(const TokenSample& sample, const NodeRoutes& routes,
                                  std::span<const double> linkCosts = {});

/// Homes for the ranges of `sample` (usually the heads of requests) that will bring `tokens` each,
/// minimising sends x `sends` + copies x `copies` under `cap`, sends as in homeCosts().
[[nodiscard]] std::vector<uint16_t> chooseHomes(const TokenSample& sample, const NodeRoutes& routes,
                                                std::span<const double> tokens, double sends,
                                                double copies, double cap,
                                                std::span<const double> linkCosts = {});

/// Sends from each home to each node, node-deduplicated, over all layers of the sample: nodes x
/// nodes. `homes` of its ranges.
[[nodiscard]] std::vector<double> trafficOf(const TokenSample& sample, const NodeRoutes& routes,
                                            std::span<const uint16_t> homes);

/// Returns the homes of each domain of `view` that has tokens: `homes` and `tokens` are those of
/// its ranges.
[[nodiscard]] std::vector<DomainHome> homesByDomain(const RoutingView& view,
                                                    std::span<const uint16_t> homes,
                                                    std::span<const double> tokens, uint32_t nodes);

}  // namespace bulkhead::planner
