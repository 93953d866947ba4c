// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>

#include "backend/runtime/coordinator/job_status.h"

namespace bulkhead::runtime {
namespace {

using model::ActionKind;
using model::FaultKind;
using model::ReplicaState;
using testing::HasSubstr;

JobStatus fourReplicas() {
    JobStatus s;
    s.spec.replicas = 4;
    s.spec.shards = 2;
    s.spec.allowFaults = true;
    s.spec.samplesPerReplica = 8;
    s.phase = model::JobPhase::kTraining;
    s.revision = 17;
    for (int32_t r = 0; r < 4; ++r)
        s.replicas.push_back({r, 1, ReplicaState::kTraining, {r < 2 ? "node0" : "node1"}});
    s.nodes = {{"node0", "127.0.0.1", 4, 4, model::NodeState::kUp},
               {"node1", "127.0.0.2", 4, 4, model::NodeState::kUp}};
    return s;
}

model::Action act(ActionKind kind, int32_t replica = -1, std::string node = "") {
    model::Action a;
    a.kind = kind;
    a.replica = replica;
    a.node = std::move(node);
    return a;
}

model::FaultSpec fault(FaultKind kind, int32_t replica, int32_t shard = -1) {
    model::FaultSpec f;
    f.kind = kind;
    f.replica = replica;
    f.shard = shard;
    return f;
}

TEST(Preflight, AJobTakesFaultsOnlyIfItWasStartedForThat) {
    JobStatus s = fourReplicas();
    s.spec.allowFaults = false;
    const auto p = preflight(s, fault(FaultKind::kKillReplica, 1));
    EXPECT_FALSE(p.allowed);
    EXPECT_THAT(p.refusal, HasSubstr("faults = \"on\""));
    s.spec.faults = {"kill:replica=2@step=50"};
    EXPECT_TRUE(preflight(s, fault(FaultKind::kKillReplica, 1)).allowed);
}

TEST(Preflight, ASecondStopSaysWhatTheFirstWaitsForAndHowToEndAtOnce) {
    JobStatus s = fourReplicas();
    s.phase = model::JobPhase::kStopping;
    s.why = "waits for room on /ckpt";
    const auto p = preflight(s, act(ActionKind::kStop));
    EXPECT_FALSE(p.allowed);
    EXPECT_THAT(p.refusal, HasSubstr("waits for room on /ckpt"));
    EXPECT_THAT(p.refusal, HasSubstr("stop --without-checkpoint"));
    EXPECT_TRUE(preflight(s, act(ActionKind::kStopNow)).allowed);
    s.phase = model::JobPhase::kFinished;
    for (const ActionKind kind : {ActionKind::kStop, ActionKind::kDrain})
        EXPECT_NE(preflight(s, act(kind, 1)).title, "");
}

TEST(Preflight, RoutingCanBeAskedForWhereThereIsSome) {
    JobStatus s = fourReplicas();
    model::Action ask = act(ActionKind::kCaptureRouting);
    ask.tokens = 100;
    EXPECT_THAT(preflight(s, ask).refusal, HasSubstr("not been built yet"));
    s.model.name = "dense";
    EXPECT_THAT(preflight(s, ask).refusal, HasSubstr("no experts"));
    s.expertShard = {0, 1};
    EXPECT_TRUE(preflight(s, ask).allowed);
    EXPECT_THAT(preflight(s, ask).effect, HasSubstr("the experts that some of their tokens chose"));
    for (const uint64_t tokens : {uint64_t{0}, uint64_t{2'000'000}}) {
        ask.tokens = tokens;
        EXPECT_THAT(preflight(s, ask).refusal, HasSubstr("1 to 1048576 tokens"));
    }
}

TEST(Preflight, EachOrderSaysWhatItDoes) {
    JobStatus s = fourReplicas();
    s.replicas[1].releasable = s.pauseOrdered = true;
    const auto effect = [&](ActionKind kind, int32_t replica = -1, const std::string& node = "") {
        const auto check = preflight(s, act(kind, replica, node));
        EXPECT_TRUE(check.allowed) << check.refusal;
        EXPECT_FALSE(check.title.empty());
        return check.effect;
    };
    EXPECT_THAT(effect(ActionKind::kCheckpoint), HasSubstr("writes the state"));
    EXPECT_THAT(effect(ActionKind::kResume), HasSubstr("goes on"));
    EXPECT_THAT(effect(ActionKind::kHoldRejoin, 0), HasSubstr("stays out until it is released"));
    EXPECT_THAT(effect(ActionKind::kReleaseRejoin, 1), HasSubstr("may start and join again"));
    EXPECT_THAT(effect(ActionKind::kCordon, -1, "node0"), HasSubstr("takes no new ranks"));
    EXPECT_THAT(effect(ActionKind::kUncordon, -1, "node0"), HasSubstr("takes new ranks again"));
}

TEST(Preflight, ALayoutSaysHowManyExpertsMoveAndHowManyBytes) {
    JobStatus s = fourReplicas();
    model::Action move = act(ActionKind::kChangeLayout);
    move.expertShard = {0, 1, 1, 0, 0, 1};
    EXPECT_THAT(preflight(s, move).refusal, HasSubstr("not been built yet"));
    s.model.name = "llama_moe";
    EXPECT_THAT(preflight(s, move).refusal, HasSubstr("no experts"));
    s.model.moeLayers = 2;
    s.model.experts = 3;
    s.model.expertBytes = 500'000;
    s.expertShard = {0, 0, 1, 0, 0, 1};
    const auto p = preflight(s, move);
    EXPECT_TRUE(p.allowed) << p.refusal;
    EXPECT_EQ(p.expertsMoved, 1u);
    EXPECT_EQ(p.bytesMoved, 500'000u);
    EXPECT_THAT(p.effect, HasSubstr("moves 1 of 6 experts between its shards, 0.5 MB"));
    EXPECT_EQ(p.contributorsAfter, 4u);
    move.expertShard.back() = 2;
    EXPECT_THAT(preflight(s, move).refusal, HasSubstr("expert 2 of mixture layer 1"));
    move.expertShard = s.expertShard;
    EXPECT_THAT(preflight(s, move).refusal, HasSubstr("already"));
}

TEST(Preflight, RulesAreCheckedAndALayoutKeepsThem) {
    JobStatus s = fourReplicas();
    model::Action rule = act(ActionKind::kRuleExperts);
    rule.rules = {{1, 2, 1, true}};
    EXPECT_THAT(preflight(s, rule).refusal, HasSubstr("not been built yet"));
    s.model.name = "llama_moe";
    s.model.moeLayers = 2;
    s.model.experts = 4;
    s.expertShard = {0, 0, 1, 1, 0, 0, 1, 1};
    EXPECT_THAT(preflight(s, rule).effect, HasSubstr("plans keep to 1 rule;"));
    rule.rules = {{1, 2, 2, true}};
    EXPECT_EQ(preflight(s, rule).refusal,
              "expert 2 of mixture layer 1 is pinned to shard 2: a replica has 2 shards");

    s.expertRules = {{1, 2, 1, true}};
    model::Action move = act(ActionKind::kChangeLayout);
    move.expertShard = {0, 0, 1, 1, 0, 1, 0, 1};
    EXPECT_EQ(preflight(s, move).refusal,
              "expert 2 of mixture layer 1 is pinned to shard 1, and this layout has it on shard "
              "0; plan anew, or free it with bulkheadctl plan rules --free 1:2");
    s.model.mixtureLayers = {1, 3};
    EXPECT_EQ(preflight(s, move).refusal,
              "expert 2 of layer 3 is pinned to shard 1, and this layout has it on shard 0; plan "
              "anew, or free it with bulkheadctl plan rules --free 3:2");
    s.model.mixtureLayers.clear();
    move.rules = {{1, 1, 1, true}};
    EXPECT_TRUE(preflight(s, move).allowed) << "it brings rules of its own";
    move.rules = {{1, 1, 0, true}};
    EXPECT_THAT(preflight(s, move).refusal, HasSubstr("expert 1 of mixture layer 1"));
    move.rules.clear();
    move.expertShard = {0, 1, 0, 1, 0, 0, 1, 1};
    EXPECT_TRUE(preflight(s, move).allowed) << preflight(s, move).refusal;
}

TEST(Preflight, OnlyThePlanThatWaitsIsDismissed) {
    JobStatus s = fourReplicas();
    model::Action dismiss = act(ActionKind::kDismissPlan);
    dismiss.step = 40;
    EXPECT_EQ(preflight(s, dismiss).refusal, "no plan is ready for review");
    s.proposedAt = 60;
    EXPECT_EQ(preflight(s, dismiss).refusal, "the plan ready for review is of step 60, not 40");
    dismiss.step = 60;
    EXPECT_TRUE(preflight(s, dismiss).allowed);
}

TEST(Preflight, DrainSaysWhatStaysAndWhatBatchAndLrBecome) {
    const model::Action drain = act(ActionKind::kDrain, 2);
    const auto p = preflight(fourReplicas(), drain);
    EXPECT_TRUE(p.allowed);
    EXPECT_EQ(p.title, "Drain replica 2");
    EXPECT_EQ(p.contributorsBefore, 4u);
    EXPECT_EQ(p.contributorsAfter, 3u);
    EXPECT_EQ(p.samplesAfter, 24u);
    EXPECT_DOUBLE_EQ(p.lrFactorAfter, std::sqrt(0.75));
    // Three digits in the sentence, whatever the figure has.
    EXPECT_NE(p.effect.find("an LR factor of 0.866."), std::string::npos) << p.effect;
    EXPECT_FALSE(p.pauses);
    EXPECT_EQ(p.revision, 17u);
}

TEST(Preflight, ARestartSaysThatTheReplicaIsAwayMeanwhile) {
    JobStatus s = fourReplicas();
    auto p = preflight(s, act(ActionKind::kRestartReplica, 2));
    EXPECT_EQ(p.contributorsAfter, 3u);
    EXPECT_THAT(p.effect, HasSubstr("as incarnation 2"));
    s.replicas[2].alone = true;
    p = preflight(s, act(ActionKind::kRestartReplica, 2));
    EXPECT_THAT(p.refusal, HasSubstr("replica 2 alone holds step"));
    s.replicas[2].alone = false;
    EXPECT_THAT(preflight(s, act(ActionKind::kReleaseRejoin, 2)).refusal, HasSubstr("neither"));
    s.replicas[2].releasable = true;
    EXPECT_TRUE(preflight(s, act(ActionKind::kReleaseRejoin, 2)).allowed);
    s.replicas[2].state = ReplicaState::kFetching;
    p = preflight(s, act(ActionKind::kRestartReplica, 2));
    EXPECT_EQ(p.contributorsBefore, 3u);
    EXPECT_EQ(p.contributorsAfter, 3u) << "it does not train now";
    p = preflight(s, act(ActionKind::kStop));
    EXPECT_EQ(p.contributorsAfter, 0u);
    EXPECT_THAT(p.effect, HasSubstr("all 8 ranks leave"));
    p = preflight(s, act(ActionKind::kStopNow));
    EXPECT_THAT(p.effect, HasSubstr("There is no checkpoint: all"));
    s.step = 12;
    s.checkpoint = 10;
    p = preflight(s, act(ActionKind::kStopNow));
    EXPECT_THAT(p.effect, HasSubstr("2 steps are lost: the newest checkpoint is of step 10"));
    s.folderAway = true;
    p = preflight(s, act(ActionKind::kStopNow));
    EXPECT_THAT(p.effect, HasSubstr("what lies in the folder is not touched"));
}

TEST(Preflight, ConstantBatchKeepsSamplesAndLr) {
    JobStatus s = fourReplicas();
    s.policies.batch = model::BatchPolicy::kConstant;
    const auto p = preflight(s, act(ActionKind::kDrain, 2));
    EXPECT_EQ(p.samplesAfter, 32u);
    EXPECT_DOUBLE_EQ(p.lrFactorAfter, 1);
}

TEST(Preflight, TooFewReplicasIsSaidNotForbidden) {
    JobStatus s = fourReplicas();
    s.policies.minReplicas = 4;
    const auto p = preflight(s, act(ActionKind::kDrain, 0));
    EXPECT_TRUE(p.allowed);
    EXPECT_TRUE(p.pauses);
    EXPECT_THAT(p.effect, HasSubstr("min_replicas 4"));
}

TEST(Preflight, WhoOrdersAPauseOrTheEndIsNotToldThatTooFewRemain) {
    EXPECT_FALSE(preflight(fourReplicas(), act(ActionKind::kPause, -1)).pauses);
    EXPECT_FALSE(preflight(fourReplicas(), act(ActionKind::kStop, -1)).pauses);
}

TEST(Preflight, LosingANodeCountsItsReplicas) {
    model::FaultSpec kill = fault(FaultKind::kKillNode, -1);
    kill.node = "node1";
    const auto p = preflight(fourReplicas(), kill);
    EXPECT_TRUE(p.allowed);
    EXPECT_EQ(p.contributorsAfter, 2u);
}

TEST(Preflight, LosingANodeCountsReplicasOfWhichItHasAnyRank) {
    JobStatus s = fourReplicas();
    s.replicas[1].nodes = {"node0", "node1"};
    model::FaultSpec kill = fault(FaultKind::kKillNode, -1);
    kill.node = "node1";
    EXPECT_EQ(preflight(s, kill).contributorsAfter, 1u);
    for (ReplicaStatus& r : s.replicas) r.nodes = {"node0", "node1"};
    s.step = 132;
    s.checkpoint = 100;
    EXPECT_THAT(preflight(s, kill).effect, HasSubstr("goes back to the checkpoint of step 100"));
    s.checkpoint = 0;
    EXPECT_THAT(preflight(s, kill).effect, HasSubstr("goes back to its beginning"));
    s.step = 0;
    EXPECT_THAT(preflight(s, kill).effect, HasSubstr("waits until one returns"));
}

TEST(Preflight, RefusalsNameTheTargetAndTheWayOut) {
    const JobStatus s = fourReplicas();
    const auto noReplica = preflight(s, act(ActionKind::kDrain, 9));
    EXPECT_FALSE(noReplica.allowed);
    EXPECT_THAT(noReplica.refusal, HasSubstr("no replica 9"));
    const auto noNode = preflight(s, act(ActionKind::kCordon, -1, "x"));
    EXPECT_THAT(noNode.refusal, HasSubstr("node0, node1"));
    const auto noShard = preflight(s, fault(FaultKind::kKillRank, 1, 2));
    EXPECT_THAT(noShard.refusal, HasSubstr("shards 0 to 1"));
    model::FaultSpec lunch = fault(FaultKind::kKillReplica, 1);
    lunch.atPhase = "lunch";
    const auto noPhase = preflight(s, lunch);
    EXPECT_THAT(noPhase.refusal, HasSubstr("compute, exchange, vote or apply"));
    JobStatus over = s;
    over.phase = model::JobPhase::kFinished;
    EXPECT_FALSE(preflight(over, act(ActionKind::kPause)).allowed);
    EXPECT_FALSE(preflight(s, act(ActionKind::kResume)).allowed);
}

TEST(Preflight, APauseCanBeEndedBeforeThePhaseShowsIt) {
    JobStatus s = fourReplicas();
    s.pauseOrdered = true;
    EXPECT_TRUE(preflight(s, act(ActionKind::kResume)).allowed);
    EXPECT_THAT(preflight(s, act(ActionKind::kPause)).refusal, HasSubstr("paused already"));
}

TEST(Preflight, APolicyThatCannotBeIsRefused) {
    model::Action set = act(ActionKind::kSetPolicy);
    set.policy = "min_replicas";
    set.value = "5";
    EXPECT_THAT(preflight(fourReplicas(), set).refusal, HasSubstr("could never train"));
    set.value = "five";
    EXPECT_FALSE(preflight(fourReplicas(), set).allowed);
    set.value = "4";
    EXPECT_TRUE(preflight(fourReplicas(), set).allowed);
}

}  // namespace
}  // namespace bulkhead::runtime
