// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/characterise/pairs.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace bulkhead::planner {
namespace {

/// Evenly spread tokens of one layer, [token][k].
std::vector<uint16_t> sampleLayer(const Routing& routing, uint32_t layer, uint64_t most) {
    const uint32_t k = routing.shape().topK;
    const uint64_t stride = std::max<uint64_t>(1, (routing.tokens() + most - 1) / most);
    std::vector<uint16_t> out, token(k);
    for (uint64_t t = 0; t < routing.tokens(); t += stride) {
        routing.readLayer(layer, t, token);
        out.insert(out.end(), token.begin(), token.end());
    }
    return out;
}

/// Ordered pairs of experts of one layer (or of two), experts x experts.
class PairTable {
  public:
    explicit PairTable(uint32_t experts) : experts_(experts), cells_(size_t{experts} * experts) {}

    void add(uint16_t first, uint16_t second) { ++cells_[size_t{first} * experts_ + second]; }

    /// Adds this layer's part to the means, and its pairs above chance to the list.
    void finish(uint32_t layerNumber, bool symmetric, uint32_t layers, PairLoad& out) const {
        std::vector<double> row(experts_), column(experts_);
        double total = 0;
        for (size_t i = 0; i < experts_; ++i)
            for (size_t j = 0; j < experts_; ++j) {
                const auto count = static_cast<double>(cells_[i * experts_ + j]);
                row[i] += count;
                column[j] += count;
                total += count;
            }
        if (total == 0) return;
        double information = 0, entropy = 0, lifted = 0, used = 0, rows = 0, columns = 0;
        for (size_t j = 0; j < experts_; ++j) {
            const double p = column[j] / total;
            if (p > 0) entropy -= p * std::log2(p);
            rows += row[j] > 0 ? 1 : 0;
            columns += column[j] > 0 ? 1 : 0;
        }
        for (size_t i = 0; i < experts_; ++i)
            for (size_t j = 0; j < experts_; ++j) {
                const auto count = static_cast<double>(cells_[i * experts_ + j]);
                if (count == 0) continue;
                ++used;
                const double lift = count * total / (row[i] * column[j]);
                information += count / total * std::log2(lift);
                if (lift >= 2) lifted += count / total;
                if (lift > 1 && (!symmetric || i < j))
                    out.strongest.push_back({layerNumber, static_cast<uint32_t>(i),
                                             static_cast<uint32_t>(j), cells_[i * experts_ + j],
                                             lift});
            }
        const double bias = (used - rows - columns + 1) / (2 * total * std::log(2.0));
        information = std::max(0.0, information - std::max(0.0, bias));
        out.information += entropy > 0 ? information / entropy / layers : 0;
        out.lifted += lifted / layers;
    }

  private:
    uint32_t experts_;
    std::vector<uint64_t> cells_;
};

void keepStrongest(uint32_t most, std::vector<ExpertPair>& pairs) {
    const auto gain = [](const ExpertPair& p) {
        return static_cast<double>(p.tokens) * (1 - 1 / p.lift);
    };
    const size_t kept = std::min<size_t>(most, pairs.size());
    std::partial_sort(pairs.begin(), pairs.begin() + static_cast<long>(kept), pairs.end(),
                      [&](const ExpertPair& a, const ExpertPair& b) { return gain(a) > gain(b); });
    pairs.resize(kept);
}

}  // namespace

std::optional<PairLoad> coactivation(const Routing& routing, const CharacteriseOptions& options) {
    const ModelShape& shape = routing.shape();
    const uint32_t k = shape.topK;
    if (k < 2) return std::nullopt;
    PairLoad out;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        const std::vector<uint16_t> ids = sampleLayer(routing, layer, options.pairTokens);
        out.sampledTokens = ids.size() / k;
        PairTable table(shape.experts);
        for (size_t t = 0; t < ids.size(); t += k)
            for (uint32_t i = 0; i < k; ++i)
                for (uint32_t j = 0; j < k; ++j)
                    if (i != j) table.add(ids[t + i], ids[t + j]);
        table.finish(numberOfLayer(shape, layer), true, shape.layers, out);
        keepStrongest(options.strongestPairs, out.strongest);
    }
    return out;
}

std::optional<PairLoad> affinity(const Routing& routing, const CharacteriseOptions& options) {
    const ModelShape& shape = routing.shape();
    const uint32_t k = shape.topK;
    if (shape.layers < 2) return std::nullopt;
    PairLoad out;
    std::vector<uint16_t> here = sampleLayer(routing, 0, options.pairTokens);
    out.sampledTokens = here.size() / k;
    for (uint32_t layer = 0; layer + 1 < shape.layers; ++layer) {
        std::vector<uint16_t> next = sampleLayer(routing, layer + 1, options.pairTokens);
        PairTable table(shape.experts);
        for (size_t t = 0; t < here.size(); t += k)
            for (uint32_t i = 0; i < k; ++i)
                for (uint32_t j = 0; j < k; ++j) table.add(here[t + i], next[t + j]);
        table.finish(numberOfLayer(shape, layer), false, shape.layers - 1, out);
        keepStrongest(options.strongestPairs, out.strongest);
        here = std::move(next);
    }
    return out;
}

}  // namespace bulkhead::planner
