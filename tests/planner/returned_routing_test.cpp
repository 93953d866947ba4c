// SPDX-License-Identifier: Apache-2.0
// Responses with routing, in every spelling the engines and their clients use.
#include "backend/planner/import/returned_routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/planner/samples.h"

namespace bulkhead::planner {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Recording> importResponse(const std::string& json, uint32_t topK = 2,
                                         uint32_t experts = 4) {
    ImportOptions options;
    options.model = ModelShape();
    options.model->topK = topK;
    options.model->experts = experts;
    return importFile("r.json", memoryFiles({{"r.json", json}}), options);
}

/// All samples are the same three tokens, two of them prompt.
void expectTheThreeTokens(const absl::StatusOr<Recording>& recording) {
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    ASSERT_EQ(routing.tokens(), 3u);
    EXPECT_EQ(routing.shape().layers, 2u);
    EXPECT_EQ(routing.shape().experts, 4u);
    EXPECT_EQ(routing.requests()[0].prefillTokens, 2u);
    EXPECT_EQ(routing.expert(0, 0, 1), 1);
    EXPECT_EQ(routing.expert(1, 1, 0), 2);
    EXPECT_EQ(routing.expert(0, 2, 1), 3);
}

TEST(ReturnedRouting, vllmWithListsSplitInPromptAndChoice) {
    expectTheThreeTokens(importResponse(samples::vllmResponse()));
}

TEST(ReturnedRouting, vllmWithOneNpyOverAllTokens) {
    expectTheThreeTokens(importResponse(samples::npyResponse()));
}

TEST(ReturnedRouting, vllmWithAShapeBesideBase64) {
    const std::string ids = bytesOf<int16_t>({0, 1, 3, 2, 1, 2, 2, 1, 0, 3, 2, 1});
    expectTheThreeTokens(importResponse(model::concat(
        R"({"usage":{"prompt_tokens":2},"choices":[{"routed_experts":{"encoding":"base64",)",
        R"("dtype":"int16","shape":[3,2,2],"data":")", absl::Base64Escape(ids), "\"}}]}")));
}

TEST(ReturnedRouting, sglangLosesItsDenseLayer) {
    const auto recording = importResponse(samples::sglangResponse());
    expectTheThreeTokens(recording);
    EXPECT_THAT(recording->shape.layerNumbers, ElementsAre(1u, 2u));
    EXPECT_EQ(recording->routing->requests()[0].id, "g1");
}

TEST(ReturnedRouting, severalResponsesInAnArrayOrByLine) {
    const std::string one = samples::vllmResponse();
    EXPECT_EQ(importResponse("[" + one + "," + one + "]")->routing->requests().size(), 2u);
    EXPECT_EQ(importResponse(one + "\n" + one + "\n")->routing->requests().size(), 2u);
}

TEST(ReturnedRouting, withoutAModelTheExpertsAreGuessedAndThatIsSaid) {
    const auto recording = importFile("r.json", memoryFiles({{"r.json", samples::vllmResponse()}}));
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_THAT(recording->notes, Contains(HasSubstr("one more than the largest id")));
}

TEST(ReturnedRouting, whatDoesNotFitIsRefusedByPlace) {
    EXPECT_THAT(importResponse(samples::vllmResponse(), 2, 3).status().message(),
                HasSubstr("token 0, layer 1: expert 3, expected 0 to 2"));
    EXPECT_THAT(importResponse(samples::sglangResponse(), 5).status().message(),
                HasSubstr("are no int32 for 3 tokens"));
    EXPECT_THAT(importResponse(samples::sglangResponse(), 0).status().message(),
                HasSubstr("--model"));
    EXPECT_THAT(importResponse(R"({"choices":[{"routed_experts":[[[0,1]],[[0,1],[1,2]]]}],
                          "prompt_routed_experts":[]})")
                    .status()
                    .message(),
                HasSubstr("r.json: choices[0]: routed_experts: [1]: expected one list a layer"));
    EXPECT_THAT(importResponse(R"({"choices":[{"text":"hello"}]})").status().message(),
                HasSubstr("--enable-return-routed-experts"));
    EXPECT_THAT(importResponse(R"({"meta_info":{"prompt_tokens":1,"completion_tokens":1,
                          "routed_experts":"%%%"}})")
                    .status()
                    .message(),
                HasSubstr("expected base64"));
}

}  // namespace
}  // namespace bulkhead::planner
