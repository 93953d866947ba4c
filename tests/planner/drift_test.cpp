// SPDX-License-Identifier: Apache-2.0
// When a plan is made anew, and how what a job tells of its routing becomes a recording.
#include "backend/planner/live/drift.h"

#include <gmock/gmock.h>

#include "backend/planner/live/captured.h"
#include "backend/planner/live/live_plan.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

/// Two shards, two domains, one mixture of four experts: domain "a" uses 0 and 1, "b" 2 and 3; its
/// plan, of step 100, said that 20 % of copies would leave their shard.
class Drift : public testing::Test {
  protected:
    Drift() {
        s_.spec.shards = 2;
        s_.spec.domains = {{"a", {}}, {"b", {}}};
        s_.spec.plan = {0.1, 200};
        s_.model.name = "tiny";
        s_.model.moeLayers = 1;
        s_.model.experts = 4;
        s_.model.topK = 1;
        s_.model.expertBytes = 1000;
        s_.layout = 1;
        s_.expertShard = {0, 1, 0, 1};
        s_.experts.step = 300;
        s_.experts.moeLayers = 1;
        s_.experts.domains = 2;
        s_.experts.experts = 4;
        s_.experts.stretches = {{250, {50, 50, 0, 0, 0, 0, 50, 50}}};
        model::LayoutView view;
        view.layout = 1;
        view.step = 100;
        view.predictedRemote = 0.2;
        s_.layouts.push(view);
    }
    void steps(uint64_t last, uint64_t remote) {
        for (uint64_t i = model::LayoutView::kWindow; i-- > 0;) {
            model::StepPoint p;
            p.step = last - i;
            p.layout = 1;
            p.copies = 100;
            p.remoteCopies = remote;
            s_.steps.push(p);
        }
    }
    model::RunState s_;
};

TEST_F(Drift, IsMoreRemoteCopiesThanPredicted) {
    steps(300, 22);
    EXPECT_EQ(drifted(s_), std::nullopt) << "10 % more is not above 10 %";
    EXPECT_FALSE(proposal(s_));
    steps(350, 23);
    EXPECT_EQ(drifted(s_), "23.0 % of copies leave their shard, 20.0 % were predicted of layout 1");
    const auto plan = proposal(s_)();
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->layout, 1u);
    EXPECT_DOUBLE_EQ(plan->measuredRemote, 0.23);
    EXPECT_DOUBLE_EQ(plan->predictedRemote, 0);
    EXPECT_EQ(plan->expertsMoved, 2u);
    EXPECT_EQ(plan->bytesMoved, 2000u);
    EXPECT_EQ(plan->expertShard[0], plan->expertShard[1]);
    EXPECT_EQ(plan->domainShare.size(), 4u);
}

TEST_F(Drift, IsAShardThatGetsMoreThanAPlanAllows) {
    steps(300, 10);
    s_.experts.stretches[0].loads = {90, 10, 0, 0, 0, 0, 90, 10};
    EXPECT_THAT(drifted(s_).value_or(""),
                HasSubstr("the busiest shard gets 1.80 times the mean, at most 1.15"));
}

TEST_F(Drift, IsAPinThatTheLayoutInUseDoesNotKeep) {
    steps(300, 20);
    s_.expertShard = {0, 0, 1, 1};
    s_.domainShare = {1000, 0, 0, 1000};
    EXPECT_EQ(drifted(s_), std::nullopt);
    s_.expertRules = {{0, 0, 1, true}};
    EXPECT_EQ(drifted(s_),
              "expert 0 of mixture layer 0 is pinned to shard 1, and layout 1 does not keep that");
    const auto plan = proposal(s_)();
    ASSERT_TRUE(plan.has_value()) << "though it saves nothing";
    EXPECT_EQ(plan->expertShard[0], 1);
    EXPECT_EQ(plan->expertShard[1], 1) << "with what it belongs to";
}

TEST_F(Drift, IsNotSaidTooEarlyNorTooOftenNorWithoutAPrediction) {
    steps(299, 90);
    EXPECT_EQ(drifted(s_), std::nullopt) << "200 steps after the move";
    steps(300, 90);
    EXPECT_NE(drifted(s_), std::nullopt);
    model::ProposalView proposed;
    proposed.plan.step = 300;
    proposed.plan.layout = 1;
    s_.proposals.push(proposed);
    steps(499, 90);
    EXPECT_EQ(drifted(s_), std::nullopt) << "200 steps after the proposal";
    steps(500, 90);
    EXPECT_NE(drifted(s_), std::nullopt);
    model::RunState off = s_;
    off.spec.plan.drift = 0;
    EXPECT_EQ(drifted(off), std::nullopt);
    model::RunState unknown = s_;
    unknown.layout = 2;
    EXPECT_EQ(drifted(unknown), std::nullopt) << "nobody predicted anything of it";
}

TEST_F(Drift, WithoutABetterPlanNothingIsProposed) {
    steps(300, 90);
    s_.expertShard = {0, 0, 1, 1};
    s_.domainShare = {1000, 0, 0, 1000};
    ASSERT_TRUE(proposal(s_));
    EXPECT_EQ(proposal(s_)(), std::nullopt);
}

TEST_F(Drift, AProposalIsForWhereExpertsLayThen) {
    steps(300, 90);
    EXPECT_THAT(std::string(planProposed(s_).status().message()), HasSubstr("proposed no plan"));
    s_.proposals.push({0, *proposal(s_)()});
    const auto plan = planProposed(s_);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->preview.expertsMoved, 2u);
    EXPECT_DOUBLE_EQ(plan->action.predictedRemote, 0);
    s_.proposals.back().dismissed = true;
    EXPECT_THAT(std::string(planProposed(s_).status().message()), HasSubstr("dismissed"));
    s_.layout = 2;
    EXPECT_THAT(std::string(planProposed(s_).status().message()), HasSubstr("for layout 1"));
}

TEST_F(Drift, WhatAJobTellsOfItsRoutingIsARecording) {
    const auto made = captured(s_, {{1, 7, {2, 3}}, {0, 9, {0}}});
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->routing->tokens(), 3u);
    EXPECT_EQ(made->routing->requests()[0].id, "7");
    EXPECT_EQ(made->routing->domains()[made->routing->requests()[0].domain], "b");
    EXPECT_EQ(made->routing->expert(0, 1, 0), 3);
    EXPECT_THAT(std::string(captured(s_, {{0, 1, {4}}}).status().message()),
                HasSubstr("sample 1 of domain 0"));
    EXPECT_THAT(std::string(captured(s_, {{2, 1, {0}}}).status().message()),
                HasSubstr("a domain below 2"));
}

}  // namespace
}  // namespace bulkhead::planner
