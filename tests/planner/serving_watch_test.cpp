// SPDX-License-Identifier: Apache-2.0
// A plan that serves leaves what it promised, or does not.
#include "backend/planner/live/serving_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/planner/solve/cross_validation.h"
#include "tests/planner/made_routing.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

Plan planned(const Routing& routing, JointOptions joint = {}) {
    joint.effort = 0.1;
    return solveForecast(wholeOf(routing), flatTopology(4, 2), joint, {}).value();
}

Recording recorded(Routing routing) {
    Recording made;
    made.shape = routing.shape();
    made.source = "made";
    made.routing = std::move(routing);
    return made;
}

Recording counted(const Routing& routing, const std::string& domain = "") {
    Recording made;
    made.shape = routing.shape();
    made.source = "counts";
    made.windows.push_back({"w", domain, Phase::kUnknown, countsOf(wholeOf(routing))});
    return made;
}

/// Requests of the same kinds, and of others: the same domains mean other experts.
Routing more(uint32_t requests, uint64_t seed, uint32_t domains = 4) {
    MadeOptions made = fourDomains(requests);
    made.seed = seed;
    made.domains = domains;
    return madeRouting(made);
}

TEST(ServingWatch, keepsQuietOverRequestsOfTheSameKinds) {
    auto watch = ServingWatch::create(planned(more(64, 1))).value();
    int left = 0;
    for (uint64_t seed = 2; seed < 12; ++seed) {
        ASSERT_TRUE(watch.add(recorded(more(64, seed))).ok());
        const auto figures = watch.figures().value();
        EXPECT_TRUE(figures.enough);
        EXPECT_EQ(figures.tokens, 64u * 40);
        left += !figures.left.empty();
    }
    EXPECT_LE(left, 2);  // 5 % each of two figures
}

TEST(ServingWatch, saysWhichFigureIsAboveItsRangeOnceEnoughCame) {
    auto watch = ServingWatch::create(planned(more(64, 1))).value();
    ASSERT_TRUE(watch.add(recorded(more(32, 3, 3))).ok());
    auto figures = watch.figures().value();
    EXPECT_FALSE(figures.enough);
    EXPECT_EQ(figures.left, "");
    ASSERT_TRUE(watch.add(recorded(more(32, 4, 3))).ok());
    figures = watch.figures().value();
    EXPECT_TRUE(figures.enough);
    EXPECT_THAT(figures.left, HasSubstr("sends"));
    EXPECT_THAT(figures.left, HasSubstr("was promised"));
    EXPECT_EQ(figures.leftFirst, "sends");
    watch.rest();
    EXPECT_EQ(watch.figures().value().left, "") << "not twice over the same tokens";
    ServingWatchOptions loose;
    loose.drift = 10;
    auto quiet = ServingWatch::create(watch.plan(), loose).value();
    ASSERT_TRUE(quiet.add(recorded(more(64, 3, 3))).ok());
    EXPECT_EQ(quiet.figures().value().left, "");
}

TEST(ServingWatch, aNewPlanIsJudgedByItsForecastAndWhatWasFound) {
    ServingFigures found;
    found.sends = 0.6;
    found.copies = 1.5;
    found.nodeLoad = 1.2;
    found.gpuLoad = 1.4;
    found.leftFirst = "sends";
    Forecast forecast;
    forecast.expected.sends.mean = 0.591;  // 1.5 % less
    forecast.expected.copies.mean = 1.2;
    forecast.expected.nodeLoad.mean = 1.176;
    forecast.expected.gpuLoad.mean = 1.5;
    forecast.inSample.sends = 0.4;
    ExpectedSaving saving = expectedSaving(found, forecast);
    EXPECT_FALSE(saving.pays());
    EXPECT_THAT(saving.text(), HasSubstr("sends 0.591 expected on requests not seen, 1.5% less "
                                         "than 0.600 with the plan before"));
    forecast.expected.sends.mean = 0.58;
    EXPECT_TRUE(expectedSaving(found, forecast).pays());
    found.leftFirst = "copies";
    EXPECT_NEAR(expectedSaving(found, forecast).part(), 0.2, 1e-9);
    found.leftFirst = "node load";
    EXPECT_NEAR(expectedSaving(found, forecast).part(), 0.02, 1e-9);
    found.leftFirst = "GPU load";
    saving = expectedSaving(found, forecast);
    EXPECT_FALSE(saving.pays());
    EXPECT_THAT(saving.text(), HasSubstr("7.1% more than 1.400"));
}

TEST(ServingWatch, holdsTheLatestWholeRequests) {
    ServingWatchOptions options;
    options.window = 100;
    auto watch = ServingWatch::create(planned(more(64, 1)), options).value();
    for (uint64_t seed = 2; seed < 6; ++seed) ASSERT_TRUE(watch.add(recorded(more(16, seed))).ok());
    const Recording recent = watch.recent();
    EXPECT_EQ(recent.routing->tokens(), 80u);
    ASSERT_EQ(recent.routing->requests().size(), 2u);
    EXPECT_EQ(recent.routing->requests()[1].id, "r15");
    const Routing last = more(16, 5);
    for (uint64_t token = 0; token < 80; ++token)
        EXPECT_EQ(recent.routing->expert(1, token, 2), last.expert(1, 14 * 40 + token, 2));
}

TEST(ServingWatch, countsForgetAndTellLoadAlone) {
    const Routing usual = more(64, 1);
    auto watch = ServingWatch::create(planned(usual)).value();
    ASSERT_TRUE(watch.add(counted(usual)).ok());
    auto figures = watch.figures().value();
    EXPECT_FALSE(figures.sends.has_value());
    EXPECT_EQ(figures.left, "");
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(watch.add(counted(more(64, 7, 1))).ok());
    figures = watch.figures().value();
    // The sum of a geometric series: what came before weighs exp(-2) for each window of tokens.
    EXPECT_NEAR(static_cast<double>(figures.tokens), 64 * 40 / (1 - std::exp(-2)), 40);
    EXPECT_EQ(watch.recent().windows.size(), 1u);
    // All tokens choose the experts of one node.
    Routing heavy = [] {
        ModelShape shape = more(4, 1).shape();
        auto builder = RoutingBuilder::create(shape).value();
        const Plan plan = planned(more(64, 1));
        builder.beginRequest("h", "d0");
        for (int t = 0; t < 64 * 40; ++t)
            for (uint32_t layer = 0; layer < shape.layers; ++layer)
                EXPECT_TRUE(builder
                                .addLayer(layer, std::vector<uint16_t>(
                                                     plan.layers[layer].expertOfSlot.begin(),
                                                     plan.layers[layer].expertOfSlot.begin() + 4))
                                .ok());
        return builder.finish().value();
    }();
    ASSERT_TRUE(watch.add(counted(heavy)).ok());
    EXPECT_THAT(watch.figures().value().left, HasSubstr("node load"));
}

TEST(ServingWatch, whatDoesNotFitIsRefusedAndChangesNothing) {
    auto watch = ServingWatch::create(planned(more(64, 1))).value();
    EXPECT_FALSE(watch.figures().ok());
    EXPECT_THAT(std::string(watch.add(recorded(byHand())).message()), HasSubstr("layers"));
    Recording nothing;
    nothing.shape = more(4, 1).shape();
    EXPECT_THAT(std::string(watch.add(nothing).message()), HasSubstr("neither tokens nor counts"));
    ASSERT_TRUE(watch.add(recorded(more(8, 2))).ok());
    EXPECT_THAT(std::string(watch.add(counted(more(8, 2))).message()), HasSubstr("counts only"));
    EXPECT_EQ(watch.figures().value().tokens, 8u * 40);
    auto byDomain = ServingWatch::create(watch.plan()).value();
    Recording many = counted(more(8, 2));
    many.windows.resize(1000, many.windows[0]);
    for (size_t i = 0; i < many.windows.size(); ++i)
        many.windows[i].domain = "d" + std::to_string(i);
    EXPECT_THAT(std::string(byDomain.add(many).message()), HasSubstr("more than 256 domains"));
    Plan silent = watch.plan();
    silent.forecast = {};
    EXPECT_TRUE(absl::IsFailedPrecondition(ServingWatch::create(silent).status()));
    JointOptions replicas;
    replicas.redundant = 8;
    auto routed = ServingWatch::create(planned(more(64, 1), replicas)).value();
    EXPECT_THAT(std::string(routed.add(counted(more(8, 2))).message()),
                HasSubstr("chosen token by token"));
}

}  // namespace
}  // namespace bulkhead::planner
