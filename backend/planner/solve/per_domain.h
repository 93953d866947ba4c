// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/evaluate/migration.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"

/// Compares a shared plan with plans for single domains, for a server that gets one domain's
/// requests for a while. Pure; any thread.
namespace bulkhead::planner {

struct PerDomainOptions {
    JointOptions joint;
    StepModel step;
    double leastGain = 0.02;  ///< part of a step's time that a plan of its own must save
};

/// A plan on one domain's held-out requests, when nothing else is served.
struct DomainJudgement {
    Outcome outcome;
    StepTime time;
};

struct DomainPlanGain {
    std::string domain;
    uint64_t tokens = 0;  ///< its plan was made from
    DomainJudgement shared, own;
    Plan plan;  ///< its own
    bool worth = false;
    std::string reason;
    /// Part of a step's time that its own plan saves, and of the sends; below 0: costs.
    double gain() const;
    double sendsGain() const;
    /// Steps of StepModel::tokens after which the switch from the shared plan has paid; -1: never.
    double paysAfterSteps(const Migration& fromShared) const;
};

struct PerDomain {
    Plan shared;
    std::vector<DomainPlanGain> domains;
    /// [from][to]: 0 is the shared plan, 1 + d that of domain d.
    std::vector<std::vector<Migration>> switches;
};

/// Plans from every second request of each domain and scores on the others, as heldOut() does: one
/// shared plan, and one for each domain alone. Nodes of a domain's plan are numbered so that it
/// shares as many experts as can be with the shared one, where all nodes are equally far apart.
/// InvalidArgument as solveJoint and heldOut, when there are fewer than two domains, and naming the
/// domain that has fewer than two requests.
[[nodiscard]] absl::StatusOr<PerDomain> solvePerDomain(const Routing& routing,
                                                       const Topology& topology,
                                                       const PerDomainOptions& options);

}  // namespace bulkhead::planner
