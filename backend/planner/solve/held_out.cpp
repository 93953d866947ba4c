// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/held_out.h"

#include "absl/strings/str_cat.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/link_costs.h"

namespace bulkhead::planner {

namespace {
constexpr uint64_t kMostIds = 64'000'000;  ///< held at once to choose homes from
constexpr double kAim = 0.3;  ///< part of the load above the mean that the router lets pass free
}  // namespace

bool weighsLinks(std::string_view objective) {
    return objective == "bytes" || objective == "latency";
}

HeldOutOptions homesFor(std::string_view objective, double prefix, double homeCap) {
    const bool copies = objective == "copies";
    return {prefix, homeCap, copies ? 0.0 : 1.0, copies ? 1.0 : 0.02};
}

absl::StatusOr<Arrival> arrive(const RoutingView& view, const Plan& plan,
                               const HeldOutOptions& options) {
    const ModelShape& shape = view.routing->shape();
    if (shape.layers != plan.shape.layers || shape.experts != plan.shape.experts)
        return absl::InvalidArgumentError(
            absl::StrCat("the plan is for ", plan.shape.layers, " layers of ", plan.shape.experts,
                         " experts, the recording has ", shape.layers, " of ", shape.experts));
    if (!(options.prefix > 0 && options.prefix < 1))
        return absl::InvalidArgumentError("the prefix must be more than 0 and less than 1");
    RoutingView long_ = view;
    std::erase_if(long_.ranges, [](const TokenRange& range) { return range.tokens < 2; });
    Arrival made;
    const Router router = options.router.value_or(plan.origin.router);
    made.plan = dispatchedBy(plan, router);
    made.scored = tailOf(long_, options.prefix);
    if (made.scored.tokens() == 0)
        return absl::FailedPreconditionError("no request has a token after its prefix to score");
    std::vector<double> tokens;
    for (const TokenRange& range : made.scored.ranges)
        tokens.push_back(static_cast<double>(range.tokens));
    const TokenSample heads =
        sampleOf(headOf(long_, options.prefix), kMostIds / (uint64_t{shape.layers} * shape.topK));
    const std::vector<double> costs =
        weighsLinks(plan.origin.objective) ? unevenLinkCosts(plan.topology) : std::vector<double>();
    made.homes = chooseHomes(heads, routesOf(made.plan), tokens, options.sends, options.copies,
                             options.homeCap, costs);
    if (router == Router::kTokenAware && plan.origin.loadCap > 0)
        made.router = {options.sends, options.copies, 1 + kAim * (plan.origin.loadCap - 1)};
    return made;
}

absl::StatusOr<HeldOut> heldOut(const RoutingView& view, const Plan& plan,
                                const HeldOutOptions& options) {
    auto arrival = arrive(view, plan, options);
    if (!arrival.ok()) return arrival.status();
    auto layers = evaluateLayers(arrival->scored, arrival->plan, arrival->homes, arrival->router);
    if (!layers.ok()) return layers.status();
    HeldOut made{std::move(arrival->scored), std::move(arrival->homes), std::move(*layers), {}};
    made.outcome = summarise(made.layers, made.scored, plan, made.homes, plan.origin.bytesPerCopy);
    made.outcome.bytesAssumed = made.outcome.bytesAssumed || plan.origin.bytesAssumed;
    return made;
}

}  // namespace bulkhead::planner
