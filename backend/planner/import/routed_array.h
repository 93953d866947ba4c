// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/import/json_fields.h"

namespace bulkhead::planner {

/// Expert ids of some tokens, [token][layer][k], as an engine sent them: -1 and worse may be in it.
struct RoutedArray {
    uint64_t tokens = 0, layers = 0, k = 0;
    std::vector<int32_t> ids;
};

/// Dimensions that a flat array does not contain itself.
struct FlatShape {
    uint64_t tokens = 0;  ///< 0: not known
    uint64_t k = 0;       ///< 0: not known
};

/// A nested list, base64 of an npy file or of flat int32, or {"encoding", "dtype", "shape",
/// "data"}. InvalidArgument beginning with `where`. Thread: any.
[[nodiscard]] absl::StatusOr<RoutedArray> routedArray(const Json& json, const FlatShape& flat,
                                                      std::string_view where);

}  // namespace bulkhead::planner
