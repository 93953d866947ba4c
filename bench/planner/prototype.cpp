// SPDX-License-Identifier: Apache-2.0
#include "bench/planner/prototype.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/joint.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

constexpr uint32_t kProposals = 20000;
constexpr double kHot = 0.003, kCold = 3e-5;  ///< sends or copies a token

/// One layer, counted in the plainest way: a table of which token has how many experts on a node.
class PlainLayer {
  public:
    PlainLayer(const std::vector<uint16_t>& ids, uint32_t topK, const std::vector<uint16_t>& home,
               uint32_t nodes, uint32_t experts, bool copies)
        : ids_(ids),
          topK_(topK),
          home_(home),
          nodes_(nodes),
          copies_(copies),
          node_(experts),
          load_(experts, 0),
          nodeLoad_(nodes, 0),
          tokensOf_(experts),
          on_(home.size() * nodes, 0) {
        for (uint32_t e = 0; e < experts; ++e) node_[e] = e / (experts / nodes);
        for (uint32_t t = 0; t < home.size(); ++t)
            for (uint32_t k = 0; k < topK; ++k) {
                const uint16_t e = ids[t * topK + k];
                tokensOf_[e].push_back(t);
                load_[e] += 1;
                nodeLoad_[node_[e]] += 1;
                ++on_[t * nodes + node_[e]];
            }
    }

    void anneal(double cap, Random& random) {
        const auto experts = static_cast<uint32_t>(node_.size());
        const double tokens = static_cast<double>(home_.size());
        for (uint32_t i = 0; i < kProposals; ++i) {
            const double heat = kHot * std::pow(kCold / kHot, static_cast<double>(i) / kProposals);
            const uint32_t a = random.below(experts), b = random.below(experts);
            const uint32_t x = node_[a], y = node_[b];
            if (x == y) continue;
            const double before = over(cap);
            int64_t change = move(a, y);
            change += move(b, x);
            const double delta =
                static_cast<double>(change) / tokens + (over(cap) - before) * topK_ / nodes_;
            if (delta <= -heat * std::log(random.unit())) continue;
            move(b, y);
            move(a, x);
        }
    }

    std::vector<std::vector<uint16_t>> unitsOfNode() const {
        std::vector<std::vector<uint16_t>> at(nodes_);
        for (uint16_t e = 0; e < node_.size(); ++e) at[node_[e]].push_back(e);
        return at;
    }
    const std::vector<double>& load() const { return load_; }

  private:
    double over(double cap) const {
        const double mean = std::accumulate(nodeLoad_.begin(), nodeLoad_.end(), 0.0) / nodes_;
        double sum = 0;
        for (double load : nodeLoad_) sum += std::max(0.0, load / mean - cap);
        return sum;
    }

    int64_t move(uint32_t e, uint32_t to) {
        const uint32_t from = node_[e];
        int64_t change = 0;
        for (uint32_t t : tokensOf_[e]) {
            const uint8_t left = on_[t * nodes_ + from]--, found = on_[t * nodes_ + to]++;
            change += (to != home_[t] && (copies_ || found == 0)) -
                      (from != home_[t] && (copies_ || left == 1));
        }
        node_[e] = to;
        nodeLoad_[from] -= load_[e];
        nodeLoad_[to] += load_[e];
        return change;
    }

    const std::vector<uint16_t>& ids_;
    uint32_t topK_;
    const std::vector<uint16_t>& home_;
    uint32_t nodes_;
    bool copies_;
    std::vector<uint32_t> node_;
    std::vector<double> load_, nodeLoad_;
    std::vector<std::vector<uint32_t>> tokensOf_;
    std::vector<uint8_t> on_;
};

}  // namespace

Plan prototypePlan(const RoutingView& view, const Topology& topology, bool copies, double loadCap,
                   uint64_t seed) {
    Random random(seed);
    const TokenSample sample = sampleOf(view, UINT64_MAX);
    const ModelShape& shape = view.routing->shape();
    const Signatures signatures = signaturesOf(sample, shape.layers * shape.experts);
    const std::vector<uint16_t> homes = groupRequests(
        signatures.rows, signatures.width, sample.rangeTokens, topology.nodes(), 1.15, 1, random);
    std::vector<uint16_t> home;
    for (uint32_t range : sample.range) home.push_back(homes[range]);
    Plan plan;
    plan.shape = shape;
    plan.topology = topology;
    plan.firstSlot = shareSlots(topology, shape.experts, 0).value();
    plan.origin.algorithm = "prototype";
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        PlainLayer search(sample.ids[layer], shape.topK, home, topology.nodes(), shape.experts,
                          copies);
        search.anneal(loadCap, random);
        LayerProblem problem;
        problem.nodes = topology.nodes();
        problem.units = shape.experts;
        problem.load = search.load();
        plan.layers.push_back(
            layOut(routed(search.unitsOfNode(), problem), problem.load, topology, plan.firstSlot));
    }
    return plan;
}

}  // namespace bulkhead::bench
