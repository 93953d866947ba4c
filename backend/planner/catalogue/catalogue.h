// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/catalogue/model_spec.h"
#include "backend/planner/data/model_shape.h"

namespace bulkhead::planner {

/// The TOML text of resources/models/catalogue.toml as it was when this was built.
[[nodiscard]] std::string_view builtInCatalogue();

/// Models of a catalogue's text. InvalidArgument "FILE:LINE: KEY: ..." for unknown keys, wrong
/// types and models that cannot be (no layers, more experts used than there are, a name twice).
[[nodiscard]] absl::StatusOr<std::vector<ModelSpec>> parseCatalogue(std::string_view text,
                                                                    std::string_view file);

/// By name, whatever its case, out of `models`. NotFound with the names there are.
[[nodiscard]] absl::StatusOr<ModelSpec> modelNamed(const std::vector<ModelSpec>& models,
                                                   std::string_view name);

/// Returns the shape of the model as the planner uses it. InvalidArgument for a dense model.
[[nodiscard]] absl::StatusOr<ModelShape> shapeOf(const ModelSpec& model);

/// One token's activation to one expert and back, in bytes.
[[nodiscard]] double bytesPerCopy(const ModelSpec& model);

}  // namespace bulkhead::planner
