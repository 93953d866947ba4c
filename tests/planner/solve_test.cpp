// SPDX-License-Identifier: Apache-2.0
// Whole plans on made requests: figures that can be told by hand, plans that are better than what
// they are compared with, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/import/import.h"
#include "backend/planner/plan/plan_json.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/drawn_routing.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/front.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/link_costs.h"
#include "backend/planner/solve/replan.h"
#include "backend/planner/solve/simulate.h"
#include "tests/planner/made_routing.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

/// Four domains with experts of their own: a placement and homes to find.
MadeOptions fourDomains(uint32_t requests) {
    MadeOptions made;
    made.experts = 32;
    made.topK = 4;
    made.domains = 4;
    made.requests = requests;
    return made;
}

/// 4 experts, top-2, one layer, linear on 2 nodes of 1 GPU (or 1 of 2): node 0 has experts 0 and 1.
Routing byHand() {
    ModelShape shape;
    shape.layers = 1;
    shape.experts = 4;
    shape.topK = 2;
    shape.hidden = 100;
    auto builder = RoutingBuilder::create(shape).value();
    builder.beginRequest("a", "a");
    EXPECT_TRUE(builder.addTokens(std::vector<uint16_t>{0, 1, 2, 3, 0, 2, 1, 3}).ok());
    return builder.finish().value();
}

TEST(Evaluate, countsWhatCanBeCountedByHand) {
    const Routing routing = byHand();
    const RoutingView view = wholeOf(routing);
    const Plan plan = baselinePlan("linear", view, flatTopology(2, 1), 0).value();
    const auto outcome = evaluate(view, plan, std::vector<uint16_t>{0});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    // Remote copies from node 0: 0, 2, 1, 1. Sends: 0, 1, 1, 1.
    EXPECT_DOUBLE_EQ(outcome->copiesPerToken, 1.0);
    EXPECT_DOUBLE_EQ(outcome->sendsPerToken, 0.75);
    EXPECT_DOUBLE_EQ(outcome->nodeLoadMaxOverMean, 1.0);
    EXPECT_DOUBLE_EQ(outcome->homeLoadMaxOverMean, 2.0);
    EXPECT_DOUBLE_EQ(outcome->bytesPerCopy, 200);
    EXPECT_DOUBLE_EQ(outcome->bytesByLevel[1].copies, 200);
    EXPECT_DOUBLE_EQ(outcome->bytesByLevel[1].sends, 150);
    EXPECT_DOUBLE_EQ(outcome->bytesByLevel[0].copies, 0);
}

TEST(Evaluate, insideAHostBytesCrossTheHostLevel) {
    const Routing routing = byHand();
    const RoutingView view = wholeOf(routing);
    const Plan plan = baselinePlan("linear", view, flatTopology(1, 2), 0).value();
    const auto outcome = evaluate(view, plan, std::vector<uint16_t>{0});
    ASSERT_TRUE(outcome.ok());
    EXPECT_DOUBLE_EQ(outcome->copiesPerToken, 0);
    EXPECT_DOUBLE_EQ(outcome->bytesByLevel[0].copies, 200);
    EXPECT_DOUBLE_EQ(outcome->bytesByLevel[0].sends, 150);
}

TEST(Evaluate, dispatchWeightsShareAnExpertOut) {
    const Routing routing = byHand();
    const RoutingView view = wholeOf(routing);
    Plan plan = baselinePlan("linear", view, flatTopology(2, 1), 2).value();
    plan.layers[0].expertOfSlot = {0, 1, 2, 2, 3, 0};
    plan.layers[0].dispatch = {{0, {0, 5}, {0, 1, 1, 0}}, {2, {2, 3}, {1, 0, 0, 1}}};
    ASSERT_TRUE(checkPlan(plan).ok()) << checkPlan(plan);
    const auto outcome = evaluate(view, plan, std::vector<uint16_t>{0});
    // Expert 0 is fetched from node 1 by weight, expert 2 at home: remote copies 1, 1, 1, 1.
    EXPECT_DOUBLE_EQ(outcome->copiesPerToken, 1.0);
    EXPECT_DOUBLE_EQ(outcome->sendsPerToken, 1.0);
}

/// Experts 0 and 2 live on both nodes, 1 on node 0, 3 on node 1; one GPU a node.
Plan twoShared() {
    Plan plan;
    plan.shape = byHand().shape();
    plan.topology = flatTopology(2, 1);
    plan.firstSlot = {0, 3, 6};
    plan.layers.push_back({{0, 1, 2, 2, 3, 0}, {}});
    return plan;
}

TEST(Router, takesAReplicaWhereTheTokenGoesAnyway) {
    TokenRouter router(twoShared(), 0, {1, 0.02, 1.03, 0});
    std::vector<uint32_t> gpus(2);
    router.choose(0, std::vector<uint16_t>{0, 2}, gpus);  // both at home
    EXPECT_EQ(gpus, (std::vector<uint32_t>{0, 0}));
    router.choose(0, std::vector<uint16_t>{0, 3}, gpus);  // home costs a copy less than node 1
    EXPECT_EQ(gpus, (std::vector<uint32_t>{0, 1}));
}

TEST(Router, aFullNodeGivesAwayWhatCostsNoSend) {
    TokenRouter router(twoShared(), 0, {1, 0.02, 1.03, 5});
    std::vector<uint32_t> gpus(2);
    for (int i = 0; i < 10; ++i) router.choose(0, std::vector<uint16_t>{0, 1}, gpus);
    router.choose(0, std::vector<uint16_t>{2, 3}, gpus);  // node 1 is visited for expert 3
    EXPECT_EQ(gpus, (std::vector<uint32_t>{1, 1}));
}

TEST(Evaluate, aRouterEvensOutNodesAndSendsLessThanFixedWeights) {
    MadeOptions made = fourDomains(40);
    made.domains = 3;
    const Routing routing = madeRouting(made);
    JointOptions joint;
    joint.effort = 0.2;
    joint.redundant = 4;
    joint.loadCap = 1.08;
    const Plan plan =
        solveJoint(everySecond(wholeOf(routing), false), flatTopology(4, 2), joint).value();
    HeldOutOptions options;
    const RoutingView unseen = everySecond(wholeOf(routing), true);
    const Outcome routed = heldOut(unseen, plan, options).value().outcome;
    options.routeTokens = false;
    const Outcome fixed = heldOut(unseen, plan, options).value().outcome;
    EXPECT_LT(routed.sendsPerToken, fixed.sendsPerToken);
    EXPECT_LT(routed.nodeLoadMaxOverMean, fixed.nodeLoadMaxOverMean);
    EXPECT_EQ(routed.tokens, fixed.tokens);
}

TEST(Latency, followsAlphaBetaAndPadding) {
    const Topology t = flatTopology(2, 8);
    const std::vector<double> load{0, 10, 30, 0};
    const ExchangeTime time = exchangeTime(load, t, 1000);
    EXPECT_NEAR(time.plain, 6e-6 + 30 * 1000 / (50e9 * 8), 1e-15);
    EXPECT_NEAR(time.padded, 6e-6 + 30 * 1000 / (50e9 * 8), 1e-15);
    const ExchangeTime three =
        exchangeTime(std::vector<double>{0, 30, 10, 0, 0, 0, 0, 0, 0}, flatTopology(3, 8), 1000);
    EXPECT_NEAR(three.plain, 6e-6 + 40 * 1000 / (50e9 * 8), 1e-15);
    EXPECT_NEAR(three.padded, 6e-6 + 60 * 1000 / (50e9 * 8), 1e-15);
}

class Baseline : public testing::TestWithParam<std::string> {};

TEST_P(Baseline, placesEveryExpertInEveryShape) {
    for (const auto& [experts, nodes, gpus, redundant] : std::vector<std::array<uint32_t, 4>>{
             {16, 2, 2, 0}, {16, 4, 1, 4}, {12, 3, 4, 3}, {8, 2, 8, 0}}) {
        MadeOptions made;
        made.experts = experts;
        const Routing routing = madeRouting(made);
        const auto plan =
            baselinePlan(GetParam(), wholeOf(routing), flatTopology(nodes, gpus), redundant);
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_TRUE(checkPlan(*plan).ok()) << checkPlan(*plan) << experts << " " << nodes;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Baseline, testing::ValuesIn([] {
                             std::vector<std::string> names;
                             for (const auto& n : baselineNames()) names.emplace_back(n.name);
                             return names;
                         }()),
                         [](const auto& info) { return info.param; });

TEST(Joint, findsDomainsAndTheirExperts) {
    MadeOptions made = fourDomains(40);
    made.layers = 3;
    made.own = 0.9;
    const Routing routing = madeRouting(made);
    JointOptions options;
    options.effort = 0.2;
    for (const uint32_t redundant : {0u, 4u}) {
        options.redundant = redundant;
        const auto plan = solveJoint(wholeOf(routing), flatTopology(4, 2), options);
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_TRUE(checkPlan(*plan).ok()) << checkPlan(*plan);
        EXPECT_EQ(formatPlan(*plan),
                  formatPlan(*solveJoint(wholeOf(routing), flatTopology(4, 2), options)));
        const auto ours = heldOut(wholeOf(routing), *plan, {});
        const auto linear =
            heldOut(wholeOf(routing),
                    baselinePlan("linear", wholeOf(routing), flatTopology(4, 2), 0).value(), {});
        ASSERT_TRUE(ours.ok());
        EXPECT_LT(ours->outcome.copiesPerToken, 0.5 * linear->outcome.copiesPerToken);
        EXPECT_LT(ours->outcome.sendsPerToken, 0.6 * linear->outcome.sendsPerToken);
        EXPECT_LE(ours->outcome.homeLoadMaxOverMean, 1.15 + 1e-9);
    }
}

/// Requests of one layer that use one expert each, at home on node 0; expert e lives on node e.
TEST(ExpectedLoad, growsWithWhatRequestsOfADomainDifferIn) {
    const uint32_t requests = 40;
    TokenSample sample{2, 1, {{}}, {}, std::vector<double>(requests, 1)};
    std::vector<uint32_t> oneDomain(requests, 0), byExpert;
    for (uint32_t r = 0; r < requests; ++r) {
        sample.ids[0].push_back(static_cast<uint16_t>(r % 2));
        sample.range.push_back(r);
        byExpert.push_back(r % 2);
    }
    const NodeRoutes routes{2, 2, {{0, 1}}};
    const std::vector<uint16_t> homes(requests, 0);
    // 20 of 40 draws, each a coin: max/mean is 1 + E|heads - tails| / 20, about 1 + 0.8 / sqrt(20).
    const double varied = expectedNodeLoad(sample, routes, homes, oneDomain, 1);
    EXPECT_NEAR(varied, 1.18, 0.05);
    EXPECT_EQ(varied, expectedNodeLoad(sample, routes, homes, oneDomain, 1));
    // Where the domain says which expert a request uses, its share stays what it is.
    EXPECT_DOUBLE_EQ(expectedNodeLoad(sample, routes, homes, byExpert, 1), 1.0);
}

TEST(LeastLoad, isWhatTheHeaviestAndTheLightestMakeTogether) {
    EXPECT_DOUBLE_EQ(leastNodeLoad({1, 10, 1, 1}, 2), 11 / 6.5);
    EXPECT_DOUBLE_EQ(leastNodeLoad({1, 1, 1, 1}, 2), 1);
    EXPECT_DOUBLE_EQ(leastNodeLoad({0, 0, 0, 0}, 2), 1);
    // Three heavy ones on two nodes are more than the heaviest alone says; no bound knows all.
    EXPECT_LE(leastNodeLoad({5, 5, 5, 0}, 2), 10 / 7.5);
}

TEST(LeastLoad, noPlacementIsBelowIt) {
    Random random(4);
    for (int round = 0; round < 50; ++round) {
        std::vector<double> load(6);
        for (double& x : load) x = std::pow(random.unit(), 4);
        const double sum = std::accumulate(load.begin(), load.end(), 0.0);
        std::vector<uint32_t> nodeOf{0, 0, 1, 1, 2, 2};
        double best = INFINITY;
        do {
            double node[3] = {};
            for (size_t e = 0; e < 6; ++e) node[nodeOf[e]] += load[e];
            best = std::min(best, *std::max_element(node, node + 3) * 3 / sum);
        } while (std::next_permutation(nodeOf.begin(), nodeOf.end()));
        EXPECT_LE(leastNodeLoad(load, 3), best + 1e-12);
    }
}

/// One expert of the first layer is so popular that its node cannot be kept under the cap; the
/// second layer is to have the load that it would have had without the first.
TEST(Joint, aLayerWhoseCapCannotBeKeptDoesNotCostTheOthers) {
    const auto loads = [](bool popular) {
        MadeOptions made = fourDomains(60);
        made.own = 0.95;
        const Routing plain = madeRouting(made);
        auto builder = RoutingBuilder::create(plain.shape()).value();
        for (size_t r = 0; r < plain.requests().size(); ++r) {
            const Request& request = plain.requests()[r];
            if (request.domain > 1 && r % 8 < 4) continue;  // two domains are the larger ones
            builder.beginRequest("", plain.domains()[request.domain]);
            for (uint32_t layer = 0; layer < 2; ++layer) {
                std::vector<uint16_t> ids(request.tokens * 4);
                plain.readLayer(layer, request.firstToken, ids);
                for (size_t t = 0; popular && layer == 0 && t < ids.size(); t += 4)
                    if (std::find(&ids[t], &ids[t + 4], 0) == &ids[t + 4]) ids[t] = 0;
                EXPECT_TRUE(builder.addLayer(layer, ids).ok());
            }
        }
        const Routing routing = builder.finish().value();
        JointOptions options;
        options.effort = 0.3;
        options.loadCap = 1.25;
        const Plan plan = solveJoint(wholeOf(routing), flatTopology(4, 1), options).value();
        const HeldOut held = heldOut(wholeOf(routing), plan, {}).value();
        const Counts counts = countsOf(held.scored);
        const auto row = counts.row(0);
        EXPECT_EQ(leastNodeLoad({row.begin(), row.end()}, 4) > 1.25, popular);
        return std::pair(maxOverMean(held.layers[0].nodeLoad), held.layers[1].sends);
    };
    const auto [plainLoad, plainSends] = loads(false);
    const auto [fullLoad, fullSends] = loads(true);
    EXPECT_LE(plainLoad, 1.25);
    EXPECT_GT(fullLoad, 1.25);
    EXPECT_NEAR(fullSends, plainSends, 0.1 * plainSends);
}

TEST(Joint, usesTheLoadThatItMay) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    const RoutingView whole = wholeOf(*recording->routing);
    JointOptions options;
    options.sends = 0;
    options.copies = 1;
    double before = INFINITY;
    for (const double cap : {1.08, 1.15}) {
        options.loadCap = cap;
        const Plan plan =
            solveJoint(everySecond(whole, false), flatTopology(4, 8), options).value();
        const Outcome seen =
            heldOut(everySecond(whole, true), plan, {0.3, 1.15, 0, 1}).value().outcome;
        EXPECT_NEAR(seen.nodeLoadMaxOverMean, cap, 0.06);
        EXPECT_LT(seen.copiesPerToken, before);
        before = seen.copiesPerToken;
    }
}

/// A recording that has counts only: `counts` of one layer for each domain.
Recording countsOnly(const std::vector<std::vector<uint64_t>>& counts, uint32_t topK) {
    Recording recording;
    recording.shape.layers = 1;
    recording.shape.experts = static_cast<uint32_t>(counts[0].size());
    recording.shape.topK = topK;
    recording.source = "counts.json";
    for (size_t d = 0; d < counts.size(); ++d) {
        CountsWindow window{"", "d" + std::to_string(d), Phase::kUnknown,
                            Counts(1, recording.shape.experts)};
        std::copy(counts[d].begin(), counts[d].end(), window.counts.row(0).begin());
        recording.windows.push_back(std::move(window));
    }
    return recording;
}

TEST(DrawnRouting, hasEveryExpertAsOftenAsTheCountsSay) {
    // Expert 0 is in every token of the first domain, expert 5 in none.
    const Recording recording =
        countsOnly({{1000, 500, 250, 150, 100, 0}, {0, 0, 0, 0, 1000, 1000}}, 2);
    const auto routing = drawnRouting(recording, 64 * 200, 3);
    ASSERT_TRUE(routing.ok()) << routing.status();
    EXPECT_EQ(routing->tokens(), 64u * 200);
    const std::vector<Counts> drawn = countsByDomain(wholeOf(*routing));
    ASSERT_EQ(drawn.size(), 2u);
    for (size_t d = 0; d < 2; ++d) {
        const auto wanted = recording.windows[d].counts.row(0);
        const double scale = 6400.0 / 1000;  // tokens of the domain in each
        for (uint32_t e = 0; e < 6; ++e)
            EXPECT_NEAR(static_cast<double>(drawn[d].at(0, e)),
                        scale * static_cast<double>(wanted[e]), 4 * std::sqrt(6400 * 0.25))
                << d << " " << e;
    }
    EXPECT_EQ(drawn[0].at(0, 0), 6400u);
    EXPECT_EQ(drawn[0].at(0, 5), 0u);
}

TEST(DrawnRouting, makesAPlanThatFitsTheTokensThatWereCounted) {
    const Routing routing = madeRouting(fourDomains(40));
    Recording counted;
    counted.shape = routing.shape();
    for (uint32_t d = 0; d < 4; ++d)
        counted.windows.push_back(
            {"", routing.domains()[d], Phase::kUnknown, countsOf(domainOf(routing, d))});
    const Routing drawn = drawnRouting(counted, 4000, 1).value();
    JointOptions joint;
    joint.effort = 0.2;
    const Plan plan = solveJoint(wholeOf(drawn), flatTopology(4, 2), joint).value();
    const Plan linear = baselinePlan("linear", wholeOf(routing), flatTopology(4, 2), 0).value();
    EXPECT_LT(heldOut(wholeOf(routing), plan, {})->outcome.copiesPerToken,
              0.6 * heldOut(wholeOf(routing), linear, {})->outcome.copiesPerToken);
}

TEST(DrawnRouting, refusesWhatHasNothingToDrawFrom) {
    EXPECT_THAT(std::string(drawnRouting(countsOnly({{0, 0, 0}}, 2), 100, 1).status().message()),
                HasSubstr("counts.json has no token counts"));
    EXPECT_THAT(std::string(drawnRouting(countsOnly({{5, 5, 5}}, 0), 100, 1).status().message()),
                HasSubstr("name its model"));
    EXPECT_FALSE(drawnRouting(countsOnly({{5, 5, 5}}, 4), 100, 1).ok());
}

TEST(Joint, routerGroupsStayWholeWhenAsked) {
    Routing routing = madeRouting(fourDomains(8));
    ModelShape shape = routing.shape();
    shape.routerGroups = 8;
    auto builder = RoutingBuilder::create(shape).value();
    for (const Request& request : routing.requests()) {
        builder.beginRequest("", routing.domains()[request.domain]);
        for (uint32_t layer = 0; layer < shape.layers; ++layer) {
            std::vector<uint16_t> ids(request.tokens * shape.topK);
            routing.readLayer(layer, request.firstToken, ids);
            ASSERT_TRUE(builder.addLayer(layer, ids).ok());
        }
    }
    const Routing grouped = builder.finish().value();
    JointOptions options;
    options.keepGroups = true;
    options.effort = 0.1;
    options.redundant = 4;
    const auto plan = solveJoint(wholeOf(grouped), flatTopology(4, 1), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(checkPlan(*plan).ok()) << checkPlan(*plan);
    for (const LayerPlan& layer : plan->layers)
        for (uint32_t group = 0; group < 8; ++group) {
            std::set<uint32_t> nodes;
            for (uint32_t s = 0; s < layer.expertOfSlot.size(); ++s)
                if (layer.expertOfSlot[s] / 4 == group) nodes.insert(s / 9);
            EXPECT_EQ(nodes.size(), 1u);
        }
    options.redundant = 0;
    EXPECT_THAT(
        std::string(solveJoint(wholeOf(grouped), flatTopology(16, 1), options).status().message()),
        HasSubstr("8 router groups do not divide over 16 nodes"));
}

TEST(Joint, whatDoesNotDivideIsRefused) {
    const Routing routing = madeRouting({});
    EXPECT_THAT(
        std::string(solveJoint(wholeOf(routing), flatTopology(3, 1), {}).status().message()),
        HasSubstr("do not divide over 3 nodes"));
    JointOptions many;
    many.redundant = 32;
    EXPECT_THAT(
        std::string(solveJoint(wholeOf(routing), flatTopology(2, 1), many).status().message()),
        HasSubstr("more slots than the 16 experts"));
}

TEST(Front, recommendsWhatIsBestWithinTheCapAndSaysWhy) {
    const Routing routing = madeRouting(fourDomains(32));
    FrontOptions options;
    options.joint.effort = 0.1;
    const auto front = solveFront(wholeOf(routing), flatTopology(4, 2), options);
    ASSERT_TRUE(front.ok()) << front.status();
    EXPECT_TRUE(front->points[front->recommended].onFront);
    EXPECT_THAT(front->reason, HasSubstr("below linear"));
    for (const FrontPoint& point : front->points)
        if (point.outcome.nodeLoadMaxOverMean <= options.joint.loadCap) {
            EXPECT_GE(point.outcome.sendsPerToken * 1.005,
                      front->points[front->recommended].outcome.sendsPerToken);
        }
}

/// The number after `words`.
double numberAfter(const std::string& text, const std::string& words) {
    const size_t at = text.find(words);
    return at == text.npos ? -1 : std::atof(text.c_str() + at + words.size());
}

TEST(Front, theReasonHoldsForTheRecommendedPlanAndEqualSendsGoToTheMoreEven) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    const RoutingView whole = wholeOf(*recording->routing);
    FrontOptions options;
    options.joint.redundant = 32;
    options.joint.loadCap = 1.08;
    options.joint.effort = 0.1;
    const auto front = solveFront(whole, flatTopology(4, 8), options);
    ASSERT_TRUE(front.ok()) << front.status();
    const FrontPoint& chosen = front->points[front->recommended];
    const double limit = numberAfter(front->reason, "at most ");
    EXPECT_GE(limit, 1.09) << front->reason;
    EXPECT_LE(chosen.outcome.nodeLoadMaxOverMean, limit + 0.0005) << front->reason;
    for (const FrontPoint& other : front->points)
        if (other.outcome.sendsPerToken <= chosen.outcome.sendsPerToken) {
            EXPECT_GE(other.outcome.nodeLoadMaxOverMean, chosen.outcome.nodeLoadMaxOverMean)
                << other.name << " against " << front->reason;
        }
}

TEST(Front, aBaselineCanBeAskedFor) {
    const Routing routing = madeRouting(fourDomains(16));
    for (const BaselineName& baseline : baselineNames()) {
        FrontOptions options;
        options.algorithm = std::string(baseline.name);
        const auto front = solveFront(wholeOf(routing), flatTopology(4, 2), options);
        ASSERT_TRUE(front.ok()) << front.status();
        const Plan& plan = front->points[front->recommended].plan;
        EXPECT_EQ(plan.origin.algorithm, baseline.name);
        EXPECT_EQ(plan.layers,
                  baselinePlan(baseline.name, wholeOf(routing), flatTopology(4, 2), 0)->layers);
        EXPECT_EQ(front->points.back().name, "linear");
    }
}

TEST(Front, saysWhatLoadNoPlacementCanBeBelow) {
    const Routing routing = madeRouting({});
    FrontOptions options;
    options.joint.effort = 0.1;
    options.joint.loadCap = 1;
    const RoutingView whole = wholeOf(routing);
    const Topology topology = flatTopology(16, 1);
    const double least = leastNodeLoad(countsOf(whole), 16, 1);
    ASSERT_GT(least, 1.01);
    char text[80];
    std::snprintf(text, sizeof text, "no placement without redundant experts has less than %.2f",
                  least);
    EXPECT_THAT(solveFront(whole, topology, options)->reason, HasSubstr(text));
    options.joint.redundant = 16;
    EXPECT_THAT(solveFront(whole, topology, options)->reason,
                testing::Not(HasSubstr("no placement")));
}

/// Trees with near and far nodes; the last one says so pair by pair.
std::vector<Topology> unevenTopologies() {
    const Link nvlink{450e9, 2e-6}, near{50e9, 6e-6}, far{5e9, 6e-5};
    std::vector<Topology> made{
        {"two buildings", {{"host", 2, nvlink}, {"rack", 2, near}, {"building", 2, far}}, {}},
        {"racks", {{"host", 1, nvlink}, {"rack", 4, near}, {"spine", 2, {25e9, 12e-6}}}, {}},
        {"four storeys",
         {{"host", 2, nvlink}, {"rack", 2, near}, {"row", 2, {25e9, 12e-6}}, {"hall", 2, far}},
         {}},
        {"ring", {{"host", 2, nvlink}, {"network", 4, far}}, {}},
    };
    for (int a = 0; a < 4; ++a)
        for (int b = 0; b < 4; ++b)
            made.back().between.push_back((a + 1) % 4 == b || (b + 1) % 4 == a ? near : far);
    return made;
}

TEST(Front, whereNodesAreNearAndFarTheObjectiveIsNeverWorseThanLinear) {
    MadeOptions unlike = fourDomains(48);
    unlike.domains = 6;
    // Linear keeps what belongs together in one rack: neighbours are in the same domain.
    MadeOptions suited = fourDomains(48);
    suited.layers = 1;
    suited.domains = 2;
    for (const MadeOptions& made : {unlike, suited}) {
        const Routing routing = madeRouting(made);
        for (const Topology& topology : unevenTopologies())
            for (const Objective objective : {Objective::kBytes, Objective::kLatency}) {
                FrontOptions options;
                options.objective = objective;
                options.joint.effort = 0.2;
                const auto front = solveFront(wholeOf(routing), topology, options);
                ASSERT_TRUE(front.ok()) << front.status();
                const FrontPoint& chosen = front->points[front->recommended];
                EXPECT_LE(figureOf(chosen, objective), figureOf(front->points.back(), objective))
                    << topology.name << ": " << front->reason;
                if (objective != Objective::kBytes) continue;
                options.objective = Objective::kSends;
                const auto sends = solveFront(wholeOf(routing), topology, options);
                EXPECT_LE(chosen.weighedBytes,
                          1.01 * sends->points[sends->recommended].weighedBytes)
                    << topology.name;
            }
    }
}

TEST(Front, bytesAreWeighedByTheirLinks) {
    const Routing routing = byHand();
    const RoutingView view = wholeOf(routing);
    Topology topology = unevenTopologies()[0];
    topology.levels[0].count = 1;
    const Plan plan = baselinePlan("linear", view, topology, 0).value();
    const auto layers = evaluateLayers(view, plan, std::vector<uint16_t>{0}).value();
    // From node 0, per token of four: two sends to node 1, two to node 2 and two to node 3.
    EXPECT_DOUBLE_EQ(weighedBytes(layers, topology, 200), 200 * (2 * 1 + 4 * 10) / 4.0);
    EXPECT_DOUBLE_EQ(weighedBytes(layers, flatTopology(4, 1), 200), 200 * 6 / 4.0);
}

TEST(Joint, linksChangeNothingWhereAllNodesAreEquallyFarApart) {
    const Routing routing = madeRouting(fourDomains(24));
    JointOptions options;
    options.effort = 0.2;
    const Plan plan = solveJoint(wholeOf(routing), flatTopology(4, 2), options).value();
    options.weighLinks = true;
    EXPECT_EQ(solveJoint(wholeOf(routing), flatTopology(4, 2), options).value(), plan);
}

TEST(Replan, keepsAPlanThatStillFitsAndChangesOneThatDoesNot) {
    const Routing before = madeRouting(fourDomains(40));
    JointOptions joint;
    joint.effort = 0.3;
    const Plan plan = solveJoint(wholeOf(before), flatTopology(4, 2), joint).value();
    ReplanOptions options;
    options.proposalsPerUnit = 2000;
    const auto same = replan(plan, wholeOf(before), options);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_FALSE(same->changes) << same->reason;
    EXPECT_EQ(same->plan, plan);
    EXPECT_EQ(same->migration.slots, 0u);

    MadeOptions drifted = fourDomains(40);
    drifted.seed = 99;
    drifted.domains = 3;  // other experts belong together now
    const Routing after = madeRouting(drifted);
    const auto changed = replan(plan, wholeOf(after), options);
    ASSERT_TRUE(changed.ok());
    EXPECT_TRUE(changed->changes) << changed->reason;
    EXPECT_LT(changed->after, 0.98 * changed->before);
    EXPECT_TRUE(checkPlan(changed->plan).ok()) << checkPlan(changed->plan);
    EXPECT_GT(changed->migration.slots, 0u);
    const auto old = heldOut(wholeOf(after), plan, {}),
               now = heldOut(wholeOf(after), changed->plan, {});
    EXPECT_LT(now->outcome.sendsPerToken, old->outcome.sendsPerToken);

    ReplanOptions dear = options;
    dear.pricePerMove = 100;
    EXPECT_FALSE(replan(plan, wholeOf(after), dear)->changes);
}

TEST(Replan, domainsThatThePlanInUseDoesNotKnowGetHomes) {
    MadeOptions all = fourDomains(48);
    all.layers = 3;
    all.own = 0.9;
    const Routing routing = madeRouting(all);
    const auto ofDomains = [&](uint32_t a, uint32_t b) {
        std::vector<uint32_t> requests;
        for (uint32_t r = 0; r < routing.requests().size(); ++r)
            if (const uint32_t d = routing.requests()[r].domain; d == a || d == b)
                requests.push_back(r);
        return requestsOf(routing, requests);
    };
    JointOptions joint;
    joint.effort = 0.3;
    const Plan plan = solveJoint(ofDomains(0, 1), flatTopology(4, 2), joint).value();
    const RoutingView now = ofDomains(1, 3);
    ReplanOptions options;
    options.sweeps = 20;
    options.rounds = 4;
    for (const double leastGain : {0.02, 1.0}) {
        options.leastGain = leastGain;
        const Replan made = replan(plan, now, options).value();
        EXPECT_EQ(made.changes, leastGain < 1) << made.reason;
        EXPECT_TRUE(made.newHomes);
        ASSERT_EQ(made.plan.homes.size(), 2u);
        EXPECT_EQ(made.plan.homes[0].domain, "d1");
        EXPECT_EQ(made.plan.homes[1].domain, "d3");
        EXPECT_EQ(made.plan.origin.tokens, now.tokens());
        for (const DomainHome& home : made.plan.homes)
            EXPECT_NEAR(std::accumulate(home.share.begin(), home.share.end(), 0.0), 1, 1e-9);
    }
    options.leastGain = 0.02;
    const Replan often = replan(plan, now, options).value();
    options.rounds = 1;
    EXPECT_LE(often.after, replan(plan, now, options).value().after);
    // Each domain by itself on some of the nodes, as a plan from nothing would have it.
    const auto sends = [&](const Plan& p) {
        return heldOut(now, p, {}).value().outcome.sendsPerToken;
    };
    EXPECT_LT(sends(often.plan), 1.15 * sends(solveJoint(now, flatTopology(4, 2), joint).value()));
}

TEST(Serving, aPlanThatKeepsTokensHomeSendsFewerBytes) {
    const Routing routing = madeRouting(fourDomains(40));
    JointOptions joint;
    joint.effort = 0.2;
    const Plan ours = solveJoint(wholeOf(routing), flatTopology(4, 2), joint).value();
    const Plan linear = baselinePlan("linear", wholeOf(routing), flatTopology(4, 2), 0).value();
    ServingOptions options;
    const auto a = simulateServing(wholeOf(routing), ours, options);
    const auto b = simulateServing(wholeOf(routing), linear, options);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->requests, 40u);
    EXPECT_EQ(a->outputTokens, 40u * 28);  // 12 of 40 tokens are prefilled
    EXPECT_EQ(a->outputTokens, b->outputTokens);
    EXPECT_LT(a->bytesPerOutputToken, 0.7 * b->bytesPerOutputToken);
    ServingOptions crowded = options;
    crowded.placesPerNode = 1;
    crowded.requestsPerSecond = 1e6;
    EXPECT_GT(simulateServing(wholeOf(routing), ours, crowded)->queueSeconds, a->queueSeconds);
}

TEST(HeldOutScore, refusesARecordingOfAnotherModel) {
    const Routing routing = madeRouting({});
    const Plan plan = baselinePlan("linear", wholeOf(routing), flatTopology(2, 1), 0).value();
    MadeOptions other;
    other.experts = 8;
    const Routing wrong = madeRouting(other);
    EXPECT_THAT(std::string(heldOut(wholeOf(wrong), plan, {}).status().message()),
                HasSubstr("2 layers of 16 experts, the recording has 2 of 8"));
}

}  // namespace
}  // namespace bulkhead::planner
