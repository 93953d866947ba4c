// SPDX-License-Identifier: Apache-2.0
// Operator actions on a running job.
#include "tests/coordinator/scripted_job.h"

namespace bulkhead::runtime {
namespace {

using model::ActionKind;
using testing::HasSubstr;

class OperatorTest : public ScriptedJob {
  protected:
    void awaitState(int32_t replica, model::ReplicaState state) {
        await<model::ReplicaChanged>([=](const model::ReplicaChanged& r) {
            return r.replica == replica && r.state == state;
        });
    }
    void awaitContributors(size_t n) {
        await<model::StepCommitted>(
            [n](const model::StepCommitted& c) { return c.record.contributors.size() == n; });
    }
};

TEST_F(OperatorTest, ADrainedReplicaStaysOutUntilItIsReleased) {
    host();
    start(spec(0));
    awaitStep(5);
    ASSERT_TRUE(act(ActionKind::kDrain, 1).ok());
    awaitState(1, model::ReplicaState::kDrained);
    awaitContributors(3);
    EXPECT_TRUE(absl::IsFailedPrecondition(act(ActionKind::kDrain, 1)));
    ASSERT_TRUE(act(ActionKind::kReleaseRejoin, 1).ok());
    awaitContributors(4);
    ASSERT_TRUE(act(ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(OperatorTest, AHeldReplicaStaysOutAfterItsLoss) {
    host();
    start(spec(0));
    awaitStep(5);
    ASSERT_TRUE(act(ActionKind::kHoldRejoin, 2).ok());
    inject(model::FaultKind::kKillReplica, 2);
    awaitState(2, model::ReplicaState::kHeld);
    awaitContributors(3);
    ASSERT_TRUE(act(ActionKind::kReleaseRejoin, 2).ok());
    awaitContributors(4);
    ASSERT_TRUE(act(ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(OperatorTest, PauseStopsStepsAndResumeGoesOn) {
    host();
    start(spec(0));
    awaitStep(5);
    ASSERT_TRUE(act(ActionKind::kPause).ok());
    await<model::JobPhaseChanged>(
        [](const model::JobPhaseChanged& p) { return p.phase == model::JobPhase::kPaused; });
    const uint64_t last = host_->controller().status(run_)->step;
    ASSERT_TRUE(act(ActionKind::kResume).ok());
    awaitStep(last + 5);
    ASSERT_TRUE(act(ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(OperatorTest, APolicyChangesTheFollowingSteps) {
    host();
    start(spec(0));
    awaitStep(5);
    ASSERT_TRUE(act(ActionKind::kDrain, 3).ok());
    awaitContributors(3);
    model::Action policy;
    policy.kind = ActionKind::kSetPolicy;
    policy.policy = "lr";
    policy.value = "linear";
    ASSERT_TRUE(host_->controller().act(run_, policy, 0, "", "test").ok());
    EXPECT_EQ(await<model::PoliciesChanged>()->policies.lr, model::LrPolicy::kLinear);
    await<model::QuorumDecided>([](const model::QuorumDecided& q) { return q.lrFactor == 0.75; });
    policy.value = "cubic";
    EXPECT_THAT(std::string(host_->controller().act(run_, policy, 0, "", "test").message()),
                HasSubstr("none, linear, sqrt"));
}

TEST_F(OperatorTest, NoJobBeginsOnADaemonThatEnds) {
    host();
    host_->controller().shutDown();
    const auto late = host_->controller().start(spec(0), {});
    EXPECT_TRUE(absl::IsFailedPrecondition(late.status())) << late.status();
    EXPECT_THAT(std::string(late.status().message()), HasSubstr("the daemon ends"));
}

TEST_F(OperatorTest, AStaleClickIsRefusedAndARepeatedRequestIsHarmless) {
    host();
    start(spec(0));
    awaitStep(5);
    const uint64_t revision = host_->controller().status(run_)->revision;
    model::Action drain;
    drain.kind = ActionKind::kDrain;
    drain.replica = 0;
    ASSERT_TRUE(host_->controller().act(run_, drain, revision, "request-1", "test").ok());
    EXPECT_TRUE(host_->controller().act(run_, drain, revision, "request-1", "test").ok());
    drain.replica = 1;
    const auto stale = host_->controller().act(run_, drain, revision, "request-2", "test");
    EXPECT_TRUE(absl::IsAborted(stale)) << stale;
    EXPECT_EQ(all<model::OperatorActed>().size(), 1u);
}

TEST_F(OperatorTest, ACordonedNodeTakesNoNewRanks) {
    host(2);
    start(spec(0, 2));
    awaitStep(5);
    model::Action cordon;
    cordon.kind = ActionKind::kCordon;
    cordon.node = "node1";
    ASSERT_TRUE(host_->controller().act(run_, cordon, 0, "", "test").ok());
    inject(model::FaultKind::kKillReplica, 1);
    const auto started = await<model::RankStarted>(
        [](const model::RankStarted& s) { return s.rank.replica == 1 && s.incarnation == 2; });
    ASSERT_TRUE(started.has_value());
    EXPECT_EQ(started->node, "node0");
}

TEST_F(OperatorTest, ANodeOnWhichAReplicaTrainsIsNotForgotten) {
    host();
    start(spec(0, 1));
    awaitStep(5);
    host_->killAgent(0);
    await<model::NodeChanged>(
        [](const model::NodeChanged& n) { return n.state == model::NodeState::kLost; });
    awaitStep(host_->controller().status(run_)->step + 3);
    const auto forget = [&] {
        return host_->controller().changeNode(support::JobHost::nodeName(0),
                                              model::NodeChange::kForget, true, "ann");
    };
    EXPECT_TRUE(absl::IsFailedPrecondition(forget())) << forget();
    EXPECT_THAT(forget().message(), HasSubstr("replica 0 of job"));
    EXPECT_EQ(host_->controller().nodes().size(), 1u);
}

TEST_F(OperatorTest, AFaultOnWhatDoesNotRunIsSaid) {
    host();
    start(spec(0));
    awaitStep(5);
    ASSERT_TRUE(act(ActionKind::kDrain, 1).ok());
    await<model::RankExited>([](const model::RankExited& e) { return e.rank.replica == 1; });
    inject(model::FaultKind::kKillReplica, 1);
    EXPECT_THAT(await<model::FaultEnded>()->outcome, HasSubstr("does not run"));
}

class CountingWatcher : public Watcher {
  public:
    void onSnapshot(const model::RunState& state) override {
        snapshotSeq_ = state.seq;
        next_ = state.seq + 1;
    }
    void onEvent(const model::Event& event) override {
        if (event.seq != next_++) ++gaps_;
        ++events_;
    }
    uint64_t snapshotSeq_ = 0;
    uint64_t next_ = 0;
    std::atomic<uint64_t> events_{0};
    uint64_t gaps_ = 0;
};

TEST_F(OperatorTest, AWatcherGetsASnapshotAndThenEverythingAfterIt) {
    host();
    start(spec(0));
    awaitStep(5);
    CountingWatcher watcher;
    ASSERT_TRUE(host_->controller().watch(run_, &watcher).ok());
    awaitStep(all<model::StepCommitted>().back().record.step + 20);
    host_->controller().unwatch(run_, &watcher);
    EXPECT_GT(watcher.snapshotSeq_, 0u);
    EXPECT_GE(watcher.events_, 20u);
    EXPECT_EQ(watcher.gaps_, 0u);
    EXPECT_TRUE(absl::IsNotFound(host_->controller().watch("nothing", &watcher)));
}

}  // namespace
}  // namespace bulkhead::runtime
