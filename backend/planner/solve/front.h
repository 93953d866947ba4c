// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/place_rules.h"

namespace bulkhead::planner {

/// Goal of a plan.
enum class Objective { kBalance, kCopies, kSends, kBytes, kLatency };

/// Progress of solveFront().
struct FrontProgress {
    std::string part;   ///< "cross-validation", or the point's name
    uint32_t done = 0;  ///< plans made
    uint32_t of = 0;    ///< plans to make; more are made when the first is not the recommended one
    double best = 0;    ///< of the objective's figure, in the points so far; 0: there is none yet
    /// Part by which what the first point's searches minimise would fall with as many again
    /// (gainOfMore); -1: not known yet.
    double more = -1;
};

struct FrontOptions {
    Objective objective = Objective::kSends;
    std::string algorithm = "joint";  ///< or a baseline's name: that plan alone, beside linear
    JointOptions joint;
    StepModel step;
    double homeCap = 1.15;
    std::vector<PlaceRule> rules;  ///< hold in every point; not with joint.keepGroups
    /// Called several times a second. After the first false what is under way ends as JointOptions
    /// says, points to compare with are left out, and the rest takes one round without annealing.
    std::function<bool(const FrontProgress&)> onProgress;
};

/// One plan with all its figures, on the requests it was made from but with homes chosen from their
/// heads. What it is to be expected to do on others is its plan's forecast, which the recommended
/// one has, and the one made for just what was asked.
struct FrontPoint {
    std::string name;  ///< "sends, load 1.15"
    Plan plan;
    Outcome outcome;
    StepTime time;
    double weighedBytes = 0;  ///< a token: the objective `bytes` (link_costs.h)
    /// Node load that the range of its forecast ends at; of plans that are not made from the
    /// requests, and of those for other kinds, what they have.
    double loadEnd = 0;
    bool onFront = false;  ///< no other point is at least as good in everything shown
};

struct Front {
    std::vector<FrontPoint> points;
    size_t recommended = 0;
    std::string reason;
    bool stopped = false;  ///< by onProgress: more time would have been used
    double more = -1;      ///< as FrontProgress has it, at the end
};

/// Part by which the lowest of `values`, where searches ended, is expected to fall with as many
/// again: the lowest of n normal values is Blom's quantile (n - 3/8) / (n + 1/4) of deviations
/// below their mean. -1 for fewer than two.
[[nodiscard]] double gainOfMore(std::span<const double> values);

/// Several plans with their figures: joint ones for sends and for copies under tighter and looser
/// load caps, even load alone, and linear. Recommends the one that is best in `objective` among
/// those within the load cap and 0.01 more, or no fuller than the first, which was made for just
/// this, on its own requests and at the end of the range on others (objective balance and latency:
/// among all); of plans
/// within 0.5% of the best figure, the one whose nodes are most evenly loaded. Joint plans are
/// compared by their figures on requests not seen, as cross-validation of the first tells; where
/// linear is then better, it is recommended. InvalidArgument as solveJoint, baselinePlan,
/// crossValidate and honourPlaceRules.
[[nodiscard]] absl::StatusOr<Front> solveFront(const RoutingView& view, const Topology& topology,
                                               const FrontOptions& options);

/// A plan's figures for such a front. InvalidArgument as heldOut.
[[nodiscard]] absl::StatusOr<FrontPoint> measured(std::string name, Plan plan,
                                                  const RoutingView& view,
                                                  const FrontOptions& options);

/// Returns the figure of a point that `objective` minimises.
[[nodiscard]] double figureOf(const FrontPoint& point, Objective objective);

}  // namespace bulkhead::planner

template <>
struct bulkhead::EnumNames<bulkhead::planner::Objective> {
    static constexpr std::array<std::string_view, 5> kNames{"balance", "copies", "sends", "bytes",
                                                            "latency"};
};
