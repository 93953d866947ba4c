// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/tensor.h"

/// Maps engine numbering of layers and expert replicas to the planner's.
namespace bulkhead::planner {

/// The logical expert of each physical one, [layer][physical].
struct LogicalOf {
    uint32_t layers = 0, experts = 0, physical = 0;
    std::vector<uint16_t> map;
    uint16_t at(uint32_t layer, uint64_t slot) const {
        return map[layer * uint64_t{physical} + slot];
    }
};

/// From a map [layers, physical] whose table is sane. InvalidArgument for a negative or too large
/// id. The number of experts is one more than the largest id; an expert without any slot is
/// refused.
[[nodiscard]] absl::StatusOr<LogicalOf> logicalOf(const Tensor& map, std::string_view file);

/// Adds counts of physical experts [layers, physical] to logical ones; `where` begins messages.
[[nodiscard]] absl::Status addPhysical(const Tensor& counts, const LogicalOf& logical,
                                       std::string_view where, Counts& to);

/// Fills the shape's layers and layerNumbers and a note, for an engine that counts `rows` layers of
/// which `routed` (ascending, at least one) had tokens. Without a model, rows are decoder layers.
/// With one they must be its decoder layers, or just its MoE layers, which then get their numbers;
/// else InvalidArgument with both's numbers.
[[nodiscard]] absl::Status numberLayers(uint32_t rows, const std::vector<uint32_t>& routed,
                                        const ImportOptions& options, std::string_view file,
                                        Recording& recording);

/// Of windows over all of an engine's layers, keeps those where anything was routed and numbers
/// them. InvalidArgument when there are none.
[[nodiscard]] absl::Status keepRoutedLayers(Recording& recording, std::string_view file,
                                            const ImportOptions& options);

/// Checks the model in the options against a recording's; InvalidArgument naming both when they
/// differ. Fills in what the recording leaves open (name, top-k, widths, layer numbers).
[[nodiscard]] absl::Status agree(const ImportOptions& options, std::string_view file,
                                 ModelShape& shape);

}  // namespace bulkhead::planner
