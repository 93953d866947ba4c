// SPDX-License-Identifier: Apache-2.0
// The routing values: what goes in comes out, in every cut, and what cannot be is refused by place.
#include "backend/planner/data/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/planner/data/layer_names.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/data/routing_view.h"

namespace bulkhead::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelShape shapeOf(uint32_t layers, uint32_t experts, uint32_t topK) {
    ModelShape shape;
    shape.layers = layers;
    shape.experts = experts;
    shape.topK = topK;
    return shape;
}

/// The id that token t of all tokens has as its k-th in a layer.
uint16_t idOf(uint64_t token, uint32_t layer, uint32_t k, uint32_t experts) {
    return static_cast<uint16_t>((token * 3 + layer * 5 + k) % experts);
}

/// Requests of the given lengths, domains "a" and "b" in turn, the first half of each prompt.
Routing made(uint32_t experts, const std::vector<uint64_t>& lengths) {
    const uint32_t layers = 3, topK = 2;
    auto builder = RoutingBuilder::create(shapeOf(layers, experts, topK));
    EXPECT_TRUE(builder.ok()) << builder.status();
    uint64_t token = 0;
    for (size_t r = 0; r < lengths.size(); ++r) {
        builder->beginRequest("", r % 2 == 0 ? "a" : "b");
        std::vector<uint16_t> ids;
        for (uint64_t t = 0; t < lengths[r]; ++t, ++token)
            for (uint32_t layer = 0; layer < layers; ++layer)
                for (uint32_t k = 0; k < topK; ++k) ids.push_back(idOf(token, layer, k, experts));
        EXPECT_TRUE(builder->addTokens(ids).ok());
        builder->setPrefillTokens(lengths[r] / 2);
    }
    auto routing = builder->finish();
    EXPECT_TRUE(routing.ok()) << routing.status();
    return *std::move(routing);
}

TEST(Routing, keepsEveryIdInOneByteOrTwo) {
    for (const uint32_t experts : {7u, 256u, 257u, 1000u}) {
        const Routing routing = made(experts, {5, 4, 200});
        ASSERT_EQ(routing.tokens(), 209u);
        EXPECT_EQ(routing.bytes(), 209u * 3 * 2 * (experts <= 256 ? 1 : 2));
        for (uint32_t layer = 0; layer < 3; ++layer) {
            std::vector<uint16_t> ids(209 * 2);
            routing.readLayer(layer, 0, ids);
            for (uint64_t t = 0; t < 209; ++t)
                for (uint32_t k = 0; k < 2; ++k) {
                    EXPECT_EQ(ids[t * 2 + k], idOf(t, layer, k, experts));
                    EXPECT_EQ(routing.expert(layer, t, k), idOf(t, layer, k, experts));
                }
        }
    }
}

TEST(Routing, byLayerAndByTokenGiveTheSame) {
    const Routing byToken = made(7, {5, 4});
    auto builder = RoutingBuilder::create(shapeOf(3, 7, 2));
    ASSERT_TRUE(builder.ok());
    for (const Request& request : byToken.requests()) {
        builder->beginRequest(request.id, byToken.domains()[request.domain]);
        for (uint32_t layer = 0; layer < 3; ++layer) {
            std::vector<uint16_t> ids(request.tokens * 2);
            byToken.readLayer(layer, request.firstToken, ids);
            ASSERT_TRUE(builder->addLayer(layer, ids).ok());
        }
        builder->setPrefillTokens(*request.prefillTokens);
    }
    const auto byLayer = builder->finish();
    ASSERT_TRUE(byLayer.ok());
    EXPECT_EQ(byLayer->requests(), byToken.requests());
    EXPECT_EQ(byLayer->domains(), byToken.domains());
    for (uint32_t layer = 0; layer < 3; ++layer)
        for (uint64_t t = 0; t < 9; ++t)
            EXPECT_EQ(byLayer->expert(layer, t, 1), byToken.expert(layer, t, 1));
}

TEST(Routing, anIdThatCannotBeIsRefusedByPlaceAndNothingIsKept) {
    auto builder = RoutingBuilder::create(shapeOf(2, 4, 2));
    ASSERT_TRUE(builder.ok());
    builder->beginRequest("req-7", "a");
    ASSERT_TRUE(builder->addTokens(std::vector<uint16_t>{0, 1, 2, 3}).ok());
    EXPECT_THAT(builder->addTokens(std::vector<uint16_t>{0, 1, 2, 3, 0, 1, 2, 4}).message(),
                HasSubstr("request 0 (req-7), token 2, layer 1: expert 4 of 4"));
    EXPECT_THAT(builder->addLayer(1, std::vector<uint16_t>{3, 3}).message(),
                HasSubstr("token 1, layer 1: expert 3 twice"));
    EXPECT_THAT(builder->addTokens(std::vector<uint16_t>{0, 1, 2}).message(),
                HasSubstr("no whole number of tokens"));
    const auto routing = builder->finish();
    ASSERT_TRUE(routing.ok()) << routing.status();
    EXPECT_EQ(routing->tokens(), 1u);
}

TEST(Routing, layersOfOneRequestThatDifferInTokensAreRefused) {
    auto builder = RoutingBuilder::create(shapeOf(2, 4, 2));
    ASSERT_TRUE(builder.ok());
    builder->beginRequest("", "");
    ASSERT_TRUE(builder->addLayer(0, std::vector<uint16_t>{0, 1, 2, 3}).ok());
    ASSERT_TRUE(builder->addLayer(1, std::vector<uint16_t>{0, 1}).ok());
    EXPECT_THAT(builder->finish().status().message(),
                HasSubstr("request 0: layer 1 has 1 tokens, layer 0 has 2"));
}

TEST(Routing, aShapeThatCannotBeIsRefused) {
    EXPECT_THAT(RoutingBuilder::create(shapeOf(1, 4, 5)).status().message(), HasSubstr("top_k"));
    EXPECT_THAT(RoutingBuilder::create(shapeOf(0, 4, 1)).status().message(), HasSubstr("layer"));
    EXPECT_THAT(RoutingBuilder::create(shapeOf(1, 65537, 1)).status().message(),
                HasSubstr("experts: must be"));
    ModelShape groups = shapeOf(1, 4, 1);
    groups.routerGroups = 3;
    EXPECT_THAT(RoutingBuilder::create(groups).status().message(), HasSubstr("router_groups"));
}

TEST(LayerNames, layersAreFoundByTheModelsNumbersAndListed) {
    const std::vector<uint32_t> numbers{1, 3, 4, 5, 8, 9};
    EXPECT_EQ(layerList(6, numbers), "1, 3..5, 8, 9");
    EXPECT_EQ(layerList(3, {}), "0..2");
    EXPECT_EQ(layerNamed(8, 6, numbers).value(), 4u);
    EXPECT_EQ(layerNamed(2, 3, {}).value(), 2u);
    EXPECT_EQ(layerNamed(0, 6, numbers).status().message(),
              "layer 0 has no experts; those that do are 1, 3..5, 8, 9");
    EXPECT_FALSE(layerNamed(3, 3, {}).ok());
}

TEST(RoutingView, headsAndTailsPartTheTokens) {
    const Routing routing = made(7, {10, 1, 3});
    const RoutingView head = headOf(wholeOf(routing), 0.3);
    const RoutingView tail = tailOf(wholeOf(routing), 0.3);
    EXPECT_THAT(head.ranges,
                ElementsAre(TokenRange{0, 0, 3}, TokenRange{1, 10, 1}, TokenRange{2, 11, 1}));
    EXPECT_THAT(tail.ranges, ElementsAre(TokenRange{0, 3, 7}, TokenRange{2, 12, 2}));
    Counts both = countsOf(head);
    both += countsOf(tail);
    EXPECT_EQ(both, countsOf(wholeOf(routing)));
}

TEST(RoutingView, prefillAndDecodePartTheTokensAlsoOfAHead) {
    const Routing routing = made(7, {10, 3});
    EXPECT_THAT(prefillOf(wholeOf(routing)).ranges,
                ElementsAre(TokenRange{0, 0, 5}, TokenRange{1, 10, 1}));
    EXPECT_THAT(decodeOf(wholeOf(routing)).ranges,
                ElementsAre(TokenRange{0, 5, 5}, TokenRange{1, 11, 2}));
    EXPECT_THAT(decodeOf(headOf(wholeOf(routing), 0.8)).ranges,
                ElementsAre(TokenRange{0, 5, 3}, TokenRange{1, 11, 1}));
}

TEST(RoutingView, countsAddUpByDomainByRangeAndInAll) {
    const Routing routing = made(7, {10, 4, 5000});
    const RoutingView all = wholeOf(routing);
    const Counts counts = countsOf(all);
    EXPECT_EQ(counts.total(0), 5014u * 2);
    const std::vector<Counts> byDomain = countsByDomain(all);
    ASSERT_EQ(byDomain.size(), 2u);
    EXPECT_EQ(byDomain[1], countsOf(domainOf(routing, 1)));
    Counts sum = byDomain[0];
    EXPECT_EQ(sum += byDomain[1], counts);
    const std::vector<uint32_t> byRange = countsByRange(all, 2);
    for (uint32_t e = 0; e < 7; ++e)
        EXPECT_EQ(byRange[e] + byRange[7 + e] + byRange[14 + e], counts.at(2, e));
    EXPECT_EQ(everySecond(all, false).tokens() + everySecond(all, true).tokens(), 5014u);
}

TEST(Recording, totalsComeFromTokensOrFromWindows) {
    Recording recording;
    recording.routing = made(7, {4});
    recording.shape = recording.routing->shape();
    const Counts fromTokens = totalCounts(recording);
    Recording counted;
    counted.shape = recording.shape;
    counted.windows.push_back({"step 0", "", Phase::kUnknown, fromTokens});
    counted.windows.push_back({"step 1", "", Phase::kUnknown, fromTokens});
    EXPECT_EQ(totalCounts(counted).total(), 2 * fromTokens.total());
}

}  // namespace
}  // namespace bulkhead::planner
