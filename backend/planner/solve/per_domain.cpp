// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/per_domain.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/planner/solve/link_costs.h"
#include "backend/planner/solve/numbering.h"
#include "backend/planner/solve/place_rules.h"

namespace bulkhead::planner {
namespace {

/// Every second request of each domain by itself, so that all have their share in both halves.
struct Halves {
    std::vector<RoutingView> planned, scored;  ///< [domain]
    RoutingView all;                           ///< planned, of all domains
};

absl::StatusOr<Halves> halvesOf(const Routing& routing) {
    Halves halves;
    halves.all.routing = &routing;
    for (uint32_t d = 0; d < routing.domains().size(); ++d) {
        const RoutingView view = domainOf(routing, d);
        if (view.ranges.size() < 2)
            return absl::InvalidArgumentError(
                absl::StrCat("domain \"", routing.domains()[d], "\" has ", view.ranges.size(),
                             " requests; expected at least 2, one to plan from and one to score"));
        halves.planned.push_back(everySecond(view, false));
        halves.scored.push_back(everySecond(view, true));
        const auto& ranges = halves.planned.back().ranges;
        halves.all.ranges.insert(halves.all.ranges.end(), ranges.begin(), ranges.end());
    }
    std::sort(halves.all.ranges.begin(), halves.all.ranges.end(),
              [](const TokenRange& a, const TokenRange& b) { return a.request < b.request; });
    return halves;
}

absl::StatusOr<Plan> planFor(const RoutingView& view, const Topology& topology,
                             const PerDomainOptions& options) {
    auto plan = solveJoint(view, topology, options.joint);
    if (!plan.ok()) return plan;
    if (options.joint.redundant > 0) partReplicas(*plan, countsOf(view));
    const CopyBytes bytes = copyBytes(plan->shape);
    plan->origin.bytesPerCopy = bytes.bytes;
    plan->origin.bytesAssumed = bytes.assumed;
    return plan;
}

absl::StatusOr<DomainJudgement> judge(const RoutingView& view, const Plan& plan,
                                      const PerDomainOptions& options) {
    const JointOptions& joint = options.joint;
    auto held = heldOut(view, plan, {joint.prefix, joint.homeCap, joint.sends, joint.copies});
    if (!held.ok()) return held.status();
    StepModel step = options.step;
    step.bytesPerCopy = plan.origin.bytesPerCopy;
    return DomainJudgement{held->outcome, predictStep(held->layers, plan, step)};
}

void conclude(DomainPlanGain& gain, const Migration& fromShared, double least) {
    const double saved = gain.gain(), sends = gain.sendsGain();
    gain.worth = saved > 0 && saved >= least;
    const std::string what = absl::StrFormat(
        "its own %s %.1f%% of a step, with %.1f%% %s sends and node load %.2f instead of %.2f",
        saved < 0 ? "costs" : "saves", std::abs(saved) * 100, std::abs(sends) * 100,
        sends < 0 ? "more" : "fewer", gain.own.outcome.nodeLoadMaxOverMean,
        gain.shared.outcome.nodeLoadMaxOverMean);
    if (gain.worth)
        gain.reason = absl::StrFormat("%s; the switch has paid after %.0f steps", what,
                                      std::ceil(gain.paysAfterSteps(fromShared)));
    else
        gain.reason = absl::StrFormat(
            "keep the shared plan: %s%s", what,
            saved < 0 ? "" : absl::StrFormat(", less than the %.1f%% asked for", least * 100));
}

}  // namespace

double DomainPlanGain::gain() const {
    const double was = shared.time.stepSeconds;
    return was > 0 ? (was - own.time.stepSeconds) / was : 0;
}

double DomainPlanGain::sendsGain() const {
    const double was = shared.outcome.sendsPerToken;
    return was > 0 ? (was - own.outcome.sendsPerToken) / was : 0;
}

double DomainPlanGain::paysAfterSteps(const Migration& fromShared) const {
    const double saved = shared.time.stepSeconds - own.time.stepSeconds;
    return saved > 0 ? fromShared.seconds / saved : -1;
}

absl::StatusOr<PerDomain> solvePerDomain(const Routing& routing, const Topology& topology,
                                         const PerDomainOptions& options) {
    if (routing.domains().size() < 2)
        return absl::InvalidArgumentError(
            "the recording has one domain; a plan for each domain needs two or more");
    auto halves = halvesOf(routing);
    if (!halves.ok()) return halves.status();
    auto shared = planFor(halves->all, topology, options);
    if (!shared.ok()) return shared.status();
    PerDomain made{*std::move(shared), {}, {}};
    for (uint32_t d = 0; d < routing.domains().size(); ++d) {
        DomainPlanGain gain;
        gain.domain = routing.domains()[d];
        gain.tokens = halves->planned[d].tokens();
        auto own = planFor(halves->planned[d], topology, options);
        if (!own.ok()) return own.status();
        // Only where names of nodes mean nothing may they be exchanged.
        gain.plan =
            unevenLinkCosts(topology).empty() ? numberedLike(made.shared, *own) : *std::move(own);
        for (auto [plan, to] : {std::pair(&made.shared, &gain.shared), {&gain.plan, &gain.own}}) {
            auto judged = judge(halves->scored[d], *plan, options);
            if (!judged.ok()) return judged.status();
            *to = *std::move(judged);
        }
        made.domains.push_back(std::move(gain));
    }
    std::vector<const Plan*> plans{&made.shared};
    for (const DomainPlanGain& gain : made.domains) plans.push_back(&gain.plan);
    for (const Plan* from : plans) {
        made.switches.emplace_back();
        for (const Plan* to : plans) {
            auto migration = migrationBetween(*from, *to);
            if (!migration.ok()) return migration.status();
            made.switches.back().push_back(*migration);
        }
    }
    for (size_t d = 0; d < made.domains.size(); ++d)
        conclude(made.domains[d], made.switches[0][d + 1], options.leastGain);
    return made;
}

}  // namespace bulkhead::planner
