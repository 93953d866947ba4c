// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/domain_rules.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"

namespace bulkhead::planner {
namespace {

Counts countsOf(const DomainCounts& all) {
    Counts counts(all.layers, all.experts);
    for (uint32_t l = 0; l < all.layers; ++l)
        for (uint32_t e = 0; e < all.experts; ++e) {
            double sum = 0;
            for (uint32_t d = 0; d < all.domains; ++d) sum += all.at(l, d, e);
            counts.row(l)[e] = static_cast<uint64_t>(std::llround(sum));
        }
    return counts;
}

}  // namespace

NodeMask::NodeMask(const DomainCounts& counts, std::span<const PlaceRule> rules, uint32_t nodes)
    : experts_(counts.experts), nodes_(nodes) {
    if (rules.empty()) return;
    allowed_.assign(size_t{counts.layers} * experts_ * nodes_, 1);
    for (const PlaceRule& rule : rules) {
        uint8_t* row = &allowed_[(size_t{rule.layer} * experts_ + rule.expert) * nodes_];
        for (uint32_t n = 0; n < nodes_; ++n)
            if ((n == rule.place) != rule.pins) row[n] = 0;
    }
}

absl::StatusOr<std::vector<uint32_t>> honouredNodes(const DomainCounts& counts,
                                                    const std::vector<uint32_t>& nodeOf,
                                                    std::span<const PlaceRule> rules,
                                                    uint32_t nodes) {
    Plan plan;
    plan.shape.layers = counts.layers;
    plan.shape.experts = counts.experts;
    plan.topology = flatTopology(nodes, 1);
    plan.layers.resize(counts.layers);
    std::map<uint32_t, std::vector<PlaceRule>> byLayer;
    for (const PlaceRule& rule : rules) {
        if (!rule.node)
            return absl::InvalidArgumentError(
                absl::StrCat(placeRuleText(rule), ": expected a node, not a GPU"));
        byLayer[rule.layer].push_back(rule);
    }
    if (absl::Status s = checkPlaceRules(rules, plan.shape, plan.topology); !s.ok()) return s;
    const Counts load = countsOf(counts);
    std::vector<uint32_t> out = nodeOf;
    for (const auto& [layer, own] : byLayer) {
        uint32_t* at = out.data() + size_t{layer} * counts.experts;
        // Nodes need not hold as many of another layer, so each layer has slots of its own.
        std::vector<uint32_t>& slots = plan.layers[layer].expertOfSlot;
        plan.firstSlot.assign(1, 0);
        for (uint32_t n = 0; n < nodes; ++n) {
            for (uint32_t e = 0; e < counts.experts; ++e)
                if (at[e] == n) slots.push_back(e);
            plan.firstSlot.push_back(static_cast<uint32_t>(slots.size()));
        }
        if (absl::Status s = honourPlaceRules(plan, own, load); !s.ok()) return s;
        const std::vector<uint32_t> nodeOfSlot = gpuOfSlots(plan.firstSlot);
        for (size_t slot = 0; slot < nodeOfSlot.size(); ++slot)
            at[plan.layers[layer].expertOfSlot[slot]] = nodeOfSlot[slot];
    }
    return out;
}

}  // namespace bulkhead::planner
