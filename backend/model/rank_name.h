// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "backend/common/types.h"

/// The one spelling of a rank, "r2s1", and of its replica, "r2": as shown and as typed. Thread:
/// any.
namespace bulkhead::model {

[[nodiscard]] std::string rankName(RankId rank);

/// "r2s1", also with capitals; nullopt: no rank.
[[nodiscard]] std::optional<RankId> parseRank(std::string_view text);

/// "2" or "r2", also with a capital; nullopt: no replica.
[[nodiscard]] std::optional<int32_t> parseReplica(std::string_view text);

}  // namespace bulkhead::model
