// SPDX-License-Identifier: Apache-2.0
// Fault campaigns on a job of real workers.
#include <iterator>

#include "backend/campaign/judge.h"
#include "tests/fault/training_job.h"

namespace bulkhead::fault {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class CampaignTest : public TrainingJob {
  protected:
    CampaignTest() { patience_ = 240 * kSecond; }

    void begin(const model::CampaignText& text, uint64_t warmUpSteps = 20) {
        host();
        start(spec(0, 4, 2));
        awaitStep(warmUpSteps);
        const auto id = host_->controller().startCampaign(run_, text, 0, "", "test");
        ASSERT_TRUE(id.ok()) << id.status();
        EXPECT_EQ(*id, 1u);
    }
    static model::CampaignText of(const std::string& toml) {
        model::CampaignText text;
        text.text = toml;
        text.fileName = "test.toml";
        return text;
    }
    static std::string wordsOf(const model::CampaignEnded& end) {
        std::string out = std::string(enumName(end.outcome)) + ": " + end.why + "\n";
        for (const auto& v : end.verdicts)
            out += "  " + std::string(enumName(v.check)) + " " + std::string(enumName(v.state)) +
                   ": " + v.words + "\n";
        return out;
    }
};

/// The same file that runs for a quarter of an hour elsewhere.
TEST_F(CampaignTest, theFirstMinuteOfTheStormPasses) {
    std::ifstream in(BULKHEAD_SOURCE "/resources/campaigns/storm.toml");
    model::CampaignText text = of({std::istreambuf_iterator<char>(in), {}});
    text.durationMs = 60'000;
    text.allowLasting = true;
    begin(text);
    const auto end = await<model::CampaignEnded>();
    ASSERT_TRUE(end.has_value());
    ASSERT_EQ(end->verdicts.size(), 7u) << wordsOf(*end);
    // The other three are bounds on time, which an instrumented program is not made to keep.
    for (const auto& v : end->verdicts)
        if (v.check <= model::CampaignCheck::kLedger) {
            EXPECT_EQ(v.state, model::VerdictState::kPassed) << wordsOf(*end) << lastEvents();
        }
#ifndef BULKHEAD_SANITIZED
    EXPECT_EQ(end->outcome, model::CampaignOutcome::kPassed) << wordsOf(*end) << lastEvents();
#endif
    EXPECT_GE(all<model::FaultInjected>().size(), 6u);
    stopAndAudit();
}

TEST_F(CampaignTest, whatCannotBeUndoneIsRefusedUnlessItIsAllowed) {
    host();
    start(spec(0, 3, 1));
    awaitStep(5);
    model::CampaignText text =
        of("duration = \"5s\"\nkeep_training = 2\n[[faults]]\nat = \"0s\"\nfault = "
           "\"flip-gradient:replica=1\"\n");
    const auto check = host_->controller().preflight(run_, text);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_FALSE(check->preflight.allowed);
    EXPECT_THAT(check->preflight.refusal, HasSubstr("stays in the weights"));
    const auto refused = host_->controller().startCampaign(run_, text, 0, "", "test");
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    text.allowLasting = true;
    EXPECT_TRUE(host_->controller().startCampaign(run_, text, 0, "", "test").ok());
    const auto end = await<model::CampaignEnded>();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->outcome, model::CampaignOutcome::kPassed) << wordsOf(*end);
    EXPECT_EQ(all<model::FaultInjected>().size(), 1u);
    stopAndAudit();
}

TEST_F(CampaignTest, anAbortLeavesNothingBehind) {
    begin(
        of("duration = \"10m\"\nkeep_training = 2\n"
           "[[faults]]\nat = \"0s\"\nfault = \"slow:rank=1.0,factor=4\"\n"
           "[[faults]]\nat = \"0s\"\nfault = \"delay:replica=2,by=10ms\"\n"
           "[[faults]]\nat = \"500s\"\nfault = \"kill:replica=3\"\n"));
    await<model::FaultInjected>();
    await<model::FaultInjected>();
    ASSERT_TRUE(host_->controller().stopCampaign(run_, 1, "bert").ok());
    const auto end = await<model::CampaignEnded>();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->outcome, model::CampaignOutcome::kAborted);
    const absl::Status healed = host_->tape().awaitState(
        run_, "both faults ended",
        [](const model::RunState& s) {
            return s.faults.size() == 2 && s.faults[0].endedNs != 0 && s.faults[1].endedNs != 0;
        },
        patience_);
    EXPECT_TRUE(healed.ok()) << healed;
    EXPECT_EQ(host_->controller().stopCampaign(run_, 1, "bert").code(),
              absl::StatusCode::kNotFound);
    stopAndAudit();
    EXPECT_EQ(all<model::FaultInjected>().size(), 2u);
}

TEST_F(CampaignTest, itGoesOnWhenTheControllerIsLost) {
    begin(
        of("duration = \"12s\"\nkeep_training = 2\n[pass]\nmin_injected = 1\n"
           "[[faults]]\nat = \"0s\"\nfault = \"slow:rank=1.0,factor=3\"\n"
           "[[faults]]\nat = \"9s\"\nfault = \"nan:replica=2\"\n"));
    await<model::FaultInjected>();
    host_->loseController();
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    const auto end = await<model::CampaignEnded>();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->outcome, model::CampaignOutcome::kPassed) << wordsOf(*end) << lastEvents();
    EXPECT_EQ(all<model::FaultInjected>().size(), 2u);
    const auto state = host_->tape().state(run_);
    for (size_t i = 0; i < state.faults.size(); ++i)
        EXPECT_NE(state.faults[i].endedNs, 0) << "fault " << state.faults[i].fault << " lasts";
    stopAndAudit();
}

TEST_F(CampaignTest, aJobThatEndsSaysThatTheCampaignWasCutOff) {
    begin(of("duration = \"10m\"\n[[faults]]\nat = \"500s\"\nfault = \"nan:replica=2\"\n"));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    const auto end = await<model::CampaignEnded>();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->outcome, model::CampaignOutcome::kCutOff);
    expectFinishedWell();
}

}  // namespace
}  // namespace bulkhead::fault
