// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/routing_view.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// Published methods, written from their descriptions, as baselines. Their plans have no dispatch
/// weights: replicas share equally. `topology` gets `redundant` extra slots, which a method fills
/// with replicas (those without replication give the extra slots to the heaviest experts).
///
/// linear            expert e in slot e
/// round_robin       expert e on GPU e mod GPUs
/// lpt               heaviest first to the emptiest GPU with a slot left; no replica is thought of
/// eplb_hierarchical DeepSeek's: router groups packed into nodes, replicas inside each node to
///                   whoever has most load for each replica, packed into GPUs heaviest first
/// eplb_global       the same with one node and one group: all GPUs
/// coactivation      experts that tokens use together onto one node: heaviest pair sums first,
///                   under equal counts and 1.15 x mean load; then lpt
///                   inside a node
/// balance           ours: Balancer, over all GPUs, or whole groups on a node
///                   where there are groups
struct BaselineName {
    std::string_view name;
    std::string_view what;
};
[[nodiscard]] const std::vector<BaselineName>& baselineNames();

/// NotFound for a name that is not in the list; InvalidArgument for what does not divide.
[[nodiscard]] absl::StatusOr<Plan> baselinePlan(std::string_view name, const RoutingView& view,
                                                const Topology& topology, uint32_t redundant);

}  // namespace bulkhead::planner
