// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/judge.h"

#include <gmock/gmock.h>

#include "tests/campaign/story.h"

namespace bulkhead::campaign {
namespace {

using model::CampaignCheck;
using model::CampaignVerdict;
using model::VerdictState;
using testing::HasSubstr;

const LedgerFinding kExact{true, "800 samples exactly once"};

model::CampaignCriteria criteria() {
    return {.minInjected = 1, .minEffectiveTime = 0.7, .maxStallMs = 500, .maxRejoinMs = 3000};
}

CampaignVerdict of(const std::vector<CampaignVerdict>& verdicts, CampaignCheck check) {
    for (const CampaignVerdict& v : verdicts)
        if (v.check == check) return v;
    ADD_FAILURE() << "no verdict of " << enumName(check);
    return {};
}

/// Two faults, both healed within two seconds.
Story good() {
    Story story;
    story.train(0, 1000, 4).campaign(1000, criteria()).train(1000, 2000, 4);
    story.fault(2000, 1, 1).incident(2010, 1, 1).train(2000, 4000, 3).back(4000, 1, 60, 2000);
    story.train(4000, 10'000, 4);
    story.fault(10'000, 2, 2).incident(10'010, 2, 2).train(10'000, 11'000, 3);
    return story.back(11'000, 2, 40, 1000).train(11'000, 12'000, 4);
}

TEST(Judge, aCampaignThatHeldPassesEveryCriterion) {
    const Story story = good();
    const auto verdicts = judge(story.state, story.view(), Story::at(12'000), true, kExact);
    ASSERT_EQ(verdicts.size(), 7u);
    for (const CampaignVerdict& v : verdicts)
        EXPECT_EQ(v.state, VerdictState::kPassed) << enumName(v.check) << ": " << v.words;
    EXPECT_EQ(of(verdicts, CampaignCheck::kStall).measured, 60);
    EXPECT_EQ(of(verdicts, CampaignCheck::kRejoin).measured, 2000);
    EXPECT_EQ(of(verdicts, CampaignCheck::kLedger).words, kExact.words);
}

/// 11 s from begin to end: 3 s with three of four, 8 s with all, 100 ms of stalls in the former.
TEST(Judge, effectiveTimeIsThatOfTheCampaignAlone) {
    const Story story = good();
    const double expected = (8000 + (3000 - 100) * 0.75) / 11'000;
    EXPECT_NEAR(effectiveTimeOf(story.state, story.view().startedNs, Story::at(12'000)), expected,
                1e-9);
}

TEST(Judge, timeWithoutACommitIsIdle) {
    Story story;
    story.train(0, 1000, 4).campaign(1000, criteria()).train(1000, 2000, 4);
    EXPECT_NEAR(effectiveTimeOf(story.state, Story::at(1000), Story::at(3000)), 0.5, 1e-9);
}

TEST(Judge, stepsThatTheStateHasForgottenAreNotIdle) {
    Story story;
    story.campaign(0, criteria()).train(0, 2'100'000, 4);
    EXPECT_GT(story.state.steps.total(), story.state.steps.size());
    EXPECT_NEAR(effectiveTimeOf(story.state, Story::at(0), Story::at(2'100'000)), 1, 1e-9);
    const auto verdicts = judge(story.state, story.view(), Story::at(2'100'000), true, kExact);
    EXPECT_THAT(of(verdicts, CampaignCheck::kEffectiveTime).words,
                ::testing::StartsWith("100.0 % over the last 33 min"));
}

TEST(Judge, aRollbackTakesBackWhatWasCommittedBefore) {
    Story story;
    story.train(0, 1000, 4).campaign(1000, criteria()).train(1000, 2000, 4);
    // Back to step 5: the five steps before the campaign and its own ten are undone.
    story.add(2000, model::LineageOpened{2, 5, 1, "all lost"});
    EXPECT_NEAR(effectiveTimeOf(story.state, Story::at(1000), Story::at(2000)), 0.0, 1e-9);
}

TEST(Judge, whileItGoesOnNothingHasPassedYetButWhatFailedHasFailed) {
    Story story;
    story.train(0, 1000, 4).campaign(1000, criteria()).train(1000, 2000, 4);
    story.fault(2000, 1, 1).incident(2010, 1, 1).train(2000, 4000, 3);
    auto verdicts = judge(story.state, story.view(), Story::at(4000));
    for (const CampaignVerdict& v : verdicts)
        EXPECT_EQ(v.state, VerdictState::kOpen) << enumName(v.check) << ": " << v.words;
    EXPECT_THAT(of(verdicts, CampaignCheck::kRejoin).words, HasSubstr("not back yet"));
    story.train(4000, 5000, 3);
    verdicts = judge(story.state, story.view(), Story::at(5100));
    EXPECT_EQ(of(verdicts, CampaignCheck::kRejoin).state, VerdictState::kFailed);
    story.back(5200, 1, 800, 3200);
    verdicts = judge(story.state, story.view(), Story::at(5300));
    EXPECT_EQ(of(verdicts, CampaignCheck::kStall).state, VerdictState::kFailed);
}

TEST(Judge, whoIsNotBackInTheEndFailsTheRejoin) {
    Story story;
    story.train(0, 1000, 4).campaign(1000, criteria());
    story.fault(2000, 1, 1).incident(2010, 1, 1).train(2000, 4000, 3);
    const auto verdicts = judge(story.state, story.view(), Story::at(4000), true, kExact);
    EXPECT_EQ(of(verdicts, CampaignCheck::kRejoin).state, VerdictState::kFailed);
}

TEST(Judge, tooFewFaultsProveNothing) {
    Story story;
    story.train(0, 1000, 4).campaign(1000, criteria());
    story.add(2000, model::CampaignSkipped{1, 1, "replica 2 was starting"});
    const auto verdicts = judge(story.state, story.view(), Story::at(4000), true, kExact);
    EXPECT_EQ(of(verdicts, CampaignCheck::kFaults).state, VerdictState::kFailed);
    EXPECT_THAT(of(verdicts, CampaignCheck::kFaults).words, HasSubstr("0 of 2 planned faults"));
}

TEST(Judge, aBrokenInvariantFailsAndSaysWhich) {
    Story story = good();
    story.add(11'500, model::InvariantBroken{"I2", "domain 0, sample 77 twice"});
    const auto verdicts = judge(story.state, story.view(), Story::at(12'000), true, kExact);
    EXPECT_EQ(of(verdicts, CampaignCheck::kInvariants).state, VerdictState::kFailed);
    EXPECT_THAT(of(verdicts, CampaignCheck::kInvariants).words, HasSubstr("sample 77 twice"));
    EXPECT_EQ(of(verdicts, CampaignCheck::kLedger).state, VerdictState::kFailed);
    EXPECT_EQ(of(verdicts, CampaignCheck::kHashes).state, VerdictState::kPassed);
}

TEST(Judge, whatBrokeBeforeItBeganIsNotItsFailure) {
    Story story;
    story.add(500, model::InvariantBroken{"I3", "earlier"}).campaign(1000, criteria());
    const auto verdicts = judge(story.state, story.view(), Story::at(2000));
    EXPECT_EQ(of(verdicts, CampaignCheck::kInvariants).state, VerdictState::kOpen);
}

TEST(Judge, onlyAMismatchThatNobodyPlantedBreaksTheHashes) {
    Story planted;
    planted.campaign(1000, criteria()).fault(2000, 1, 1, model::FaultKind::kFlipParameter);
    planted.incident(2010, 1, 1, model::EvidenceKind::kParityMismatch);
    const auto found = judge(planted.state, planted.view(), Story::at(3000));
    EXPECT_EQ(of(found, CampaignCheck::kHashes).state, VerdictState::kOpen);
    EXPECT_THAT(of(found, CampaignCheck::kHashes).words, HasSubstr("1 planted bit found"));

    Story wild;
    wild.campaign(1000, criteria()).fault(2000, 1, 1);
    wild.incident(2010, 1, 1, model::EvidenceKind::kParityMismatch);
    EXPECT_EQ(of(judge(wild.state, wild.view(), Story::at(3000)), CampaignCheck::kHashes).state,
              VerdictState::kFailed);
}

TEST(Judge, aLedgerThatNobodyReadOrThatDoesNotTileFails) {
    const Story story = good();
    const auto unread = judge(story.state, story.view(), Story::at(12'000), true);
    EXPECT_EQ(of(unread, CampaignCheck::kLedger).state, VerdictState::kFailed);
    const auto gap =
        judge(story.state, story.view(), Story::at(12'000), true, LedgerFinding{false, "a gap"});
    EXPECT_EQ(of(gap, CampaignCheck::kLedger).words, "a gap");
}

TEST(Judge, whatIsNotAskedIsNotJudged) {
    Story story;
    story.campaign(1000, {});
    EXPECT_EQ(judge(story.state, story.view(), Story::at(2000)).size(), 4u);
}

TEST(Judge, afterItsEndTheStoredVerdictsCount) {
    Story story = good();
    model::CampaignEnded end{1, model::CampaignOutcome::kFailed, "stall", {}};
    end.verdicts.push_back({CampaignCheck::kStall, VerdictState::kFailed, 9, 1, "as stored"});
    story.add(12'000, end);
    const auto verdicts = judge(story.state, story.view(), Story::at(99'000));
    ASSERT_EQ(verdicts.size(), 1u);
    EXPECT_EQ(verdicts[0].words, "as stored");
    const Progress progress = progressOf(story.state, story.view(), Story::at(99'000));
    EXPECT_EQ(progress.stage, Stage::kOver);
    EXPECT_EQ(progress.elapsedMs, 11'000);
}

TEST(Progress, countsWhatWasInjectedSkippedAndActs) {
    Story story;
    story.campaign(1000, criteria());
    story.add(2000, model::FaultInjected{1, {}, 4, model::campaignFault(1, 1)});
    story.add(2500, model::FaultInjected{2, {}, 4, "somebody else"});
    story.add(3000, model::CampaignSkipped{1, 2, "no"});
    const Progress p = progressOf(story.state, story.view(), Story::at(4000));
    EXPECT_EQ(p.stage, Stage::kInjecting);
    EXPECT_EQ(p.planned, 2u);
    EXPECT_EQ(p.injected, 1u);
    EXPECT_EQ(p.acting, 1u);
    EXPECT_EQ(p.skipped, 1u);
    EXPECT_EQ(progressOf(story.state, story.view(), Story::at(12'000)).stage, Stage::kSettling);
}

}  // namespace
}  // namespace bulkhead::campaign
