// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/planner/data/routing_view.h"
#include "backend/planner/evaluate/token_router.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// Load and traffic of one layer under a plan. Loads are expert copies (a token counts once for
/// each of its top-k experts) at the slot that serves them.
struct LayerOutcome {
    double copies = 0;               ///< remote expert copies of a token: not on its home node
    double sends = 0;                ///< nodes other than home that a token is sent to
    std::vector<double> nodeLoad;    ///< [node]
    std::vector<double> gpuLoad;     ///< [GPU]
    std::vector<double> nodeCopies;  ///< nodes x nodes, from home to expert, per token of all
    std::vector<double> nodeSends;   ///< nodes x nodes, per token of all
    /// Activations that leave a GPU for another one, per token, by the level that they cross.
    std::vector<double> levelCopies;  ///< one message for each expert
    /// One message for each node, arriving at the GPU of the same rank, and from there (or from the
    /// home GPU) one for each further GPU of that node.
    std::vector<double> levelSends;
};

struct LevelBytes {
    std::string level;
    double copies = 0;  ///< bytes a token, all layers, dispatch only, one message an expert
    double sends = 0;   ///< the same with one message a node
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("level", self.level);
        visit("bytes_per_token", self.copies);
        visit("bytes_per_token_deduplicated", self.sends);
    }
};

/// Load balance over nodes and GPUs. Averages over layers unless said otherwise.
struct LoadFigures {
    double nodeLoadMaxOverMean = 0;
    double nodeLoadMaxOverMeanWorst = 0;  ///< of the worst layer
    double gpuLoadMaxOverMean = 0;
    double gpuLoadMaxOverMeanWorst = 0;
    double balancedness = 0;       ///< GPU load mean/max
    double balancednessWorst = 1;  ///< of the worst layer
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node_load_max_over_mean", self.nodeLoadMaxOverMean);
        visit("node_load_max_over_mean_worst_layer", self.nodeLoadMaxOverMeanWorst);
        visit("gpu_load_max_over_mean", self.gpuLoadMaxOverMean);
        visit("gpu_load_max_over_mean_worst_layer", self.gpuLoadMaxOverMeanWorst);
        visit("balancedness", self.balancedness);
        visit("balancedness_worst_layer", self.balancednessWorst);
    }
    /// One layer more of so many.
    void add(std::span<const double> nodeLoad, std::span<const double> gpuLoad, size_t layers);
};

/// Averages over layers unless said otherwise.
struct Outcome : LoadFigures {
    uint64_t tokens = 0;
    uint64_t requests = 0;
    double copiesPerToken = 0;
    double sendsPerToken = 0;
    double homeLoadMaxOverMean = 0;
    double bytesPerCopy = 0;
    bool bytesAssumed = false;
    std::vector<LevelBytes> bytesByLevel;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("tokens", self.tokens);
        visit("requests", self.requests);
        visit("copies_per_token", self.copiesPerToken);
        visit("sends_per_token", self.sendsPerToken);
        LoadFigures::fields(self, visit);
        visit("home_load_max_over_mean", self.homeLoadMaxOverMean);
        visit("bytes_per_copy", self.bytesPerCopy);
        visit("bytes_per_copy_assumed", self.bytesAssumed);
        visit("bytes_by_level", self.bytesByLevel);
    }
};

/// Every token of `view` under `plan`. `homes`: node of each range of the view. A request's tokens
/// are at home on one GPU of the node, the one with fewest tokens so far. A replica is chosen by
/// the dispatch weights of the token's home and a hash of token and layer, the same every time; or,
/// given a policy, by a TokenRouter while all requests run side by side, 64 tokens at a time.
/// InvalidArgument when the recording (checkFit) or homes do not fit the plan. Precondition:
/// checkPlan.
[[nodiscard]] absl::StatusOr<std::vector<LayerOutcome>> evaluateLayers(
    const RoutingView& view, const Plan& plan, std::span<const uint16_t> homes,
    const std::optional<RouterPolicy>& policy = std::nullopt);

/// The same kept apart: [block][layer], per token of the block. `block`: of each range, below
/// `blocks`. All of them are served together, by one router and on one set of GPUs.
[[nodiscard]] absl::StatusOr<std::vector<std::vector<LayerOutcome>>> evaluateBlocks(
    const RoutingView& view, const Plan& plan, std::span<const uint16_t> homes,
    const std::optional<RouterPolicy>& policy, std::span<const uint32_t> block, uint32_t blocks);

/// evaluateLayers() summed up. `bytesPerCopy` 0: the model's hidden width x 2 bytes, or 4,096 if
/// not known (then `bytesAssumed`).
[[nodiscard]] Outcome summarise(const std::vector<LayerOutcome>& layers, const RoutingView& view,
                                const Plan& plan, std::span<const uint16_t> homes,
                                double bytesPerCopy = 0);

[[nodiscard]] absl::StatusOr<Outcome> evaluate(const RoutingView& view, const Plan& plan,
                                               std::span<const uint16_t> homes);

/// max / mean; 1 for nothing.
[[nodiscard]] double maxOverMean(std::span<const double> load);

/// Bytes of one token's activation, and whether they are a guess.
struct CopyBytes {
    double bytes = 0;
    bool assumed = false;
};
[[nodiscard]] CopyBytes copyBytes(const ModelShape& shape);

/// Width inside an expert where nothing is known: DeepSeek-V2-Lite's.
inline constexpr double kAssumedInner = 1408;

}  // namespace bulkhead::planner
