// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/solve/domain_plan.h"

/// Pinned and forbidden experts in a plan of domains. Pure; any thread.
namespace bulkhead::planner {

/// The set of nodes that each expert may be placed on.
class NodeMask {
  public:
    /// Precondition: `rules` name nodes, layers and experts that there are.
    NodeMask(const DomainCounts& counts, std::span<const PlaceRule> rules, uint32_t nodes);
    bool may(uint32_t layer, uint32_t expert, uint32_t node) const {
        return allowed_.empty() ||
               allowed_[(size_t{layer} * experts_ + expert) * nodes_ + node] != 0;
    }

  private:
    uint32_t experts_, nodes_;
    std::vector<uint8_t> allowed_;  ///< layers x experts x nodes; empty: all
};

/// `nodeOf` (layers x experts) changed as little as `rules` ask for; each node keeps as many
/// experts of a layer as it has. InvalidArgument as honourPlaceRules, and for a rule that names a
/// GPU: there are none here.
[[nodiscard]] absl::StatusOr<std::vector<uint32_t>> honouredNodes(
    const DomainCounts& counts, const std::vector<uint32_t>& nodeOf,
    std::span<const PlaceRule> rules, uint32_t nodes);

}  // namespace bulkhead::planner
