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
    runner_.inject(fault(FaultKind::kKillReplica, 1), "ana", 7);
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
    runner_.inject(fault(FaultKind::kKillReplica, 1, 10), "", 0);
    runner_.stepCommitted(8);
    EXPECT_THAT(signalled_, IsEmpty());
    runner_.stepCommitted(9);
    EXPECT_EQ(signalled_.size(), 2u) << "step 10 begins when step 9 is committed";
}

TEST_F(FaultRunnerTest, WhatARankMustTimeItselfIsToldAheadOfTheStep) {
    runner_.inject(fault(FaultKind::kKillReplica, 1, 10, "vote"), "", 0);
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
    runner_.inject(fault(FaultKind::kFlipParameter, 1), "", 0);
    EXPECT_THAT(committedTo_, ElementsAre(RankId{1, 0}));
}

TEST_F(FaultRunnerTest, WhatCannotBeDoneIsSaidAndOver) {
    refusal_ = absl::UnavailableError("r1s0 does not run");
    runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0);
    EXPECT_THAT(all<model::FaultInjected>(), IsEmpty());
    EXPECT_THAT(all<model::FaultEnded>()[0].outcome, HasSubstr("r1s0 does not run"));
    EXPECT_TRUE(absl::IsNotFound(runner_.end(1)));
}

TEST_F(FaultRunnerTest, AnIncidentAnswersToTheLatestFaultOnItsReplicaAndToItOnce) {
    runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0);
    runner_.noted(1, false, "", now_, 0);
    runner_.inject(fault(FaultKind::kHang, 1), "", 0);
    runner_.noted(2, false, "", now_ + 5, 0);
    EXPECT_EQ(runner_.explain(0, now_ + 10), std::nullopt);
    EXPECT_EQ(runner_.explain(1, now_ + 10)->fault, 2u);
    EXPECT_EQ(runner_.explain(1, now_ + 10)->fault, 1u);
    EXPECT_FALSE(runner_.explain(1, now_ + 10).has_value());
}

TEST_F(FaultRunnerTest, AnOldFaultExplainsNothing) {
    runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0);
    runner_.noted(1, false, "", now_, 0);
    EXPECT_FALSE(runner_.explain(1, now_ + 120 * kSecond).has_value());
}

TEST_F(FaultRunnerTest, ANodeFaultExplainsEveryReplicaOnIt) {
    model::FaultSpec node;
    node.kind = FaultKind::kKillNode;
    node.node = "node1";
    runner_.inject(node, "", 0);
    EXPECT_THAT(killedNodes_, ElementsAre("node1"));
    EXPECT_EQ(runner_.explain(2, now_)->fault, 1u);
    EXPECT_EQ(runner_.explain(3, now_)->fault, 1u);
    EXPECT_FALSE(runner_.explain(1, now_).has_value());
}

TEST_F(FaultRunnerTest, ALastingFaultEndsWhenItsProcessIsGone) {
    model::FaultSpec hang = fault(FaultKind::kHang, 1);
    hang.shard = 0;
    runner_.inject(hang, "", 0);
    runner_.noted(1, false, "", now_, 0);
    EXPECT_THAT(all<model::FaultEnded>(), IsEmpty());
    runner_.rankExited({1, 0}, SIGKILL, now_);
    EXPECT_EQ(all<model::FaultEnded>()[0].outcome, "the process is gone");
}

TEST_F(FaultRunnerTest, WhatLastsOutsideOrInsideARankIsEndedOnRequest) {
    for (const FaultKind kind : {FaultKind::kHang, FaultKind::kSlow}) {
        const uint64_t id = runner_.inject(fault(kind, 1), "", 0);
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
    const uint64_t here = runner_.inject(fault(FaultKind::kSlow, 1, 100), "", 0);
    EXPECT_TRUE(runner_.end(here).ok());
    EXPECT_THAT(all<model::FaultEnded>().back().outcome, HasSubstr("cancelled"));
    EXPECT_THAT(ended_, IsEmpty()) << "nobody was told of it yet";
    const uint64_t inRank = runner_.inject(fault(FaultKind::kNanGradient, 1, 2), "", 0);
    EXPECT_TRUE(runner_.end(inRank).ok());
    EXPECT_THAT(ended_, ElementsAre(inRank));
    runner_.noted(inRank, true, "", now_, 0);
    EXPECT_THAT(all<model::FaultEnded>().back().outcome, HasSubstr("cancelled"));
}

TEST_F(FaultRunnerTest, AKillUnderWayCannotBeCalledBack) {
    runner_.inject(fault(FaultKind::kKillReplica, 1), "", 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(runner_.end(1)));
}

TEST_F(FaultRunnerTest, ARankThatStopsItselfInAPhaseIsWokenByItsAgent) {
    model::FaultSpec hang = fault(FaultKind::kHang, 1, 0, "vote");
    hang.durationMs = 500;
    hang.shard = 1;
    runner_.inject(hang, "", 0);
    EXPECT_THAT(signalled_, IsEmpty());
    runner_.noted(1, false, "", now_, 3);
    EXPECT_THAT(signalled_, ElementsAre(std::pair(RankId{1, 1}, 0)));
}

}  // namespace
}  // namespace bulkhead::runtime
