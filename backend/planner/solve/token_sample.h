// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backend/planner/data/routing_view.h"

namespace bulkhead::planner {

/// Tokens of a view laid out for searching: all of them, or every so many-th of each range where
/// there are too many. Thread: a value.
struct TokenSample {
    uint32_t experts = 0;
    uint32_t topK = 0;
    std::vector<std::vector<uint16_t>> ids;  ///< [layer]: tokens x topK
    std::vector<uint32_t> range;             ///< [token] index into the view's ranges
    std::vector<double> rangeTokens;         ///< [range] tokens of the view, sampled or not

    uint32_t tokens() const { return static_cast<uint32_t>(range.size()); }
};

/// About `most` tokens at even steps through each range, at least one of each range that has any.
[[nodiscard]] TokenSample sampleOf(const RoutingView& view, uint64_t most);

/// Tokens by expert for each range, over at most `width` / experts layers at even steps: the
/// signature of a request. ranges x (layers taken x experts).
struct Signatures {
    uint32_t width = 0;
    std::vector<float> rows;
};
[[nodiscard]] Signatures signaturesOf(const TokenSample& sample, uint32_t width);

}  // namespace bulkhead::planner
