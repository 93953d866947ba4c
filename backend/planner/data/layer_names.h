// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

/// Layers as people name them: by the model's own numbers where those are known, else from 0. Pure;
/// thread: any.
namespace bulkhead::planner {

/// "1, 3..5, 9": the numbers of `layers` MoE layers; `layerNumbers` as in ModelShape.
[[nodiscard]] std::string layerList(uint32_t layers, std::span<const uint32_t> layerNumbers);

/// Returns the index, from 0, of the MoE layer with this number. InvalidArgument lists the numbers.
[[nodiscard]] absl::StatusOr<uint32_t> layerNamed(uint32_t number, uint32_t layers,
                                                  std::span<const uint32_t> layerNumbers);

}  // namespace bulkhead::planner
