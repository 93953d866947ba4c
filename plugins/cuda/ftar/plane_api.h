// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "bulkhead/data_plane.h"
#include "plugins/cuda/ftar/data_plane.h"

/// A DataPlane behind the C table.
struct bulkhead_plane {
    std::unique_ptr<bulkhead::cuda::DataPlane> plane;
    std::string why;
};

namespace bulkhead::cuda {

/// Blocks where the caller leaves it to us: what the literature uses over a network, and what takes
/// more than NVLink gives, for which a GPU of so many multiprocessors is made
/// (bench/results/gpu.md).
constexpr uint32_t kUsualBlocks = 2, kUsualNearBlocks = 16, kProcessorsOfLargeGpu = 128;

/// The table, all but `open`, which is the machine's.
bulkhead_data_plane_api planeApi(decltype(bulkhead_data_plane_api::open) open);

}  // namespace bulkhead::cuda
