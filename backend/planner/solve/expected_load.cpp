// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/expected_load.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

constexpr uint32_t kDraws = 40;
constexpr size_t kMostRanges = 1000;
constexpr size_t kFewToExpect =
    8;  ///< a domain of fewer is drawn together with the other small ones

/// Tokens that each range brings to each node in one layer: ranges x nodes.
std::vector<double> loadsByRange(const TokenSample& sample, const NodeRoutes& routes,
                                 const std::vector<uint16_t>& homes, uint32_t layer) {
    const std::vector<uint16_t>& route = routes.layers[layer];
    const bool byHome = route.size() > routes.experts;
    std::vector<double> load(sample.rangeTokens.size() * routes.nodes, 0);
    std::vector<double> sampled(sample.rangeTokens.size(), 0);
    for (uint32_t range : sample.range) sampled[range] += 1;
    for (uint32_t t = 0; t < sample.tokens(); ++t) {
        const uint32_t range = sample.range[t];
        const uint16_t* at = &route[byHome ? size_t{homes[range]} * routes.experts : 0];
        for (uint32_t k = 0; k < sample.topK; ++k)
            load[size_t{range} * routes.nodes +
                 at[sample.ids[layer][size_t{t} * sample.topK + k]]] +=
                sample.rangeTokens[range] / sampled[range];
    }
    return load;
}

double maxOverMean(const std::vector<double>& load, const std::vector<double>& weight,
                   uint32_t nodes) {
    std::vector<double> sum(nodes, 0);
    for (size_t r = 0; r < weight.size(); ++r)
        for (uint32_t n = 0; weight[r] > 0 && n < nodes; ++n)
            sum[n] += weight[r] * load[r * nodes + n];
    const double total = std::accumulate(sum.begin(), sum.end(), 0.0);
    return total > 0 ? *std::max_element(sum.begin(), sum.end()) * nodes / total : 1;
}

/// [draw][range]: how often it was drawn.
std::vector<std::vector<double>> drawsOf(std::span<const uint32_t> domains, uint64_t seed) {
    const size_t ranges = domains.size();
    if (ranges < 2 || ranges > kMostRanges) return {std::vector<double>(ranges, 1)};
    std::map<uint32_t, std::vector<size_t>> byDomain;
    for (size_t r = 0; r < ranges; ++r) byDomain[domains[r]].push_back(r);
    std::vector<std::vector<size_t>> strata(1);
    for (auto& [_, members] : byDomain)
        if (members.size() < kFewToExpect)
            strata[0].insert(strata[0].end(), members.begin(), members.end());
        else
            strata.push_back(std::move(members));
    Random random(seed ^ 0x6D617267696Eull);
    std::vector<std::vector<double>> draws(kDraws, std::vector<double>(ranges, 0));
    for (auto& draw : draws)
        for (const std::vector<size_t>& members : strata) {
            const size_t count = (members.size() + 1) / 2;
            for (size_t i = 0; i < count; ++i)
                draw[members[random.below(members.size())]] +=
                    static_cast<double>(members.size()) / static_cast<double>(count);
        }
    return draws;
}

}  // namespace

double expectedNodeLoad(const TokenSample& sample, const NodeRoutes& routes,
                        const std::vector<uint16_t>& homes, std::span<const uint32_t> domains,
                        uint64_t seed) {
    std::vector<std::vector<double>> draws = drawsOf(domains, seed);
    double sum = 0;
    for (uint32_t layer = 0; layer < routes.layers.size(); ++layer) {
        const std::vector<double> load = loadsByRange(sample, routes, homes, layer);
        for (const auto& draw : draws) sum += maxOverMean(load, draw, routes.nodes);
    }
    return sum / static_cast<double>(routes.layers.size() * draws.size());
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
