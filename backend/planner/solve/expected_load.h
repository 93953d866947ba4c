// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/data/counts.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/token_sample.h"

namespace bulkhead::planner {

/// Node load max/mean (mean over layers) to be expected on as many requests not seen as the sample
/// has, of the same domains (`domains`, one a range) in the same shares. Estimated by drawing
/// requests anew within each domain, half as many: the plan was fitted to one sample and will be
/// measured on another, which is twice the variance. Above 1,000 requests: the sample's own load.
/// Thread: any.
[[nodiscard]] double expectedNodeLoad(const TokenSample& sample, const NodeRoutes& routes,
                                      const std::vector<uint16_t>& homes,
                                      std::span<const uint32_t> domains, uint64_t seed);

/// Node load max/mean of one layer that no placement without replicas can be below, when every node
/// holds as many experts as the others: of the nodes that hold the k heaviest experts one has at
/// least 1/k of those and of the lightest experts that fill them up. `load`: [expert].
[[nodiscard]] double leastNodeLoad(std::vector<double> load, uint32_t nodes);

/// The same for all layers, their mean; a layer that can be kept under `cap` counts as that.
[[nodiscard]] double leastNodeLoad(const Counts& counts, uint32_t nodes, double cap);

}  // namespace bulkhead::planner
