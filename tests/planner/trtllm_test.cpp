// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's statistics and the safetensors they lie in.
#include "backend/planner/import/trtllm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/planner/import/safetensors.h"
#include "tests/planner/samples.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Recording> importBalancer(const std::string& rank) {
    return importFile("meta_info.json", memoryFiles({{"meta_info.json", samples::metaInfo()},
                                                     {"rank0.safetensors", samples::ranksOf(0)},
                                                     {"rank1.safetensors", rank}}));
}

TEST(Trtllm, ranksAddUpAndLayersKeepTheirNumbers) {
    const auto recording = importBalancer(samples::ranksOf(9));
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_THAT(recording->shape.layerNumbers, ElementsAre(3u, 4u));
    EXPECT_EQ(recording->shape.topK, 2u);
    ASSERT_EQ(recording->windows.size(), 2u);
    EXPECT_EQ(recording->windows[0].label, "iteration 5");
    EXPECT_THAT(recording->windows[0].counts.row(0), ElementsAre(11u, 4u, 6u, 8u));
    EXPECT_THAT(recording->windows[1].counts.row(1), ElementsAre(0u, 0u, 0u, 2u));
}

TEST(Trtllm, rawIdsOfNewerVersionsArePassedOverAndThatIsSaid) {
    const auto recording =
        importFile("meta_info.json", memoryFiles({{"meta_info.json", samples::metaInfo()},
                                                  {"rank0.safetensors", samples::ranksOf(0)},
                                                  {"rank0_raw.safetensors", "whatever"}}));
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_THAT(recording->notes, Contains(HasSubstr("1 other safetensors files")));
}

TEST(Trtllm, whatIsNoStatisticIsRefusedByPlace) {
    const auto refusal = [](const std::string& rank) {
        return std::string(importBalancer(rank).status().message());
    };
    EXPECT_THAT(refusal(safetensorsFile({{"5", {1, 2, 3, 4}}})),
                HasSubstr("rank1.safetensors: 5: expected a name ITERATION_LAYER"));
    EXPECT_THAT(refusal(safetensorsFile({{"5_3", {1, 2, 3}}})),
                HasSubstr("expected whole numbers [4], found int64 [3]"));
    EXPECT_THAT(refusal(safetensorsFile({{"5_3", {1, -2, 3, 4}}})),
                HasSubstr("expert 1: -2 tokens"));
    EXPECT_THAT(refusal(safetensorsFile({{"7_3", {1, 2, 3, 4}}})),
                HasSubstr("iteration 7 has 1 layers, others have 2"));
}

TEST(Trtllm, countsThatWouldWrapOrAreNothingAreRefused) {
    const auto rank = [](int64_t count) {
        return safetensorsFile({{"5_3", {count, 0, 0, 0}}, {"5_4", {0, 0, 0, 0}}});
    };
    const auto refusal = [&](int64_t a, int64_t b) {
        return std::string(
            importFile("meta_info.json", memoryFiles({{"meta_info.json", samples::metaInfo()},
                                                      {"rank0.safetensors", rank(a)},
                                                      {"rank1.safetensors", rank(b)}}))
                .status()
                .message());
    };
    constexpr int64_t kMost = int64_t{1} << 53;
    EXPECT_THAT(refusal(INT64_MAX, 0),
                HasSubstr("rank0.safetensors: 5_3: expert 0: 9223372036854775807 tokens, expected "
                          "0 to 9007199254740992"));
    EXPECT_THAT(refusal(kMost, 1), HasSubstr("rank1.safetensors: 5_3: expert 0: 1 tokens"));
    EXPECT_EQ(refusal(0, 0), "meta_info.json: nothing was routed: every count in it is 0");
    EXPECT_EQ(refusal(kMost, 0), "");
}

TEST(Safetensors, aKeyThatIsThereTwiceIsRefused) {
    const std::string tensor = R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
    for (const std::string& header :
         {R"({"a":)" + tensor + R"(,"a":)" + tensor + "}",
          std::string(R"({"b":{"a":"U8","a":"I8","shape":[8],"data_offsets":[0,8]}})")}) {
        const std::string bytes = bytesOf<uint64_t>({header.size()}) + header + "12345678";
        EXPECT_THAT(parseSafetensors(bytes, "r").status().message(),
                    HasSubstr("r: header: the key \"a\" is there twice"));
    }
}

TEST(Safetensors, aCutOrLyingFileIsRefused) {
    const std::string whole = samples::ranksOf(0);
    for (size_t length = 0; length < whole.size(); ++length)
        EXPECT_FALSE(parseSafetensors(whole.substr(0, length), "r").ok()) << length;
    const auto refusal = [](std::string_view header, size_t data) {
        const std::string bytes =
            bytesOf<uint64_t>({header.size()}) + std::string(header) + std::string(data, 'x');
        return std::string(parseSafetensors(bytes, "r").status().message());
    };
    EXPECT_THAT(refusal(R"({"a":{"dtype":"I64","shape":[2],"data_offsets":[0,8]}})", 8),
                HasSubstr("r: a: expected a shape of its data"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,16]}})", 8),
                HasSubstr("a.data_offsets[1]: expected a whole number from 0 to 8"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})", 8),
                HasSubstr("a.dtype: expected a number type"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                            "b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                        8),
                HasSubstr("overlap or leave a gap"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8),
                HasSubstr("data byte 0: tensors overlap or leave a gap"));
    EXPECT_THAT(
        refusal(R"({"a":{"dtype":"U8","shape":[9999999999,9999999999],"data_offsets":[0,8]}})", 8),
        HasSubstr("does not fit"));
}

TEST(Trtllm, theRealOne) {
    BULKHEAD_SHARED_DATA(folder, "moe/formats/trtllm");
    const auto recording = importRecording(*folder);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->windows.size(), 4u);
    EXPECT_EQ(recording->shape.layers, 26u);
    EXPECT_EQ(recording->shape.layerNumbers.front(), 1u);
    EXPECT_EQ(recording->windows[0].counts.total(0), 24888u);
}

}  // namespace
}  // namespace bulkhead::planner
