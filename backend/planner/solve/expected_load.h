// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/data/counts.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/token_sample.h"

namespace bulkhead::planner {

/// A figure over many draws of requests.
struct Spread {
    double mean = 0;
    double deviation = 0;  ///< standard
};

/// Standard deviations from the mean to the upper end of a range that holds `confidence` of what
/// comes: 1.64 for 0.9.
[[nodiscard]] double deviationsOf(double confidence);

/// `draws` times one of every `group` neighbours among `blocks` blocks, counted `group` times:
/// [draw] [block] weight. Totals then vary `group` - 1 times as much as those of as many new blocks
/// would, and by what neighbours differ in: where requests of a kind stand together, as in a
/// recording sorted by domain, the mixture of kinds stays what it is.
[[nodiscard]] std::vector<std::vector<float>> drawBlocks(size_t blocks, uint32_t group,
                                                         uint32_t draws, uint64_t seed);

/// [range] its place when the view's requests stand by domain, and in their order within one:
/// requests of a kind are then neighbours.
[[nodiscard]] std::vector<uint32_t> placesByKind(const RoutingView& view);

/// The group for a plan made from one sample and measured on another as large: both are off from
/// what they are drawn from, which is twice the variance.
inline constexpr uint32_t kGroupOfEquals = 3;

/// Draws of one in kGroupOfEquals. A search aims by them (expectedNodeLoad) and a forecast is made
/// of them: with the same seed both find the same load.
[[nodiscard]] std::vector<std::vector<float>> drawEquals(size_t blocks, uint64_t seed);

/// Fewer requests than these are cut into stretches of time, and more than these form blocks of
/// several that stand beside each other.
inline constexpr uint32_t kFewRanges = 8, kMostBlocks = 256;

/// max/mean of places over draws of blocks; each layer's mean. `load`: [layer], blocks x places.
[[nodiscard]] Spread loadSpread(const std::vector<std::vector<float>>& load, uint32_t places,
                                const std::vector<std::vector<float>>& draws);

/// Node load max/mean (mean over `layers`) to be expected on as many requests not seen as the
/// sample has: over drawEquals(). `places`: of its ranges (placesByKind). Thread:
/// any.
[[nodiscard]] Spread expectedNodeLoad(const TokenSample& sample, const NodeRoutes& routes,
                                      const std::vector<uint16_t>& homes,
                                      const std::vector<uint32_t>& places,
                                      std::span<const uint32_t> layers, uint64_t seed);

/// Node load max/mean of one layer that no placement without replicas can be below, when every node
/// holds as many experts as the others: of the nodes that hold the k heaviest experts one has at
/// least 1/k of those and of the lightest experts that fill them up. `load`: [expert].
[[nodiscard]] double leastNodeLoad(std::vector<double> load, uint32_t nodes);

/// The same for all layers, their mean; a layer that can be kept under `cap` counts as that.
[[nodiscard]] double leastNodeLoad(const Counts& counts, uint32_t nodes, double cap);

}  // namespace bulkhead::planner
