// SPDX-License-Identifier: Apache-2.0
#include "backend/model/expert_rules.h"

#include <gmock/gmock.h>

namespace bulkhead::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Two mixture layers of four experts on three shards.
const std::vector<int32_t> kPlacement = {0, 0, 1, 2, 2, 1, 0, 0};

std::string refusal(const std::vector<ExpertRule>& rules) {
    return std::string(checkRules(rules, kPlacement, 4, 3).message());
}

TEST(ExpertRules, AreReadAndWritten) {
    const auto rule = parseRule("1:3=shard2", false);
    ASSERT_TRUE(rule.ok()) << rule.status();
    EXPECT_EQ(*rule, (ExpertRule{1, 3, 2, false}));
    EXPECT_EQ(formatRule(*rule), "1:3=shard2");
    EXPECT_EQ(parseRule("1:3=2", false).value(), *rule);
    for (const char* bad : {"", "1:3", "1=2", "a:3=shard1", "1:3=gpu1", "1:-3=shard1", "1:3=shard",
                            "1:3=shard99999999999", "=1:2"})
        EXPECT_THAT(std::string(parseRule(bad, true).status().message()),
                    HasSubstr("expected LAYER:EXPERT=shardN"))
            << bad;
}

TEST(ExpertRules, ANewOneTakesThePlaceOfWhatItContradicts) {
    const ExpertRule pin{0, 1, 0, true}, otherPin{0, 1, 2, true}, ban{0, 1, 2, false};
    EXPECT_THAT(withRule({pin}, otherPin), ElementsAre(otherPin));
    EXPECT_THAT(withRule({otherPin}, ban), ElementsAre(ban));
    EXPECT_THAT(withRule({ban}, otherPin), ElementsAre(otherPin));
    EXPECT_THAT(withRule({pin}, ban), ElementsAre(pin, ban));
    EXPECT_THAT(withRule({pin}, pin), ElementsAre(pin)) << "said twice";
    const ExpertRule other{1, 1, 2, true};
    EXPECT_THAT(withRule({other}, pin), ElementsAre(other, pin)) << "another layer";
    EXPECT_THAT(withoutRules({pin, ban, other}, 0, 1), ElementsAre(other));
}

TEST(ExpertRules, ThatCannotHoldAreRefusedByName) {
    EXPECT_EQ(refusal({{0, 1, 0, true}, {0, 1, 2, false}, {1, 0, 1, true}}), "");
    EXPECT_EQ(refusal({{2, 1, 0, true}}),
              "expert 1 of mixture layer 2 is pinned to shard 0: the model has 2 mixture layers");
    EXPECT_THAT(refusal({{0, 4, 0, false}}), HasSubstr("a layer has 4 experts"));
    EXPECT_THAT(refusal({{0, 1, 3, true}}), HasSubstr("a replica has 3 shards"));
    EXPECT_EQ(refusal({{0, 1, 0, true}, {0, 1, 1, true}}),
              "expert 1 of mixture layer 0 is pinned to shard 0: and expert 1 of mixture layer 0 "
              "is pinned to shard 1; keep one of the two");
    EXPECT_THAT(refusal({{0, 1, 0, false}, {0, 1, 1, false}, {0, 1, 2, false}}),
                HasSubstr("an expert must be on one of the 3 shards, so allow it somewhere"));
    EXPECT_EQ(refusal({{0, 1, 2, true}, {0, 2, 2, true}}),
              "expert 1 of mixture layer 0 is pinned to shard 2: with it 2 are, and the shard "
              "holds 1 experts of the layer; free one of them");
    EXPECT_EQ(refusal({{0, 0, 0, true}, {0, 2, 0, true}}), "");
    EXPECT_THAT(refusal(std::vector<ExpertRule>(5000)), HasSubstr("at most 4096"));
}

TEST(ExpertRules, AreKeptOrNot) {
    const std::vector<ExpertRule> kept = {{0, 2, 1, true}, {1, 0, 0, false}};
    EXPECT_EQ(brokenRule(kept, kPlacement, 4), nullptr);
    const std::vector<ExpertRule> rules = {{0, 2, 1, true}, {1, 0, 2, false}, {1, 1, 0, true}};
    ASSERT_NE(brokenRule(rules, kPlacement, 4), nullptr);
    EXPECT_EQ(*brokenRule(rules, kPlacement, 4), rules[1]);
}

}  // namespace
}  // namespace bulkhead::model
