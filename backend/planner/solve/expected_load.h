// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/data/counts.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/token_sample.h"

namespace bulkhead::planner {

/// A figure over many draws of requests.
struct Spread {
    double mean = 0;
    double deviation = 0;  ///< standard
};

/// Standard deviations from the mean to the upper end of a range that holds `confidence` of what
/// comes, by Student's t of so many degrees of freedom, at least 1: 6.31 for 0.9 and 1, 1.65 for
/// 0.9 and many. Precondition: 0 < confidence < 1.
[[nodiscard]] double deviationsOf(double confidence, uint32_t freedom);

/// Degrees of freedom of what blocks of so many tokens each say of others: one less than blocks of
/// one length that would say as much (Kish: the square of their tokens' sum over the sum of their
/// squares), at least 1.
[[nodiscard]] uint32_t freedomOf(std::span<const double> tokens);
/// The same of a view's requests.
[[nodiscard]] uint32_t freedomOf(const RoutingView& view);

/// Draws are of these, and each tells deviations that are wrong in another way. Plans know what
/// they are made from; stretches of time are too much alike; and a plan that keeps apart what is
/// busy in one kind of requests bears another mixture of them better than draws say.
enum class DrawsOf {
    kLot,      ///< requests that come by lot, of several domains
    kMixture,  ///< requests of one domain, or so many of each
    kTime,     ///< stretches of time
};
/// Those of `view`, whose requests are cut into stretches of time where they are few.
[[nodiscard]] DrawsOf drawsOf(const RoutingView& view, bool givenMixture);

/// Deviations of sends or copies that resampling finds are to be multiplied by this.
[[nodiscard]] double sendsTooSmall(DrawsOf of);

/// Excess load of places on held-out requests over the load that resampling the others predicts.
struct LoadGap {
    double mean = 0;
    double error = INFINITY;  ///< standard, of the mean; infinite: none were left out
};

/// The range of node or GPU load on requests not seen, where resampling those that a plan was made
/// from gives `spread`. What `gap` says of the difference to these counts as far as it is sure,
/// which with a hundred requests is little. `deviations`: to either end, before they are corrected.
[[nodiscard]] Range loadRange(const Spread& spread, const LoadGap& gap, DrawsOf of,
                              double deviations);

/// `draws` times one of every `group` neighbours of a kind, counted `group` times: [draw] [block]
/// weight. `kinds`: of each block, those of a kind beside each other. Totals then vary `group` - 1
/// times as much as those of as many new blocks would, and by what neighbours differ in: the
/// mixture of kinds stays what it is. In `group` draws each block has its turn, so that their mean
/// is what was recorded.
[[nodiscard]] std::vector<std::vector<float>> drawBlocks(std::span<const uint32_t> kinds,
                                                         uint32_t group, uint32_t draws,
                                                         uint64_t seed);

/// Fewer requests than these are cut into stretches of time, and more than these form blocks of
/// several that stand beside each other.
inline constexpr uint32_t kFewRanges = 8, kMostBlocks = 256;

/// The group for a plan made from one sample and measured on another as large: both are off from
/// what they are drawn from, which is twice the variance.
inline constexpr uint32_t kGroupOfEquals = 3;

/// A view's requests, those of a kind beside each other. Draws take how many there are of a kind as
/// given.
struct ByKind {
    std::vector<uint32_t> places;  ///< [range]
    std::vector<uint32_t> kinds;   ///< [place]
};
/// All are one kind, in random order: how many there are of each domain is luck, and will be
/// another time. `givenMixture`: the domains are the kinds, in their order within one; those with
/// fewer than kGroupOfEquals requests are one. Stretches of time keep their order.
[[nodiscard]] ByKind byKind(const RoutingView& view, bool givenMixture);

/// Draws of one in kGroupOfEquals. A search aims by them (expectedNodeLoad) and a forecast is made
/// of them: with the same seed both find the same load.
[[nodiscard]] std::vector<std::vector<float>> drawEquals(std::span<const uint32_t> kinds,
                                                         uint64_t seed);

/// max/mean of places over draws of blocks; each layer's mean. `load`: [layer], blocks x places.
[[nodiscard]] Spread loadSpread(const std::vector<std::vector<float>>& load, uint32_t places,
                                const std::vector<std::vector<float>>& draws);

/// Node load max/mean (mean over `layers`) to be expected on as many requests not seen as the
/// sample has: over drawEquals(). `ranges`: its own; `weights`: what a token
/// of each range counts for (weightsOf), empty: 1. Thread: any.
[[nodiscard]] Spread expectedNodeLoad(const TokenSample& sample, const NodeRoutes& routes,
                                      const std::vector<uint16_t>& homes, const ByKind& ranges,
                                      std::span<const uint32_t> layers, uint64_t seed,
                                      std::span<const double> weights = {});

/// [token of the sample] its block, and `kinds` of the blocks: requests that stand beside each
/// other where they are many, and stretches of time, all of one kind, where they are few.
[[nodiscard]] std::vector<uint32_t> blockOfTokens(const TokenSample& sample, const ByKind& ranges,
                                                  std::vector<uint32_t>& kinds);

/// Node load max/mean of one layer that no placement without replicas can be below, when every node
/// holds as many experts as the others: of the nodes that hold the k heaviest experts one has at
/// least 1/k of those and of the lightest experts that fill them up. `load`: [expert].
[[nodiscard]] double leastNodeLoad(std::vector<double> load, uint32_t nodes);

/// The same for all layers, their mean; a layer that can be kept under `cap` counts as that.
[[nodiscard]] double leastNodeLoad(const Counts& counts, uint32_t nodes, double cap);

}  // namespace bulkhead::planner
