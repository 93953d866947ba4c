// SPDX-License-Identifier: Apache-2.0
#include "bench/planner/made_requests.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/planner/solve/random.h"

namespace bulkhead::bench {

using planner::Random;

namespace {

constexpr uint32_t kTopics = 12, kTopicExperts = 24, kTable = 4096;

/// Experts to draw from for each (domain, topic) of a layer: a table with each as often as likely.
class LayerTaste {
  public:
    LayerTaste(uint32_t experts, uint32_t domains, double drift, uint64_t seed, uint32_t layer)
        : experts_(experts) {
        Random common(seed * 7919 + layer), other(seed * 104729 + layer + 1);
        const std::vector<double> shared = zipf(common);
        for (uint32_t d = 0; d < domains; ++d) {
            std::vector<double> own = zipf(common);
            const std::vector<double> later = zipf(other);
            for (uint32_t e = 0; e < experts; ++e)
                own[e] = 0.5 * shared[e] + 0.5 * ((1 - drift) * own[e] + drift * later[e]);
            for (uint32_t topic = 0; topic < kTopics; ++topic) {
                std::vector<double> w = own;
                for (uint32_t i = 0; i < kTopicExperts; ++i)
                    w[common.below(experts)] += 1.5 / kTopicExperts;
                fill(w);
            }
        }
    }

    uint16_t draw(uint32_t domain, uint32_t topic, Random& random) const {
        return table_[(size_t{domain} * kTopics + topic) * kTable + random.below(kTable)];
    }

  private:
    std::vector<double> zipf(Random& random) const {
        std::vector<double> w(experts_);
        for (uint32_t e = 0; e < experts_; ++e) w[e] = std::pow(e + 1.0, -0.8);
        for (uint32_t e = experts_; e > 1; --e) std::swap(w[e - 1], w[random.below(e)]);
        const double sum = std::accumulate(w.begin(), w.end(), 0.0);
        for (double& x : w) x /= sum;
        return w;
    }

    void fill(const std::vector<double>& w) {
        const double sum = std::accumulate(w.begin(), w.end(), 0.0);
        double upTo = 0;
        size_t made = 0;
        for (uint32_t e = 0; e < experts_; ++e) {
            upTo += w[e] / sum * kTable;
            for (; made < kTable && (static_cast<double>(made) + 0.5 < upTo || e + 1 == experts_);
                 ++made)
                table_.push_back(static_cast<uint16_t>(e));
        }
    }

    uint32_t experts_;
    std::vector<uint16_t> table_;
};

}  // namespace

planner::Routing madeRequests(uint32_t layers, uint32_t experts, uint32_t topK, uint64_t tokens,
                              uint32_t domains, double drift, uint64_t seed) {
    planner::ModelShape shape;
    shape.name = "made";
    shape.layers = layers;
    shape.experts = experts;
    shape.topK = topK;
    auto builder = planner::RoutingBuilder::create(shape).value();
    builder.reserve(tokens);
    std::vector<LayerTaste> tastes;
    for (uint32_t layer = 0; layer < layers; ++layer)
        tastes.emplace_back(experts, domains, drift, seed, layer);
    Random random(seed);
    std::vector<uint16_t> ids;
    std::vector<uint32_t> topics;
    for (uint64_t made = 0; made < tokens;) {
        const uint64_t length = std::min<uint64_t>(tokens - made, 130 + random.below(400));
        const uint32_t domain = random.below(domains);
        builder.beginRequest("", "domain" + std::to_string(domain));
        topics.clear();
        const uint32_t first = random.below(kTopics), second = random.below(kTopics);
        for (uint64_t t = 0; t < length; ++t)
            topics.push_back(random.below(3) > 0 ? first : second);
        for (uint32_t layer = 0; layer < layers; ++layer) {
            ids.clear();
            for (uint64_t t = 0; t < length; ++t) {
                const size_t start = ids.size();
                while (ids.size() < start + topK) {
                    const uint16_t e = tastes[layer].draw(domain, topics[t], random);
                    if (std::find(ids.begin() + static_cast<ptrdiff_t>(start), ids.end(), e) ==
                        ids.end())
                        ids.push_back(e);
                }
            }
            if (!builder.addLayer(layer, ids).ok()) std::abort();
        }
        made += length;
    }
    return builder.finish().value();
}

}  // namespace bulkhead::bench
