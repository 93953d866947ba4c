// SPDX-License-Identifier: Apache-2.0
// Redundant experts under each router: what evaluation says, what a server that draws each choice
// anew gets, and what the same requests cost without replicas.
#include <cmath>
#include <cstdio>
#include <optional>

#include "backend/planner/evaluate/token_router.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/random.h"
#include "bench/planner/cases.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

constexpr size_t kPlaces = 64;

/// Ranges of `view` in the order in which a server with kPlaces places gives each one token more:
/// requests come in random order and take a place when one is free.
std::vector<std::pair<uint32_t, uint64_t>> served(const RoutingView& view, Random& random) {
    std::vector<uint32_t> waiting(view.ranges.size());
    for (uint32_t r = 0; r < waiting.size(); ++r) waiting[r] = r;
    for (size_t i = waiting.size(); i > 1; --i) std::swap(waiting[i - 1], waiting[random.below(i)]);
    std::vector<std::pair<uint32_t, uint64_t>> running, made;
    while (!waiting.empty() || !running.empty()) {
        for (; running.size() < kPlaces && !waiting.empty(); waiting.pop_back())
            running.emplace_back(waiting.back(), 0);
        for (auto& [range, token] : running) made.emplace_back(range, token++);
        std::erase_if(running,
                      [&](const auto& it) { return it.second == view.ranges[it.first].tokens; });
    }
    return made;
}

/// Sends a token when so many requests are served at once and every token draws its replicas by
/// lot, as `router` does.
double simulatedSends(const Arrival& arrival, const Plan& plan, Router router, uint64_t seed) {
    const RoutingView& view = arrival.scored;
    const std::vector<uint16_t>& homes = arrival.homes;
    Random random(seed);
    const auto order = served(view, random);
    const uint32_t perNode = plan.topology.gpusPerNode(), topK = plan.shape.topK;
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    std::vector<uint16_t> ids(topK);
    double sends = 0;
    for (uint32_t layer = 0; layer < plan.shape.layers; ++layer) {
        const LayerPlan& at = plan.layers[layer];
        std::vector<std::vector<uint32_t>> nodes(plan.shape.experts);
        for (uint32_t s = 0; s < at.expertOfSlot.size(); ++s)
            nodes[at.expertOfSlot[s]].push_back(gpuOf[s] / perNode);
        std::vector<const Dispatch*> weights(plan.shape.experts, nullptr);
        for (const Dispatch& d : at.dispatch) weights[d.expert] = &d;
        const auto drawn = [&](uint32_t home, uint16_t expert) {
            const std::vector<uint32_t>& choices = nodes[expert];
            if (router == Router::kHomeFirst)
                for (uint32_t node : choices)
                    if (node == home) return home;
            if (router == Router::kStatic && weights[expert]) {
                double left = random.unit();
                for (size_t i = 0; i < choices.size(); ++i)
                    if ((left -= weights[expert]->weights[home * choices.size() + i]) <= 0)
                        return choices[i];
            }
            return choices[random.below(choices.size())];
        };
        std::optional<TokenRouter> aware;
        if (router == Router::kTokenAware) aware.emplace(plan, layer, *arrival.router);
        std::vector<uint32_t> gpus(topK);
        for (const auto& [range, token] : order) {
            const uint32_t home = homes[range];
            view.routing->readLayer(layer, view.ranges[range].firstToken + token, ids);
            uint64_t seen = uint64_t{1} << home;
            if (aware) aware->choose(home, ids, gpus);
            for (uint32_t k = 0; k < topK; ++k) {
                const uint64_t bit = uint64_t{1}
                                     << (aware ? gpus[k] / perNode : drawn(home, ids[k]));
                sends += (seen & bit) == 0;
                seen |= bit;
            }
        }
    }
    return sends / static_cast<double>(view.tokens()) / plan.shape.layers;
}

void oneModel(const Settings& settings, const std::string& folder, const std::string& name,
              Report& report) {
    const Routing routing = readRecording(settings.data + "/" + folder + "/meta.json");
    const Topology topology = flatTopology(4, 2);
    const RoutingView train = everySecond(wholeOf(routing), false),
                      test = everySecond(wholeOf(routing), true);
    const auto solved = [&](uint32_t redundant, Router router, double cap) {
        JointOptions joint;
        joint.effort = settings.effort;
        joint.seed = settings.seed;
        joint.redundant = redundant;
        joint.router = router;
        joint.loadCap = cap;
        return solveJoint(train, topology, joint).value();
    };
    const uint32_t redundant = routing.shape().experts / 8;
    const double without =
        heldOut(test, solved(0, Router::kStatic, 1.15), {}).value().outcome.sendsPerToken;
    for (const Router router :
         {Router::kTokenAware, Router::kStatic, Router::kHomeFirst, Router::kUniform}) {
        const bool aware = router == Router::kTokenAware;
        const Plan plan = solved(redundant, router, aware ? 1.08 : 1.15);
        const HeldOut held = heldOut(test, plan, {}).value();
        const double promised = held.outcome.sendsPerToken;
        const double simulated =
            simulatedSends(arrive(test, plan, {}).value(), plan, router, settings.splitSeed);
        const double blind =
            heldOut(test, solved(redundant, Router::kTokenAware, 1.08), {.router = router})
                .value()
                .outcome.sendsPerToken;
        const std::string what = name + ", 12.5% redundant, " + std::string(enumName(router));
        std::printf(
            "%s: sends %.3f, simulated %.3f, made for another router %.3f, without "
            "replicas %.3f, load %.3f\n",
            what.c_str(), promised, simulated, blind, without, held.outcome.nodeLoadMaxOverMean);
        std::fflush(stdout);
        report.row({what, "held out", number(promised, 3), number(held.outcome.copiesPerToken, 3),
                    number(held.outcome.nodeLoadMaxOverMean, 3), "", "", number(without, 3), ""});
        report.atMost(what + ": simulated less promised sends, either way",
                      100 * std::abs(simulated / promised - 1), 1, "%");
        report.atMost(what + ": sends against those without replicas", promised / without, 1.005,
                      "x");
    }
}

}  // namespace

void routerCases(const Settings& settings, Report& report) {
    for (const auto& [folder, name] : {std::pair("esft", "ESFT"), std::pair("gptoss", "GPT-OSS")})
        if (settings.model.empty() || settings.model == folder)
            oneModel(settings, folder, name, report);
}

}  // namespace bulkhead::bench
