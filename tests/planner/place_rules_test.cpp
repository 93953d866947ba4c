// SPDX-License-Identifier: Apache-2.0
// Experts pinned to or forbidden on a GPU or a node: held by the plan of every algorithm, with
// nobody lost, and refused where they cannot be.
#include "backend/planner/solve/place_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/front.h"
#include "backend/planner/solve/replan.h"
#include "tests/planner/made_routing.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

std::vector<PlaceRule> rulesOf(const std::vector<std::string>& pins,
                               const std::vector<std::string>& forbids) {
    std::vector<PlaceRule> rules;
    for (const std::string& text : pins) rules.push_back(parsePlaceRule(text, true).value());
    for (const std::string& text : forbids) rules.push_back(parsePlaceRule(text, false).value());
    return rules;
}

/// Counted apart from the code under test.
bool holds(const Plan& plan, const PlaceRule& rule) {
    bool there = false;
    for (uint32_t gpu = 0; gpu < plan.topology.gpus(); ++gpu)
        for (uint32_t s = plan.firstSlot[gpu]; s < plan.firstSlot[gpu + 1]; ++s)
            there |= plan.layers[rule.layer].expertOfSlot[s] == rule.expert &&
                     (rule.node ? gpu / plan.topology.gpusPerNode() : gpu) == rule.place;
    return there == rule.pins;
}

std::vector<uint32_t> sorted(std::vector<uint32_t> experts) {
    std::sort(experts.begin(), experts.end());
    return experts;
}

TEST(PlaceRules, holdInThePlanOfEveryAlgorithm) {
    const Routing routing = madeRouting({});  // 2 layers x 16 experts
    const RoutingView whole = wholeOf(routing);
    const auto rules = rulesOf({"0:0=gpu3", "0:1=gpu3", "0:2=node1", "0:3=node1", "1:15=gpu0"},
                               {"0:4=node0", "1:14=gpu3", "1:13=node1"});
    for (const uint32_t redundant : {0u, 4u}) {
        for (const BaselineName& name : baselineNames()) {
            Plan plan = baselinePlan(name.name, whole, flatTopology(2, 2), redundant).value();
            const Plan before = plan;
            ASSERT_TRUE(honourPlaceRules(plan, rules, countsOf(whole)).ok()) << name.name;
            EXPECT_TRUE(checkPlan(plan).ok()) << checkPlan(plan) << name.name;
            for (const PlaceRule& rule : rules)
                EXPECT_TRUE(holds(plan, rule)) << name.name << " " << placeRuleText(rule);
            for (uint32_t layer = 0; layer < 2; ++layer)
                EXPECT_EQ(sorted(plan.layers[layer].expertOfSlot),
                          sorted(before.layers[layer].expertOfSlot));
        }
        FrontOptions options;
        options.joint.effort = 0.1;
        options.joint.redundant = redundant;
        options.rules = rules;
        const auto front = solveFront(whole, flatTopology(2, 2), options);
        ASSERT_TRUE(front.ok()) << front.status();
        for (const FrontPoint& point : front->points) {
            EXPECT_TRUE(checkPlan(point.plan).ok()) << checkPlan(point.plan) << point.name;
            for (const PlaceRule& rule : rules)
                EXPECT_TRUE(holds(point.plan, rule)) << point.name << " " << placeRuleText(rule);
        }
    }
}

TEST(PlaceRules, moveNobodyElseThanTheyMust) {
    const Routing routing = madeRouting({});
    Plan plan = baselinePlan("linear", wholeOf(routing), flatTopology(2, 2), 0).value();
    const Plan before = plan;
    const Counts counts = countsOf(wholeOf(routing));
    ASSERT_TRUE(honourPlaceRules(plan, rulesOf({"0:0=gpu0", "0:1=node0"}, {}), counts).ok());
    EXPECT_EQ(plan, before);  // they hold already
    ASSERT_TRUE(honourPlaceRules(plan, rulesOf({}, {"0:0=gpu0"}), counts).ok());
    int moved = 0;
    for (uint32_t s = 0; s < 16; ++s)
        moved += plan.layers[0].expertOfSlot[s] != before.layers[0].expertOfSlot[s];
    EXPECT_EQ(moved, 2);  // one exchange, and on its own node
    EXPECT_TRUE(holds(plan, {0, 0, true, true, 0}));
    EXPECT_EQ(plan.layers[1], before.layers[1]);
}

/// Every slot of GPU 0 is spoken for; the only way is a chain.
TEST(PlaceRules, aChainIsFoundWhereNoExchangeOfTwoIsEnough) {
    const Routing routing = madeRouting({.layers = 1, .experts = 3, .topK = 1});
    Plan plan = baselinePlan("linear", wholeOf(routing), flatTopology(3, 1), 0).value();
    // 0 to GPU 1; 1 may not go to GPU 0; 2 may.
    const auto rules = rulesOf({"0:0=gpu1"}, {"0:1=gpu0"});
    ASSERT_TRUE(honourPlaceRules(plan, rules, countsOf(wholeOf(routing))).ok());
    EXPECT_EQ(plan.layers[0].expertOfSlot, (std::vector<uint32_t>{2, 0, 1}));
}

TEST(PlaceRules, replanHoldsThemEvenWhereNothingElsePays) {
    const Routing routing = madeRouting({});
    const RoutingView whole = wholeOf(routing);
    JointOptions joint;
    joint.effort = 0.2;
    const Plan plan = solveJoint(whole, flatTopology(2, 2), joint).value();
    ReplanOptions options;
    options.leastGain = 1;  // keep it
    const bool there = holds(plan, {0, 5, true, true, 1});
    options.rules = rulesOf({there ? "0:5=node0" : "0:5=node1"}, {});
    const Replan made = replan(plan, whole, options).value();
    EXPECT_TRUE(made.changes);
    EXPECT_TRUE(holds(made.plan, options.rules[0]));
    EXPECT_EQ(made.migration.slots, 2u);
    EXPECT_THAT(made.reason, HasSubstr("pinned"));
}

TEST(PlaceRules, whatCannotHoldIsRefusedAndNamed) {
    const Routing routing = madeRouting({});
    Plan plan = baselinePlan("linear", wholeOf(routing), flatTopology(2, 2), 0).value();
    const Plan before = plan;
    const auto refusal = [&](const std::vector<std::string>& pins,
                             const std::vector<std::string>& forbids) {
        const auto status =
            honourPlaceRules(plan, rulesOf(pins, forbids), countsOf(wholeOf(routing)));
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_EQ(plan, before);
        return std::string(status.message());
    };
    EXPECT_THAT(refusal({"2:0=gpu0"}, {}), HasSubstr("layer 2, expert 0 pinned to gpu0"));
    EXPECT_THAT(refusal({"0:16=gpu0"}, {}), HasSubstr("a layer has 16 experts"));
    EXPECT_THAT(refusal({"0:0=node2"}, {}), HasSubstr("2 nodes and 4 GPUs"));
    EXPECT_THAT(refusal({"0:0=gpu3"}, {"0:0=node1"}), HasSubstr("forbidden there"));
    EXPECT_THAT(refusal({}, {"0:0=node0", "0:0=node1"}), HasSubstr("forbidden everywhere"));
    EXPECT_THAT(refusal({"0:0=gpu0", "0:0=gpu3"}, {}), HasSubstr("pinned elsewhere"));
    EXPECT_THAT(refusal({"0:0=gpu0", "0:5=gpu0", "0:6=gpu0", "0:7=gpu0", "0:8=gpu0"}, {}),
                HasSubstr("layer 0: no slot is left for expert"));
    FrontOptions groups;
    groups.joint.keepGroups = true;
    groups.rules = rulesOf({"0:0=gpu0"}, {});
    EXPECT_THAT(
        std::string(solveFront(wholeOf(routing), flatTopology(2, 2), groups).status().message()),
        HasSubstr("cannot be kept whole"));
}

TEST(PlaceRules, areReadFromOneWord) {
    EXPECT_EQ(parsePlaceRule("3:17=gpu5", true).value(), (PlaceRule{3, 17, true, false, 5}));
    EXPECT_EQ(parsePlaceRule("0:0=node12", false).value(), (PlaceRule{0, 0, false, true, 12}));
    for (const char* wrong : {"", "3=gpu1", "3:4", "3:4=", "3:4=gpu", "3:4=rack1", ":4=gpu1",
                              "3:-4=gpu1", "3:4=gpu1x", "3:4=gpu99999999999", "=3:4gpu1"})
        EXPECT_THAT(std::string(parsePlaceRule(wrong, true).status().message()),
                    HasSubstr("LAYER:EXPERT=gpuN"))
            << wrong;
}

TEST(PlaceRules, replicasOfAnExpertOnANodeArePartedOverItsGpus) {
    Plan plan;
    plan.shape.layers = 1;
    plan.shape.experts = 4;
    plan.shape.topK = 1;
    plan.topology = flatTopology(2, 2);
    plan.firstSlot = {0, 2, 4, 6, 8};
    plan.layers = {{{0, 0, 1, 1, 2, 3, 2, 3}, {{0, {0, 1}, {0.75, 0.25, 0.25, 0.75}}}}};
    Counts counts(1, 4);
    for (uint32_t e = 0; e < 4; ++e) counts.row(0)[e] = 10;
    partReplicas(plan, counts);
    const std::vector<uint32_t>& at = plan.layers[0].expertOfSlot;
    for (uint32_t gpu = 0; gpu < 4; ++gpu) EXPECT_NE(at[2 * gpu], at[2 * gpu + 1]) << gpu;
    for (uint32_t slot = 0; slot < 4; ++slot) EXPECT_LT(at[slot], 2u) << "on its node";
    EXPECT_TRUE(checkPlan(plan).ok()) << checkPlan(plan);
    const Plan before = plan;
    partReplicas(plan, counts);
    EXPECT_EQ(plan, before) << "there is nothing left to part";
}

}  // namespace
}  // namespace bulkhead::planner
