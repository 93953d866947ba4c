// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/held_out.h"

#include "absl/strings/str_cat.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/joint.h"

namespace bulkhead::planner {

namespace {
constexpr uint64_t kMostIds = 64'000'000;  ///< held at once to choose homes from
constexpr uint64_t kReroutes = 60'000;     ///< proposals a layer
constexpr double kAimLower = 0.02;         ///< prefixes tell the rest's load only so well
}  // namespace

Plan withDispatchFor(Plan plan, const TokenSample& sample, const std::vector<uint16_t>& homes,
                     double sends, double copies, double loadCap) {
    const uint32_t nodes = plan.topology.nodes(), experts = plan.shape.experts;
    if (plan.slots() == experts || plan.slots() % nodes != 0 || nodes > 255) return plan;
    const NodeRoutes routes = routesOf(plan);
    std::vector<uint32_t> nodeOfSlot = gpuOfSlots(plan.firstSlot);
    for (uint32_t& gpu : nodeOfSlot) gpu /= plan.topology.gpusPerNode();
    Random random(1);
    for (uint32_t layer = 0; layer < plan.shape.layers; ++layer) {
        LayerProblem problem{
            nodes, experts, sample.topK, sample.ids[layer], {}, std::vector<double>(experts, 0)};
        for (uint32_t range : sample.range) problem.home.push_back(homes[range]);
        for (uint16_t id : problem.ids) problem.load[id] += 1;
        LayerSearch search(problem, {sends, copies, loadCap, sends + copies, 0},
                           nodePlacementOf(plan, layer, routes.layers[layer]));
        search.reroute(kReroutes, random);
        const std::vector<uint8_t>& route = search.placement().route;
        plan.layers[layer].dispatch =
            dispatchFor({route.begin(), route.end()}, plan.layers[layer].expertOfSlot, nodeOfSlot,
                        experts, nodes);
    }
    return plan;
}

absl::StatusOr<HeldOut> heldOut(const RoutingView& view, const Plan& plan,
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
    HeldOut made;
    made.scored = tailOf(long_, options.prefix);
    if (made.scored.tokens() == 0)
        return absl::InvalidArgumentError("no request has a token after its prefix to score");
    std::vector<double> tokens;
    for (const TokenRange& range : made.scored.ranges)
        tokens.push_back(static_cast<double>(range.tokens));
    const TokenSample heads =
        sampleOf(headOf(long_, options.prefix), kMostIds / (uint64_t{shape.layers} * shape.topK));
    made.homes =
        chooseHomes(heads, routesOf(plan), tokens, options.sends, options.copies, options.homeCap);
    const bool adapts = options.adaptDispatch && plan.origin.loadCap > 0;
    const Plan used = adapts ? withDispatchFor(plan, heads, made.homes, options.sends,
                                               options.copies, plan.origin.loadCap - kAimLower)
                             : plan;
    auto layers = evaluateLayers(made.scored, used, made.homes);
    if (!layers.ok()) return layers.status();
    made.layers = std::move(*layers);
    made.outcome = summarise(made.layers, made.scored, plan, made.homes, plan.origin.bytesPerCopy);
    made.outcome.bytesAssumed = made.outcome.bytesAssumed || plan.origin.bytesAssumed;
    return made;
}

}  // namespace bulkhead::planner
