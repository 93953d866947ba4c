// SPDX-License-Identifier: Apache-2.0
// Plans as values and files: round trips, and refusal of plans that would lose tokens.
#include "backend/planner/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/evaluate/migration.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/plan/plan_json.h"

namespace bulkhead::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// 1 layer, 4 experts and 2 redundant ones on 2 nodes of 1 GPU.
Plan smallPlan() {
    Plan plan;
    plan.shape.layers = 1;
    plan.shape.experts = 4;
    plan.shape.topK = 2;
    plan.topology = flatTopology(2, 1);
    plan.firstSlot = shareSlots(plan.topology, 4, 2).value();
    plan.layers = {{{0, 1, 2, 3, 0, 1}, {{0, {0, 4}, {1, 0, 0, 1}}}}};
    plan.homes = {{"code", {0.25, 0.75}}};
    plan.origin.algorithm = "joint";
    return plan;
}

TEST(Plan, aFileHoldsEverything) {
    const Plan plan = smallPlan();
    const auto back = parsePlan(formatPlan(plan), "p.json");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, plan);
}

TEST(Plan, aForecastWhoseRangeIsUpsideDownIsRefused) {
    Plan plan = smallPlan();
    plan.forecast.blocks = 8;
    plan.forecast.expected.sends = {0.5, 0.4, 0.6};
    EXPECT_TRUE(checkPlan(plan).ok()) << checkPlan(plan);
    plan.forecast.expected.sends = {0.5, 9, -3};
    EXPECT_THAT(std::string(checkPlan(plan).message()),
                HasSubstr("forecast.expected.sends: p5 9, mean 0.5, p95 -3"));
}

TEST(Plan, whatWouldLoseTokensOrOverfillIsRefusedByPlace) {
    const auto refusal = [](auto&& change) {
        Plan plan = smallPlan();
        change(plan);
        return std::string(checkPlan(plan).message());
    };
    EXPECT_THAT(refusal([](Plan& p) { p.layers[0].expertOfSlot[3] = 2; }),
                HasSubstr("layer 0: expert 3 is in no slot"));
    EXPECT_THAT(refusal([](Plan& p) { p.layers[0].expertOfSlot[3] = 9; }),
                HasSubstr("layer 0, slot 3: expert 9 does not exist"));
    EXPECT_THAT(refusal([](Plan& p) { p.layers[0].expertOfSlot.push_back(1); }),
                HasSubstr("7 slots, but the GPUs have 6"));
    EXPECT_THAT(refusal([](Plan& p) { p.layers[0].dispatch[0].weights[0] = 0.5; }),
                HasSubstr("layer 0, expert 0: the dispatch weights of node 0 sum to 0.5"));
    EXPECT_THAT(refusal([](Plan& p) { p.layers[0].dispatch[0].slots[1] = 5; }),
                HasSubstr("expert 0"));
    EXPECT_THAT(refusal([](Plan& p) { p.layers.clear(); }), HasSubstr("0 layers, the model 1"));
    EXPECT_THAT(refusal([](Plan& p) { p.layers[0].dispatch[0].expert = 7; }),
                HasSubstr("expert 7: has dispatch weights and does not exist"));
    EXPECT_EQ(refusal([](Plan&) {}), "");
}

TEST(Plan, aModelThatCannotBeIsRefusedByField) {
    const auto refusal = [](auto&& change) {
        Plan plan = smallPlan();
        change(plan);
        return std::string(checkPlan(plan).message());
    };
    EXPECT_THAT(refusal([](Plan& p) { p.shape.layers = 0, p.layers.clear(); }),
                HasSubstr("shape.layers: MoE layers must be 1 to 10000, found 0"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.topK = 0; }),
                HasSubstr("shape.top_k: must be 1 to the 4 experts, found 0"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.topK = 1'000'000; }),
                HasSubstr("shape.top_k: must be 1 to the 4 experts, found 1000000"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.experts = 65'537; }),
                HasSubstr("shape.experts: must be 1 to 65536, found 65537"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.routerGroups = 0; }),
                HasSubstr("shape.router_groups: 0 do not divide 4 experts"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.routerGroups = 3; }),
                HasSubstr("shape.router_groups: 3 do not divide 4 experts"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.groupsPerToken = 2; }),
                HasSubstr("shape.groups_per_token: must be 1 to 1, found 2"));
    EXPECT_THAT(refusal([](Plan& p) {
                    p.shape.layerNumbers = {1, 2};
                }),
                HasSubstr("shape.layer_numbers: 2 for 1 layers"));
    EXPECT_THAT(refusal([](Plan& p) { p.shape.layerNumbers = {4'000'000'000}; }),
                HasSubstr("shape.layer_numbers: 4000000000, expected less than 10000"));
    EXPECT_THAT(refusal([](Plan& p) {
                    p.shape.layers = 2;
                    p.layers.push_back(p.layers[0]);
                    p.shape.layerNumbers = {3, 3};
                }),
                HasSubstr("shape.layer_numbers: 3 after 3, expected ascending ones"));
}

TEST(Plan, homesAndFiguresThatCannotBeAreRefusedByField) {
    const auto refusal = [](auto&& change) {
        Plan plan = smallPlan();
        change(plan);
        return std::string(checkPlan(plan).message());
    };
    EXPECT_THAT(refusal([](Plan& p) {
                    p.homes[0].share = {5, 0};
                }),
                HasSubstr("homes of domain \"code\": a share of 5, expected 0 to 1"));
    EXPECT_THAT(refusal([](Plan& p) {
                    p.homes[0].share = {-0.5, 1};
                }),
                HasSubstr("a share of -0.5, expected 0 to 1"));
    EXPECT_THAT(refusal([](Plan& p) {
                    p.homes[0].share = {0.5, 0.25};
                }),
                HasSubstr("they sum to 0.75, expected 1"));
    EXPECT_THAT(refusal([](Plan& p) { p.homes.push_back(p.homes[0]); }),
                HasSubstr("homes of domain \"code\": they are given twice"));
    EXPECT_THAT(refusal([](Plan& p) { p.origin.prefix = 7; }),
                HasSubstr("origin.prefix: 7, expected 0 or more and less than 1"));
    EXPECT_THAT(refusal([](Plan& p) { p.origin.bytesPerCopy = -1; }),
                HasSubstr("origin.bytes_per_copy: -1, expected"));
    EXPECT_THAT(refusal([](Plan& p) { p.origin.loadCap = INFINITY; }),
                HasSubstr("origin.load_cap: inf, expected"));
}

TEST(Plan, aKeyOfNoFieldIsRefused) {
    std::string text = formatPlan(smallPlan());
    text.replace(text.find("\"top_k\""), 7, "\"topk\"");
    EXPECT_THAT(std::string(parsePlan(text, "p.json").status().message()),
                testing::AllOf(HasSubstr("p.json: "), HasSubstr("topk"), HasSubstr("top_k")));
    text = formatPlan(smallPlan());
    text.replace(1, 0, "\"extra\":1,");
    EXPECT_THAT(std::string(parsePlan(text, "p.json").status().message()), HasSubstr("extra"));
}

TEST(Plan, aRecordingOfAnotherModelIsRefusedByField) {
    const Plan plan = smallPlan();
    ModelShape recorded = plan.shape;
    recorded.topK = 1;
    auto builder = RoutingBuilder::create(recorded).value();
    builder.beginRequest("", "");
    ASSERT_TRUE(builder.addTokens(std::vector<uint16_t>{0}).ok());
    const Routing routing = builder.finish().value();
    const std::vector<uint16_t> homes{0};
    EXPECT_THAT(std::string(evaluate(wholeOf(routing), plan, homes).status().message()),
                HasSubstr("top_k: the plan is for 2 experts a token, the recording has 1"));
    Plan numbered = plan;
    numbered.shape.layerNumbers = {3};
    recorded = numbered.shape;
    recorded.layerNumbers = {4};
    EXPECT_THAT(std::string(checkFit(numbered, recorded).message()),
                HasSubstr("MoE layer 0 is the model's layer 3 in the plan and 4 in the recording"));
    EXPECT_TRUE(checkFit(plan, recorded).ok());
}

TEST(Plan, textThatIsNoPlanIsRefused) {
    for (const char* text : {"", "{", "[]", "{\"format\":\"x\"}", "{\"format\":\"bulkhead.plan\"}",
                             "{\"format\":\"bulkhead.plan\",\"version\":1}",
                             "{\"format\":\"bulkhead.plan\",\"version\":1,\"layers\":5}"}) {
        const auto plan = parsePlan(text, "p.json");
        ASSERT_FALSE(plan.ok()) << text;
        EXPECT_THAT(std::string(plan.status().message()), HasSubstr("p.json")) << text;
    }
    const std::string whole = formatPlan(smallPlan());
    for (size_t length = 0; length < whole.size(); length += 7)
        EXPECT_FALSE(parsePlan(whole.substr(0, length), "p").ok()) << length;
}

TEST(Plan, slotsAreEqualOverNodesAndNearlyOverGpus) {
    const auto slots = shareSlots(flatTopology(4, 8), 64, 8);
    ASSERT_TRUE(slots.ok());
    EXPECT_EQ(slots->back(), 72u);
    EXPECT_THAT((std::vector<uint32_t>(slots->begin(), slots->begin() + 9)),
                ElementsAre(0, 3, 6, 8, 10, 12, 14, 16, 18));
    EXPECT_THAT(std::string(shareSlots(flatTopology(3, 8), 64, 0).status().message()),
                HasSubstr("choose 2 or 5 redundant"));
}

TEST(Plan, routesFollowTheHeaviestDispatchAndPreferHome) {
    const NodeRoutes routes = routesOf(smallPlan());
    ASSERT_EQ(routes.layers[0].size(), 8u);
    EXPECT_THAT(routes.layers[0], ElementsAre(0, 0, 0, 1, 1, 1, 0, 1));
}

TEST(Migration, onlyWhatAGpuLacksIsFetched) {
    const Plan from = smallPlan();
    Plan to = from;
    to.layers[0].expertOfSlot = {1, 0, 3, 2, 0, 1};  // node 0 gets 3 for 2, node 1 gets 2 for 3
    to.layers[0].dispatch.clear();
    const auto cost = migrationBetween(from, to, 1e9);
    ASSERT_TRUE(cost.ok());
    EXPECT_EQ(cost->slots, 2u);
    EXPECT_EQ(cost->experts, 2u);
    EXPECT_DOUBLE_EQ(cost->bytes, 2e9);
    EXPECT_DOUBLE_EQ(cost->bytesAcross, 2e9);
    EXPECT_NEAR(cost->seconds, 1e9 / 50e9 + 6e-6, 1e-9);
    const Plan aligned = alignedTo(from, to);
    EXPECT_THAT(aligned.layers[0].expertOfSlot, ElementsAre(0, 1, 3, 2, 0, 1));
}

}  // namespace
}  // namespace bulkhead::planner
