// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/model/command.h"
#include "backend/model/run_state.h"
#include "backend/planner/plan/plan.h"

/// Plans for a running job, from what it says of itself. Pure: state in, action out; the shards of
/// a replica stand for the planner's nodes. Thread: any.
namespace bulkhead::planner {

/// Where one domain's samples are computed.
struct DomainHomeRow {
    std::string domain;
    std::vector<double> share;  ///< [shard]; sums to 1
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("domain", self.domain);
        visit("share", self.share);
    }
};

/// What a plan would do to the job, before it is done. Shares of copies are 0..1, -1 where unknown.
struct LivePreview {
    uint64_t step = 0;    ///< of the counts
    uint64_t layout = 0;  ///< in use
    uint64_t expertsMoved = 0;
    uint64_t experts = 0;         ///< of all layers
    uint64_t bytesMoved = 0;      ///< in each replica, between its shards
    double remoteMeasured = -1;   ///< of the layout in use, its last steps
    double remoteNow = -1;        ///< what the counts say of the layout in use
    double remotePredicted = -1;  ///< ... and of the plan
    double bytesPerStep = -1;     ///< all-to-all of all replicas, measured over the same steps
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
        visit("remote_predicted", self.remotePredicted);
        visit("all_to_all_bytes_per_step", self.bytesPerStep);
        visit("all_to_all_bytes_per_step_predicted", self.bytesPerStepPredicted);
        visit("homes", self.homes);
    }
};

struct LivePlan {
    model::Action action;  ///< kChangeLayout
    LivePreview preview;
};

struct LiveOptions {
    bool group = true;  ///< samples go to shards by their domain
    double loadCap = 1.15;
    uint64_t seed = 1;
};

/// The planner's own, from the running counts of the job. FailedPrecondition when there is no
/// model, no expert or no count yet.
[[nodiscard]] absl::StatusOr<LivePlan> recommendPlan(const model::RunState& state,
                                                     const LiveOptions& options);

/// A plan made elsewhere: one GPU for each shard, the model's layers and experts, no redundant
/// ones; its homes name the job's domains, or are left out. InvalidArgument naming what does not
/// fit.
[[nodiscard]] absl::StatusOr<LivePlan> planFromFile(const model::RunState& state, const Plan& plan,
                                                    const LiveOptions& options);

/// Back to where experts and samples were before the last move. FailedPrecondition when nothing has
/// moved.
[[nodiscard]] absl::StatusOr<LivePlan> planBefore(const model::RunState& state);

}  // namespace bulkhead::planner
