// SPDX-License-Identifier: Apache-2.0
// Placement and homes together: better than what they are compared with, within the load asked for;
// tokens drawn where only counts are known; refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/import/import.h"
#include "backend/planner/plan/plan_json.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/cross_validation.h"
#include "backend/planner/solve/drawn_routing.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "tests/planner/made_routing.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

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
TokenSample oneEach(uint32_t requests, uint16_t (*expert)(uint32_t)) {
    TokenSample sample{2, 1, {{}}, {}, std::vector<double>(requests, 1)};
    for (uint32_t r = 0; r < requests; ++r) {
        sample.ids[0].push_back(expert(r));
        sample.range.push_back(r);
    }
    return sample;
}

TEST(ExpectedLoad, growsWithWhatNeighbouringRequestsDifferIn) {
    const uint32_t requests = 200;
    const NodeRoutes routes{2, 2, {{0, 1}}};
    const std::vector<uint16_t> homes(requests, 0);
    ByKind places{std::vector<uint32_t>(requests), std::vector<uint32_t>(requests, 0)};
    std::iota(places.places.begin(), places.places.end(), 0);
    const std::vector<uint32_t> layers{0};
    const auto mixed =
        oneEach(requests, [](uint32_t r) { return static_cast<uint16_t>(r * 7 % 11 % 2); });
    const Spread varied = expectedNodeLoad(mixed, routes, homes, places, layers, 1);
    // The mean load is 100, a request is a coin: of 2 x 200 coins the deviation is 10, and of the
    // larger of the two sums 0.8 x 10 more.
    EXPECT_NEAR(varied.mean, 1.09, 0.04);
    EXPECT_EQ(varied.mean, expectedNodeLoad(mixed, routes, homes, places, layers, 1).mean);
    // Where requests of a kind stand together, the shares of the kinds stay what they are.
    const auto sorted =
        oneEach(requests, [](uint32_t r) { return static_cast<uint16_t>(r / 100); });
    EXPECT_NEAR(expectedNodeLoad(sorted, routes, homes, places, layers, 1).mean, 1.0, 0.02);
}

TEST(ExpectedLoad, ofOneLongRequestIsThatOfItsStretches) {
    TokenSample sample{2, 1, {{}}, {}, {400}};
    for (uint32_t t = 0; t < 400; ++t) {
        sample.ids[0].push_back(static_cast<uint16_t>(t / 25 % 2));
        sample.range.push_back(0);
    }
    EXPECT_GT(
        expectedNodeLoad(sample, {2, 2, {{0, 1}}}, {0}, {{0}, {0}}, std::vector<uint32_t>{0}, 1)
            .mean,
        1.1);
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
        options.confidence = 0.01;  // next to nothing is left free for new requests
        const Plan plan = solveJoint(wholeOf(routing), flatTopology(4, 1), options).value();
        const HeldOut held = heldOut(wholeOf(routing), plan, {}).value();
        const Counts counts = countsOf(held.scored);
        const auto row = counts.row(0);
        EXPECT_EQ(leastNodeLoad({row.begin(), row.end()}, 4) > 1.25, popular);
        return std::pair(
            popular ? maxOverMean(held.layers[0].nodeLoad) : held.outcome.nodeLoadMaxOverMean,
            held.layers[1].sends);
    };
    const auto [plainLoad, plainSends] = loads(false);
    const auto [fullLoad, fullSends] = loads(true);
    EXPECT_LE(plainLoad, 1.25);
    EXPECT_GT(fullLoad, 1.25);
    EXPECT_NEAR(fullSends, plainSends, 0.2 * plainSends);
}

/// Two domains that use different experts: together they are even wherever those are, and alone
/// only if each has its own spread over the nodes.
TEST(Joint, keepsTheLoadCapForEveryMixture) {
    const Routing routing = madeRouting(fourDomains(64));
    const RoutingView whole = wholeOf(routing);
    double load[2];
    for (const bool worst : {false, true}) {
        JointOptions options;
        if (worst) options.mixtures = worstMixtures(whole);
        const Plan plan = solveJoint(whole, flatTopology(4, 2), options).value();
        load[worst] = 0;
        for (uint32_t d = 0; d < 4; ++d)
            load[worst] = std::max(
                load[worst],
                heldOut(domainOf(routing, d), plan, {}).value().outcome.nodeLoadMaxOverMean);
    }
    EXPECT_GT(load[0], 1.5);
    EXPECT_LT(load[1], 1.2);
}

TEST(Mixtures, areReadFromAFileOrAreEachDomainAlone) {
    const Routing routing = madeRouting(fourDomains(8));
    const RoutingView whole = wholeOf(routing);
    const std::vector<Mixture> worst = worstMixtures(whole);
    ASSERT_EQ(worst.size(), 5u);
    EXPECT_THAT(worst[1], testing::ElementsAre(1, 0, 0, 0));
    EXPECT_THAT(worstMixtures(domainOf(routing, 0)), testing::IsEmpty());
    const std::string name = routing.domains()[1];
    const auto read = parseMixtures("[{\"" + name + "\": 3, \"" + routing.domains()[0] + "\": 1}]",
                                    "m.json", whole);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_THAT(read->at(0), testing::ElementsAre(0.25, 0.75, 0, 0));
    EXPECT_THAT(weightsOf(whole, read->at(0)), testing::ElementsAre(1, 3, 0, 0, 1, 3, 0, 0));
    const auto refused = [&](const char* text) {
        return std::string(parseMixtures(text, "m.json", whole).status().message());
    };
    EXPECT_THAT(refused("[{\"cooking\": 1}]"),
                testing::HasSubstr("m.json: mixture 0: the recording has no domain \"cooking\""));
    EXPECT_THAT(refused(("[{\"" + name + "\": -1}]").c_str()), testing::HasSubstr("0 or more"));
    EXPECT_THAT(refused(("[{\"" + name + "\": 0}]").c_str()),
                testing::HasSubstr("sum to more than 0"));
    EXPECT_THAT(
        refused(("[{\"" + name + "\": 1e308, \"" + routing.domains()[0] + "\": 1e308}]").c_str()),
        testing::HasSubstr("and to a number"));
    EXPECT_THAT(refused("{}"), testing::HasSubstr("expected 1 to 64 mixtures"));
    EXPECT_THAT(refused("[[["), testing::HasSubstr("expected 1 to 64 mixtures"));
}

/// It is luck how many of ESFT's requests are of each task. Searches that took their mixture as
/// given ended at 1.23 with half of them.
TEST(Joint, paysForACapWhereTheMixtureIsLuck) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    JointOptions options;
    options.sends = 0;
    options.copies = 1;
    options.effort = 0.3;
    CrossValidationOptions validation;
    validation.homes = homesFor("copies", 0.3, 1.15);
    const RoutingView half = everySecond(wholeOf(*recording->routing), false);
    const auto plan = solveForecast(half, flatTopology(4, 8), options, validation);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->forecast.expected.nodeLoad.high, 1.165);
}

TEST(Joint, usesTheLoadThatItMay) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    const RoutingView whole = wholeOf(*recording->routing);
    JointOptions options;
    options.sends = 0;
    options.copies = 1;
    options.mixtures = {recordedMixture(whole)};  // both halves have it
    double before = INFINITY;
    for (const double cap : {1.12, 1.15}) {
        options.loadCap = cap;
        double load = 0, copies = 0;
        for (const bool odd : {false, true}) {
            const Plan plan =
                solveJoint(everySecond(whole, odd), flatTopology(4, 8), options).value();
            const Outcome seen =
                heldOut(everySecond(whole, !odd), plan, {0.3, 1.15, 0, 1}).value().outcome;
            load += seen.nodeLoadMaxOverMean / 2;
            copies += seen.copiesPerToken / 2;
        }
        EXPECT_LE(load, cap);
        EXPECT_GT(load, cap - 0.1) << "but for what new requests may add";
        EXPECT_LT(copies, before);
        before = copies;
    }
}

/// Experts that three domains use together may all be asked for by a fourth.
TEST(OtherKinds, findNodesNoFullerThanLinears) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    const Routing& routing = *recording->routing;
    constexpr uint32_t kLeft = 0;  // intent
    RoutingView others{&routing, {}};
    for (const TokenRange& range : wholeOf(routing).ranges)
        if (routing.requests()[range.request].domain != kLeft) others.ranges.push_back(range);
    const auto figures = [&](const Plan& plan) {
        return heldOut(domainOf(routing, kLeft), plan, {}).value().outcome;
    };
    JointOptions options;
    options.effort = 0.2;
    const Outcome plain = figures(solveJoint(others, flatTopology(4, 8), options).value());
    options.otherKinds = true;
    const Outcome careful = figures(solveJoint(others, flatTopology(4, 8), options).value());
    const Outcome linear = figures(baselinePlan("linear", others, flatTopology(4, 8), 0).value());
    EXPECT_GT(plain.nodeLoadMaxOverMean, linear.nodeLoadMaxOverMean + 0.05);
    EXPECT_LE(careful.nodeLoadMaxOverMean, linear.nodeLoadMaxOverMean + 0.05);
    EXPECT_LE(careful.sendsPerToken, linear.sendsPerToken - 0.05);
    options.redundant = 4;
    EXPECT_FALSE(solveJoint(others, flatTopology(4, 8), options).ok());
}

TEST(OtherKinds, areForecastFromAtLeastThreeDomains) {
    MadeOptions made = fourDomains(48);
    JointOptions options;
    options.effort = 0.1;
    options.otherKinds = true;
    CrossValidationOptions validation;
    validation.otherKinds = true;
    const Routing four = madeRouting(made);
    const auto plan = solveForecast(wholeOf(four), flatTopology(4, 1), options, validation);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(plan->forecast.byKind);
    EXPECT_EQ(plan->forecast.folds, 4u);
    EXPECT_THAT(forecastNotes(plan->forecast, 1000).back(), HasSubstr("each left out in turn"));
    made.domains = 2;
    const Routing two = madeRouting(made);
    const auto refused = solveForecast(wholeOf(two), flatTopology(4, 1), options, validation);
    EXPECT_THAT(refused.status().message(), HasSubstr("2 domains"));
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
        HasSubstr("32 redundant experts; at most 16"));
}

TEST(Joint, linksChangeNothingWhereAllNodesAreEquallyFarApart) {
    const Routing routing = madeRouting(fourDomains(24));
    JointOptions options;
    options.effort = 0.2;
    const Plan plan = solveJoint(wholeOf(routing), flatTopology(4, 2), options).value();
    options.weighLinks = true;
    EXPECT_EQ(solveJoint(wholeOf(routing), flatTopology(4, 2), options).value(), plan);
}

}  // namespace
}  // namespace bulkhead::planner
