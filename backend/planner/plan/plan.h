// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/planner/data/model_shape.h"
#include "backend/planner/topology/topology.h"

namespace bulkhead::planner {

/// Distribution of an expert's tokens over its slots, by the home node of the token.
struct Dispatch {
    uint32_t expert = 0;
    std::vector<uint32_t> slots;  ///< ascending: all slots of the layer that hold the expert
    std::vector<double> weights;  ///< nodes x slots, row by row; each row sums to 1
    bool operator==(const Dispatch&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("expert", self.expert);
        visit("slots", self.slots);
        visit("weights", self.weights);
    }
};

/// One MoE layer. Slots are numbered through all GPUs, GPU by GPU.
struct LayerPlan {
    std::vector<uint32_t> expertOfSlot;
    /// Ascending by expert; an expert with several slots and no entry is shared out equally.
    std::vector<Dispatch> dispatch;
    bool operator==(const LayerPlan&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("expert_of_slot", self.expertOfSlot);
        visit("dispatch", self.dispatch);
    }
};

/// Where requests of a domain are sent, and how many of its tokens go to each node.
struct DomainHome {
    std::string domain;
    std::vector<double> share;  ///< [node]; each 0 or more, summing to 1
    bool operator==(const DomainHome&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("domain", self.domain);
        visit("share", self.share);
    }
};

/// Part of what comes that a Range holds.
inline constexpr double kRangeConfidence = 0.9;

/// A figure that is not known yet: its mean, and where nine times of ten it is expected to lie.
struct Range {
    double mean = 0;
    double low = 0;   ///< 5th percentile
    double high = 0;  ///< 95th
    bool operator==(const Range&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("mean", self.mean);
        visit("p5", self.low);
        visit("p95", self.high);
    }
};

/// The figures that a plan is looked at for, each as in Outcome; of a value, or of a Range.
template <class Value>
struct FourFigures {
    Value sends{}, copies{};
    Value nodeLoad{}, gpuLoad{};  ///< max/mean, mean over layers
    bool operator==(const FourFigures&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("sends_per_token", self.sends);
        visit("copies_per_token", self.copies);
        visit("node_load_max_over_mean", self.nodeLoad);
        visit("gpu_load_max_over_mean", self.gpuLoad);
    }
};

/// Promise of a plan for as many requests as it was made from, of the same kinds but not seen
/// (solve/cross_validation.h).
struct Forecast {
    uint32_t blocks = 0;  ///< of requests, or of time, that were left out in turn; 0: no forecast
    uint32_t folds = 0;   ///< plans that were made for it
    bool byTime = false;  ///< blocks are stretches of time: too few requests are marked
    bool byKind = false;  ///< for kinds that were not recorded: each domain was left out in turn
    FourFigures<Range> expected;
    FourFigures<double> inSample;  ///< on the requests that the plan was made from
    double tokensPerExpert = 0;    ///< that it was made from, of a layer
    bool operator==(const Forecast&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("blocks", self.blocks);
        visit("folds", self.folds);
        visit("by_time", self.byTime);
        visit("by_kind", self.byKind);
        visit("expected", self.expected);
        visit("in_sample", self.inSample);
        visit("tokens_per_expert", self.tokensPerExpert);
    }
};

/// Tokens of an expert and layer, below which a recording is small: chance adds more than a tenth.
inline constexpr double kFewPerExpert = 100;

/// "sends 1.753 (5 to 95 %: 1.712 to 1.794), ..." of requests not seen; empty without a forecast.
[[nodiscard]] std::string forecastText(const Forecast& forecast);

/// Notes for people beside it, a sentence each: that the recording is small for the model, how much
/// more of it halves the range, and that the range is one of stretches of time.
[[nodiscard]] std::vector<std::string> forecastNotes(const Forecast& forecast, uint64_t tokens);

/// Rule by which the server of a plan chooses among an expert's slots.
enum class Router {
    kTokenAware,  ///< token by token, where it goes anyway (evaluate/token_router.h)
    kStatic,      ///< by the plan's dispatch weights
    kHomeFirst,   ///< those on the token's home node equally; else all of them equally
    kUniform,     ///< all of them equally
};

/// Provenance of a plan: enough to make it again.
struct PlanOrigin {
    std::string algorithm;  ///< "joint", "linear", "eplb_global", ...
    std::string objective;  ///< the objective it was chosen for
    std::string source;     ///< the routing it was made from
    uint64_t seed = 0;
    uint64_t tokens = 0;        ///< tokens it was made from
    bool tokensDrawn = false;   ///< ... which were drawn from counts, not recorded
    double loadCap = 0;         ///< node load max/mean asked for; 0: none was
    double homeCap = 0;         ///< home tokens max/mean asked for
    double prefix = 0;          ///< part of a request that its home is chosen from
    double bytesPerCopy = 0;    ///< activation of one token sent once
    bool bytesAssumed = false;  ///< bytesPerCopy is our guess: the recording named no width
    Router router = Router::kTokenAware;  ///< that the plan is made for
    std::string reason;                   ///< reason for which this point was recommended
    bool operator==(const PlanOrigin&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("algorithm", self.algorithm);
        visit("objective", self.objective);
        visit("source", self.source);
        visit("seed", self.seed);
        visit("tokens", self.tokens);
        visit("tokens_drawn", self.tokensDrawn);
        visit("load_cap", self.loadCap);
        visit("home_cap", self.homeCap);
        visit("prefix", self.prefix);
        visit("bytes_per_copy", self.bytesPerCopy);
        visit("bytes_assumed", self.bytesAssumed);
        visit("router", self.router);
        visit("reason", self.reason);
    }
};

/// A placement of every layer's experts. Thread: a value.
struct Plan {
    ModelShape shape;
    Topology topology;
    /// GPU g holds slots firstSlot[g] .. firstSlot[g + 1]; gpus + 1 entries; the same in all
    /// layers.
    std::vector<uint32_t> firstSlot;
    std::vector<LayerPlan> layers;
    std::vector<DomainHome> homes;  ///< empty when planned without domains
    PlanOrigin origin;
    Forecast forecast;

    uint32_t slots() const { return firstSlot.empty() ? 0 : firstSlot.back(); }
    uint32_t redundant() const { return slots() - shape.experts; }
    bool operator==(const Plan&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("shape", self.shape);
        visit("topology", self.topology);
        visit("first_slot", self.firstSlot);
        visit("layers", self.layers);
        visit("homes", self.homes);
        visit("origin", self.origin);
        visit("forecast", self.forecast);
    }
};

/// The plan with dispatch weights that share tokens out as `router` does: unchanged for
/// kTokenAware, which weights cannot say, and kStatic.
[[nodiscard]] Plan dispatchedBy(Plan plan, Router router);

inline constexpr uint64_t kMostSlots = 1'000'000;  ///< of a layer, over all GPUs

/// `slots` shared out: equally over nodes, and over a node's GPUs as evenly as can be (the first
/// ones hold one more). InvalidArgument when nodes do not divide slots, naming the next counts of
/// redundant experts that would, and when there are more than one for each expert and GPU or than
/// kMostSlots.
[[nodiscard]] absl::StatusOr<std::vector<uint32_t>> shareSlots(const Topology& topology,
                                                               uint32_t experts,
                                                               uint32_t redundant);

/// GPU of each slot.
[[nodiscard]] std::vector<uint32_t> gpuOfSlots(std::span<const uint32_t> firstSlot);

/// InvalidArgument naming layer, slot, expert or GPU when the plan drops an expert, names one that
/// does not exist, has the wrong number of slots, or has dispatch weights or homes that do not sum
/// to 1; naming the field when the model cannot be (checkShape) or its origin's figures cannot.
/// Everything that takes a plan may rely on it.
[[nodiscard]] absl::Status checkPlan(const Plan& plan);

/// InvalidArgument, naming the field and both numbers, unless the plan is for the model that
/// `recorded` describes: layers, experts, top-k, and the layers' numbers where both say them.
[[nodiscard]] absl::Status checkFit(const Plan& plan, const ModelShape& recorded);

}  // namespace bulkhead::planner

template <>
struct bulkhead::EnumNames<bulkhead::planner::Router> {
    static constexpr std::array<std::string_view, 4> kNames{"token-aware", "static", "home-first",
                                                            "uniform"};
};
