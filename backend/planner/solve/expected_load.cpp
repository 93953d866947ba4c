// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/expected_load.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

/// The deviation of fewer is off by half where a request is much longer than the others.
constexpr uint32_t kDraws = 400;
/// Found by splitting real recordings in halves (bench/planner, split seeds 11 and 12; by lot: 21,
/// 31 and 83): by so many deviations is a plan fuller than resampling its own requests says, give
/// or take as many, and by so much are deviations to be multiplied, those of load and those of
/// sends. In the order of DrawsOf.
struct Correction {
    double fit, load, sends;
};
constexpr Correction kCorrections[] = {{-0.2, 0.8, 1.1}, {0.4, 1.15, 1.15}, {0.4, 3, 3}};
/// So much too small is the standard error of a LoadGap.
constexpr double kErrorTooSmall = 1.5;

const Correction& correctionOf(DrawsOf of) {
    return kCorrections[static_cast<size_t>(of)];
}

/// [layer] tokens that each block brings to each node, blocks x nodes.
std::vector<std::vector<float>> loadsByBlock(const TokenSample& sample, const NodeRoutes& routes,
                                             const std::vector<uint16_t>& homes,
                                             std::span<const uint32_t> block, uint32_t blocks,
                                             std::span<const uint32_t> layers,
                                             std::span<const double> weights) {
    const size_t ranges = sample.rangeTokens.size();
    std::vector<double> sampled(ranges, 0), tokens(ranges, 0);
    for (uint32_t range : sample.range) sampled[range] += 1;
    for (size_t r = 0; r < ranges; ++r)
        tokens[r] = sample.rangeTokens[r] / sampled[r] * (weights.empty() ? 1 : weights[r]);
    std::vector<std::vector<float>> loads;
    for (uint32_t layer : layers) {
        const std::vector<uint16_t>& route = routes.layers[layer];
        const bool byHome = route.size() > routes.experts;
        std::vector<float>& load = loads.emplace_back(size_t{blocks} * routes.nodes, 0.0f);
        for (uint32_t t = 0; t < sample.tokens(); ++t) {
            const uint32_t range = sample.range[t];
            const uint16_t* at = &route[byHome ? size_t{homes[range]} * routes.experts : 0];
            for (uint32_t k = 0; k < sample.topK; ++k)
                load[size_t{block[t]} * routes.nodes +
                     at[sample.ids[layer][size_t{t} * sample.topK + k]]] +=
                    static_cast<float>(tokens[range]);
        }
    }
    return loads;
}

}  // namespace

double deviationsOf(double confidence, uint32_t freedom) {
    // With t = sqrt(freedom) tan(angle) the density is that of cos(angle) ^ (freedom - 1).
    constexpr int kSteps = 20000;
    constexpr double kStep = std::numbers::pi / 2 / kSteps;
    const auto density = [&](int i) {
        return std::pow(std::cos((i + 0.5) * kStep), freedom - 1.0);
    };
    double all = 0, held = 0;
    for (int i = 0; i < kSteps; ++i) all += density(i);
    int i = 0;
    for (; i < kSteps && held < confidence * all; ++i) held += density(i);
    const double over = i > 0 ? (held - confidence * all) / density(i - 1) : 0;
    return std::sqrt(static_cast<double>(freedom)) * std::tan((i - over) * kStep);
}

uint32_t freedomOf(std::span<const double> tokens) {
    double sum = 0, squares = 0;
    for (const double n : tokens) {
        sum += n;
        squares += n * n;
    }
    const double equals = squares > 0 ? sum * sum / squares : 0;
    return static_cast<uint32_t>(std::max(std::round(equals), 2.0)) - 1;
}

uint32_t freedomOf(const RoutingView& view) {
    std::vector<double> tokens;
    for (const TokenRange& range : view.ranges) tokens.push_back(static_cast<double>(range.tokens));
    return freedomOf(tokens);
}

DrawsOf drawsOf(const RoutingView& view, bool givenMixture) {
    if (view.ranges.size() < kFewRanges) return DrawsOf::kTime;
    const auto domain = [&](const TokenRange& range) {
        return view.routing->requests()[range.request].domain;
    };
    const bool alike = std::ranges::all_of(view.ranges, [&](const TokenRange& range) {
        return domain(range) == domain(view.ranges[0]);
    });
    return givenMixture || alike ? DrawsOf::kMixture : DrawsOf::kLot;
}

double sendsTooSmall(DrawsOf of) {
    return correctionOf(of).sends;
}

Range loadRange(const Spread& spread, const LoadGap& gap, DrawsOf of, double deviations) {
    const double fit = correctionOf(of).fit * spread.deviation, variance = fit * fit;
    const double error = kErrorTooSmall * gap.error;
    const double sure = variance > 0 ? variance / (variance + error * error) : 0;
    const double mean = spread.mean + fit + sure * (gap.mean - fit);
    const double wide = correctionOf(of).load * deviations * spread.deviation;
    return {mean, std::max(1.0, mean - wide), mean + wide};
}

std::vector<std::vector<float>> drawBlocks(std::span<const uint32_t> kinds, uint32_t group,
                                           uint32_t draws, uint64_t seed) {
    Random random(seed ^ 0x6D617267696Eull);
    std::vector<std::vector<float>> made(draws, std::vector<float>(kinds.size(), 0));
    std::vector<uint32_t> lots;  // of the first of `group` draws, in which all have their turn
    for (uint32_t i = 0; i < draws; ++i) {
        const uint32_t turn = i % group;
        size_t next = 0;
        if (turn == 0) lots.clear();
        const auto lot = [&](size_t below) {
            if (turn == 0) lots.push_back(random.below(static_cast<uint32_t>(below)));
            return lots[next++];
        };
        for (size_t begin = 0, end = 0; begin < kinds.size(); begin = end) {
            while (end < kinds.size() && kinds[end] == kinds[begin]) ++end;
            const size_t blocks = end - begin;
            const size_t from = lot(blocks);  // groups begin elsewhere every time
            for (size_t at = 0; at < blocks; at += group) {
                const size_t size = std::min<size_t>(group, blocks - at);
                made[i][begin + (from + at + (lot(size) + turn) % size) % blocks] +=
                    static_cast<float>(size);
            }
        }
    }
    return made;
}

std::vector<std::vector<float>> drawEquals(std::span<const uint32_t> kinds, uint64_t seed) {
    return drawBlocks(kinds, kGroupOfEquals, kDraws, seed);
}

ByKind byKind(const RoutingView& view, bool givenMixture) {
    std::vector<uint32_t> requests(view.routing->domains().size(), 0), kindOf, order;
    for (const TokenRange& range : view.ranges) {
        order.push_back(static_cast<uint32_t>(order.size()));
        kindOf.push_back(view.routing->requests()[range.request].domain);
        ++requests[kindOf.back()];
    }
    for (uint32_t& kind : kindOf)
        if (requests[kind] < kGroupOfEquals) kind = static_cast<uint32_t>(requests.size());
    const auto count = static_cast<uint32_t>(order.size());
    const auto sameRequest = [](const TokenRange& a, const TokenRange& b) {
        return a.request == b.request;
    };
    const bool cut = std::adjacent_find(view.ranges.begin(), view.ranges.end(), sameRequest) !=
                     view.ranges.end();
    if (!givenMixture && !cut) {
        std::fill(kindOf.begin(), kindOf.end(), 0);
        Random random(count);
        for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return kindOf[a] < kindOf[b]; });
    ByKind made{std::vector<uint32_t>(order.size()), {}};
    for (uint32_t i = 0; i < order.size(); ++i) {
        made.places[order[i]] = i;
        made.kinds.push_back(kindOf[order[i]]);
    }
    return made;
}

Spread loadSpread(const std::vector<std::vector<float>>& load, uint32_t places,
                  const std::vector<std::vector<float>>& draws) {
    Spread spread;
    double squares = 0;
    std::vector<float> sum(places);
    for (const std::vector<float>& draw : draws) {
        double layers = 0;
        for (const std::vector<float>& layer : load) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (size_t b = 0; b < draw.size(); ++b) {
                if (draw[b] == 0) continue;
                const float* block = &layer[b * places];
                for (uint32_t p = 0; p < places; ++p) sum[p] += draw[b] * block[p];
            }
            const float total = std::accumulate(sum.begin(), sum.end(), 0.0f);
            const float most = *std::max_element(sum.begin(), sum.end());
            layers += total > 0 ? double{most} * places / total : 1;
        }
        layers /= static_cast<double>(load.size());
        spread.mean += layers;
        squares += layers * layers;
    }
    const auto count = static_cast<double>(draws.size());
    spread.mean /= count;
    spread.deviation = std::sqrt(std::max(0.0, squares / count - spread.mean * spread.mean));
    return spread;
}

std::vector<uint32_t> blockOfTokens(const TokenSample& sample, const ByKind& ranges,
                                    std::vector<uint32_t>& kinds) {
    const auto count = static_cast<uint32_t>(ranges.places.size());
    const bool few = count < kFewRanges;
    const uint32_t blocks = std::min(few ? 2 * kFewRanges : std::min(count, kMostBlocks),
                                     std::max(sample.tokens(), 1u));
    kinds.assign(blocks, 0);
    const auto blockAt = [&](uint32_t place) {
        return static_cast<uint32_t>(uint64_t{place} * blocks / count);
    };
    for (uint32_t place = count; place-- > 0 && !few;) kinds[blockAt(place)] = ranges.kinds[place];
    std::vector<uint32_t> made(sample.tokens());
    for (uint32_t t = 0; t < made.size(); ++t)
        made[t] = few ? static_cast<uint32_t>(uint64_t{t} * blocks / sample.tokens())
                      : blockAt(ranges.places[sample.range[t]]);
    return made;
}

Spread expectedNodeLoad(const TokenSample& sample, const NodeRoutes& routes,
                        const std::vector<uint16_t>& homes, const ByKind& ranges,
                        std::span<const uint32_t> layers, uint64_t seed,
                        std::span<const double> weights) {
    std::vector<uint32_t> kinds;
    const std::vector<uint32_t> block = blockOfTokens(sample, ranges, kinds);
    const auto blocks = static_cast<uint32_t>(kinds.size());
    return loadSpread(loadsByBlock(sample, routes, homes, block, blocks, layers, weights),
                      routes.nodes, drawEquals(kinds, seed));
}

double leastNodeLoad(std::vector<double> load, uint32_t nodes) {
    std::sort(load.begin(), load.end());
    const size_t perNode = load.size() / nodes;
    const double mean = std::accumulate(load.begin(), load.end(), 0.0) / nodes;
    double least = 1, heavy = 0, light = 0;
    for (uint32_t k = 1; k <= nodes && mean > 0; ++k) {
        heavy += load[load.size() - k];
        for (size_t i = (k - 1) * (perNode - 1); i < k * (perNode - 1); ++i) light += load[i];
        least = std::max(least, (heavy + light) / k / mean);
    }
    return least;
}

double leastNodeLoad(const Counts& counts, uint32_t nodes, double cap) {
    double sum = 0;
    for (uint32_t layer = 0; layer < counts.layers(); ++layer) {
        const auto row = counts.row(layer);
        sum += std::max(cap, leastNodeLoad({row.begin(), row.end()}, nodes));
    }
    return sum / counts.layers();
}

}  // namespace bulkhead::planner
