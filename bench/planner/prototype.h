// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/planner/data/routing_view.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::bench {

/// The kind of search to beat: requests into balanced K-means clusters, one for each node; then in
/// every layer, from a linear start, random swaps of two experts of different nodes, accepted as
/// annealing does, with a fixed price on load above the cap. One pass: the groups are not formed
/// again, nothing is held back for what has not been seen. Weighs sends or copies.
planner::Plan prototypePlan(const planner::RoutingView& view, const planner::Topology& topology,
                            bool copies, double loadCap, uint64_t seed);

}  // namespace bulkhead::bench
