// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugins/llama_moe/model_spec.h"
#include "tests/plugins/model.h"

namespace bulkhead::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The line a model with these lines added to (or put before) the small one is refused with.
std::string refusal(const std::string& toml, size_t shards = 1, const std::string& directory = "") {
    Model model({.shards = shards, .toml = toml, .directory = directory});
    EXPECT_FALSE(model.created());
    EXPECT_THAT(model.error(), Not(HasSubstr("\n")));
    return model.error();
}

std::string withLine(const std::string& key, const std::string& line) {
    std::string toml = kSmallModel;
    const size_t at = toml.find(key + " =");
    return toml.replace(at, toml.find('\n', at) - at, line);
}

TEST(Config, AnUnknownKeyIsNamedWithItsLineAndWhatThereIs) {
    EXPECT_THAT(
        refusal(std::string(kSmallModel) + "epxerts = 8\n"),
        AllOf(HasSubstr("line 11"), HasSubstr("unknown key epxerts"), HasSubstr("expert_hidden")));
}

TEST(Config, AWrongTypeIsNamedWithWhatWasExpected) {
    EXPECT_THAT(refusal(withLine("dim", "dim = \"wide\"")),
                AllOf(HasSubstr("dim must be a whole number from 1"), HasSubstr("not \"wide\"")));
    EXPECT_THAT(refusal(withLine("dim", "dim = 16.5")), HasSubstr("not 16.5"));
    EXPECT_THAT(refusal(withLine("layers", "layers = 0")), HasSubstr("layers must be"));
    EXPECT_THAT(refusal(std::string(kSmallModel) + "rope_theta = true\n"),
                HasSubstr("rope_theta must be a number"));
    EXPECT_THAT(refusal(std::string(kSmallModel) + "norm_epsilon = nan\n"),
                HasSubstr("norm_epsilon must be a number"));
}

TEST(Config, AMissingKeyIsNamed) {
    EXPECT_THAT(refusal(withLine("kv_heads", "")), HasSubstr("kv_heads is missing"));
    EXPECT_THAT(refusal(""), HasSubstr("dim is missing"));
}

TEST(Config, ShapesThatCannotBeAreRefused) {
    EXPECT_THAT(refusal(withLine("heads", "heads = 3")), HasSubstr("heads must divide dim (16)"));
    EXPECT_THAT(refusal(withLine("heads", "heads = 16")), HasSubstr("must be even"));
    EXPECT_THAT(refusal(withLine("kv_heads", "kv_heads = 3")),
                HasSubstr("kv_heads must divide heads (2)"));
    EXPECT_THAT(refusal(std::string(kSmallModel) + "top_k = 9\n"),
                HasSubstr("top_k must be at most experts (8)"));
}

TEST(Config, AModelThatDoesNotFitTheShardsIsRefused) {
    EXPECT_THAT(refusal(kSmallModel, 3),
                HasSubstr("experts must be a multiple of the job's shards (3), but is 8"));
}

TEST(Config, WhatNoMachineHoldsIsRefusedBeforeItIsAllocated) {
    EXPECT_THAT(refusal(withLine("dim", "dim = 1048576")), HasSubstr("parameters are beyond"));
    Model model({.sequence = 4000000000u, .microBatch = 4000000000u});
    EXPECT_FALSE(model.created());
    EXPECT_THAT(model.error(), HasSubstr("make micro_batch or sequence_length smaller"));
}

TEST(Config, TextThatIsNotTomlIsRefused) {
    EXPECT_THAT(refusal("dim = = 4"), AllOf(HasSubstr("[model] line 1"), HasSubstr("not TOML")));
}

TEST(Config, AnUnknownSizeListsThoseThereAre) {
    EXPECT_THAT(refusal("size = \"huge\"", 1, BULKHEAD_MODELS),
                AllOf(HasSubstr("no size \"huge\""), HasSubstr("tiny")));
    EXPECT_THAT(refusal("size = 3", 1, BULKHEAD_MODELS), HasSubstr("size must be the name"));
    EXPECT_THAT(refusal("size = \"../x\"", 1, BULKHEAD_MODELS), HasSubstr("size must be the name"));
}

TEST(Config, ASizeCanBeOverriddenKeyByKey) {
    const auto tiny = llama_moe::readModelConfig("size = \"tiny\"", BULKHEAD_MODELS);
    const auto more = llama_moe::readModelConfig("size = \"tiny\"\nexperts = 32", BULKHEAD_MODELS);
    ASSERT_TRUE(tiny.ok() && more.ok());
    EXPECT_EQ(tiny->experts, 16u);
    EXPECT_EQ(more->experts, 32u);
    EXPECT_EQ(more->dim, tiny->dim);
}

TEST(Config, EverySizeIsAModelOfTheWeightItClaims) {
    const auto parameters = [](const std::string& size) {
        const auto config = llama_moe::readModelConfig("size = \"" + size + "\"", BULKHEAD_MODELS);
        EXPECT_TRUE(config.ok()) << config.status();
        return llama_moe::describeModel(*config).parameters();
    };
    EXPECT_NEAR(static_cast<double>(parameters("tiny")), 1.5e6, 0.1e6);
    EXPECT_LT(parameters("tiny"), parameters("small"));
    EXPECT_NEAR(static_cast<double>(parameters("base")), 0.735e9, 0.005e9);
    EXPECT_NEAR(static_cast<double>(parameters("large")), 1.73e9, 0.01e9);
}

TEST(Config, ParametersAreListedByName) {
    Model model({.shards = 2});
    uint32_t count = 0;
    ASSERT_EQ(model.api().parameters(model.shard(1), nullptr, 0, &count), BULKHEAD_OK);
    std::vector<bulkhead_parameter> all(count);
    ASSERT_EQ(model.api().parameters(model.shard(1), all.data(), count, &count), BULKHEAD_OK);
    uint64_t sum = 0;
    std::vector<std::string> names;
    for (const auto& parameter : all) {
        sum += parameter.count;
        names.emplace_back(parameter.name);
    }
    EXPECT_EQ(sum, model.info().parameters);
    EXPECT_THAT(names, testing::IsSupersetOf({"embedding", "head.w", "layers.1.moe.router",
                                              "layers.3.moe.experts.5.w2"}));
}

}  // namespace
}  // namespace bulkhead::test
