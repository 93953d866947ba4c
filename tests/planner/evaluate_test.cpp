// SPDX-License-Identifier: Apache-2.0
// Cost of a plan: figures that can be computed by hand, and how routers and links change them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/import/import.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/simulate.h"
#include "tests/planner/made_routing.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

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
    options.router = Router::kStatic;
    const Outcome fixed = heldOut(unseen, plan, options).value().outcome;
    EXPECT_LT(routed.sendsPerToken, fixed.sendsPerToken);
    EXPECT_LT(routed.nodeLoadMaxOverMean, fixed.nodeLoadMaxOverMean);
    EXPECT_EQ(routed.tokens, fixed.tokens);
}

TEST(Router, sharesReplicasOutByHomeOrEqually) {
    Plan plan;
    plan.shape.layers = plan.shape.topK = 1;
    plan.shape.experts = 2;
    plan.topology = flatTopology(3, 1);
    plan.firstSlot = {0, 1, 2, 3};
    plan.layers = {{{0, 1, 0}, {{0, {0, 2}, {1, 0, 1, 0, 1, 0}}}}};  // expert 0 on nodes 0 and 2
    EXPECT_EQ(dispatchedBy(plan, Router::kStatic), plan);
    EXPECT_EQ(dispatchedBy(plan, Router::kTokenAware), plan);
    EXPECT_TRUE(dispatchedBy(plan, Router::kUniform).layers[0].dispatch.empty());
    EXPECT_EQ(dispatchedBy(plan, Router::kHomeFirst).layers[0].dispatch[0].weights,
              (std::vector<double>{1, 0, 0.5, 0.5, 0, 1}));
}

/// Replicas that a router would waste are not made: a plan for it is no worse than one without any.
TEST(Router, getsAPlanThatIsNoWorseThanOneWithoutReplicas) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    const RoutingView whole = wholeOf(*recording->routing);
    const auto sends = [&](uint32_t redundant, Router madeFor, Router servedBy) {
        JointOptions joint;
        joint.effort = 0.05;
        joint.redundant = redundant;
        joint.router = madeFor;
        const Plan plan = solveJoint(everySecond(whole, false), flatTopology(4, 2), joint).value();
        EXPECT_TRUE(checkPlan(plan).ok());
        EXPECT_EQ(plan.redundant(), redundant);
        return heldOut(everySecond(whole, true), plan, {.router = servedBy})
            .value()
            .outcome.sendsPerToken;
    };
    const double without = sends(0, Router::kStatic, Router::kStatic);
    EXPECT_GT(sends(8, Router::kTokenAware, Router::kUniform), 1.02 * without);
    for (const Router router : {Router::kStatic, Router::kHomeFirst, Router::kUniform})
        EXPECT_LE(sends(8, router, router), 1.005 * without) << enumName(router);
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
