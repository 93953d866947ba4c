// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/model/command.h"
#include "backend/model/run_state.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/domain_plan.h"

/// Plans for a running job, from what it says of itself. Pure: state in, action out; the shards of
/// a replica stand for the planner's nodes. Thread: any.
namespace bulkhead::planner {

/// Shares of one domain's samples that each shard computes.
struct DomainHomeRow {
    std::string domain;
    std::vector<double> share;  ///< [shard]; sums to 1
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("domain", self.domain);
        visit("share", self.share);
    }
};

/// Figures to expect of a placement in as many steps as were counted. Sends are not known:
/// counts do not tell which of a token's copies go the same way.
struct LiveForecast {
    uint32_t stretches = 0;     ///< of the counted steps, between which it varies
    bool hasRange = false;      ///< else ranges are no wider than their mean: too few stretches
    Range remote;               ///< copies that leave their shard, 0..1
    double remoteInSample = 0;  ///< the same in the counted steps, which a plan may be made from
    Range load;                 ///< copies of the busiest shard over the mean, mean of the layers
    double loadInSample = 0;
    double tokensPerExpert = 0;  ///< counted, of a layer
    /// So much more is remote than in the counted steps: a plan fits the steps it was made from
    /// better than those to come. 0 where it was not made from them. See optimismOf.
    double optimism() const { return remote.mean - remoteInSample; }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("stretches", self.stretches);
        visit("has_range", self.hasRange);
        visit("remote", self.remote);
        visit("remote_in_sample", self.remoteInSample);
        visit("load_max_over_mean", self.load);
        visit("load_in_sample", self.loadInSample);
        visit("tokens_per_expert", self.tokensPerExpert);
    }
};

/// Notes for people beside it, a sentence each: that there is no range yet, and that few tokens
/// were counted for the model, with how many more halve the range.
[[nodiscard]] std::vector<std::string> forecastNotes(const LiveForecast& forecast);

/// Predicted effect of a plan on the job. Shares of copies are 0..1, -1 where unknown.
struct LivePreview {
    uint64_t step = 0;    ///< of the counts
    uint64_t layout = 0;  ///< in use
    uint64_t expertsMoved = 0;
    uint64_t experts = 0;        ///< of all layers
    uint64_t bytesMoved = 0;     ///< in each replica, between its shards
    double remoteMeasured = -1;  ///< of the layout in use, its last steps
    double remoteNow = -1;       ///< of the layout in use, by the counts
    LiveForecast forecast;       ///< of the plan
    /// The plan by the older and by the newer of the counted steps; -1 while there are few of
    /// either. A prediction is off by about as much as these are apart: the router learns on.
    double remoteOlder = -1, remoteNewer = -1;
    double bytesPerStep = -1;  ///< all-to-all of all replicas, measured over the same steps
    double bytesPerStepPredicted = -1;
    std::vector<DomainHomeRow> homes;  ///< empty: any shard computes any domain
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("layout", self.layout);
        visit("experts_moved", self.expertsMoved);
        visit("experts", self.experts);
        visit("bytes_moved", self.bytesMoved);
        visit("remote_measured", self.remoteMeasured);
        visit("remote_now", self.remoteNow);
        visit("forecast", self.forecast);
        visit("remote_older", self.remoteOlder);
        visit("remote_newer", self.remoteNewer);
        visit("all_to_all_bytes_per_step", self.bytesPerStep);
        visit("all_to_all_bytes_per_step_predicted", self.bytesPerStepPredicted);
        visit("homes", self.homes);
    }
};

/// Returns whether routing moved so much between the older and the newer steps that the prediction
/// can be off by more than a few percent.
[[nodiscard]] bool routingMoves(const LivePreview& preview);

struct LivePlan {
    model::Action action;  ///< kChangeLayout
    LivePreview preview;
};

struct LiveOptions {
    bool group = true;  ///< samples go to shards by their domain
    /// Shard load max/mean to be kept by the upper end of the plan's range, where one can be told;
    /// else on the counted steps. Where no plan keeps it, the one that comes nearest is taken.
    double loadCap = 1.15;
    double pricePerMove = DomainPlanOptions().pricePerMove;
    uint64_t seed = 1;
    double effort = 1;  ///< search effort, 1 is usual: so many times the groupings are tried
    /// Callbacks as in DomainPlanOptions. After the first false of goOn no other plan is begun.
    std::function<bool()> goOn;
    std::function<void(double value)> onStart;
};

/// Inputs of the planner from a running job; a value, so that a plan can be made elsewhere while
/// the job goes on.
struct LiveJob {
    uint32_t shards = 0;
    uint64_t step = 0;                    ///< of the counts
    uint64_t layout = 0;                  ///< in use
    DomainCounts counts;                  ///< of the last steps (model::ExpertView::recent)
    std::vector<DomainCounts> stretches;  ///< of which those consist, oldest first
    DomainCounts newer;  ///< of the newer half of them; no values while there are few of either
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;  ///< as in model::Action
    uint64_t expertBytes = 0;
    model::TrafficSum traffic;  ///< model::latestTraffic
    std::vector<std::string> domains;
    std::vector<uint32_t> layerNumbers;    ///< the model's own, of each mixture; empty: not told
    std::vector<model::ExpertRule> rules;  ///< that every plan for it keeps
};

/// FailedPrecondition when there is no model, no expert or no count yet.
[[nodiscard]] absl::StatusOr<LiveJob> liveJob(const model::RunState& state);

/// Estimates how much better a plan looks on the steps it is made from than it will be, as a part
/// of all copies: half of what plans made from the older or the newer steps lose on the other of
/// them, since a plan from twice as many is half as far off (to first order; it is the split-sample
/// estimate of a fit's optimism). 0 while there are few of either.
[[nodiscard]] double optimismOf(const LiveJob& job, const LiveOptions& options);

/// The planner's own; `optimism`: optimismOf where it is known already. InvalidArgument when no
/// token has been counted, and naming expert, layer and shard when the job's rules cannot be kept.
[[nodiscard]] absl::StatusOr<LivePlan> recommendPlan(const LiveJob& job, const LiveOptions& options,
                                                     std::optional<double> optimism = {});

/// Predicts the effect of `expertShard` and `domainShare`, as in model::Action. `optimism`: of the
/// plan they came from. Precondition: they fit the job.
[[nodiscard]] LivePlan planWith(const LiveJob& job, std::vector<int32_t> expertShard,
                                std::vector<uint32_t> domainShare, double optimism = 0);

/// One layer of a placement, by the job's counts.
struct LayerFigures {
    double remote = 0;         ///< copies that leave their shard, 0..1
    std::vector<double> load;  ///< [shard] copies that reach its experts, over the mean shard's
    double maxOverMean() const;
};
/// Returns the figures of every layer. The same precondition.
[[nodiscard]] std::vector<LayerFigures> layerFigures(const LiveJob& job,
                                                     const std::vector<int32_t>& expertShard,
                                                     const std::vector<uint32_t>& domainShare);

/// A plan made elsewhere: one GPU for each shard, the model's layers and experts, no redundant
/// ones; its homes name the job's domains, or are left out. InvalidArgument naming what does not
/// fit, and the expert that the job's rules want elsewhere.
[[nodiscard]] absl::StatusOr<LivePlan> planFromFile(const LiveJob& job, const Plan& plan,
                                                    const LiveOptions& options);

/// Back to where experts and samples were before the last move. FailedPrecondition as liveJob, and
/// when nothing has moved.
[[nodiscard]] absl::StatusOr<LivePlan> planBefore(const model::RunState& state);

/// Returns the backend's latest proposal. FailedPrecondition as liveJob, when it proposed nothing,
/// when experts have moved since, and when it was dismissed.
[[nodiscard]] absl::StatusOr<LivePlan> planProposed(const model::RunState& state);

}  // namespace bulkhead::planner
