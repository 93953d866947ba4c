// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"

namespace bulkhead::planner {

/// An npy file without a word beside it. Two axes: counts [layers, experts]. Three: expert ids,
/// [layer, token, k] or [token, layer, k], whichever fits the model in the options, which must be
/// given; the tokens are then one request. Anything else is refused with the way out: a meta.json
/// (meta_json.h), which can say layout, requests and domains.
[[nodiscard]] absl::StatusOr<Recording> readPlainNpy(std::string_view bytes, std::string_view file,
                                                     const ImportOptions& options);

}  // namespace bulkhead::planner
