// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/evaluate/latency.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bulkhead::planner {

ExchangeTime exchangeTime(std::span<const double> load, const Topology& topology, double bytes) {
    const uint32_t nodes = topology.nodes();
    double largest = 0;
    for (uint32_t a = 0; a < nodes; ++a)
        for (uint32_t b = 0; b < nodes; ++b)
            if (a != b) largest = std::max(largest, load[a * nodes + b]);
    ExchangeTime time;
    std::vector<double> plain(2 * size_t{nodes}, 0), padded(2 * size_t{nodes}, 0);
    double latency = 0;
    for (uint32_t a = 0; a < nodes; ++a)
        for (uint32_t b = 0; b < nodes; ++b) {
            if (a == b || load[a * nodes + b] <= 0) continue;
            const Link& link = topology.linkBetween(a, b);
            const double perCopy = bytes / (link.bytesPerSecond * topology.gpusPerNode());
            latency = std::max(latency, link.seconds);
            for (const size_t side : {size_t{a}, size_t{nodes} + b}) {
                plain[side] += load[a * nodes + b] * perCopy;
                padded[side] += largest * perCopy;
            }
        }
    time.plain = latency + *std::max_element(plain.begin(), plain.end());
    time.padded = latency + *std::max_element(padded.begin(), padded.end());
    return time;
}

StepTime predictStep(const std::vector<LayerOutcome>& layers, const Plan& plan,
                     const StepModel& model) {
    const double expertBytes = model.expertBytes > 0 ? model.expertBytes
                               : plan.shape.expertBytes > 0
                                   ? static_cast<double>(plan.shape.expertBytes)
                                   : 3 * model.bytesPerCopy * kAssumedInner;
    StepTime time;
    for (const LayerOutcome& layer : layers) {
        std::vector<double> pairs = model.deduplicated ? layer.nodeSends : layer.nodeCopies;
        for (double& pair : pairs) pair *= model.tokens;
        const ExchangeTime exchange = exchangeTime(pairs, plan.topology, model.bytesPerCopy);
        const double total = std::accumulate(layer.gpuLoad.begin(), layer.gpuLoad.end(), 0.0);
        double tokens = 0, activated = 0;
        for (uint32_t g = 0; g < layer.gpuLoad.size() && total > 0; ++g) {
            const double here = layer.gpuLoad[g] / total * model.tokens * plan.shape.topK;
            const double slots = plan.firstSlot[g + 1] - plan.firstSlot[g];
            tokens = std::max(tokens, here);
            if (slots > 0) activated = std::max(activated, slots * (1 - std::exp(-here / slots)));
        }
        // A multiply and an add for each weight of two bytes: expertBytes operations a token.
        const double byTokens = tokens * expertBytes / model.flopsPerSecond;
        const double byActivated = activated * expertBytes / model.readBytesPerSecond;
        time.exchangeSeconds += 2 * exchange.plain;
        time.exchangePaddedSeconds += 2 * exchange.padded;
        time.expertSecondsByTokens += byTokens;
        time.expertSecondsByActivated += byActivated;
        time.stepSeconds += 2 * exchange.plain + std::max(byTokens, byActivated);
        time.stepPaddedSeconds += 2 * exchange.padded + std::max(byTokens, byActivated);
    }
    return time;
}

}  // namespace bulkhead::planner
