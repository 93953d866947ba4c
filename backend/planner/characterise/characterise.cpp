// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/characterise/characterise.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "backend/model/names.h"
#include "backend/planner/characterise/measures.h"
#include "backend/planner/characterise/pairs.h"
#include "backend/planner/characterise/phases.h"
#include "backend/planner/data/routing_view.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// Mean over layers of a measure of one table, or of two.
template <class F>
double meanOverLayers(const Counts& counts, F&& measure) {
    double sum = 0;
    for (uint32_t layer = 0; layer < counts.layers(); ++layer) sum += measure(counts.row(layer));
    return counts.layers() == 0 ? 0 : sum / counts.layers();
}
template <class F>
double meanOverLayers(const Counts& a, const Counts& b, F&& measure) {
    double sum = 0;
    for (uint32_t layer = 0; layer < a.layers(); ++layer)
        sum += measure(a.row(layer), b.row(layer));
    return a.layers() == 0 ? 0 : sum / a.layers();
}

double forHalf(std::span<const uint64_t> row) {
    return expertsFor(row, 0.5);
}

uint64_t tokensOf(const Counts& counts, uint32_t topK) {
    return topK == 0 || counts.layers() == 0 ? 0 : counts.total(0) / topK;
}

void addLayers(const Counts& counts, Characterisation& out) {
    out.worstBalancedness = 1;
    for (uint32_t layer = 0; layer < counts.layers(); ++layer) {
        const std::span<const uint64_t> row = counts.row(layer);
        LayerLoad load;
        load.layer = numberOfLayer(out.shape, layer);
        load.imbalance = imbalance(row);
        load.balancedness = balancedness(row);
        load.hottest =
            static_cast<uint32_t>(std::max_element(row.begin(), row.end()) - row.begin());
        load.expertsForHalf = expertsFor(row, 0.5);
        out.worstImbalance = std::max(out.worstImbalance, load.imbalance);
        out.worstBalancedness = std::min(out.worstBalancedness, load.balancedness);
        out.layers.push_back(load);
    }
    out.imbalance = meanOverLayers(counts, imbalance);
    out.balancedness = meanOverLayers(counts, balancedness);
    out.expertsForHalf = meanOverLayers(counts, forHalf);
}

/// A domain's counts, and those of two halves of it.
struct DomainCounts {
    DomainLoad load;
    Counts all, even, odd;
};

std::vector<DomainCounts> domainsOf(const Recording& recording) {
    std::vector<DomainCounts> out;
    if (recording.routing) {
        const Routing& routing = *recording.routing;
        for (uint32_t d = 0; d < routing.domains().size(); ++d) {
            const RoutingView view = domainOf(routing, d);
            DomainCounts one;
            one.load.name = routing.domains()[d];
            one.load.requests = view.ranges.size();
            one.even = countsOf(everySecond(view, false));
            one.odd = countsOf(everySecond(view, true));
            one.all = one.even;
            one.all += one.odd;
            out.push_back(std::move(one));
        }
    } else {
        std::map<std::string, Counts> sums;
        for (const CountsWindow& window : recording.windows) {
            auto [sum, isNew] = sums.try_emplace(window.domain, window.counts);
            if (!isNew) sum->second += window.counts;
        }
        for (auto& [name, counts] : sums) {
            DomainCounts one;
            one.load.name = name;
            one.all = std::move(counts);
            out.push_back(std::move(one));
        }
    }
    for (DomainCounts& one : out) {
        one.load.tokens = tokensOf(one.all, recording.shape.topK);
        one.load.imbalance = meanOverLayers(one.all, imbalance);
        one.load.expertsForHalf = meanOverLayers(one.all, forHalf);
    }
    return out;
}

void addDomains(const Recording& recording, Characterisation& out) {
    const std::vector<DomainCounts> domains = domainsOf(recording);
    for (const DomainCounts& one : domains) out.domains.push_back(one.load);
    if (domains.size() < 2) return;
    DomainMatrix& matrix = out.domainMatrix.emplace();
    matrix.diagonalIsHalves = recording.routing.has_value();
    for (size_t i = 0; i < domains.size(); ++i) {
        std::vector<double>& cosines = matrix.cosine.emplace_back();
        std::vector<double>& distances = matrix.distance.emplace_back();
        for (size_t j = 0; j < domains.size(); ++j) {
            const bool halves = i == j && matrix.diagonalIsHalves;
            const Counts& a = halves ? domains[i].even : domains[i].all;
            const Counts& b = halves ? domains[i].odd : domains[j].all;
            if (halves && domains[i].load.requests < 2) {
                cosines.push_back(std::nan(""));
                distances.push_back(std::nan(""));
                continue;
            }
            cosines.push_back(meanOverLayers(a, b, cosine));
            distances.push_back(meanOverLayers(a, b, jensenShannon));
        }
    }
}

/// The recording in at most `most` stretches of about equal tokens, in its order.
std::vector<std::pair<std::string, Counts>> stretchesOf(const Recording& recording, uint32_t most) {
    std::vector<std::pair<std::string, Counts>> out;
    if (!recording.routing) {
        const size_t windows = recording.windows.size(), parts = std::min<size_t>(most, windows);
        for (size_t p = 0; p < parts; ++p) {
            const size_t first = windows * p / parts, end = windows * (p + 1) / parts;
            Counts sum = recording.windows[first].counts;
            for (size_t w = first + 1; w < end; ++w) sum += recording.windows[w].counts;
            const std::string& label = recording.windows[first].label;
            out.emplace_back(
                end - first == 1 ? label : concat(label, " to ", recording.windows[end - 1].label),
                std::move(sum));
        }
        return out;
    }
    const RoutingView whole = wholeOf(*recording.routing);
    const uint64_t target = (whole.tokens() + most - 1) / most;
    RoutingView part{whole.routing, {}};
    for (const TokenRange& range : whole.ranges) {
        part.ranges.push_back(range);
        const bool last = &range == &whole.ranges.back();
        if (part.tokens() < target && !last) continue;
        out.emplace_back(
            concat("requests ", part.ranges.front().request, " to ", part.ranges.back().request),
            countsOf(part));
        part.ranges.clear();
    }
    return out;
}

void addDrift(const Recording& recording, uint32_t windows, Characterisation& out) {
    const auto stretches = stretchesOf(recording, std::max(windows, 1u));
    for (size_t i = 0; i < stretches.size(); ++i) {
        const auto& [label, counts] = stretches[i];
        const Counts& previous = stretches[i == 0 ? 0 : i - 1].second;
        out.drift.push_back({label, tokensOf(counts, recording.shape.topK),
                             meanOverLayers(counts, stretches[0].second, cosine),
                             meanOverLayers(counts, previous, cosine)});
    }
}

void addBalance(const Recording& recording, Characterisation& out) {
    out.balanceSamples = recording.balance.size();
    if (recording.balance.empty()) return;
    out.worstLoggedBalancedness = 1;
    for (const BalanceSample& sample : recording.balance) {
        out.loggedBalancedness +=
            sample.balancedness / static_cast<double>(recording.balance.size());
        out.worstLoggedBalancedness = std::min(out.worstLoggedBalancedness, sample.balancedness);
    }
}

}  // namespace

Characterisation characterise(const Recording& recording, const CharacteriseOptions& options) {
    Characterisation out;
    out.source = recording.source;
    out.notes = recording.notes;
    out.shape = recording.shape;
    addBalance(recording, out);
    if (!recording.routing && recording.windows.empty()) return out;
    const Counts counts = totalCounts(recording);
    out.tokens = tokensOf(counts, recording.shape.topK);
    addLayers(counts, out);
    addDomains(recording, out);
    addDrift(recording, options.driftWindows, out);
    if (!recording.routing) {
        out.phases = phaseCorrelation(recording.windows);
        return out;
    }
    out.requests = recording.routing->requests().size();
    out.phases = phaseCorrelation(*recording.routing, options.headFraction);
    out.coactivation = coactivation(*recording.routing, options);
    out.affinity = affinity(*recording.routing, options);
    return out;
}

}  // namespace bulkhead::planner
