// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/fault_runner.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "backend/common/clock.h"

namespace bulkhead::runtime {
namespace {

using model::FaultKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FaultRunnerTest : public testing::Test {
  protected:
    FaultRunner::Hands hands() {
        FaultRunner::Hands h;
        h.commit = [this](RankId rank, const protocol::CommitFault& f) {
            committed_.push_back(f);
            committedTo_.push_back(rank);
            return refusal_;
        };
        h.signal = [this](RankId rank, int signal, uint64_t, uint64_t) {
            signalled_.push_back({rank, signal});
            return refusal_;
        };
        h.fillDisk = [this](const std::string&, uint64_t, uint64_t) { return refusal_; };
        h.killNode = [this](const std::string& node, uint64_t) {
            killedNodes_.push_back(node);
            return refusal_;
        };
        h.end = [this](uint64_t fault, const std::set<RankId>& ranks) {
            ended_.push_back(fault);
            endedIn_ = ranks;
        };
        h.replicasOn = [](const std::string&) { return std::vector<int32_t>{2, 3}; };
        h.emit = [this](model::EventBody body, model::Severity) {
            events_.push_back(std::move(body));
        };
        h.unixNs = [this] { return now_; };
        h.incarnationOf = [this](RankId rank) -> std::optional<uint32_t> {
            return gone_.contains(rank) ? std::nullopt : std::optional<uint32_t>(1);
        };
        h.save = [this](const SavedFaults& faults) {
            saved_ = faults;
            return absl::OkStatus();
        };
        return h;
    }
    static model::FaultSpec fault(FaultKind kind, int32_t replica, uint64_t atStep = 0,
                                  const std::string& atPhase = "") {
        model::FaultSpec f;
        f.kind = kind;
        f.replica = replica;
        f.atStep = atStep;
        f.atPhase = atPhase;
        return f;
    }
    template <class T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const auto& e : events_)
            if (const T* t = std::get_if<T>(&e)) found.push_back(*t);
        return found;
    }

    SavedFaults saved_;
    std::set<RankId> gone_;
    int64_t now_ = 1000 * kSecond;
    absl::Status refusal_;
    std::vector<protocol::CommitFault> committed_;
    std::vector<RankId> committedTo_;
    std::vector<std::pair<RankId, int>> signalled_;
    std::vector<std::string> killedNodes_;
    std::vector<uint64_t> ended_;
    std::set<RankId> endedIn_;
    std::vector<model::EventBody> events_;
    FaultRunner runner_{2, hands()};
};

TEST_F(FaultRunnerTest, KillingAReplicaSignalsAllItsRanks) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "ana", 7).ok());
    EXPECT_THAT(signalled_,
                ElementsAre(std::pair(RankId{1, 0}, SIGKILL), std::pair(RankId{1, 1}, SIGKILL)));
    EXPECT_THAT(all<model::FaultInjected>(), IsEmpty()) << "not before it took effect";
    runner_.noted(1, false, "", now_, 0);
    ASSERT_EQ(all<model::FaultInjected>().size(), 1u);
    EXPECT_EQ(all<model::FaultInjected>()[0].step, 8u);
    EXPECT_EQ(all<model::FaultInjected>()[0].by, "ana");
    EXPECT_EQ(all<model::FaultEnded>()[0].outcome, "done");
}

TEST_F(FaultRunnerTest, WaitsForItsStep) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1, 10), "", 0).ok());
    runner_.stepCommitted(8);
    EXPECT_THAT(signalled_, IsEmpty());
    runner_.stepCommitted(9);
    EXPECT_EQ(signalled_.size(), 2u) << "step 10 begins when step 9 is committed";
}

TEST_F(FaultRunnerTest, WhatARankMustTimeItselfIsToldAheadOfTheStep) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1, 10, "vote"), "", 0).ok());
    runner_.stepCommitted(8);
    ASSERT_EQ(committed_.size(), 2u);
    EXPECT_EQ(committed_[0].kind, "kill_rank");
    EXPECT_EQ(committed_[0].step, 10u);
    EXPECT_EQ(committed_[0].phase, "vote");
    EXPECT_THAT(signalled_, IsEmpty());
    runner_.rankExited({1, 0}, SIGKILL, now_);
    EXPECT_EQ(all<model::FaultInjected>().size(), 1u) << "the exit is its effect";
}

TEST_F(FaultRunnerTest, AFlipGoesToOneShard) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kFlipParameter, 1), "", 0).ok());
    EXPECT_THAT(committedTo_, ElementsAre(RankId{1, 0}));
}

TEST_F(FaultRunnerTest, WhatCannotBeDoneIsSaidAndOver) {
    refusal_ = absl::UnavailableError("r1s0 does not run");
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    EXPECT_THAT(all<model::FaultInjected>(), IsEmpty());
    EXPECT_THAT(all<model::FaultEnded>()[0].outcome, HasSubstr("r1s0 does not run"));
    EXPECT_TRUE(absl::IsNotFound(runner_.end(1)));
}

TEST_F(FaultRunnerTest, AnIncidentAnswersToTheLatestFaultOnItsReplicaAndToItOnce) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    runner_.noted(1, false, "", now_, 0);
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kHang, 1), "", 0).ok());
    runner_.noted(2, false, "", now_ + 5, 0);
    EXPECT_EQ(runner_.explain(0, now_ + 10), std::nullopt);
    EXPECT_EQ(runner_.explain(1, now_ + 10)->fault, 2u);
    EXPECT_EQ(runner_.explain(1, now_ + 10)->fault, 1u);
    EXPECT_FALSE(runner_.explain(1, now_ + 10).has_value());
}

TEST_F(FaultRunnerTest, AnOldFaultExplainsNothing) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    runner_.noted(1, false, "", now_, 0);
    EXPECT_FALSE(runner_.explain(1, now_ + 120 * kSecond).has_value());
}

TEST_F(FaultRunnerTest, ANodeFaultExplainsEveryReplicaOnIt) {
    model::FaultSpec node;
    node.kind = FaultKind::kKillNode;
    node.node = "node1";
    ASSERT_TRUE(runner_.inject(node, "", 0).ok());
    EXPECT_THAT(killedNodes_, ElementsAre("node1"));
    EXPECT_EQ(runner_.explain(2, now_)->fault, 1u);
    EXPECT_EQ(runner_.explain(3, now_)->fault, 1u);
    EXPECT_FALSE(runner_.explain(1, now_).has_value());
}

TEST_F(FaultRunnerTest, ALastingFaultEndsWhenItsProcessIsGone) {
    model::FaultSpec hang = fault(FaultKind::kHang, 1);
    hang.shard = 0;
    ASSERT_TRUE(runner_.inject(hang, "", 0).ok());
    runner_.noted(1, false, "", now_, 0);
    EXPECT_THAT(all<model::FaultEnded>(), IsEmpty());
    runner_.rankExited({1, 0}, SIGKILL, now_);
    EXPECT_EQ(all<model::FaultEnded>()[0].outcome, "the process is gone");
}

TEST_F(FaultRunnerTest, WhatLastsOutsideOrInsideARankIsEndedOnRequest) {
    for (const FaultKind kind : {FaultKind::kHang, FaultKind::kSlow}) {
        const uint64_t id = runner_.inject(fault(kind, 1), "", 0).value();
        runner_.noted(id, false, "", now_, 0);
        EXPECT_TRUE(runner_.end(id).ok());
        EXPECT_EQ(ended_.back(), id);
        if (kind == FaultKind::kHang)
            EXPECT_THAT(endedIn_, IsEmpty()) << "its agent holds it";
        else
            EXPECT_THAT(endedIn_, ElementsAre(RankId{1, 0}, RankId{1, 1}));
        runner_.noted(id, true, "", now_, 0);
        EXPECT_EQ(all<model::FaultEnded>().back().outcome, "ended on request");
    }
}

TEST_F(FaultRunnerTest, WhatWaitsForItsStepIsTakenBack) {
    const uint64_t here = runner_.inject(fault(FaultKind::kSlow, 1, 100), "", 0).value();
    EXPECT_TRUE(runner_.end(here).ok());
    EXPECT_THAT(all<model::FaultEnded>().back().outcome, HasSubstr("cancelled"));
    EXPECT_THAT(ended_, IsEmpty()) << "nobody was told of it yet";
    const uint64_t inRank = runner_.inject(fault(FaultKind::kNanGradient, 1, 2), "", 0).value();
    EXPECT_TRUE(runner_.end(inRank).ok());
    EXPECT_THAT(ended_, ElementsAre(inRank));
    runner_.noted(inRank, true, "", now_, 0);
    EXPECT_THAT(all<model::FaultEnded>().back().outcome, HasSubstr("cancelled"));
}

TEST_F(FaultRunnerTest, AKillUnderWayCannotBeCalledBack) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(runner_.end(1)));
}

TEST_F(FaultRunnerTest, ARankThatStopsItselfInAPhaseIsWokenByItsAgent) {
    model::FaultSpec hang = fault(FaultKind::kHang, 1, 0, "vote");
    hang.durationMs = 500;
    hang.shard = 1;
    ASSERT_TRUE(runner_.inject(hang, "", 0).ok());
    EXPECT_THAT(signalled_, IsEmpty());
    runner_.noted(1, false, "", now_, 3);
    EXPECT_THAT(signalled_, ElementsAre(std::pair(RankId{1, 1}, 0)));
}

TEST_F(FaultRunnerTest, ALossThatIsFoundBeforeTheKillIsReportedAnswersToIt) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    const auto cause = runner_.explain(1, now_);
    ASSERT_TRUE(cause.has_value());
    EXPECT_EQ(cause->fault, 1u);
    EXPECT_FALSE(runner_.explain(1, now_).has_value()) << "once";
}

TEST_F(FaultRunnerTest, ALossThatIsFoundBeforeARankThatStruckItselfIsHeardAnswersToIt) {
    for (const FaultKind kind :
         {FaultKind::kKillReplica, FaultKind::kHang, FaultKind::kCutNetwork}) {
        FaultRunner runner(2, hands());
        const std::string phase = kind == FaultKind::kCutNetwork ? "" : "vote";
        ASSERT_TRUE(runner.inject(fault(kind, 1, 10, phase), "", 0).ok());
        runner.stepCommitted(8);
        EXPECT_FALSE(runner.explain(1, now_).has_value()) << "told, but step 9 runs";
        runner.stepCommitted(9);
        const auto cause = runner.explain(1, now_);
        ASSERT_TRUE(cause.has_value()) << enumName(kind);
        EXPECT_EQ(cause->fault, 1u);
        runner.noted(1, false, "", now_ - 5, 10);
        EXPECT_FALSE(runner.explain(1, now_).has_value()) << "once, though heard of meanwhile";
    }
}

TEST_F(FaultRunnerTest, AFaultThatLeavesItsRankAbleToSpeakExplainsNothingBeforeItDoes) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kFlipGradient, 1), "", 0).ok());
    EXPECT_FALSE(runner_.explain(1, now_).has_value());
}

// ---- over the lives of coordinators

class NextFaultRunnerTest : public FaultRunnerTest {
  protected:
    /// History with the first fault, after `injected` and `ended`.
    static model::RunState past(const model::FaultSpec& spec, bool injected, bool ended) {
        model::RunState state;
        uint64_t seq = 0;
        const auto add = [&](model::EventBody body) {
            model::apply(state, {++seq, 900 * kSecond, model::Severity::kInfo, std::move(body)});
        };
        if (injected) add(model::FaultInjected{1, spec, 3, "ana"});
        if (ended) add(model::FaultEnded{1, "done"});
        return state;
    }
    void SetUp() override { refusal_ = absl::OkStatus(); }
    FaultRunner next_{2, hands()};
};

TEST_F(NextFaultRunnerTest, WhatWaitsGoesOnWaiting) {
    const auto spec = fault(FaultKind::kKillReplica, 1, 50);
    ASSERT_EQ(runner_.inject(spec, "ana", 3, "req-1").value(), 1u);
    next_.restore(saved_, {});
    next_.inventoryDone();
    EXPECT_THAT(signalled_, IsEmpty());
    EXPECT_THAT(next_.requests(), ElementsAre("req-1"));
    next_.stepCommitted(49);
    EXPECT_EQ(signalled_.size(), 2u);
    EXPECT_EQ(next_.inject(spec, "", 3).value(), 2u) << "numbers go on";
}

TEST_F(NextFaultRunnerTest, WhatWasSentIsSentAgainToTheSameProcessAlone) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kSlow, 1), "", 0).ok());
    committed_.clear();
    next_.restore(saved_, {});
    next_.rankBack({1, 0}, 2);
    EXPECT_THAT(committed_, IsEmpty()) << "a successor is nobody's target";
    next_.rankBack({1, 0}, 1);
    next_.rankBack({1, 0}, 1);
    ASSERT_EQ(committed_.size(), 1u);
    EXPECT_EQ(committed_[0].fault, 1u);
}

TEST_F(NextFaultRunnerTest, AKillWhoseTargetIsGoneHappenedAndExplainsTheLoss) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    events_.clear();
    next_.restore(saved_, {});
    gone_ = {{1, 0}, {1, 1}};
    next_.inventoryDone();
    EXPECT_EQ(all<model::FaultInjected>().size(), 1u);
    EXPECT_EQ(all<model::FaultEnded>().size(), 1u);
    const auto cause = next_.explain(1, now_);
    ASSERT_TRUE(cause.has_value());
    EXPECT_EQ(cause->fault, 1u);
}

TEST_F(NextFaultRunnerTest, AStepThatHistoryKnowsBeginsForAFaultInARankToo) {
    ASSERT_TRUE(runner_.inject(fault(FaultKind::kKillReplica, 1, 10, "vote"), "", 8).ok());
    model::RunState state;
    model::StepCommitted committed;
    committed.record.step = 9;
    model::apply(state, {1, 900 * kSecond, model::Severity::kInfo, committed});
    next_.restore(saved_, state);
    ASSERT_TRUE(next_.explain(1, now_).has_value());
}

TEST_F(NextFaultRunnerTest, WhatHistoryKnowsIsNotToldAgain) {
    const auto spec = fault(FaultKind::kKillReplica, 1);
    ASSERT_TRUE(runner_.inject(spec, "", 0).ok());
    events_.clear();
    next_.restore(saved_, past(spec, true, false));
    next_.inventoryDone();
    EXPECT_THAT(all<model::FaultInjected>(), IsEmpty());
    EXPECT_EQ(all<model::FaultEnded>().size(), 1u);

    FaultRunner third(2, hands());
    events_.clear();
    now_ = 910 * kSecond;
    third.restore(saved_, past(spec, true, true));
    third.inventoryDone();
    EXPECT_THAT(events_, IsEmpty());
    EXPECT_EQ(third.explain(1, now_)->fault, 1u) << "its incident is still to come";
}

TEST_F(NextFaultRunnerTest, AFaultOfNoReplicaExplainsNothingOnceItIsOver) {
    auto spec = fault(FaultKind::kFillDisk, -1);
    spec.node = "node0";
    next_.restore(saved_, past(spec, true, true));
    now_ = 901 * kSecond;
    EXPECT_FALSE(next_.explain(-1, now_).has_value());
}

TEST_F(NextFaultRunnerTest, AWaitingFaultThatWasTakenBackStaysTakenBack) {
    const uint64_t id = runner_.inject(fault(FaultKind::kKillReplica, 1, 50), "", 3).value();
    ASSERT_TRUE(runner_.end(id).ok());
    next_.restore(saved_, {});
    next_.stepCommitted(60);
    EXPECT_THAT(signalled_, IsEmpty());
}

TEST_F(NextFaultRunnerTest, AFaultThatCannotBeKeptIsRefused) {
    FaultRunner::Hands h = hands();
    h.save = [](const SavedFaults&) { return absl::UnavailableError("no room"); };
    FaultRunner full(2, std::move(h));
    EXPECT_FALSE(full.inject(fault(FaultKind::kKillReplica, 1), "", 0).ok());
    EXPECT_THAT(signalled_, IsEmpty());
}

}  // namespace
}  // namespace bulkhead::runtime
