// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// A plan seen from far: which node tokens of each home go to for each expert. Thread: a value.
struct NodeRoutes {
    uint32_t nodes = 0;
    uint32_t experts = 0;
    /// [layer]: experts entries where all homes go the same way, else homes x experts.
    std::vector<std::vector<uint16_t>> layers;
};

/// Where a plan shares an expert out over several nodes, the one with the most weight (home first).
[[nodiscard]] NodeRoutes routesOf(const Plan& plan);

/// Dispatch of every expert with several slots, from node routes of one layer: all to the slots on
/// the routed node, equally. `route` as in NodeRoutes::layers.
[[nodiscard]] std::vector<Dispatch> dispatchFor(const std::vector<uint16_t>& route,
                                                const std::vector<uint32_t>& expertOfSlot,
                                                const std::vector<uint32_t>& nodeOfSlot,
                                                uint32_t experts, uint32_t nodes);

}  // namespace bulkhead::planner
