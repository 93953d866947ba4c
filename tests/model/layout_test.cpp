// SPDX-License-Identifier: Apache-2.0
// Moves of experts in a run's state: what was predicted of them beside what was measured.
#include <gmock/gmock.h>

#include "backend/model/run_state.h"

namespace bulkhead::model {
namespace {

class LayoutState : public testing::Test {
  protected:
    void happen(EventBody body) {
        apply(state_, {state_.seq + 1, 0, Severity::kInfo, std::move(body)});
    }
    void commit(uint64_t layout, uint64_t remote, uint64_t lineage = 1) {
        StepCommitted c;
        c.record.lineage = lineage;
        c.record.step = ++step_;
        c.record.layout = layout;
        c.traffic = {{60, 40}, {remote, 10}, remote * 1000};
        happen(c);
    }
    void move(uint64_t layout, bool ok, double predicted, std::vector<int32_t> shards,
              std::vector<uint32_t> share) {
        happen(LayoutChanged{step_, layout, ok, 77, std::move(shards), "", std::move(share),
                             predicted});
    }
    RunState state_;
    uint64_t step_ = 0;
};

TEST_F(LayoutState, MeasuresBeforeAndAfterAMove) {
    ModelDescribed described;
    described.model.expertShard = {0, 0, 1, 1};
    happen(described);
    for (int i = 0; i < 60; ++i) commit(0, 50);
    EXPECT_EQ(state_.steps.back().copies, 100u);
    EXPECT_EQ(state_.steps.back().remoteCopies, 60u);
    EXPECT_EQ(predictedRemote(state_, 0), -1);
    move(1, true, 0.32, {0, 1, 0, 1}, {1, 0, 0, 1});
    for (int i = 0; i < 4; ++i) commit(1, 20);
    ASSERT_EQ(state_.layouts.size(), 1u);
    const LayoutView& view = state_.layouts.back();
    EXPECT_EQ(view.expertsMoved, 2u);
    EXPECT_EQ(view.bytesMoved, 77u);
    EXPECT_TRUE(view.grouped);
    EXPECT_EQ(view.before.steps, LayoutView::kWindow);
    EXPECT_DOUBLE_EQ(view.before.remoteShare(), 0.6);
    EXPECT_EQ(view.after.steps, 4u);
    EXPECT_DOUBLE_EQ(view.after.remoteShare(), 0.3);
    EXPECT_EQ(view.after.bytes, 80000u);
    EXPECT_EQ(predictedRemote(state_, 1), 0.32);
    EXPECT_EQ(state_.domainShare, (std::vector<uint32_t>{1, 0, 0, 1}));
    EXPECT_EQ(state_.shardBefore, (std::vector<int32_t>{0, 0, 1, 1}));
    EXPECT_TRUE(state_.shareBefore.empty());
}

TEST_F(LayoutState, AMoveThatFailedChangesNothingAndIsRemembered) {
    commit(0, 50);
    move(0, false, 0.2, {0, 0, 1, 1}, {});
    commit(0, 50);
    ASSERT_EQ(state_.layouts.size(), 1u);
    EXPECT_FALSE(state_.layouts.back().ok);
    EXPECT_EQ(state_.layouts.back().after.steps, 0u);
    EXPECT_TRUE(state_.shardBefore.empty());
    EXPECT_EQ(predictedRemote(state_, 0), -1);
}

TEST_F(LayoutState, StepsBeforeAnotherMoveAndThoseOfALineageThatWasLeftAreNotItsBefore) {
    for (int i = 0; i < 5; ++i) commit(0, 90);
    move(1, true, -1, {0, 1, 0, 1}, {});
    for (int i = 0; i < 3; ++i) commit(1, 40);
    happen(LineageOpened{2, 7, 1, "back"});
    step_ = 7;
    commit(1, 40, 2);
    move(2, true, -1, {1, 1, 0, 0}, {});
    EXPECT_EQ(state_.layouts.back().before.steps, 3u) << "steps 6, 7 and 8 again";
    EXPECT_DOUBLE_EQ(state_.layouts.back().before.remoteShare(), 0.5);
}

TEST_F(LayoutState, AfterIsTheFirstStepsAndTheLatestAreAskedFor) {
    move(1, true, 0.3, {0, 1, 0, 1}, {});
    for (size_t i = 0; i < LayoutView::kWindow; ++i) commit(1, 20);
    for (size_t i = 0; i < LayoutView::kWindow; ++i) commit(1, 60);
    EXPECT_EQ(state_.layouts.back().after.steps, LayoutView::kWindow);
    EXPECT_DOUBLE_EQ(state_.layouts.back().after.remoteShare(), 0.3);
    EXPECT_DOUBLE_EQ(latestTraffic(state_).remoteShare(), 0.7);
}

TEST_F(LayoutState, RecentCountsForgetHowRoutingWas) {
    const auto count = [&](uint64_t step, uint64_t tokens) {
        happen(ExpertLoads{step, 1, 1, 2, {tokens, 1}});
    };
    for (uint64_t step = 10; step <= 200; step += 10) count(step, 5);
    const ExpertView& view = state_.experts;
    const auto recent = [&] { return view.recent()[0]; };
    EXPECT_EQ(recent(), 50u) << "the last 100 steps";
    EXPECT_EQ(view.stretches.size(), ExpertView::kStretches);
    EXPECT_EQ(view.stretches.front().from, 109u);
    for (uint64_t step = 210; step <= 310; step += 10) count(step, 0);
    EXPECT_EQ(recent(), 0u);
    EXPECT_EQ(view.total[0], 100u);
    for (uint64_t step = 110; step <= 130; step += 10) count(step, 7);  // after a rollback
    EXPECT_EQ(recent(), 21u);
    EXPECT_EQ(view.stretches.size(), 3u);
    for (uint64_t step = 131; step <= 150; ++step) count(step, 1);
    EXPECT_EQ(recent(), 41u);
    EXPECT_EQ(view.stretches.size(), 5u) << "ten steps each";
    EXPECT_EQ(view.stretches[3].loads[0], 10u);
}

TEST_F(LayoutState, KeepsProposals) {
    PlanProposed plan;
    plan.why = "drifted";
    happen(plan);
    ASSERT_EQ(state_.proposals.size(), 1u);
    EXPECT_EQ(state_.proposals.back().plan.why, "drifted");
}

TEST_F(LayoutState, AProposalWaitsUntilItIsDismissedOrTheExpertsMove) {
    EXPECT_EQ(openProposal(state_), nullptr);
    PlanProposed plan;
    plan.step = 7;
    happen(plan);
    ASSERT_NE(openProposal(state_), nullptr);
    EXPECT_EQ(openProposal(state_)->plan.step, 7u);
    Action dismiss;
    dismiss.kind = ActionKind::kDismissPlan;
    dismiss.step = 7;
    happen(OperatorActed{dismiss, "", "test", "no plan is ready for review"});
    EXPECT_NE(openProposal(state_), nullptr) << "what was refused did nothing";
    happen(OperatorActed{dismiss, "", "test", "done"});
    EXPECT_EQ(openProposal(state_), nullptr);
    plan.step = 9;
    happen(plan);
    EXPECT_NE(openProposal(state_), nullptr) << "a later one";
    move(1, true, -1, {0, 1, 0, 1}, {});
    EXPECT_EQ(openProposal(state_), nullptr);
}

TEST_F(LayoutState, RulesStayUntilOthersTakeTheirPlace) {
    Action rule;
    rule.kind = ActionKind::kRuleExperts;
    rule.rules = {{0, 3, 1, true}};
    happen(OperatorActed{rule, "", "test", "done"});
    EXPECT_EQ(state_.expertRules, rule.rules);
    EXPECT_TRUE(state_.actions.back().action.rules.empty()) << "the list of actions stays small";
    Action move;
    move.kind = ActionKind::kChangeLayout;
    move.expertShard = {0, 1};
    happen(OperatorActed{move, "", "test", "done"});
    EXPECT_EQ(state_.expertRules, rule.rules) << "a layout without rules leaves them";
    move.rules = {{0, 2, 0, false}};
    happen(OperatorActed{move, "", "test", "refused"});
    EXPECT_EQ(state_.expertRules, rule.rules);
    happen(OperatorActed{move, "", "test", "done"});
    EXPECT_EQ(state_.expertRules, move.rules);
    rule.rules.clear();
    happen(OperatorActed{rule, "", "test", "done"});
    EXPECT_TRUE(state_.expertRules.empty());
}

TEST_F(LayoutState, KnowsHowManyTokensOfACaptureAreStillToCome) {
    Action ask;
    ask.kind = ActionKind::kCaptureRouting;
    ask.tokens = 100;
    happen(OperatorActed{ask, "", "test", "done"});
    happen(OperatorActed{ask, "", "test", "done"});
    EXPECT_EQ(state_.captureLeft, 200u);
    RoutingSampled sampled;
    sampled.tokensLeft = 30;
    happen(sampled);
    EXPECT_EQ(state_.captureLeft, 30u);
}

TEST_F(LayoutState, SurvivesAKeyframe) {
    commit(0, 50);
    move(1, true, 0.4, {0, 1}, {1, 1});
    commit(1, 20);
    const auto again = decodeKeyframe(encodeKeyframe(state_));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->layouts.back().after.copies, 100u);
    EXPECT_EQ(again->domainShare, state_.domainShare);
}

}  // namespace
}  // namespace bulkhead::model
