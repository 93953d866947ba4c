// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

namespace bulkhead::campaign {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

JobShape fourByTwo() {
    JobShape job{4, 2, {"node0"}, {}};
    job.policies.minReplicas = 2;
    return job;
}

model::CampaignText file(std::string text) {
    model::CampaignText out;
    out.text = std::move(text);
    out.fileName = "c.toml";
    return out;
}

model::CampaignText storm() {
    std::ifstream in(BULKHEAD_SOURCE "/resources/campaigns/storm.toml");
    return file({std::istreambuf_iterator<char>(in), {}});
}

TEST(Plan, theSameSeedGivesTheSameFaultsAndAnotherGivesOthers) {
    model::CampaignText text = storm();
    const auto once = makePlan(text, fourByTwo());
    const auto again = makePlan(text, fourByTwo());
    ASSERT_TRUE(once.ok()) << once.status();
    EXPECT_EQ(once->plan, again->plan);
    text.seed = once->seed + 1;
    const auto other = makePlan(text, fourByTwo());
    EXPECT_NE(once->plan, other->plan);
}

TEST(Plan, oneMoreLineLeavesTheOtherFaultsAsTheyWere) {
    const std::string lines =
        "duration = \"10m\"\n[[rates]]\nevery = \"20s\"\nfault = \"kill:rank=any\"\n";
    const auto few = makePlan(file(lines), fourByTwo());
    const auto more = makePlan(
        file(lines + "[[rates]]\nevery = \"15s\"\nfault = \"nan:replica=any\"\n"), fourByTwo());
    ASSERT_TRUE(few.ok() && more.ok());
    for (const model::PlannedFault& fault : few->plan)
        EXPECT_THAT(more->plan, testing::Contains(fault));
    EXPECT_GT(more->plan.size(), few->plan.size());
}

TEST(Plan, ratesKeepTheirMeanAndDrawEveryTarget) {
    const auto plan = makePlan(file("duration = \"60m\"\n[[rates]]\nevery = \"4s\"\nfault = "
                                    "\"nan:rank=any\"\nphase = \"any\"\n"),
                               fourByTwo());
    ASSERT_TRUE(plan.ok()) << plan.status();
    // 900 expected, standard deviation 30.
    EXPECT_NEAR(static_cast<double>(plan->plan.size()), 900, 150);
    std::set<std::pair<int32_t, int32_t>> ranks;
    std::set<std::string> phases;
    for (const model::PlannedFault& f : plan->plan) {
        ranks.insert({f.spec.replica, f.spec.shard});
        phases.insert(f.spec.atPhase);
        EXPECT_LT(f.atMs, plan->durationMs);
    }
    EXPECT_EQ(ranks.size(), 8u);
    EXPECT_EQ(phases.size(), 4u);
}

TEST(Plan, aShorterDurationIsTheFilesBeginning) {
    model::CampaignText text = storm();
    const auto whole = makePlan(text, fourByTwo());
    text.durationMs = 60'000;
    const auto slice = makePlan(text, fourByTwo());
    ASSERT_TRUE(slice.ok()) << slice.status();
    EXPECT_EQ(slice->durationMs, 60'000u);
    ASSERT_LT(slice->plan.size(), whole->plan.size());
    EXPECT_TRUE(std::equal(slice->plan.begin(), slice->plan.end(), whole->plan.begin()));
}

TEST(Plan, whatCannotBeUndoneIsNamed) {
    JobShape job = fourByTwo();
    const auto plan = makePlan(file("duration = \"10m\"\nkeep_training = 1\n"
                                    "[[faults]]\nat = \"0s\"\nfault = \"flip-gradient:replica=1\"\n"
                                    "[[faults]]\nat = \"1s\"\nfault = \"kill-node:node=any\"\n"
                                    "[[rates]]\nevery = \"20s\"\nfault = \"kill:replica=2\"\n"),
                               job);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto lasting = lastingOf(*plan, job);
    ASSERT_EQ(lasting.size(), 3u);
    EXPECT_THAT(lasting[0], HasSubstr("stays in the weights"));
    EXPECT_THAT(lasting[1], HasSubstr("agent"));
    EXPECT_THAT(lasting[2], HasSubstr("replica 2 would be lost"));
    job.policies.restartLimit = 0;
    EXPECT_EQ(lastingOf(*plan, job).size(), 2u);
}

TEST(Plan, hangsAndCutsAreUndoneAndNamedAsNothing) {
    const auto plan =
        makePlan(file("duration = \"1m\"\n[[faults]]\nat = \"0s\"\nfault = \"hang:rank=1.0\"\n"
                      "[[faults]]\nat = \"2s\"\nfault = \"slow:replica=0,factor=3\"\n"),
                 fourByTwo());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(lastingOf(*plan, fourByTwo()), IsEmpty());
}

TEST(Plan, theJobKeepsMoreThanHalfAndNeverLessThanItsMinimum) {
    const std::string text =
        "duration = \"1m\"\n[[faults]]\nat = \"0s\"\nfault = \"kill:replica=1\"\n";
    EXPECT_EQ(makePlan(file(text), fourByTwo())->keepTraining, 3u);
    EXPECT_EQ(makePlan(file("keep_training = 1\n" + text), fourByTwo())->keepTraining, 2u);
    JobShape strict = fourByTwo();
    strict.policies.minReplicas = 4;
    EXPECT_EQ(makePlan(file(text), strict)->keepTraining, 4u);
}

TEST(Plan, targetsThatTheJobLacksAreNamedWithTheirLine) {
    const auto message = [](const std::string& fault) {
        return std::string(makePlan(file("duration = \"1m\"\n[[faults]]\nat = \"0s\"\nfault = \"" +
                                         fault + "\"\n"),
                                    fourByTwo())
                               .status()
                               .message());
    };
    EXPECT_THAT(message("kill:replica=9"),
                HasSubstr("c.toml:4: faults[0].fault: the job has replicas 0 to 3"));
    EXPECT_THAT(message("kill:rank=1.5"), HasSubstr("shards 0 to 1"));
    EXPECT_THAT(message("fill-disk:node=n7,for=1s"), HasSubstr("known: node0"));
}

TEST(Plan, tooManyFaultsAreRefusedBeforeTheyAreMade) {
    const auto plan = makePlan(
        file("duration = \"1000m\"\n[[rates]]\nevery = \"1s\"\nfault = \"kill:rank=any\"\n"),
        fourByTwo());
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()),
                HasSubstr("c.toml:1: duration: expected at most 2000"));
}

TEST(Plan, theEffectSaysHowManyOfWhatAndWhatIsKept) {
    const auto plan = makePlan(storm(), fourByTwo());
    ASSERT_TRUE(plan.ok());
    const std::string effect = effectOf(*plan, fourByTwo());
    EXPECT_THAT(effect, HasSubstr("faults within 15 min"));
    EXPECT_THAT(effect, HasSubstr("rank killed"));
    EXPECT_THAT(effect, HasSubstr("fewer than 2 of 4 replicas"));
}

/// The storm is everything at once: also its first minute, which continuous integration runs.
TEST(Plan, theStormHasEveryKindButTheWholeNode) {
    const auto kinds = [](uint64_t durationMs) {
        model::CampaignText text = storm();
        text.durationMs = durationMs;
        std::set<model::FaultKind> seen;
        const auto plan = makePlan(text, fourByTwo());
        EXPECT_TRUE(plan.ok()) << plan.status();
        if (plan.ok())
            for (const model::PlannedFault& f : plan->plan) seen.insert(f.spec.kind);
        return seen;
    };
    EXPECT_EQ(kinds(0).size(), 10u);
    EXPECT_FALSE(kinds(0).contains(model::FaultKind::kKillNode));
    EXPECT_GE(kinds(60'000).size(), 8u);
    // No replica is given up by it.
    for (const std::string& lasting : lastingOf(*makePlan(storm(), fourByTwo()), fourByTwo()))
        EXPECT_THAT(lasting, HasSubstr("gradient"));
}

}  // namespace
}  // namespace bulkhead::campaign
