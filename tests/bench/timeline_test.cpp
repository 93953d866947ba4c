// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/timeline.h"

#include <gtest/gtest.h>

namespace bulkhead::bench {
namespace {

constexpr int64_t kMs = 1'000'000;

/// Three replicas commit every 10 ms; replica 2 is killed at 102 ms, starts again at 110 and
/// contributes from 200 on. The survivors see nothing between 100 and `resumed`.
Timeline oneKill(int64_t resumed) {
    Timeline t;
    for (int64_t at = 0; at <= 300; at += 10)
        for (int32_t replica = 0; replica < 3; ++replica) {
            if (at > 100 && at < resumed) continue;
            if (replica == 2 && at > 100 && at < 150) continue;
            const bool contributed = replica != 2 || at <= 100 || at >= 200;
            t.commits.push_back({at * kMs, replica, contributed});
        }
    t.kills = {{102 * kMs, 2}};
    t.starts = {{-5 * kMs, 0}, {-5 * kMs, 1}, {-5 * kMs, 2}, {110 * kMs, 2}};
    return t;
}

TEST(TimelineTest, AStallIsWhatComesOnTopOfAStep) {
    const auto cost = costOf(oneKill(140), {102 * kMs, 2});
    ASSERT_TRUE(cost.has_value());
    EXPECT_DOUBLE_EQ(cost->stallMs, 30);  // nothing for 40 ms where a step takes 10
    EXPECT_DOUBLE_EQ(cost->backMs, 98);
    EXPECT_DOUBLE_EQ(cost->afterStartMs, 90);
    EXPECT_DOUBLE_EQ(cost->batchesLost, 0);
}

TEST(TimelineTest, WhoNoticesNothingWasNotStalled) {
    const auto cost = costOf(oneKill(110), {102 * kMs, 2});
    ASSERT_TRUE(cost.has_value());
    EXPECT_DOUBLE_EQ(cost->stallMs, 0);
}

TEST(TimelineTest, AWaitForTheReturnCountsAndALaterOneDoesNot) {
    Timeline t = oneKill(110);
    std::erase_if(t.commits, [](const auto& c) { return c.ns > 170 * kMs && c.ns < 200 * kMs; });
    std::erase_if(t.commits, [](const auto& c) { return c.ns > 210 * kMs && c.ns < 290 * kMs; });
    const auto cost = costOf(t, {102 * kMs, 2});
    ASSERT_TRUE(cost.has_value());
    EXPECT_DOUBLE_EQ(cost->stallMs, 20);  // 170 to 200
}

TEST(TimelineTest, OnlySurvivorsBatchesBetweenKillAndReturnAreLost) {
    Timeline t = oneKill(140);
    t.thrown = {{90 * kMs, 0}, {120 * kMs, 0}, {120 * kMs, 2}, {130 * kMs, 1}, {250 * kMs, 1}};
    EXPECT_DOUBLE_EQ(costOf(t, {102 * kMs, 2})->batchesLost, 2);
}

TEST(TimelineTest, WithoutReturnOrSurvivorsThereIsNoFigure) {
    Timeline t = oneKill(140);
    t.starts.pop_back();
    EXPECT_FALSE(costOf(t, {102 * kMs, 2}).has_value());
    t = oneKill(140);
    std::erase_if(t.commits, [](const auto& c) { return c.replica != 2; });
    EXPECT_FALSE(costOf(t, {102 * kMs, 2}).has_value());
}

TEST(TimelineTest, TheMedianStepIsOfAllReplicas) {
    EXPECT_DOUBLE_EQ(medianStepMs(oneKill(140)), 10);
    EXPECT_DOUBLE_EQ(medianStepMs({}), 0);
}

}  // namespace
}  // namespace bulkhead::bench
