// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/baselines.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "backend/planner/solve/balance.h"
#include "backend/planner/solve/token_sample.h"

namespace bulkhead::planner {

namespace {

constexpr uint64_t kPairTokens = 20000;  ///< tokens of a layer that co-activation is counted from
constexpr double kNodeCap = 1.15;

struct Setting {
    const Topology& topology;
    const std::vector<uint32_t>& firstSlot;
    uint32_t experts = 0;
    uint32_t groups = 1;

    uint32_t slots() const { return firstSlot.back(); }
    std::vector<uint32_t> slotsOfGpu() const {
        std::vector<uint32_t> counts;
        for (size_t g = 0; g + 1 < firstSlot.size(); ++g)
            counts.push_back(firstSlot[g + 1] - firstSlot[g]);
        return counts;
    }
};

std::vector<uint32_t> byLoad(const std::vector<double>& load) {
    std::vector<uint32_t> order(load.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return load[a] > load[b]; });
    return order;
}

/// Experts, then the heaviest ones again, until there is one for each slot.
std::vector<uint32_t> filled(const Setting& s, const std::vector<double>& load) {
    std::vector<uint32_t> experts(s.experts);
    std::iota(experts.begin(), experts.end(), 0);
    const std::vector<uint32_t> heavy = byLoad(load);
    while (experts.size() < s.slots())
        experts.push_back(heavy[(experts.size() - s.experts) % s.experts]);
    return experts;
}

std::vector<uint32_t> roundRobin(const Setting& s, const std::vector<double>& load) {
    const std::vector<uint32_t> experts = filled(s, load);
    std::vector<uint32_t> out(s.slots()), next(s.firstSlot.begin(), s.firstSlot.end() - 1);
    const auto gpus = static_cast<uint32_t>(next.size());
    uint32_t gpu = 0;
    for (uint32_t e : experts) {
        while (next[gpu % gpus] == s.firstSlot[gpu % gpus + 1]) ++gpu;
        out[next[gpu % gpus]++] = e;
        ++gpu;
    }
    return out;
}

std::vector<uint32_t> balanced(const Setting& s, const std::vector<double>& load, uint32_t groups,
                               bool relieve) {
    const bool whole = groups > 1 && groups % s.topology.nodes() == 0;
    BalanceShape shape{s.experts, s.topology.nodes(), s.slotsOfGpu(), whole ? groups : 1};
    std::vector<uint32_t> out(s.slots());
    Balancer(shape, relieve).balance(load, out);
    return out;
}

std::vector<uint32_t> lpt(const Setting& s, const std::vector<double>& load) {
    const std::vector<uint32_t> experts = filled(s, load);
    std::vector<double> share(s.experts, 0), weight;
    for (uint32_t e : experts) share[e] += 1;
    for (uint32_t e : experts) weight.push_back(load[e] / share[e]);
    const std::vector<uint32_t> gpuOf = packEvenly(weight, s.slotsOfGpu(), false);
    std::vector<uint32_t> out(s.slots()), next(s.firstSlot.begin(), s.firstSlot.end() - 1);
    for (uint32_t i = 0; i < experts.size(); ++i) out[next[gpuOf[i]]++] = experts[i];
    return out;
}

/// Tokens that use both experts of each pair.
std::vector<uint32_t> pairCounts(const std::vector<uint16_t>& ids, uint32_t topK,
                                 uint32_t experts) {
    std::vector<uint32_t> pairs(size_t{experts} * experts, 0);
    for (size_t t = 0; t < ids.size(); t += topK)
        for (uint32_t i = 0; i < topK; ++i)
            for (uint32_t j = 0; j < topK; ++j)
                if (i != j) ++pairs[size_t{ids[t + i]} * experts + ids[t + j]];
    return pairs;
}

std::vector<uint32_t> coactivation(const Setting& s, const std::vector<double>& load,
                                   const std::vector<uint32_t>& pairs) {
    const uint32_t nodes = s.topology.nodes(), gpus = s.topology.gpusPerNode();
    const std::vector<uint32_t> heavy = byLoad(load);
    const double limit = kNodeCap * std::accumulate(load.begin(), load.end(), 0.0) / nodes;
    std::vector<uint8_t> placed(s.experts, 0);
    std::vector<uint32_t> out;
    for (uint32_t n = 0; n < nodes; ++n) {
        const uint32_t own = s.experts / nodes + (n < s.experts % nodes ? 1 : 0);
        std::vector<uint32_t> members;
        double sum = 0;
        while (members.size() < own) {
            int64_t best = -1, bestTies = -1;
            for (const bool fits : {true, false}) {
                for (uint32_t e : heavy) {
                    if (placed[e] || (fits && sum + load[e] > limit)) continue;
                    int64_t ties = 0;
                    for (uint32_t m : members) ties += pairs[size_t{e} * s.experts + m];
                    if (ties > bestTies) {
                        bestTies = ties;
                        best = e;
                    }
                }
                if (best >= 0) break;
            }
            placed[static_cast<size_t>(best)] = 1;
            sum += load[static_cast<size_t>(best)];
            members.push_back(static_cast<uint32_t>(best));
        }
        const size_t size = s.slots() / nodes;
        for (size_t i = 0; members.size() < size; ++i) members.push_back(members[i]);
        std::vector<double> weight;
        for (uint32_t e : members) weight.push_back(load[e]);
        const std::vector<uint32_t> all = s.slotsOfGpu();
        const std::vector<uint32_t> gpuOf =
            packEvenly(weight, std::span(all).subspan(size_t{n} * gpus, gpus), false);
        for (uint32_t g = 0; g < gpus; ++g)
            for (size_t i = 0; i < members.size(); ++i)
                if (gpuOf[i] == g) out.push_back(members[i]);
    }
    return out;
}

}  // namespace

const std::vector<BaselineName>& baselineNames() {
    static const std::vector<BaselineName> names{
        {"linear", "expert e in slot e"},
        {"round_robin", "expert e on GPU e mod GPUs"},
        {"lpt", "heaviest first to the emptiest GPU"},
        {"eplb_hierarchical", "router groups to nodes, replicas inside a node"},
        {"eplb_global", "replicas and packing over all GPUs"},
        {"coactivation", "experts used together on one node"},
        {"balance", "ours for even load alone"},
    };
    return names;
}

absl::StatusOr<Plan> baselinePlan(std::string_view name, const RoutingView& view,
                                  const Topology& topology, uint32_t redundant) {
    const auto& names = baselineNames();
    if (std::none_of(names.begin(), names.end(), [&](const auto& n) { return n.name == name; }))
        return absl::NotFoundError(absl::StrCat("there is no baseline '", std::string(name), "'"));
    const ModelShape& shape = view.routing->shape();
    auto firstSlot = shareSlots(topology, shape.experts, redundant);
    if (!firstSlot.ok()) return firstSlot.status();
    const Setting s{topology, *firstSlot, shape.experts, shape.routerGroups};
    const Counts counts = countsOf(view);
    TokenSample sample;
    if (name == "coactivation") sample = sampleOf(view, kPairTokens);
    Plan plan;
    plan.shape = shape;
    plan.topology = topology;
    plan.firstSlot = *firstSlot;
    plan.origin.algorithm = std::string(name);
    plan.origin.tokens = view.tokens();
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        const std::vector<double> load(counts.row(layer).begin(), counts.row(layer).end());
        LayerPlan made;
        if (name == "linear") made.expertOfSlot = filled(s, load);
        if (name == "round_robin") made.expertOfSlot = roundRobin(s, load);
        if (name == "lpt") made.expertOfSlot = lpt(s, load);
        if (name == "eplb_hierarchical") made.expertOfSlot = balanced(s, load, s.groups, false);
        if (name == "eplb_global") made.expertOfSlot = balanced(s, load, 1, false);
        if (name == "balance") made.expertOfSlot = balanced(s, load, s.groups, true);
        if (name == "coactivation")
            made.expertOfSlot =
                coactivation(s, load, pairCounts(sample.ids[layer], shape.topK, shape.experts));
        plan.layers.push_back(std::move(made));
    }
    return plan;
}

}  // namespace bulkhead::planner
