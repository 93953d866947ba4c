// SPDX-License-Identifier: Apache-2.0
// Arrays described by JSON: the recordings at hand, small ones of our own, and every way to lie.
#include "backend/planner/import/meta_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/planner/data/routing_view.h"
#include "backend/planner/import/import.h"
#include "tests/planner/memory_files.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

/// 2 layers x 3 tokens x top-2 of 4 experts, [layer, token, k].
const std::string kIds("\0\1\1\2\2\3\3\2\2\1\1\0", 12);

std::string domainsMeta(std::string_view lengths, std::string_view file = "a.npy") {
    return model::concat(R"({"model":"m","moe_layers":2,"experts":4,"top_k":2,)",
                         R"("layout":"uint8 [layer, token, k]","domains":{"code":{"file":")", file,
                         R"(","sequence_lengths":)", lengths, "}}}");
}

absl::StatusOr<Recording> importMeta(const std::string& meta, const std::string& npy) {
    return importFile("meta.json", memoryFiles({{"meta.json", meta}, {"a.npy", npy}}));
}

TEST(MetaJson, requestsOfADomainKeepTheirTokens) {
    const auto recording = importMeta(domainsMeta("[1, 2]"), npyFile("|u1", "(2, 3, 2)", kIds));
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    EXPECT_EQ(routing.domains(), std::vector<std::string>{"code"});
    ASSERT_EQ(routing.requests().size(), 2u);
    EXPECT_EQ(routing.requests()[1].firstToken, 1u);
    EXPECT_EQ(routing.requests()[1].tokens, 2u);
    EXPECT_EQ(routing.requests()[1].prefillTokens, std::nullopt);
    EXPECT_EQ(routing.expert(0, 1, 1), 2);
    EXPECT_EQ(routing.expert(1, 2, 0), 1);
}

TEST(MetaJson, requestsByTokenWithPhases) {
    // [token, layer, k]: the same ids in the other order.
    const std::string ids("\0\1\3\2\1\2\2\1\2\3\1\0", 12);
    const auto recording = importMeta(
        R"({"layers":2,"experts":4,"top_k":2,"layout":"uint8 [token, layer, k]","requests":[
            {"id":"r1","dataset":"d1","tokens":2,"prefill":1},{"dataset":"d2","tokens":1}]})",
        npyFile("|u1", "(3, 2, 2)", ids));
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    EXPECT_EQ(routing.requests()[0].id, "r1");
    EXPECT_EQ(routing.requests()[0].prefillTokens, 1u);
    EXPECT_EQ(routing.domains()[routing.requests()[1].domain], "d2");
    EXPECT_EQ(routing.expert(0, 1, 1), 2);
    EXPECT_EQ(routing.expert(1, 2, 0), 1);
}

TEST(MetaJson, aDomainOfTheCommandLineLabelsRequestsThatHaveNone) {
    ImportOptions options;
    options.domain = "mine";
    const auto recording =
        importFile("meta.json",
                   memoryFiles({{"meta.json", R"({"layers":2,"experts":4,"top_k":2,"requests":[
                      {"tokens":2,"domain":"theirs"},{"tokens":1}]})"},
                                {"a.npy", npyFile("|u1", "(2, 3, 2)", kIds)}}),
                   options);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->routing->domains(), (std::vector<std::string>{"theirs", "mine"}));
}

TEST(MetaJson, withoutALayoutTheOrderIsTheOneThatFits) {
    const auto fits = importMeta(R"({"layers":2,"experts":4,"top_k":2,"requests":[{"tokens":3}]})",
                                 npyFile("|u1", "(2, 3, 2)", kIds));
    ASSERT_TRUE(fits.ok()) << fits.status();
    EXPECT_EQ(fits->routing->expert(1, 2, 0), 1);
    const auto either =
        importMeta(R"({"layers":2,"experts":4,"top_k":2,"requests":[{"tokens":2}]})",
                   npyFile("|u1", "(2, 2, 2)", kIds.substr(0, 8)));
    EXPECT_THAT(either.status().message(), HasSubstr("a.npy: uint8 [2, 2, 2] could be read"));
}

TEST(MetaJson, whatDoesNotAddUpIsRefusedByPlace) {
    const std::string npy = npyFile("|u1", "(2, 3, 2)", kIds);
    const auto refusal = [](const std::string& meta, const std::string& array) {
        return std::string(importMeta(meta, array).status().message());
    };
    EXPECT_THAT(refusal(domainsMeta("[1, 1]"), npy),
                HasSubstr("meta.json: domains.code.sequence_lengths: add up to 2 tokens, a.npy "
                          "has 3"));
    EXPECT_THAT(refusal(domainsMeta("[1, 18446744073709551615]"), npy),
                HasSubstr("domains.code.sequence_lengths[1]: expected a whole number"));
    EXPECT_THAT(refusal(domainsMeta("[4]"), npy), HasSubstr("ends at token 4, a.npy has 3"));
    EXPECT_THAT(refusal(domainsMeta("[3]", "../a.npy"), npy), HasSubstr("not below its folder"));
    EXPECT_THAT(refusal(domainsMeta("[3]", "b.npy"), npy), HasSubstr("b.npy: not there"));
    EXPECT_THAT(refusal(domainsMeta("[3]"), npyFile("|u1", "(3, 2, 2)", kIds)),
                HasSubstr("a.npy: expected whole numbers [2, tokens, 2], found uint8 [3, 2, 2]"));
    std::string outside = kIds;
    outside[7] = 4;
    EXPECT_THAT(refusal(domainsMeta("[3]"), npyFile("|u1", "(2, 3, 2)", outside)),
                HasSubstr("a.npy: token 0, layer 1, k 1: expert 4, expected 0 to 3"));
    EXPECT_THAT(refusal(R"({"layers":0,"experts":4,"top_k":2,"requests":[]})", npy),
                HasSubstr("meta.json: layers: expected a whole number from 1"));
    EXPECT_THAT(refusal(R"({"layers":2,"experts":4,"top_k":2,"requests":[]})", npy),
                HasSubstr("there is no token in it"));
    EXPECT_THAT(refusal("{", npy), HasSubstr("meta.json: "));
}

TEST(MetaJson, countsByDomain) {
    const auto recording = importFile(
        "c.json",
        memoryFiles({{"c.json",
                      R"({"layers":[0,7],"counts":{"m1":{"a":[[1,2],[3,4]],"b":[[5,6],[7,8]]},
                          "m2":{"a":[[1,2,3],[1,2,3]]}}})"}}));
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_EQ(recording->windows.size(), 2u);
    EXPECT_EQ(recording->windows[1].domain, "b");
    EXPECT_EQ(recording->windows[1].counts.at(1, 0), 7u);
    EXPECT_EQ(recording->shape.layerNumbers, (std::vector<uint32_t>{0, 7}));
    EXPECT_EQ(totalCounts(*recording).at(0, 1), 8u);
}

TEST(MetaJson, theEsftRecording) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->routing->tokens(), 16810u);
    EXPECT_EQ(recording->routing->requests().size(), 108u);
    EXPECT_EQ(recording->routing->domains().size(), 4u);
    EXPECT_EQ(countsOf(wholeOf(*recording->routing)).total(25), 16810u * 6);
}

TEST(MetaJson, theGptOssRecording) {
    BULKHEAD_SHARED_DATA(path, "moe/gptoss/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->routing->tokens(), 24908u);
    EXPECT_EQ(recording->routing->requests().size(), 141u);
    EXPECT_EQ(recording->routing->requests()[5].prefillTokens, 0u);
}

TEST(MetaJson, theOlmoeCounts) {
    BULKHEAD_SHARED_DATA(path, "moe/olmoe/expert_counts.json");
    ImportOptions options;
    options.modelName = "olmoe";
    const auto recording = importRecording(*path, options);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->windows.size(), 6u);
    EXPECT_EQ(recording->windows[0].counts.total(2), 208896u * 8);
    options.modelName = "nobody";
    EXPECT_THAT(importRecording(*path, options).status().message(), HasSubstr("there are mistral"));
}

}  // namespace
}  // namespace bulkhead::planner
