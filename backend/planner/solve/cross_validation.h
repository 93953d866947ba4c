// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/routing_view.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"

/// Cross-validation of a planning method on held-out requests. Pure; any thread.
namespace bulkhead::planner {

/// A plan from a part of a recording's requests.
using PlanMaker = std::function<absl::StatusOr<Plan>(const RoutingView&)>;

/// Part of the usual effort with which a fold's plan is searched for: what it loses by that is lost
/// on the requests it is made from as well.
inline constexpr double kFoldEffort = 0.25;

struct CrossValidationOptions {
    HeldOutOptions homes;
    uint32_t folds = 4;  ///< at least 2
    /// The forecast is for any of these: its range goes from the lowest to the highest end of
    /// theirs, its mean is that of the mixture with most. Empty: for requests that come by lot, as
    /// JointOptions::mixtures.
    std::vector<Mixture> mixtures;
    /// The forecast is for kinds of requests that were not recorded: a fold is a domain, and the
    /// range is one over domains. At least three of them.
    bool otherKinds = false;
    uint64_t seed = 1;
};

/// Scores of every fold of the requests under a plan that was made without it.
struct CrossValidation {
    /// A request, several that stand beside each other where there are many, or a stretch of one
    /// where there are few; scored by the plan that was made without it.
    struct Block {
        double tokens = 0;
        double sends = 0, copies = 0;  ///< of all its tokens, mean over layers
    };
    std::vector<Block> blocks;       ///< those of a kind (byKind) beside each other
    std::vector<uint32_t> kinds;     ///< [block]
    std::vector<uint32_t> recorded;  ///< blocks in the order in which they were recorded
    uint32_t folds = 0;
    bool byTime = false;
    /// So much more, a token, than on the requests that the fold's plan was made from.
    double moreSends = 0, moreCopies = 0;
    LoadGap node, gpu;
    std::vector<FourFigures<double>> left;  ///< [fold] of what was left out, by its plan
};

/// FailedPrecondition when the recording is too small to leave a part of it out; otherwise as
/// `make` and heldOut().
[[nodiscard]] absl::StatusOr<CrossValidation> crossValidate(const RoutingView& view,
                                                            const PlanMaker& make,
                                                            const CrossValidationOptions& options);

/// Predicts the scores of `plan`, made from all of `view` in the way that was validated, on as many
/// requests like these; of fewer than kFewRanges blocks nothing but what is possible. Errors as
/// heldOut().
[[nodiscard]] absl::StatusOr<Forecast> forecastOf(const RoutingView& view, const Plan& plan,
                                                  const CrossValidation& validated,
                                                  const CrossValidationOptions& options);

/// solveJoint(), first on folds at less effort, whose load gap is that of the plan from all of
/// `view`; with its forecast. `homes.sends` and `.copies` are those of `joint`.
/// Errors as solveJoint() and crossValidate().
[[nodiscard]] absl::StatusOr<Plan> solveForecast(const RoutingView& view, const Topology& topology,
                                                 const JointOptions& joint,
                                                 const CrossValidationOptions& options);

}  // namespace bulkhead::planner
