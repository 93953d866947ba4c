// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/characterise/phases.h"

#include <cmath>
#include <utility>

#include "backend/model/names.h"
#include "backend/planner/characterise/measures.h"
#include "backend/planner/data/routing_view.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// The ranges of both views that belong to the same requests.
std::pair<RoutingView, RoutingView> paired(const RoutingView& begin, const RoutingView& rest) {
    std::pair<RoutingView, RoutingView> out{{begin.routing, {}}, {rest.routing, {}}};
    size_t j = 0;
    for (const TokenRange& range : begin.ranges) {
        while (j < rest.ranges.size() && rest.ranges[j].request < range.request) ++j;
        if (j == rest.ranges.size()) break;
        if (rest.ranges[j].request != range.request) continue;
        out.first.ranges.push_back(range);
        out.second.ranges.push_back(rest.ranges[j]);
    }
    return out;
}

void pool(const Counts& begin, const Counts& rest, PhaseCorrelation& out) {
    for (uint32_t layer = 0; layer < begin.layers(); ++layer) {
        out.byLayer.push_back(correlation(begin.row(layer), rest.row(layer)));
        out.pooled += out.byLayer.back() / begin.layers();
    }
}

/// Means over requests and layers of own, and of another request's, correlation. The other one is
/// half a recording away, because neighbours are often of one domain.
void byRequest(const RoutingView& begin, const RoutingView& rest, PhaseCorrelation& out) {
    const ModelShape& shape = begin.routing->shape();
    const size_t requests = begin.ranges.size();
    const auto share = 1.0 / (static_cast<double>(requests) * shape.layers);
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        const std::vector<uint32_t> a = countsByRange(begin, layer), b = countsByRange(rest, layer);
        const auto row = [&](const std::vector<uint32_t>& of, size_t r) {
            const auto first = of.begin() + static_cast<long>(r * shape.experts);
            return std::vector<uint64_t>(first, first + shape.experts);
        };
        for (size_t r = 0; r < requests; ++r) {
            const std::vector<uint64_t> own = row(a, r);
            out.perRequest += share * correlation(own, row(b, r));
            out.otherRequest += share * correlation(own, row(b, (r + requests / 2) % requests));
        }
    }
}

}  // namespace

std::optional<PhaseCorrelation> phaseCorrelation(const Routing& routing, double headFraction) {
    const RoutingView whole = wholeOf(routing);
    PhaseCorrelation out;
    auto both = paired(prefillOf(whole), decodeOf(whole));
    out.isPrefillDecode = !both.first.ranges.empty();
    out.between = "prefill and decode";
    if (!out.isPrefillDecode) {
        both = paired(headOf(whole, headFraction), tailOf(whole, headFraction));
        out.between =
            concat("the first ", std::lround(headFraction * 100), "% of each request and its rest");
    }
    if (both.first.ranges.empty()) return std::nullopt;
    out.requests = both.first.ranges.size();
    pool(countsOf(both.first), countsOf(both.second), out);
    byRequest(both.first, both.second, out);
    return out;
}

std::optional<PhaseCorrelation> phaseCorrelation(const std::vector<CountsWindow>& windows) {
    if (windows.empty()) return std::nullopt;
    const Counts none(windows[0].counts.layers(), windows[0].counts.experts());
    Counts prefill = none, decode = none;
    for (const CountsWindow& window : windows) {
        if (window.phase == Phase::kPrefill) prefill += window.counts;
        if (window.phase == Phase::kDecode) decode += window.counts;
    }
    if (prefill == none || decode == none) return std::nullopt;
    PhaseCorrelation out;
    out.isPrefillDecode = true;
    out.between = "prefill and decode";
    pool(prefill, decode, out);
    return out;
}

}  // namespace bulkhead::planner
