// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "backend/model/event.h"
#include "backend/model/run_state.h"

namespace bulkhead::test {

/// A fleet as large as wanted, for what shows all ranks at once. Nothing in it is measured.
struct FleetSize {
    int32_t replicas = 12;
    int32_t ranks = 8192;  ///< of each
    int32_t gpusPerNode = 8;
};

/// All of it trains but replica 7, which fetches, and replica 10, which is drained, as far as they
/// are there. In replica 0 rank 1 is slow and late; one rank in some thousands is gone, hot or
/// slow.
model::RunState madeFleet(FleetSize size);

/// The next sample of all its ranks and nodes: every figure is another.
model::Event nextSample(const model::RunState& state, uint32_t seed);

}  // namespace bulkhead::test
