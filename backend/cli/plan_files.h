// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/cli/cli.h"
#include "backend/cli/plan_routing.h"
#include "backend/planner/plan/plan.h"
#include "backend/planner/solve/front.h"
#include "backend/planner/solve/replan.h"

/// Code shared by the verbs of `bulkheadctl plan`: the planner's values in files, and its refusals.
namespace bulkhead::cli {

/// Options common to all of them; each verb reads its own part.
struct PlanOptions {
    RoutingArguments recording;
    std::string plan, against, current, out, topology;
    std::string objective = "sends", algorithm = "joint", router, engine, mix;
    double timeLimit = 0;  ///< seconds; 0: none
    uint32_t nodes = 0, gpusPerNode = 8, redundant = 0;
    double loadCap = 0, homeCap = 1.15, prefix = 0.3, effort = 1, rate = 50, confidence = 0.9;
    uint64_t seed = 1;
    std::vector<std::string> pins, forbids;  ///< LAYER:EXPERT=gpuN or =nodeN
    bool keepGroups = false, perDomain = false, simulate = false;
};

/// Prints the refusal; the exit code.
int refusePlan(const Cli& cli, const std::string& title, const absl::Status& status,
               const std::string& remedy);

absl::StatusOr<planner::Plan> readPlan(const std::string& path);
absl::Status writePlan(const planner::Plan& plan, const std::string& path);
/// Tells before a search whether writePlan() could write to --out; Ok without one.
absl::Status checkOut(const std::string& out);
/// Prints why `status`, of checkOut() or writePlan(), is no success; the exit code.
int refuseOut(const Cli& cli, const absl::Status& status);
/// Writes the recording as this project's own JSON Lines.
absl::Status writeRecording(const planner::Recording& recording, const std::string& path);
/// A recording that has every token's experts; drawn where there are counts only, which `source`
/// and `tokensDrawn` then say.
client::Result<planner::Recording> readOrDrawTokens(const PlanOptions& options);
/// The same of a recording that was read.
client::Result<planner::Recording> orDrawTokens(planner::Recording recording, uint64_t seed);
/// From --topology (a built-in name or a TOML file), else --nodes and --gpus-per-node.
absl::StatusOr<planner::Topology> chosenTopology(const PlanOptions& options);

/// `plan solve --per-domain`.
int solveByDomain(const Cli& cli, const PlanOptions& options, const planner::Routing& routing,
                  const planner::Topology& topology, const planner::JointOptions& joint);
/// A plan that moves only what pays, beside the one in use.
struct Replanned {
    planner::Replan made;                     ///< with its forecast
    std::vector<planner::FrontPoint> points;  ///< in use, after
};
/// A plan from `current` towards the load that the recording's tokens ask for, of `wanted` what a
/// new plan near the old one has a use for. InvalidArgument as replan() and crossValidate().
absl::StatusOr<Replanned> replannedFrom(const planner::Plan& current, const PlanOptions& options,
                                        const planner::Recording& recording,
                                        const planner::FrontOptions& wanted);
/// `plan solve --current`; of `wanted` what a new plan near the old one has a use for.
int solveFromCurrent(const Cli& cli, const PlanOptions& options,
                     const planner::Recording& recording, const planner::FrontOptions& wanted);

/// One for each verb.
void addPlanSolve(CLI::App& plan, Cli& cli);
void addPlanEvaluate(CLI::App& plan, Cli& cli);
void addPlanDiff(CLI::App& plan, Cli& cli);
/// preview, apply, rollback, rules, dismiss, history: of a running job.
void addPlanLive(CLI::App& plan, Cli& cli);
void addPlanCapture(CLI::App& plan, Cli& cli);
void addPlanWatch(CLI::App& plan, Cli& cli);

}  // namespace bulkhead::cli
