// SPDX-License-Identifier: Apache-2.0
// The door: which form a file is, what the model adds, and what several files make together.
#include "backend/planner/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <new>

#include "backend/planner/data/merge.h"
#include "backend/planner/data/routing_view.h"
#include "tests/planner/samples.h"

namespace bulkhead::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Recording> import(const std::string& name, const std::string& bytes,
                                 const ImportOptions& options = {}) {
    return importFile(name, memoryFiles({{name, bytes}}), options);
}

TEST(Import, balancednessOfBothServersLogs) {
    const auto vllm = import("server.log", samples::vllmLog());
    ASSERT_TRUE(vllm.ok()) << vllm.status();
    ASSERT_EQ(vllm->balance.size(), 3u);
    EXPECT_EQ(vllm->balance[0].step, std::nullopt);
    EXPECT_EQ(vllm->balance[1].step, 100u);
    EXPECT_EQ(vllm->balance[1].model, "Qwen3");
    EXPECT_DOUBLE_EQ(vllm->balance[1].balancedness, 0.75);
    EXPECT_DOUBLE_EQ(vllm->balance[2].maxTokens, 2048);
    EXPECT_THAT(vllm->notes, ElementsAre("1 lines could not be read, the first is line 5."));
    const auto sglang = import("server.log", samples::sglangLog());
    ASSERT_TRUE(sglang.ok()) << sglang.status();
    EXPECT_EQ(sglang->balance[0].step, 41u);
    EXPECT_DOUBLE_EQ(sglang->balance[0].balancedness, 0.612);
}

TEST(Import, aByteOrderMarkIsNamed) {
    for (const char* name : {"r.jsonl", "r.json", "r"}) {
        EXPECT_THAT(import(name, "\xEF\xBB\xBF" + samples::requestLines()).status().message(),
                    HasSubstr("it begins with a byte order mark (BOM); save it as UTF-8"));
        EXPECT_THAT(import(name, "\xFF\xFE{").status().message(), HasSubstr("UTF-16"));
    }
}

TEST(Import, memoryThatEndsIsARefusal) {
    Files files;
    files.names = {"r.jsonl"};
    files.read = [](std::string_view) -> absl::StatusOr<std::string> { throw std::bad_alloc(); };
    for (const absl::Status& status :
         {importFile("r.jsonl", files).status(), importRanks({"r.jsonl"}, files).status()}) {
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        EXPECT_THAT(status.message(), HasSubstr("r.jsonl: reading it takes more memory"));
    }
}

TEST(Import, aFileOfJsonLinesThatIsTooLargeIsNotRead) {
    Files files;
    files.names = {"r.jsonl"};
    files.size = [](std::string_view) { return kMostJsonLines + 1; };
    files.read = [](std::string_view) { return absl::StatusOr<std::string>("{}"); };
    EXPECT_THAT(importFile("r.jsonl", files).status().message(), HasSubstr("at most 1073741824"));
}

TEST(Import, aModelThatDoesNotFitIsRefusedWithBothNumbers) {
    ImportOptions options;
    options.model = ModelShape();
    options.model->name = "gpt-oss-20b";
    options.model->experts = 32;
    EXPECT_THAT(import("r.jsonl", samples::requestLines(), options).status().message(),
                HasSubstr("it has 4 experts, the model gpt-oss-20b has 32"));
}

TEST(Import, theModelFillsInWhatARecordingLeavesOpen) {
    ImportOptions options;
    options.model = ModelShape();
    options.model->hidden = 7168;
    options.model->topK = 2;
    const auto recording = import("r.jsonl", samples::requestLines(), options);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->routing->shape().hidden, 7168u);
    EXPECT_EQ(recording->shape.name, "m");
}

TEST(Import, npyAloneIsCountsOrNeedsAModel) {
    const auto counts = import("c.npy", npyFile("<i8", "(2, 2)", bytesOf<int64_t>({1, 2, 3, 4})));
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_EQ(counts->windows[0].counts.at(1, 0), 3u);
    EXPECT_THAT(import("a.npy", samples::npyIds()).status().message(), HasSubstr("--model"));
    ImportOptions options;
    options.model = ModelShape();
    options.model->layers = 2;
    options.model->experts = 4;
    options.model->topK = 2;
    const auto ids = import("a.npy", samples::npyIds(), options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(ids->routing->tokens(), 3u);
}

TEST(Import, npyCountsThatWouldWrapOrAreNothingAreRefused) {
    const auto refusal = [](const std::vector<int64_t>& counts) {
        return std::string(
            import("c.npy", npyFile("<i8", "(2, 2)", bytesOf(counts))).status().message());
    };
    EXPECT_THAT(refusal({1, 2, INT64_MAX, 4}),
                HasSubstr("layer 1, expert 0: 9223372036854775807 tokens, expected 0 to"));
    EXPECT_EQ(refusal({int64_t{1} << 53, 1, 0, 0}),
              "c.npy: more than 9007199254740992 tokens in all");
    EXPECT_EQ(refusal({0, 0, 0, 0}), "c.npy: nothing was routed: every count in it is 0");
}

TEST(Import, whatIsNothingIsRefused) {
    EXPECT_THAT(import("a", "hello").status().message(), HasSubstr("a: no recording"));
    EXPECT_THAT(import("a", "").status().message(), HasSubstr("it is empty"));
    EXPECT_THAT(import("a.json", "[1, 2]").status().message(), HasSubstr("no recording"));
    EXPECT_THAT(import("rank0.safetensors", samples::ranksOf(0)).status().message(),
                HasSubstr("meta_info.json"));
    EXPECT_EQ(importRecording("/nowhere/at-all.json").status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(import("a.json", std::string(200'000, '[')).status().message(),
                HasSubstr("a.json: "));
}

TEST(Import, aFileOverTheLimitIsNotRead) {
    const auto path = std::filesystem::path(testing::TempDir()) / "large.jsonl";
    std::ofstream(path) << samples::requestLines();
    ImportOptions options;
    options.mostBytes = 10;
    EXPECT_EQ(importRecording(path, options).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(importRecording(path).ok());
    std::filesystem::remove(path);
}

TEST(Merge, filesOfOneModelBecomeOneRecording) {
    ImportOptions code, chat;
    code.domain = "code";
    chat.domain = "chat";
    std::vector<Recording> two;
    two.push_back(*import("r.json", samples::vllmResponse(), code));
    two.push_back(*import("r.json", samples::vllmResponse(), chat));
    const auto both = merged(std::move(two));
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_EQ(both->routing->tokens(), 6u);
    EXPECT_THAT(both->routing->domains(), ElementsAre("code", "chat"));
    EXPECT_EQ(both->routing->requests()[1].prefillTokens, 2u);
    EXPECT_EQ(countsByDomain(wholeOf(*both->routing))[0],
              countsByDomain(wholeOf(*both->routing))[1]);
}

TEST(Merge, differentModelsAreRefused) {
    std::vector<Recording> two;
    two.push_back(*import("a.jsonl", samples::countLines()));
    two.push_back(*import("c.npy", npyFile("|u1", "(1, 2)", "\1\2")));
    EXPECT_THAT(merged(std::move(two)).status().message(),
                HasSubstr("1 layers x 2 experts, top 0, which is another model than 2 x 2"));
}

}  // namespace
}  // namespace bulkhead::planner
