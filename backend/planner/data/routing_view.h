// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/data/counts.h"
#include "backend/planner/data/routing.h"

/// Parts of a Routing without copying it. Everything here is pure; any thread.
namespace bulkhead::planner {

/// A run of one request's tokens.
struct TokenRange {
    uint32_t request = 0;     ///< index into Routing::requests()
    uint64_t firstToken = 0;  ///< in Routing
    uint64_t tokens = 0;
    bool operator==(const TokenRange&) const = default;
};

/// Some tokens of a Routing, which it points to and must not outlive: at most one range a request,
/// in the order of the requests.
struct RoutingView {
    const Routing* routing = nullptr;
    std::vector<TokenRange> ranges;

    uint64_t tokens() const;
};

/// All tokens of all requests.
[[nodiscard]] RoutingView wholeOf(const Routing& routing);

/// All tokens of the given requests (indices into routing.requests(), ascending).
[[nodiscard]] RoutingView requestsOf(const Routing& routing, std::span<const uint32_t> requests);

/// All tokens of the requests of one domain.
[[nodiscard]] RoutingView domainOf(const Routing& routing, uint32_t domain);

/// Every second range: the 1st, 3rd, ... (`odd` false) or the 2nd, 4th, ... (`odd` true), so that
/// two halves hold the same mixture where requests are sorted by domain.
[[nodiscard]] RoutingView everySecond(const RoutingView& view, bool odd);

/// The first floor(fraction x tokens) tokens of each range, at least one of a range that has any;
/// and what is left. A range that becomes empty is left out. 0 < fraction < 1.
[[nodiscard]] RoutingView headOf(const RoutingView& view, double fraction);
[[nodiscard]] RoutingView tailOf(const RoutingView& view, double fraction);

/// Prompt tokens, or generated tokens, of the requests for which that is known.
[[nodiscard]] RoutingView prefillOf(const RoutingView& view);
[[nodiscard]] RoutingView decodeOf(const RoutingView& view);

/// Tokens by layer and expert.
[[nodiscard]] Counts countsOf(const RoutingView& view);

/// For each domain of the routing, in its order; a domain that is not in the view has zeros.
[[nodiscard]] std::vector<Counts> countsByDomain(const RoutingView& view);

/// One layer's counts for each range: ranges x experts, row by row. (All layers of many requests
/// would not fit; go layer by layer.)
[[nodiscard]] std::vector<uint32_t> countsByRange(const RoutingView& view, uint32_t layer);

}  // namespace bulkhead::planner
