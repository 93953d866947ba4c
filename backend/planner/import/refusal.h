// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "backend/model/names.h"

/// What every reader of a file refuses, and how it says so. Pure; thread: any.
namespace bulkhead::planner {

inline constexpr size_t kMostDimensions = 8;  ///< of a tensor

/// InvalidArgument "where: why"; `where` is the file and, where known, the place in it.
[[nodiscard]] inline absl::Status refuse(std::string_view where, std::string_view why) {
    return absl::InvalidArgumentError(model::concat(where, ": ", why));
}

}  // namespace bulkhead::planner
