// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/plan/node_routes.h"

#include <algorithm>

namespace bulkhead::planner {

namespace {

/// Weight of home `home` on each node for one expert with these slots.
uint16_t heaviest(const std::vector<uint32_t>& slots, const double* weights,
                  const std::vector<uint32_t>& nodeOfSlot, uint32_t home, uint32_t nodes) {
    std::vector<double> byNode(nodes, 0);
    for (size_t i = 0; i < slots.size(); ++i)
        byNode[nodeOfSlot[slots[i]]] += weights ? weights[i] : 1.0;
    uint32_t best = home;
    for (uint32_t n = 0; n < nodes; ++n)
        if (byNode[n] > byNode[best] + 1e-9) best = n;
    return static_cast<uint16_t>(best);
}

}  // namespace

NodeRoutes routesOf(const Plan& plan) {
    const uint32_t nodes = plan.topology.nodes(), experts = plan.shape.experts;
    std::vector<uint32_t> nodeOfSlot = gpuOfSlots(plan.firstSlot);
    for (uint32_t& g : nodeOfSlot) g /= plan.topology.gpusPerNode();
    NodeRoutes routes{nodes, experts, {}};
    for (const LayerPlan& layer : plan.layers) {
        std::vector<std::vector<uint32_t>> slots(experts);
        for (uint32_t s = 0; s < layer.expertOfSlot.size(); ++s)
            slots[layer.expertOfSlot[s]].push_back(s);
        const bool byHome = plan.slots() > experts;
        std::vector<const Dispatch*> dispatch(experts, nullptr);
        for (const Dispatch& d : layer.dispatch) dispatch[d.expert] = &d;
        std::vector<uint16_t> route;
        for (uint32_t home = 0; home < (byHome ? nodes : 1); ++home)
            for (uint32_t e = 0; e < experts; ++e) {
                const double* weights =
                    dispatch[e] ? &dispatch[e]->weights[size_t{home} * slots[e].size()] : nullptr;
                route.push_back(slots[e].size() == 1
                                    ? static_cast<uint16_t>(nodeOfSlot[slots[e][0]])
                                    : heaviest(slots[e], weights, nodeOfSlot, home, nodes));
            }
        routes.layers.push_back(std::move(route));
    }
    return routes;
}

std::vector<Dispatch> dispatchFor(const std::vector<uint16_t>& route,
                                  const std::vector<uint32_t>& expertOfSlot,
                                  const std::vector<uint32_t>& nodeOfSlot, uint32_t experts,
                                  uint32_t nodes) {
    std::vector<std::vector<uint32_t>> slots(experts);
    for (uint32_t s = 0; s < expertOfSlot.size(); ++s) slots[expertOfSlot[s]].push_back(s);
    std::vector<Dispatch> made;
    for (uint32_t e = 0; e < experts; ++e) {
        if (slots[e].size() < 2) continue;
        Dispatch dispatch{e, slots[e], {}};
        for (uint32_t home = 0; home < nodes; ++home) {
            const uint32_t to = route[(route.size() > experts ? size_t{home} * experts : 0) + e];
            const auto there = std::count_if(slots[e].begin(), slots[e].end(),
                                             [&](uint32_t s) { return nodeOfSlot[s] == to; });
            for (uint32_t s : slots[e])
                dispatch.weights.push_back(nodeOfSlot[s] == to ? 1.0 / static_cast<double>(there)
                                                               : 0.0);
        }
        made.push_back(std::move(dispatch));
    }
    return made;
}

}  // namespace bulkhead::planner
