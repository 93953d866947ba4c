// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/topology/topology.h"

namespace bulkhead::planner {

/// Relative cost of a byte from one node to another, nodes x nodes, from, to: the bandwidth of the
/// fastest link between any two nodes over that of this pair's link, so 1 for the nearest and more
/// for those further off; 0 on the diagonal. All 1 where all nodes are equally far apart.
[[nodiscard]] std::vector<double> linkCosts(const Topology& topology);

/// The same; empty where all nodes are equally far apart.
[[nodiscard]] std::vector<double> unevenLinkCosts(const Topology& topology);

/// The same as LayerProblem::sendCost wants it; at most 2,000 times the cheapest. Empty for empty.
[[nodiscard]] std::vector<int32_t> sendCosts(const std::vector<double>& linkCosts);

/// The objective `bytes`: bytes a token sends to other nodes, all layers, dispatch only, one
/// message a node, each times linkCosts(). Where all nodes are equally far apart that is plain
/// bytes.
[[nodiscard]] double weighedBytes(const std::vector<LayerOutcome>& layers, const Topology& topology,
                                  double bytesPerCopy);

}  // namespace bulkhead::planner
