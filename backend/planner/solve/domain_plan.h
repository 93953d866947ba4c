// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/solve/place_rules.h"

/// Plans for a job that trains: all that is known of its routing is how many tokens of each domain
/// each expert got, and what is decided is where experts lie and which node computes which domain's
/// samples. Pure; any thread.
namespace bulkhead::planner {

/// Tokens routed, [layer][domain][expert], row by row; any unit.
struct DomainCounts {
    uint32_t layers = 0;
    uint32_t domains = 0;
    uint32_t experts = 0;
    std::vector<double> values;

    double at(uint32_t layer, uint32_t domain, uint32_t expert) const {
        return values[(size_t{layer} * domains + domain) * experts + expert];
    }
};

/// Where experts lie, and where samples are computed.
struct DomainPlan {
    std::vector<uint32_t> nodeOf;  ///< layers x experts
    std::vector<double> share;     ///< domains x nodes, each row sums to 1; empty: equal shares
};

/// Copies that leave their node, as a part of all: the sum over layers, domains, experts and nodes
/// of counts x the domain's share on the node, wherever the expert is on another one. Exact as long
/// as a domain's tokens choose alike on every node. `plan` fits `counts` and `nodes`; 0 for no
/// tokens.
[[nodiscard]] double remoteShare(const DomainCounts& counts, const DomainPlan& plan,
                                 uint32_t nodes);

struct DomainPlanOptions {
    uint32_t nodes = 0;
    bool group = true;      ///< else samples stay where `current` has them and only experts move
    double loadCap = 1.15;  ///< tokens of a node in a layer, max/mean, where that is possible
    double loadPrice = 1;   ///< of a copy above it, in remote copies
    /// An expert moves for no less than this part of its layer's copies.
    double pricePerMove = 0.0005;
    uint32_t starts = 8;           ///< groupings tried
    std::vector<PlaceRule> rules;  ///< of nodes; an expert that breaks one moves at any price
    uint64_t seed = 1;
    /// Asked before every round of a grouping. After the first false the search ends with the best
    /// of those that were tried to their end.
    std::function<bool()> goOn;
    /// Called after every grouping that was tried to its end with what is minimised.
    std::function<void(double value)> onStart;
};

struct DomainPlanResult {
    DomainPlan plan;
    double before = 0;               ///< remoteShare of the plan in use
    double after = 0;                ///< ... of this one
    uint64_t expertsMoved = 0;       ///< over all layers
    double nodeLoadMaxOverMean = 0;  ///< mean over layers
};

/// Improves the plan in use to one with fewer remote copies: groups domains for the experts, swaps
/// experts for the groups, and so on, from the grouping in use and from others. Each node keeps as
/// many experts of a layer as it has, so that no node's memory grows, and gets the same number of
/// samples as the others. Deterministic. InvalidArgument, naming both numbers, when sizes do not
/// fit or there is no token, and as honouredNodes() when the rules cannot be kept.
[[nodiscard]] absl::StatusOr<DomainPlanResult> solveDomains(const DomainCounts& counts,
                                                            const DomainPlan& current,
                                                            const DomainPlanOptions& options);

}  // namespace bulkhead::planner
