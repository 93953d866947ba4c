// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/planner/data/routing.h"
#include "backend/planner/import/tensor.h"

namespace bulkhead::planner {

/// The order of the axes of an array of expert ids.
enum class Axes { kLayerTokenK, kTokenLayerK };

/// From words such as "uint8 [layer, token, k]"; nothing when neither order is named.
[[nodiscard]] absl::StatusOr<Axes> axesNamed(std::string_view layout, std::string_view file);

/// From the lengths, where only one order fits the model; InvalidArgument when both or neither do.
[[nodiscard]] absl::StatusOr<Axes> axesFitting(const Tensor& ids, const ModelShape& shape,
                                               std::string_view file);

/// InvalidArgument unless `ids` holds whole numbers, has three axes, and layers and k as the model.
/// Returns the number of tokens.
[[nodiscard]] absl::StatusOr<uint64_t> tokensOf(const Tensor& ids, Axes axes,
                                                const ModelShape& shape, std::string_view file);

/// Adds tokens [first, first + count) of an array to the open request of a builder. `ids` has
/// passed tokensOf. Refusals name file, token of the file, layer and k.
[[nodiscard]] absl::Status addTokensOf(const Tensor& ids, Axes axes, uint64_t first, uint64_t count,
                                       const ModelShape& shape, std::string_view file,
                                       RoutingBuilder& builder);

}  // namespace bulkhead::planner
