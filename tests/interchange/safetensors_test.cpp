// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/interchange/memory_files.h"

namespace bulkhead::interchange {
namespace {

using ::testing::HasSubstr;

TEST(Safetensors, aHeaderComesBackAsItWasWritten) {
    SafetensorsHeader header;
    header.metadata = {{"format", "pt"}, {"who", "\"me\""}};
    header.entries = {
        {"a", "F64", {2}, 0, 16}, {"b", "BF16", {}, 16, 18}, {"c", "U8", {0, 3}, 18, 18}};
    const auto text = safetensorsHeaderText(header);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->size() % 8, 0u) << "the data is aligned";
    MemoryFiles files;
    files.content["/f"] = *text + std::string(18, 'x');
    const auto read = readSafetensorsHeader(files, "/f");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->metadata, header.metadata);
    ASSERT_EQ(read->entries.size(), 3u);
    EXPECT_EQ(read->entries[1].name, "b");
    EXPECT_EQ(read->entries[1].begin, 16u);
    EXPECT_EQ(read->entries[2].shape, (std::vector<uint64_t>{0, 3}));
    EXPECT_EQ(read->dataBegin, text->size());
}

TEST(Safetensors, aHeaderThatNoReaderTakesIsNotWritten) {
    SafetensorsHeader header;
    header.metadata = {{"long", std::string(kLongestSafetensorsHeader, 'x')}};
    EXPECT_THAT(std::string(safetensorsHeaderText(header).status().message()),
                HasSubstr("a safetensors file has at most 100000000"));
}

std::string refusal(const std::string& json, uint64_t data) {
    const auto read = parseSafetensorsHeader(json, 8 + json.size() + data, "/f");
    return read.ok() ? "" : std::string(read.status().message());
}

std::string one(const std::string& fields) {
    return "{\"w\":{" + fields + "}}";
}

TEST(Safetensors, aHostileHeaderIsRefusedByTensorAndField) {
    const std::string good = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
    EXPECT_EQ(refusal(good, 8), "");
    const std::vector<std::tuple<std::string, uint64_t, std::string>> cases = {
        {"", 0, "not JSON"},
        {"[]", 0, "found a list, expected an object of tensors"},
        {std::string(100'000, '['), 0, "found a list, expected an object of tensors"},
        {R"({"w":7})", 0, "tensor \"w\": found a number"},
        {R"({"w":{"w":{}}})", 0, "unknown field \"w\""},
        {one(R"("shape":[2],"data_offsets":[0,8])"), 8, "has no dtype"},
        {one(R"("dtype":"F32","data_offsets":[0,8])"), 8, "has no shape"},
        {one(R"("dtype":"F32","shape":[2])"), 8, "has no data_offsets"},
        {one(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8,
         "dtype is there twice"},
        {one(R"("dtype":"NUMBER","shape":[],"data_offsets":[0,16])"), 16,
         "dtype \"NUMBER\" is not known"},
        {one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), 8, "dtype \"F31\" is not known"},
        {one(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), 8, "expected a text"},
        {one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8, "found the number -2"},
        {one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8, "found the number 2.0"},
        {one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), 8, "found a list"},
        {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), 8,
         "more elements than any file"},
        {one(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])"), 0,
         "more elements than any file"},
        {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8,
         "hold 8 bytes, expected the 12"},
        {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8,
         "expected a range within the 8 bytes"},
        {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,16])"), 8, "more than 2 numbers"},
        {one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, "data_offsets has 1 numbers"},
        {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), 8,
         "expected a range within"},
        {good, 7, "expected a range within the 7 bytes"},
        {good, 9, "1 bytes behind byte 8 belong to no tensor"},
        {one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), 12, "leave a gap"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
         12, "tensors overlap"},
        {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
         0, "tensor \"a\": it is there twice"},
        {R"({"__metadata__":{"a":1}})", 0, "found a number, expected a text"},
        {R"({"__metadata__":{"a":"x","a":"y"}})", 0, "\"a\" is there twice"},
        {good + "x", 8, "not JSON"},
    };
    for (const auto& [json, data, words] : cases) {
        EXPECT_THAT(refusal(json, data), HasSubstr(words)) << json.substr(0, 200);
        EXPECT_THAT(refusal(json, data), HasSubstr("/f: ")) << "names the file";
        EXPECT_THAT(refusal(json, data), HasSubstr("; take the file")) << "names the remedy";
    }
}

TEST(Safetensors, aFileThatEndsBeforeItsHeaderIsRefused) {
    MemoryFiles files;
    const auto refused = [&](const std::string& bytes, const char* words) {
        files.content["/f"] = bytes;
        EXPECT_THAT(std::string(readSafetensorsHeader(files, "/f").status().message()),
                    HasSubstr(words));
    };
    refused("", "a file of 0 bytes");
    refused("1234567", "a file of 7 bytes");
    refused(std::string("\x03\0\0\0\0\0\0\0{}", 10), "3 bytes, expected at most 2");
    refused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), "expected at most 2");
    refused("PK\x03\x04 and so on", "make one of it: python3 -m bulkhead safetensors /f NEW");
    EXPECT_TRUE(absl::IsNotFound(readSafetensorsHeader(files, "/g").status()));
}

}  // namespace
}  // namespace bulkhead::interchange
