// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/evaluate/counted_load.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::planner {

namespace {

/// Parts of a domain's tokens that come from each node.
std::vector<double> fromNodes(const Plan& plan, const std::string& domain) {
    for (const DomainHome& home : plan.homes)
        if (home.domain == domain) return home.share;
    return std::vector<double>(plan.topology.nodes(), 1.0 / plan.topology.nodes());
}

/// Shares of the tokens from `nodes` at each of an expert's `count` slots, summing to 1.
std::vector<double> slotShares(const Dispatch* dispatch, const std::vector<double>& nodes,
                               size_t count) {
    if (!dispatch) return std::vector<double>(count, 1.0 / static_cast<double>(count));
    std::vector<double> shares(count, 0);
    for (size_t n = 0; n < nodes.size(); ++n)
        for (size_t i = 0; i < count; ++i) shares[i] += nodes[n] * dispatch->weights[n * count + i];
    return shares;
}

/// Adds a domain's tokens of one layer to the GPUs that serve them.
void addLayer(std::span<const uint64_t> counts, const std::vector<double>& nodes, const Plan& plan,
              uint32_t layer, const std::vector<std::vector<uint32_t>>& slots,
              const std::vector<uint32_t>& gpuOf, std::vector<double>& load) {
    std::vector<const Dispatch*> dispatch(plan.shape.experts, nullptr);
    for (const Dispatch& d : plan.layers[layer].dispatch) dispatch[d.expert] = &d;
    for (uint32_t e = 0; e < plan.shape.experts; ++e) {
        const std::vector<double> shares = slotShares(dispatch[e], nodes, slots[e].size());
        for (size_t i = 0; i < shares.size(); ++i)
            load[gpuOf[slots[e][i]]] += static_cast<double>(counts[e]) * shares[i];
    }
}

}  // namespace

absl::StatusOr<LoadFigures> loadFromCounts(const Recording& recording, const Plan& plan) {
    if (recording.windows.empty())
        return absl::InvalidArgumentError(
            absl::StrCat(recording.source, " has neither tokens nor counts"));
    if (auto status = checkFit(plan, recording.shape); !status.ok()) return status;
    std::map<std::string, Counts> byDomain;
    for (const CountsWindow& window : recording.windows)
        byDomain.try_emplace(window.domain, plan.shape.layers, plan.shape.experts).first->second +=
            window.counts;
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    LoadFigures made;
    for (uint32_t layer = 0; layer < plan.shape.layers; ++layer) {
        std::vector<std::vector<uint32_t>> slots(plan.shape.experts);
        for (uint32_t s = 0; s < gpuOf.size(); ++s)
            slots[plan.layers[layer].expertOfSlot[s]].push_back(s);
        std::vector<double> gpus(plan.topology.gpus(), 0), nodes(plan.topology.nodes(), 0);
        for (const auto& [domain, counts] : byDomain)
            addLayer(counts.row(layer), fromNodes(plan, domain), plan, layer, slots, gpuOf, gpus);
        for (uint32_t g = 0; g < gpus.size(); ++g)
            nodes[g / plan.topology.gpusPerNode()] += gpus[g];
        made.add(nodes, gpus, plan.shape.layers);
    }
    return made;
}

}  // namespace bulkhead::planner
