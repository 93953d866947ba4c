// SPDX-License-Identifier: Apache-2.0
// Measures by hand, recordings made to show one thing each, and what the real ones show.
#include "backend/planner/characterise/characterise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/model/json.h"
#include "backend/planner/characterise/measures.h"
#include "backend/planner/characterise/report_text.h"
#include "backend/planner/import/import.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

using Row = std::vector<uint64_t>;

TEST(Measures, byHand) {
    EXPECT_DOUBLE_EQ(imbalance(Row{1, 2, 3, 6}), 2);
    EXPECT_DOUBLE_EQ(balancedness(Row{1, 2, 3, 6}), 0.5);
    EXPECT_EQ(expertsFor(Row{1, 2, 3, 6}, 0.5), 1u);
    EXPECT_EQ(expertsFor(Row{3, 3, 3, 3}, 0.5), 2u);
    EXPECT_EQ(expertsFor(Row{1, 2, 3, 6}, 1), 4u);
    EXPECT_DOUBLE_EQ(cosine(Row{1, 0}, Row{0, 1}), 0);
    EXPECT_DOUBLE_EQ(cosine(Row{3, 4}, Row{6, 8}), 1);
    EXPECT_DOUBLE_EQ(cosine(Row{3, 4}, Row{4, 3}), 0.96);
    EXPECT_DOUBLE_EQ(jensenShannon(Row{1, 0}, Row{0, 9}), 1);
    EXPECT_DOUBLE_EQ(jensenShannon(Row{1, 3}, Row{2, 6}), 0);
    // p = (1, 0), q = (1/2, 1/2): H(3/4, 1/4) - (0 + 1) / 2 bits.
    EXPECT_THAT(jensenShannon(Row{4, 0}, Row{2, 2}), DoubleNear(std::sqrt(0.8112781 - 0.5), 1e-6));
    EXPECT_DOUBLE_EQ(correlation(Row{1, 2, 3}, Row{2, 4, 6}), 1);
    EXPECT_DOUBLE_EQ(correlation(Row{1, 2, 3}, Row{6, 4, 2}), -1);
}

TEST(Measures, nothingGivesNoNaN) {
    const Row none{0, 0, 0};
    EXPECT_EQ(imbalance(none), 0);
    EXPECT_EQ(balancedness(none), 1);
    EXPECT_EQ(expertsFor(none, 0.5), 0u);
    EXPECT_EQ(cosine(none, none), 0);
    EXPECT_EQ(jensenShannon(none, Row{1, 2, 3}), 0);
    EXPECT_EQ(correlation(none, Row{1, 2, 3}), 0);
}

/// Requests of 40 tokens, 2 layers, top-2 of 8; `choose(random, request, token, layer)` gives two
/// ids.
template <class F>
Recording made(uint32_t requests, F&& choose) {
    ModelShape shape;
    shape.layers = 2;
    shape.experts = 8;
    shape.topK = 2;
    auto builder = RoutingBuilder::create(shape);
    std::mt19937 random(7);
    for (uint32_t r = 0; r < requests; ++r) {
        builder->beginRequest("", r % 2 == 0 ? "even" : "odd");
        builder->setPrefillTokens(20);
        std::vector<uint16_t> ids;
        for (uint32_t t = 0; t < 40; ++t)
            for (uint32_t layer = 0; layer < 2; ++layer) {
                const auto [a, b] = choose(random, r, t, layer);
                ids.push_back(static_cast<uint16_t>(a));
                ids.push_back(static_cast<uint16_t>(b));
            }
        EXPECT_TRUE(builder->addTokens(ids).ok());
    }
    Recording out;
    out.shape = shape;
    out.routing = *builder->finish();
    return out;
}

/// Two different experts out of [first, first + count).
std::pair<uint32_t, uint32_t> twoOf(std::mt19937& random, uint32_t first, uint32_t count) {
    const uint32_t a = static_cast<uint32_t>(random() % count);
    const uint32_t b = (a + 1 + static_cast<uint32_t>(random() % (count - 1))) % count;
    return {first + a, first + b};
}

TEST(Characterise, domainsWithExpertsOfTheirOwnHaveNothingInCommon) {
    const auto it = characterise(made(22, [](auto& random, uint32_t r, uint32_t, uint32_t) {
        return twoOf(random, r % 2 == 0 ? 0 : 4, 4);
    }));
    ASSERT_TRUE(it.domainMatrix.has_value());
    EXPECT_DOUBLE_EQ(it.domainMatrix->cosine[0][1], 0);
    EXPECT_DOUBLE_EQ(it.domainMatrix->distance[0][1], 1);
    EXPECT_GT(it.domainMatrix->cosine[0][0], 0.95);
    EXPECT_LT(it.domainMatrix->distance[1][1], 0.15);
    EXPECT_EQ(it.domains[0].requests, 11u);
    EXPECT_EQ(it.tokens, 880u);
    // A request's prefill tells its decode, and another domain's tells nothing.
    EXPECT_TRUE(it.phases->isPrefillDecode);
    EXPECT_GT(it.phases->perRequest, it.phases->otherRequest + 0.5)
        << "of 22 requests, the one half of them away is of the other domain";
}

TEST(Characterise, pairsThatAreAlwaysTogetherAreFoundAndChanceIsNot) {
    const auto paired = characterise(made(20, [](auto& random, uint32_t, uint32_t, uint32_t) {
        const uint32_t a = static_cast<uint32_t>(random() % 4) * 2;
        return std::pair(a, a + 1);
    }));
    EXPECT_GT(paired.coactivation->information, 0.95);
    EXPECT_DOUBLE_EQ(paired.coactivation->lifted, 1);
    EXPECT_EQ(paired.coactivation->strongest[0].first + 1,
              paired.coactivation->strongest[0].second);
    EXPECT_LT(paired.affinity->information, 0.02) << "layers choose independently";
    const auto chance = characterise(
        made(20, [](auto& random, uint32_t, uint32_t, uint32_t) { return twoOf(random, 0, 8); }));
    EXPECT_LT(chance.coactivation->information, 0.1) << "only that the two differ";
    EXPECT_LT(chance.coactivation->lifted, 0.01);
}

TEST(Characterise, theNextLayerThatFollowsIsAffinity) {
    uint32_t chosen = 0;
    const auto it = characterise(made(20, [&](auto& random, uint32_t, uint32_t, uint32_t layer) {
        if (layer == 0) chosen = static_cast<uint32_t>(random() % 4);
        return std::pair(chosen * 2, chosen * 2 + 1);
    }));
    EXPECT_GT(it.affinity->information, 0.6);
    EXPECT_GT(it.affinity->lifted, 0.99);
}

TEST(Characterise, driftShowsWhereTheRecordingChanges) {
    const auto it = characterise(made(20, [](auto& random, uint32_t r, uint32_t, uint32_t) {
        return twoOf(random, r < 10 ? 0 : 4, 4);
    }));
    ASSERT_EQ(it.drift.size(), 10u);
    EXPECT_DOUBLE_EQ(it.drift[0].toFirst, 1);
    EXPECT_GT(it.drift[4].toFirst, 0.9);
    EXPECT_DOUBLE_EQ(it.drift[5].toFirst, 0);
    EXPECT_DOUBLE_EQ(it.drift[5].toPrevious, 0);
    EXPECT_GT(it.drift[6].toPrevious, 0.9);
}

TEST(Characterise, countsAloneGiveWhatTheyCan) {
    Recording recording;
    recording.shape.layers = 1;
    recording.shape.experts = 4;
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        CountsWindow window{"w", phase == Phase::kPrefill ? "a" : "b", phase, Counts(1, 4)};
        for (uint32_t e = 0; e < 4; ++e) window.counts.row(0)[e] = e + 1;
        recording.windows.push_back(window);
    }
    const auto it = characterise(recording);
    EXPECT_DOUBLE_EQ(it.imbalance, 1.6);
    EXPECT_EQ(it.tokens, 0u) << "top-k is not known";
    EXPECT_DOUBLE_EQ(it.phases->pooled, 1);
    EXPECT_FALSE(it.coactivation.has_value());
    EXPECT_FALSE(it.domainMatrix->diagonalIsHalves);
}

TEST(Characterise, theReportHasThePapersThreeFindingsAndSaysWhoseTheDefinitionsAre) {
    const auto it = characterise(
        made(4, [](auto& random, uint32_t, uint32_t, uint32_t) { return twoOf(random, 0, 8); }));
    const std::string text = reportText(it);
    for (const char* part : {"Finding 1: ", "Finding 2: ", "Finding 3: ", "Co-activation",
                             "Affinity", "Drift", "2604.23150", "definitions above are our own"})
        EXPECT_THAT(text, HasSubstr(part));
    const auto json = model::toJson(it);
    EXPECT_EQ(json["layers"].size(), 2u);
    EXPECT_TRUE(json.contains("balancedness"));
    EXPECT_TRUE(json["phases"].contains("per_request"));
}

/// The figures of the reference notes, taken by other programs on more of the same data.
TEST(Characterise, theRealRecordingsShowWhatOthersFoundInThem) {
    BULKHEAD_SHARED_DATA(esft, "moe/esft/meta.json");
    const auto recording = importRecording(*esft);
    ASSERT_TRUE(recording.ok()) << recording.status();
    const auto it = characterise(*recording);
    ASSERT_EQ(it.domains.size(), 4u);
    for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < i; ++j) {
            EXPECT_THAT(it.domainMatrix->cosine[i][j], DoubleNear(0.66, 0.1)) << i << " " << j;
            EXPECT_LT(it.domainMatrix->cosine[i][j], it.domainMatrix->cosine[i][i]);
        }
    for (const DomainLoad& domain : it.domains) {
        EXPECT_GT(domain.imbalance, 3.3);
        EXPECT_LT(domain.imbalance, 5.8);
    }
    EXPECT_FALSE(it.phases->isPrefillDecode);
    EXPECT_THAT(it.phases->perRequest, DoubleNear(0.51, 0.05));
}

}  // namespace
}  // namespace bulkhead::planner
