// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/evaluate/evaluate.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "backend/planner/evaluate/serving_gpus.h"

namespace bulkhead::planner {

namespace {

constexpr uint64_t kTogether = 1;
constexpr double kAssumedBytes = 4096;

/// Counts one layer. Which nodes and GPUs a token has been to is kept as the number of the token.
class LayerCounting {
  public:
    LayerCounting(const Plan& plan, uint32_t layer, const std::optional<RouterPolicy>& policy,
                  uint32_t blocks)
        : topology_(plan.topology),
          serving_(plan, layer),
          gpusPerNode_(topology_.gpusPerNode()),
          nodes_(topology_.nodes()),
          nodeSeen_(nodes_, 0),
          gpuSeen_(topology_.gpus(), 0),
          level_(size_t{nodes_} * nodes_),
          gpus_(plan.shape.topK),
          out_(blocks) {
        if (policy && plan.redundant() > 0) router_.emplace(plan, layer, *policy);
        for (LayerOutcome& out : out_) {
            out.nodeLoad.assign(nodes_, 0);
            out.gpuLoad.assign(topology_.gpus(), 0);
            out.nodeCopies.assign(size_t{nodes_} * nodes_, 0);
            out.nodeSends.assign(size_t{nodes_} * nodes_, 0);
            out.levelCopies.assign(topology_.levels.size(), 0);
            out.levelSends.assign(topology_.levels.size(), 0);
        }
        for (uint32_t a = 0; a < nodes_; ++a)
            for (uint32_t b = 0; b < nodes_; ++b)
                level_[a * nodes_ + b] = topology_.levelBetween(a, b);
    }

    void token(const uint16_t* ids, uint32_t topK, uint64_t token, uint32_t homeGpu,
               uint32_t block) {
        LayerOutcome& out = out_[block];
        ++stamp_;
        const uint32_t home = homeGpu / gpusPerNode_, rank = homeGpu % gpusPerNode_;
        gpuSeen_[homeGpu] = nodeSeen_[home] = stamp_;
        if (router_)
            router_->choose(home, {ids, topK}, gpus_);
        else
            for (uint32_t k = 0; k < topK; ++k) gpus_[k] = serving_.gpu(home, ids[k], token);
        for (uint32_t k = 0; k < topK; ++k) {
            const uint32_t gpu = gpus_[k];
            const uint32_t node = gpu / gpusPerNode_, pair = home * nodes_ + node;
            out.gpuLoad[gpu] += 1;
            out.nodeCopies[pair] += 1;
            if (gpu != homeGpu) out.levelCopies[level_[pair]] += 1;
            if (nodeSeen_[node] != stamp_) {
                nodeSeen_[node] = stamp_;
                out.nodeSends[pair] += 1;
                out.levelSends[level_[pair]] += 1;
                gpuSeen_[node * gpusPerNode_ + rank] = stamp_;  // arrives there anyway
            }
            if (gpuSeen_[gpu] != stamp_) {
                gpuSeen_[gpu] = stamp_;
                out.levelSends[0] += 1;
            }
        }
    }

    /// Per token of each block.
    std::vector<LayerOutcome> finish(const std::vector<uint64_t>& tokens) {
        for (size_t b = 0; b < out_.size(); ++b) {
            LayerOutcome& out = out_[b];
            const double share = 1.0 / static_cast<double>(std::max<uint64_t>(tokens[b], 1));
            for (uint32_t g = 0; g < out.gpuLoad.size(); ++g)
                out.nodeLoad[g / gpusPerNode_] += out.gpuLoad[g];
            for (uint32_t home = 0; home < nodes_; ++home)
                for (uint32_t to = 0; to < nodes_; ++to) {
                    if (home == to) continue;
                    out.copies += out.nodeCopies[home * nodes_ + to] * share;
                    out.sends += out.nodeSends[home * nodes_ + to] * share;
                }
            for (auto* values :
                 {&out.nodeCopies, &out.nodeSends, &out.levelCopies, &out.levelSends})
                for (double& value : *values) value *= share;
        }
        return std::move(out_);
    }

  private:
    const Topology& topology_;
    ServingGpus serving_;
    uint32_t gpusPerNode_, nodes_;
    std::vector<uint64_t> nodeSeen_, gpuSeen_;
    std::vector<uint32_t> level_;
    std::vector<uint32_t> gpus_;  ///< of the token
    std::optional<TokenRouter> router_;
    uint64_t stamp_ = 0;
    std::vector<LayerOutcome> out_;  ///< [block]
};

/// GPU of each range: within its home node, the one with fewest tokens so far.
std::vector<uint32_t> homeGpus(const RoutingView& view, const Topology& topology,
                               std::span<const uint16_t> homes) {
    std::vector<uint64_t> tokens(topology.gpus(), 0);
    std::vector<uint32_t> gpus;
    for (size_t r = 0; r < homes.size(); ++r) {
        const auto first = tokens.begin() + homes[r] * topology.gpusPerNode();
        const auto least = std::min_element(first, first + topology.gpusPerNode());
        *least += view.ranges[r].tokens;
        gpus.push_back(static_cast<uint32_t>(least - tokens.begin()));
    }
    return gpus;
}

}  // namespace

double maxOverMean(std::span<const double> load) {
    const double sum = std::accumulate(load.begin(), load.end(), 0.0);
    if (sum <= 0) return 1;
    return *std::max_element(load.begin(), load.end()) * static_cast<double>(load.size()) / sum;
}

void LoadFigures::add(std::span<const double> nodeLoad, std::span<const double> gpuLoad,
                      size_t layers) {
    const double node = maxOverMean(nodeLoad), gpu = maxOverMean(gpuLoad);
    const double share = 1.0 / static_cast<double>(layers);
    nodeLoadMaxOverMean += node * share;
    nodeLoadMaxOverMeanWorst = std::max(nodeLoadMaxOverMeanWorst, node);
    gpuLoadMaxOverMean += gpu * share;
    gpuLoadMaxOverMeanWorst = std::max(gpuLoadMaxOverMeanWorst, gpu);
    balancedness += share / gpu;
    balancednessWorst = std::min(balancednessWorst, 1 / gpu);
}

CopyBytes copyBytes(const ModelShape& shape) {
    if (shape.hidden > 0) return {2.0 * shape.hidden, false};
    return {kAssumedBytes, true};
}

absl::StatusOr<std::vector<std::vector<LayerOutcome>>> evaluateBlocks(
    const RoutingView& view, const Plan& plan, std::span<const uint16_t> homes,
    const std::optional<RouterPolicy>& policy, std::span<const uint32_t> block, uint32_t blocks) {
    if (auto status = checkFit(plan, view.routing->shape()); !status.ok()) return status;
    if (homes.size() != view.ranges.size())
        return absl::InvalidArgumentError(
            absl::StrCat(homes.size(), " homes for ", view.ranges.size(), " requests"));
    for (size_t r = 0; r < homes.size(); ++r)
        if (homes[r] >= plan.topology.nodes())
            return absl::InvalidArgumentError(absl::StrCat(
                "request ", r, " is at home on node ", homes[r], " of ", plan.topology.nodes()));
    const std::vector<uint32_t> gpus = homeGpus(view, plan.topology, homes);
    std::vector<uint64_t> tokens(blocks, 0);
    for (size_t r = 0; r < homes.size(); ++r) tokens[block[r]] += view.ranges[r].tokens;
    const uint32_t topK = view.routing->shape().topK;
    std::vector<uint16_t> ids(kTogether * topK);
    std::vector<std::vector<LayerOutcome>> made(blocks);
    for (uint32_t layer = 0; layer < plan.shape.layers; ++layer) {
        LayerCounting counting(plan, layer, policy, blocks);
        std::vector<uint32_t> running(view.ranges.size());
        std::iota(running.begin(), running.end(), 0);
        for (uint64_t done = 0; !running.empty(); done += kTogether) {
            std::erase_if(running, [&](uint32_t r) { return view.ranges[r].tokens <= done; });
            for (uint32_t r : running) {
                const uint64_t first = view.ranges[r].firstToken + done;
                const uint64_t now = std::min(kTogether, view.ranges[r].tokens - done);
                view.routing->readLayer(layer, first, {ids.data(), now * topK});
                for (uint64_t t = 0; t < now; ++t)
                    counting.token(&ids[t * topK], topK, first + t, gpus[r], block[r]);
            }
        }
        std::vector<LayerOutcome> outcomes = counting.finish(tokens);
        for (uint32_t b = 0; b < blocks; ++b) made[b].push_back(std::move(outcomes[b]));
    }
    return made;
}

absl::StatusOr<std::vector<LayerOutcome>> evaluateLayers(
    const RoutingView& view, const Plan& plan, std::span<const uint16_t> homes,
    const std::optional<RouterPolicy>& policy) {
    auto made =
        evaluateBlocks(view, plan, homes, policy, std::vector<uint32_t>(view.ranges.size(), 0), 1);
    if (!made.ok()) return made.status();
    return std::move(made->front());
}

Outcome summarise(const std::vector<LayerOutcome>& layers, const RoutingView& view,
                  const Plan& plan, std::span<const uint16_t> homes, double bytesPerCopy) {
    Outcome out;
    out.tokens = view.tokens();
    out.requests = view.ranges.size();
    const CopyBytes known =
        copyBytes(view.routing->shape().hidden ? view.routing->shape() : plan.shape);
    out.bytesPerCopy = bytesPerCopy > 0 ? bytesPerCopy : known.bytes;
    out.bytesAssumed = bytesPerCopy <= 0 && known.assumed;
    for (const Level& level : plan.topology.levels) out.bytesByLevel.push_back({level.name, 0, 0});
    const double share = 1.0 / static_cast<double>(layers.size());
    for (const LayerOutcome& layer : layers) {
        out.add(layer.nodeLoad, layer.gpuLoad, layers.size());
        out.copiesPerToken += layer.copies * share;
        out.sendsPerToken += layer.sends * share;
        for (size_t i = 0; i < out.bytesByLevel.size(); ++i) {
            out.bytesByLevel[i].copies += layer.levelCopies[i] * out.bytesPerCopy;
            out.bytesByLevel[i].sends += layer.levelSends[i] * out.bytesPerCopy;
        }
    }
    std::vector<double> home(plan.topology.nodes(), 0);
    for (size_t r = 0; r < homes.size(); ++r)
        home[homes[r]] += static_cast<double>(view.ranges[r].tokens);
    out.homeLoadMaxOverMean = maxOverMean(home);
    return out;
}

absl::StatusOr<Outcome> evaluate(const RoutingView& view, const Plan& plan,
                                 std::span<const uint16_t> homes) {
    auto layers = evaluateLayers(view, plan, homes);
    if (!layers.ok()) return layers.status();
    return summarise(*layers, view, plan, homes);
}

}  // namespace bulkhead::planner
