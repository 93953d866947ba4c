// SPDX-License-Identifier: Apache-2.0
// JSON Lines in their four kinds.
#include "backend/planner/import/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/planner/samples.h"

namespace bulkhead::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& lines) {
    return std::string(readJsonLines(lines, "r.jsonl", {}).status().message());
}

TEST(JsonLines, requests) {
    const auto recording = readJsonLines(samples::requestLines(), "r.jsonl", {});
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    ASSERT_EQ(routing.requests().size(), 2u);
    EXPECT_EQ(routing.requests()[0].id, "a");
    EXPECT_EQ(routing.requests()[0].prefillTokens, 1u);
    EXPECT_EQ(routing.domains()[0], "code");
    EXPECT_EQ(routing.expert(1, 2, 0), 2);
    EXPECT_THAT(routing.shape().layerNumbers, ElementsAre(3u, 4u));
}

TEST(JsonLines, anExpertThatIsTooLargeIsNamedAsItIs) {
    const std::string head = R"({"routing":{"layers":1,"experts":8,"top_k":2}})"
                             "\n";
    for (const char* id : {"4294967296", "18446744073709551615"})
        EXPECT_THAT(refusal(head + R"({"experts":[[[1,)" + id + "]]]}"),
                    HasSubstr(std::string("experts: [0][0][1]: expert ") + id));
}

TEST(JsonLines, counts) {
    const auto recording = readJsonLines(samples::countLines(), "r.jsonl", {});
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_EQ(recording->windows.size(), 2u);
    EXPECT_EQ(recording->windows[0].phase, Phase::kPrefill);
    EXPECT_EQ(recording->windows[1].label, "later");
    EXPECT_THAT(totalCounts(*recording).values(), ElementsAre(6u, 8u, 10u, 12u));
}

TEST(JsonLines, countsMaySayWhatModelTheyAreOf) {
    const auto recording = readJsonLines(samples::headedCountLines(), "r.jsonl", {});
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->windows.size(), 2u);
    EXPECT_EQ(recording->shape.topK, 2u);
    EXPECT_EQ(recording->shape.routerGroups, 2u);
    EXPECT_THAT(recording->shape.layerNumbers, ElementsAre(3u, 4u));
    const std::string head = R"({"counts_of":{"layers":3,"experts":2}})"
                             "\n";
    EXPECT_THAT(refusal(head), HasSubstr("r.jsonl: there are no counts after the first line"));
    EXPECT_THAT(refusal(head + R"({"counts":[[1,2]]})"),
                HasSubstr("r.jsonl:2: counts: expected [layer][expert]"));
}

TEST(JsonLines, tracedTokensInAnyOrder) {
    const auto recording = readJsonLines(samples::routeLines(), "r.jsonl", {});
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    ASSERT_EQ(routing.requests().size(), 2u);
    EXPECT_THAT(routing.shape().layerNumbers, ElementsAre(3u, 5u));
    EXPECT_EQ(routing.expert(0, 1, 1), 2);
    EXPECT_EQ(routing.expert(1, 1, 0), 1);
}

TEST(JsonLines, refusalsNameTheLine) {
    const std::string head = R"({"routing":{"layers":1,"experts":4,"top_k":2}})"
                             "\n";
    EXPECT_THAT(refusal(head + "{}"), HasSubstr("r.jsonl:2: experts: expected an array"));
    EXPECT_EQ(refusal(head + R"({"experts":[[[0,4]]]})"),
              "r.jsonl:2: experts[0][0][1]: expert 4, expected 0 to 3");
    EXPECT_THAT(refusal(head + R"({"experts":[[[0,1],[0,1]]]})"),
                HasSubstr("r.jsonl:2: experts: 2 layers x 2, the first line says 1 x 2"));
    EXPECT_THAT(refusal(head + R"({"experts":[[[1,1]]]})"), HasSubstr("expert 1 twice"));
    EXPECT_THAT(refusal(head + "\n{"), HasSubstr("r.jsonl:3: "));
    EXPECT_THAT(refusal("\n\n"), HasSubstr("no line"));
    EXPECT_THAT(refusal(R"({"counts":[[1,2]]})"
                        "\n"
                        R"({"counts":[[1]]})"),
                HasSubstr("r.jsonl:2: counts[0]: expected 2 counts"));
    EXPECT_THAT(refusal(R"({"type":"route","req_id":"q","token_idx":0,"layer":3,"topk_ids":[0]})"
                        "\n"
                        R"({"type":"route","req_id":"q","token_idx":1,"layer":4,"topk_ids":[0]})"),
                HasSubstr("not every token has every layer"));
}

}  // namespace
}  // namespace bulkhead::planner
