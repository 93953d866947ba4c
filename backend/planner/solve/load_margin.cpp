// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/load_margin.h"

#include <algorithm>
#include <numeric>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

constexpr uint32_t kDraws = 40;
constexpr size_t kMostRanges = 1000;

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

}  // namespace

double loadMargin(const TokenSample& sample, const NodeRoutes& routes,
                  const std::vector<uint16_t>& homes, uint64_t seed) {
    const size_t ranges = sample.rangeTokens.size();
    if (ranges < 2 || ranges > kMostRanges) return 0;
    Random random(seed ^ 0x6D617267696Eull);
    std::vector<std::vector<double>> draws(kDraws, std::vector<double>(ranges, 0));
    for (auto& draw : draws)
        for (size_t i = 0; i < (ranges + 1) / 2; ++i) draw[random.below(ranges)] += 1;
    double margin = 0;
    for (uint32_t layer = 0; layer < routes.layers.size(); ++layer) {
        const std::vector<double> load = loadsByRange(sample, routes, homes, layer);
        const double here = maxOverMean(load, std::vector<double>(ranges, 1), routes.nodes);
        for (const auto& draw : draws)
            margin += (maxOverMean(load, draw, routes.nodes) - here) / kDraws;
    }
    return std::max(0.0, margin / static_cast<double>(routes.layers.size()));
}

}  // namespace bulkhead::planner
