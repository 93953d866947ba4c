// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/link_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/planner/solve/layer_search.h"

namespace bulkhead::planner {

namespace {
constexpr double kMostFar = 2000;  ///< sums of 40,000 tokens stay below 2^31
}  // namespace

std::vector<double> linkCosts(const Topology& topology) {
    const uint32_t nodes = topology.nodes();
    double fastest = 0;
    for (uint32_t a = 0; a < nodes; ++a)
        for (uint32_t b = 0; b < nodes; ++b)
            if (a != b) fastest = std::max(fastest, topology.linkBetween(a, b).bytesPerSecond);
    std::vector<double> costs;
    costs.reserve(size_t{nodes} * nodes);
    for (uint32_t a = 0; a < nodes; ++a)
        for (uint32_t b = 0; b < nodes; ++b)
            costs.push_back(a == b ? 0 : fastest / topology.linkBetween(a, b).bytesPerSecond);
    return costs;
}

std::vector<double> unevenLinkCosts(const Topology& topology) {
    std::vector<double> costs = linkCosts(topology);
    const bool even = std::all_of(costs.begin(), costs.end(), [](double c) { return c <= 1; });
    return even ? std::vector<double>() : costs;
}

std::vector<int32_t> sendCosts(const std::vector<double>& linkCosts) {
    std::vector<int32_t> costs;
    for (double cost : linkCosts)
        costs.push_back(
            static_cast<int32_t>(std::lround(LayerProblem::kSend * std::min(cost, kMostFar))));
    return costs;
}

double weighedBytes(const std::vector<LayerOutcome>& layers, const Topology& topology,
                    double bytesPerCopy) {
    const std::vector<double> costs = linkCosts(topology);
    double sum = 0;
    for (const LayerOutcome& layer : layers)
        sum = std::inner_product(costs.begin(), costs.end(), layer.nodeSends.begin(), sum);
    return sum * bytesPerCopy;
}

}  // namespace bulkhead::planner
