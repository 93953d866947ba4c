// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "backend/model/names.h"

/// Limits that every reader of a file enforces, and their error messages. Pure; thread: any.
namespace bulkhead::planner {

inline constexpr size_t kMostDimensions = 8;  ///< of a tensor
/// Tokens of a cell, and of a whole recording, so that no sum of them can wrap.
inline constexpr uint64_t kMostCount = uint64_t{1} << 53;

/// InvalidArgument "where: why"; `where` is the file and, where known, the place in it.
[[nodiscard]] inline absl::Status refuse(std::string_view where, std::string_view why) {
    return absl::InvalidArgumentError(model::concat(where, ": ", why));
}

/// `sum` += `tokens`; false, with `sum` as it was, when either is not 0 to kMostCount.
[[nodiscard]] inline bool addTokens(int64_t tokens, uint64_t& sum) {
    if (tokens < 0 || static_cast<uint64_t>(tokens) > kMostCount - sum) return false;
    sum += static_cast<uint64_t>(tokens);
    return true;
}

/// ... and how a reader says so.
[[nodiscard]] inline std::string wrongTokens(int64_t tokens) {
    return model::concat(tokens, " tokens, expected 0 to ", kMostCount, " in all");
}

}  // namespace bulkhead::planner
