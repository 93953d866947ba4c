// SPDX-License-Identifier: Apache-2.0
// Several plans for a running job beside what is in use.
#include <gmock/gmock.h>

#include "backend/planner/live/live_front.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

/// Two shards, two domains, one mixture of six experts. "a" is twice as much and likes 0, 2 and 4,
/// each less than the one before: all of these together are 45 remote copies of 315 at 1.33 of the
/// mean load, 0, 2 and 5 are 90 at 1.17, and 0, 4 and 5 are 110 at 1.05; as it is, 110 at 1.30.
LiveJob exampleJob() {
    LiveJob j;
    j.shards = 2;
    j.counts = {1, 2, 6, {80, 5, 60, 5, 40, 5, 10, 40, 10, 30, 10, 20}};
    j.expertShard = {0, 0, 0, 1, 1, 1};
    j.expertBytes = 1000;
    j.domains = {"a", "b"};
    return j;
}

bool betterInAll(const LiveFrontPoint& a, const LiveFrontPoint& b) {
    return a.plan.preview.forecast.remote.mean < b.plan.preview.forecast.remote.mean &&
           a.load < b.load && a.plan.preview.expertsMoved < b.plan.preview.expertsMoved;
}

TEST(LiveFront, BeginsWithWhatIsInUseAndNoTwoPlaceAlike) {
    const auto front = liveFront(exampleJob(), {});
    ASSERT_TRUE(front.ok()) << front.status();
    EXPECT_EQ(front->points[0].name, "as it is");
    EXPECT_EQ(front->points[0].plan.preview.expertsMoved, 0u);
    ASSERT_GE(front->points.size(), 3u) << "a looser load allows something else";
    for (const LiveFrontPoint& a : front->points)
        for (const LiveFrontPoint& b : front->points) {
            EXPECT_TRUE(&a == &b || a.plan.action.expertShard != b.plan.action.expertShard ||
                        a.plan.action.domainShare != b.plan.action.domainShare)
                << a.name << ", " << b.name;
            EXPECT_FALSE(b.onFront && betterInAll(a, b)) << a.name << ", " << b.name;
        }
}

TEST(LiveFront, RecommendsTheFewestRemoteCopiesWithinTheLoad) {
    LiveOptions options;
    options.loadCap = 1.3;
    const auto front = liveFront(exampleJob(), options);
    ASSERT_TRUE(front.ok()) << front.status();
    const LiveFrontPoint& best = front->points[front->recommended];
    EXPECT_TRUE(best.onFront);
    EXPECT_LE(best.load, 1.3);
    for (const LiveFrontPoint& p : front->points)
        if (p.load <= 1.3) {
            EXPECT_LE(best.plan.preview.forecast.remote.mean,
                      p.plan.preview.forecast.remote.mean + 1e-9)
                << p.name;
        }
    EXPECT_THAT(front->reason, HasSubstr("fewest remote copies"));
}

TEST(LiveFront, SaysWhenNoPlanIsWithinTheLoad) {
    LiveJob j = exampleJob();
    j.counts.values = {800, 10, 80, 10, 80, 10, 800, 40, 5, 40, 5, 40};
    const auto front = liveFront(j, {});
    ASSERT_TRUE(front.ok()) << front.status();
    EXPECT_GT(front->points[front->recommended].load, 1.15) << "one expert has most of all tokens";
    EXPECT_THAT(front->reason, HasSubstr("no plan found keeps the busiest shard within 1.15"));
}

TEST(LiveFront, TellsHowFarItIsAndEndsWhenAskedTo) {
    std::vector<LiveFrontProgress> told;
    const auto whole = liveFront(exampleJob(), {}, [&](const LiveFrontProgress& at) {
        told.push_back(at);
        return true;
    });
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_FALSE(whole->stopped);
    for (size_t i = 1; i < told.size(); ++i) EXPECT_GE(told[i].done, told[i - 1].done);
    EXPECT_EQ(told.back().done + 1, told.back().of);
    EXPECT_GE(told.back().more, 0) << "several groupings were tried";
    const LivePlan& best = whole->points[whole->recommended].plan;
    EXPECT_DOUBLE_EQ(told.back().best, best.preview.forecast.remote.mean);

    const auto first =
        liveFront(exampleJob(), {}, [](const LiveFrontProgress& at) { return at.done < 2; });
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(first->stopped);
    EXPECT_EQ(first->points.size(), 2u) << "as it is, and the first plan";
    EXPECT_THAT(first->reason, HasSubstr("stopped before"));

    const auto none = liveFront(exampleJob(), {}, [](const auto&) { return false; });
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_EQ(none->points.size(), 1u);
}

TEST(LiveFront, WithoutTokensThereIsNone) {
    LiveJob j = exampleJob();
    j.counts.values.assign(12, 0);
    EXPECT_EQ(liveFront(j, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bulkhead::planner
