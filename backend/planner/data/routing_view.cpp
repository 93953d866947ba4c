// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/data/routing_view.h"

#include <algorithm>
#include <cmath>

#include "backend/planner/data/recording.h"

namespace bulkhead::planner {
namespace {

/// Tokens copied out at a time.
constexpr uint64_t kTokensAtOnce = 4096;

/// Calls f(range index, ids [token][k]) over the view's tokens of one layer, in blocks.
template <class F>
void forEachBlock(const RoutingView& view, uint32_t layer, F&& f) {
    const uint32_t k = view.routing->shape().topK;
    std::vector<uint16_t> ids;
    for (size_t r = 0; r < view.ranges.size(); ++r) {
        const TokenRange& range = view.ranges[r];
        for (uint64_t done = 0; done < range.tokens; done += kTokensAtOnce) {
            ids.resize(std::min(kTokensAtOnce, range.tokens - done) * k);
            view.routing->readLayer(layer, range.firstToken + done, ids);
            f(r, ids);
        }
    }
}

uint64_t headTokens(uint64_t tokens, double fraction) {
    const auto head = static_cast<uint64_t>(std::floor(static_cast<double>(tokens) * fraction));
    return std::clamp<uint64_t>(head, std::min<uint64_t>(1, tokens), tokens);
}

/// Keeps [skip, skip + tokens) of each range, as `cut(range)` says.
template <class Cut>
RoutingView cutEach(const RoutingView& view, Cut&& cut) {
    RoutingView out{view.routing, {}};
    for (const TokenRange& range : view.ranges) {
        TokenRange part = cut(range);
        if (part.tokens > 0) out.ranges.push_back(part);
    }
    return out;
}

/// The part of a range that lies in tokens [begin, end) of its request.
TokenRange within(const TokenRange& range, const Request& request, uint64_t begin, uint64_t end) {
    const uint64_t first = std::max(range.firstToken, request.firstToken + begin);
    const uint64_t last = std::min(range.firstToken + range.tokens, request.firstToken + end);
    return {range.request, first, last > first ? last - first : 0};
}

}  // namespace

uint64_t RoutingView::tokens() const {
    uint64_t sum = 0;
    for (const TokenRange& range : ranges) sum += range.tokens;
    return sum;
}

RoutingView wholeOf(const Routing& routing) {
    RoutingView out{&routing, {}};
    for (uint32_t i = 0; i < routing.requests().size(); ++i) {
        const Request& request = routing.requests()[i];
        out.ranges.push_back({i, request.firstToken, request.tokens});
    }
    return out;
}

RoutingView requestsOf(const Routing& routing, std::span<const uint32_t> requests) {
    RoutingView out{&routing, {}};
    for (const uint32_t i : requests) {
        const Request& request = routing.requests()[i];
        out.ranges.push_back({i, request.firstToken, request.tokens});
    }
    return out;
}

RoutingView domainOf(const Routing& routing, uint32_t domain) {
    return cutEach(wholeOf(routing), [&](TokenRange range) {
        if (routing.requests()[range.request].domain != domain) range.tokens = 0;
        return range;
    });
}

RoutingView everySecond(const RoutingView& view, bool odd) {
    RoutingView out{view.routing, {}};
    for (size_t i = odd ? 1 : 0; i < view.ranges.size(); i += 2)
        out.ranges.push_back(view.ranges[i]);
    return out;
}

RoutingView headOf(const RoutingView& view, double fraction) {
    return cutEach(view, [&](TokenRange range) {
        range.tokens = headTokens(range.tokens, fraction);
        return range;
    });
}

RoutingView tailOf(const RoutingView& view, double fraction) {
    return cutEach(view, [&](TokenRange range) {
        const uint64_t head = headTokens(range.tokens, fraction);
        return TokenRange{range.request, range.firstToken + head, range.tokens - head};
    });
}

RoutingView prefillOf(const RoutingView& view) {
    return cutEach(view, [&](const TokenRange& range) {
        const Request& request = view.routing->requests()[range.request];
        return within(range, request, 0, request.prefillTokens.value_or(0));
    });
}

RoutingView decodeOf(const RoutingView& view) {
    return cutEach(view, [&](const TokenRange& range) {
        const Request& request = view.routing->requests()[range.request];
        return within(range, request, request.prefillTokens.value_or(request.tokens),
                      request.tokens);
    });
}

Counts countsOf(const RoutingView& view) {
    const ModelShape& shape = view.routing->shape();
    Counts out(shape.layers, shape.experts);
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        const std::span<uint64_t> row = out.row(layer);
        forEachBlock(view, layer, [&](size_t, std::span<const uint16_t> ids) {
            for (const uint16_t id : ids) ++row[id];
        });
    }
    return out;
}

std::vector<Counts> countsByDomain(const RoutingView& view) {
    const ModelShape& shape = view.routing->shape();
    std::vector<Counts> out(view.routing->domains().size(), Counts(shape.layers, shape.experts));
    for (uint32_t layer = 0; layer < shape.layers; ++layer)
        forEachBlock(view, layer, [&](size_t range, std::span<const uint16_t> ids) {
            const uint32_t request = view.ranges[range].request;
            const std::span<uint64_t> row =
                out[view.routing->requests()[request].domain].row(layer);
            for (const uint16_t id : ids) ++row[id];
        });
    return out;
}

std::vector<uint32_t> countsByRange(const RoutingView& view, uint32_t layer) {
    const uint32_t experts = view.routing->shape().experts;
    std::vector<uint32_t> out(view.ranges.size() * experts);
    forEachBlock(view, layer, [&](size_t range, std::span<const uint16_t> ids) {
        for (const uint16_t id : ids) ++out[range * experts + id];
    });
    return out;
}

Counts totalCounts(const Recording& recording) {
    if (recording.routing) return countsOf(wholeOf(*recording.routing));
    Counts out(recording.shape.layers, recording.shape.experts);
    for (const CountsWindow& window : recording.windows) out += window.counts;
    return out;
}

}  // namespace bulkhead::planner
