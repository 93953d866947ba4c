// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/drawn_routing.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

constexpr uint64_t kRequestTokens = 64;

/// Probability that a token uses each expert: its share x top-k, none above 1, top-k in all.
std::vector<double> chances(std::span<const uint64_t> counts, uint32_t topK) {
    std::vector<double> chance(counts.size());
    std::vector<uint8_t> sure(counts.size(), 0);
    double left = topK;
    for (bool again = true; again;) {
        again = false;
        double sum = 0;
        size_t open = 0;
        for (size_t e = 0; e < counts.size(); ++e) {
            if (sure[e]) continue;
            sum += static_cast<double>(counts[e]);
            ++open;
        }
        for (size_t e = 0; e < counts.size(); ++e) {
            if (sure[e]) continue;
            chance[e] = left * (sum > 0 ? static_cast<double>(counts[e]) / sum
                                        : 1.0 / static_cast<double>(open));
        }
        for (size_t e = 0; e < counts.size(); ++e)
            if (!sure[e] && chance[e] > 1) {
                chance[e] = 1;
                sure[e] = 1;
                left -= 1;
                again = true;
            }
    }
    return chance;
}

/// One token: points at equal distances over the chances laid end to end, in a new order.
void drawToken(const std::vector<double>& chance, uint32_t topK, std::vector<uint16_t>& order,
               Random& random, std::vector<uint16_t>& out) {
    for (size_t e = order.size(); e > 1; --e) std::swap(order[e - 1], order[random.below(e)]);
    const size_t first = out.size();
    double upTo = 0, point = random.unit();
    for (size_t i = 0; i < order.size() && out.size() < first + topK; ++i) {
        upTo += chance[order[i]];
        const size_t needed = first + topK - out.size();
        if (upTo < point && order.size() - i > needed) continue;
        out.push_back(order[i]);
        point += 1;
    }
}

}  // namespace

absl::StatusOr<Routing> drawnRouting(const Recording& recording, uint64_t tokens, uint64_t seed) {
    const ModelShape& shape = recording.shape;
    std::map<std::string, Counts> byDomain;
    for (const CountsWindow& window : recording.windows) {
        auto [at, isNew] =
            byDomain.try_emplace(window.domain, window.counts.layers(), window.counts.experts());
        at->second += window.counts;
    }
    uint64_t total = 0;
    for (const auto& [_, counts] : byDomain) total += counts.total();
    if (total == 0)
        return absl::InvalidArgumentError(
            absl::StrCat(recording.source, " has no token counts by layer and expert"));
    if (shape.topK == 0)
        return absl::InvalidArgumentError(absl::StrCat(
            recording.source, " does not say how many experts a token has; name its model"));
    auto builder = RoutingBuilder::create(shape);
    if (!builder.ok()) return builder.status();
    Random random(seed);
    std::vector<uint16_t> order(shape.experts), ids;
    std::iota(order.begin(), order.end(), uint16_t{0});
    for (const auto& [domain, counts] : byDomain) {
        const double share = static_cast<double>(counts.total()) / static_cast<double>(total);
        if (share == 0) continue;
        std::vector<std::vector<double>> chance;
        for (uint32_t layer = 0; layer < shape.layers; ++layer)
            chance.push_back(chances(counts.row(layer), shape.topK));
        const auto requests = std::max<uint64_t>(
            1, static_cast<uint64_t>(share * static_cast<double>(tokens) / kRequestTokens + 0.5));
        for (uint64_t r = 0; r < requests; ++r) {
            builder->beginRequest("", domain);
            for (uint32_t layer = 0; layer < shape.layers; ++layer) {
                ids.clear();
                for (uint64_t t = 0; t < kRequestTokens; ++t)
                    drawToken(chance[layer], shape.topK, order, random, ids);
                if (auto status = builder->addLayer(layer, ids); !status.ok()) return status;
            }
        }
    }
    return builder->finish();
}

}  // namespace bulkhead::planner
