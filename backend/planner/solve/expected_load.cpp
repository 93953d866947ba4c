// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/expected_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

/// The deviation of fewer is off by half where a request is much longer than the others.
constexpr uint32_t kDraws = 400;

/// [layer] tokens that each block brings to each node, blocks x nodes; sets how many blocks there
/// are. Requests that stand beside each other form a block where they are many, and stretches of
/// them where they are few.
std::vector<std::vector<float>> loadsByBlock(const TokenSample& sample, const NodeRoutes& routes,
                                             const std::vector<uint16_t>& homes,
                                             const std::vector<uint32_t>& places,
                                             std::span<const uint32_t> layers, uint32_t& blocks) {
    const auto ranges = static_cast<uint32_t>(sample.rangeTokens.size());
    const bool few = ranges < kFewRanges;
    blocks = std::min(few ? 2 * kFewRanges : std::min(ranges, kMostBlocks),
                      std::max(sample.tokens(), 1u));
    const auto blockOf = [&](uint32_t token) {
        return static_cast<uint32_t>(few ? uint64_t{token} * blocks / sample.tokens()
                                         : uint64_t{places[sample.range[token]]} * blocks / ranges);
    };
    std::vector<double> sampled(ranges, 0);
    for (uint32_t range : sample.range) sampled[range] += 1;
    std::vector<std::vector<float>> loads;
    for (uint32_t layer : layers) {
        const std::vector<uint16_t>& route = routes.layers[layer];
        const bool byHome = route.size() > routes.experts;
        std::vector<float>& load = loads.emplace_back(size_t{blocks} * routes.nodes, 0.0f);
        for (uint32_t t = 0; t < sample.tokens(); ++t) {
            const uint32_t range = sample.range[t];
            const size_t block = blockOf(t);
            const uint16_t* at = &route[byHome ? size_t{homes[range]} * routes.experts : 0];
            for (uint32_t k = 0; k < sample.topK; ++k)
                load[block * routes.nodes + at[sample.ids[layer][size_t{t} * sample.topK + k]]] +=
                    static_cast<float>(sample.rangeTokens[range] / sampled[range]);
        }
    }
    return loads;
}

}  // namespace

double deviationsOf(double confidence) {
    // The normal distribution's quantile by bisection of its integral.
    double low = 0, high = 10;
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (std::erf(middle / std::sqrt(2.0)) < confidence ? low : high) = middle;
    }
    return low;
}

std::vector<std::vector<float>> drawBlocks(size_t blocks, uint32_t group, uint32_t draws,
                                           uint64_t seed) {
    Random random(seed ^ 0x6D617267696Eull);
    std::vector<std::vector<float>> made(draws, std::vector<float>(blocks, 0));
    for (auto& draw : made) {
        const size_t from = random.below(blocks);  // groups begin elsewhere every time
        for (size_t at = 0; at < blocks; at += group) {
            const size_t size = std::min<size_t>(group, blocks - at);
            draw[(from + at + random.below(size)) % blocks] += static_cast<float>(size);
        }
    }
    return made;
}

std::vector<std::vector<float>> drawEquals(size_t blocks, uint64_t seed) {
    return drawBlocks(blocks, kGroupOfEquals, kDraws, seed);
}

std::vector<uint32_t> placesByKind(const RoutingView& view) {
    const std::vector<Request>& requests = view.routing->requests();
    std::vector<uint32_t> order(view.ranges.size()), places(order.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return requests[view.ranges[a].request].domain < requests[view.ranges[b].request].domain;
    });
    for (uint32_t i = 0; i < order.size(); ++i) places[order[i]] = i;
    return places;
}

Spread loadSpread(const std::vector<std::vector<float>>& load, uint32_t places,
                  const std::vector<std::vector<float>>& draws) {
    Spread spread;
    double squares = 0;
    std::vector<float> sum(places);
    for (const std::vector<float>& draw : draws) {
        double layers = 0;
        for (const std::vector<float>& layer : load) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (size_t b = 0; b < draw.size(); ++b) {
                if (draw[b] == 0) continue;
                const float* block = &layer[b * places];
                for (uint32_t p = 0; p < places; ++p) sum[p] += draw[b] * block[p];
            }
            const float total = std::accumulate(sum.begin(), sum.end(), 0.0f);
            const float most = *std::max_element(sum.begin(), sum.end());
            layers += total > 0 ? double{most} * places / total : 1;
        }
        layers /= static_cast<double>(load.size());
        spread.mean += layers;
        squares += layers * layers;
    }
    const auto count = static_cast<double>(draws.size());
    spread.mean /= count;
    spread.deviation = std::sqrt(std::max(0.0, squares / count - spread.mean * spread.mean));
    return spread;
}

Spread expectedNodeLoad(const TokenSample& sample, const NodeRoutes& routes,
                        const std::vector<uint16_t>& homes, const std::vector<uint32_t>& places,
                        std::span<const uint32_t> layers, uint64_t seed) {
    uint32_t blocks = 0;
    const auto load = loadsByBlock(sample, routes, homes, places, layers, blocks);
    return loadSpread(load, routes.nodes, drawEquals(blocks, seed));
}

double leastNodeLoad(std::vector<double> load, uint32_t nodes) {
    std::sort(load.begin(), load.end());
    const size_t perNode = load.size() / nodes;
    const double mean = std::accumulate(load.begin(), load.end(), 0.0) / nodes;
    double least = 1, heavy = 0, light = 0;
    for (uint32_t k = 1; k <= nodes && mean > 0; ++k) {
        heavy += load[load.size() - k];
        for (size_t i = (k - 1) * (perNode - 1); i < k * (perNode - 1); ++i) light += load[i];
        least = std::max(least, (heavy + light) / k / mean);
    }
    return least;
}

double leastNodeLoad(const Counts& counts, uint32_t nodes, double cap) {
    double sum = 0;
    for (uint32_t layer = 0; layer < counts.layers(); ++layer) {
        const auto row = counts.row(layer);
        sum += std::max(cap, leastNodeLoad({row.begin(), row.end()}, nodes));
    }
    return sum / counts.layers();
}

}  // namespace bulkhead::planner
