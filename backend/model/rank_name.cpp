// SPDX-License-Identifier: Apache-2.0
#include "backend/model/rank_name.h"

#include "backend/model/names.h"
#include "backend/model/parse_number.h"

namespace bulkhead::model {
namespace {

/// Takes the letter off the front; false: another one is there.
bool takeLetter(std::string_view& text, char letter) {
    if (text.empty() || (text.front() | 0x20) != letter) return false;
    text.remove_prefix(1);
    return true;
}

std::optional<int32_t> indexOf(std::string_view digits) {
    const std::optional<int32_t> number = parseNumber<int32_t>(digits);
    return number && *number >= 0 ? number : std::nullopt;
}

}  // namespace

std::string rankName(RankId rank) {
    return concat("r", rank.replica, "s", rank.shard);
}

std::optional<RankId> parseRank(std::string_view text) {
    const size_t middle = text.find_first_of("sS");
    if (middle == std::string_view::npos || !takeLetter(text, 'r')) return std::nullopt;
    const std::optional<int32_t> replica = indexOf(text.substr(0, middle - 1));
    const std::optional<int32_t> shard = indexOf(text.substr(middle));
    return replica && shard ? std::optional(RankId{*replica, *shard}) : std::nullopt;
}

std::optional<int32_t> parseReplica(std::string_view text) {
    takeLetter(text, 'r');
    return indexOf(text);
}

}  // namespace bulkhead::model
