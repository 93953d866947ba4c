// SPDX-License-Identifier: Apache-2.0
// Effective training time over histories made by hand: two replicas of one shard, whose votes come
// when the test says so and whose log is durable when the test says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::protocol {
namespace {

constexpr uint32_t kNever = 1'000'000'000;

class EffectiveTimeTest : public testing::Test {
  protected:
    EffectiveTimeTest() {
        options_.replicas = 2;
        options_.shards = 1;
        options_.policies.parityEverySteps = 0;
        options_.policies.checkpointEverySteps = 0;
        options_.policies.restartLimit = 0;
        Timeouts& t = options_.timeouts;
        t.heartbeatMs = t.progressFloorMs = t.joinMs = t.startMs = t.fetchMs = kNever;
        begin(1, RecoveredState{});
    }

    void begin(uint64_t term, RecoveredState past) {
        const bool recovers = past.lineage != 0;
        machine_ = std::make_unique<CoordinatorMachine>(options_, term, std::move(past));
        quorums_.clear();
        take(machine_->begin(at()));
        for (const int32_t r : {0, 1}) hello(r);
        if (recovers) give(InventoryDone{});
        for (const int32_t r : {0, 1}) report(r);
    }
    void hello(int32_t replica) {
        Hello hello;
        hello.endpoint.rank = {replica, 0};
        hello.endpoint.incarnation = 1;
        give(RankRunning{{replica, 0}, 1, 100 + replica, "node0"});
        give(Received{{replica, 0}, hello});
    }
    void report(int32_t replica) {
        Report report;
        report.replica = replica;
        report.incarnation = 1;
        report.lineage = machine_->lineage();
        report.hasState = report.ready = true;
        report.step = machine_->committedStep();
        report.hashes = {7};
        give(Received{{replica, 0}, report});
    }
    void pass(double ms) { nowMs_ += ms; }
    MonoNs at() const { return static_cast<MonoNs>(nowMs_ * kMillisecond); }

    void vote(int32_t replica, bool complete = true, double gradSquares = 1) {
        const Quorum& q = quorums_.at(machine_->openStep());
        ReplicaVote vote;
        vote.replica = replica;
        vote.incarnation = 1;
        vote.term = q.term;
        vote.step = q.step;
        vote.epoch = q.epoch;
        vote.attempt = q.attempt;
        vote.complete = complete;
        vote.shardsIn = 1;
        vote.gradSquares = {gradSquares};
        vote.hashes = {7};
        give(Received{{replica, 0}, vote});
    }
    void durable(double ms) {
        pass(ms);
        give(RecordDurable{sequence_});
    }
    /// A step of all who contribute: their votes come after `ms`, the record is durable after
    /// another `diskMs`.
    void step(double ms, double diskMs = 20, std::vector<int32_t> contributors = {0, 1}) {
        const uint64_t before = machine_->committedStep();
        pass(ms);
        for (const int32_t r : contributors) vote(r);
        durable(diskMs);
        ASSERT_EQ(machine_->committedStep(), before + 1);
    }
    /// The coordinator is lost and the next one, which has its log, begins after `ms`.
    void loseCoordinator(double ms) {
        auto past = recoverState(log_, options_.replicas, options_.domains);
        ASSERT_TRUE(past.ok()) << past.status();
        past->lastSign = at();
        pass(ms);
        past->ranFor = at();
        begin(past->term + 1, *std::move(past));
    }

    void give(const Input& input) { take(machine_->step(at(), input)); }
    void take(const Actions& actions) {
        for (const Action& action : actions) {
            if (const auto* append = std::get_if<AppendLog>(&action)) {
                log_.push_back(append->entry);
                if (append->overlapped) sequence_ = append->sequence;
            }
            if (const auto* send = std::get_if<SendReplica>(&action))
                if (const auto* q = std::get_if<Quorum>(&send->message)) quorums_[q->step] = *q;
            if (const auto* emit = std::get_if<Emit>(&action)) facts_.push_back(emit->fact);
        }
    }
    template <class F>
    std::vector<F> facts() const {
        std::vector<F> found;
        for (const Fact& f : facts_)
            if (const F* one = std::get_if<F>(&f)) found.push_back(*one);
        return found;
    }

    Options options_;
    std::unique_ptr<CoordinatorMachine> machine_;
    std::map<uint64_t, Quorum> quorums_;
    std::vector<LogEntry> log_;
    std::vector<Fact> facts_;
    uint64_t sequence_ = 0;
    double nowMs_ = 0;
};

constexpr double kNear = 1e-4;

TEST_F(EffectiveTimeTest, StepsThatFollowEachOtherFillTheTimeWhateverTheDiskTakes) {
    for (int i = 0; i < 10; ++i) step(100, 20);
    EXPECT_NEAR(machine_->effectiveTime(), 1, kNear);
}

TEST_F(EffectiveTimeTest, TheLogSaysOfAStepWhatWasTold) {
    for (int i = 0; i < 3; ++i) step(100, 20);
    const auto told = facts<fact::StepCommitted>();
    size_t n = 0;
    for (const LogEntry& entry : log_)
        if (const auto* commit = std::get_if<LogCommit>(&entry)) {
            EXPECT_DOUBLE_EQ(commit->figures.stepMs, told.at(n).stepMs);
            EXPECT_DOUBLE_EQ(commit->figures.effectiveTime, told.at(n).effectiveTime);
            ++n;
        }
    EXPECT_EQ(n, 3u);
}

TEST_F(EffectiveTimeTest, TimeWithoutACoordinatorIsLostAndNothingElse) {
    for (int i = 0; i < 10; ++i) step(100, 20);  // 1,180 ms to the last votes, 1,200 in all
    loseCoordinator(800);
    step(100, 20);
    EXPECT_NEAR(machine_->effectiveTime(), (1180. + 100) / (1200 + 800 + 100), kNear);
}

TEST_F(EffectiveTimeTest, TimeWithoutACoordinatorIsAnIncidentOfTheJobAndEndsWithTheNextStep) {
    step(100);
    loseCoordinator(7000);
    ASSERT_EQ(facts<fact::IncidentOpened>().size(), 1u);
    const auto opened = facts<fact::IncidentOpened>().front();
    EXPECT_EQ(opened.replica, kWholeJob);
    EXPECT_EQ(opened.cause, EvidenceKind::kControllerLost);
    EXPECT_EQ(opened.title, "no controller for 7.0 s");
    step(100);
    ASSERT_EQ(facts<fact::IncidentClosed>().size(), 1u);
    const auto closed = facts<fact::IncidentClosed>().front();
    EXPECT_EQ(closed.incident, opened.incident);
    EXPECT_NEAR(closed.survivorStallMs, 7120, 1);
    EXPECT_NEAR(closed.replicaSeconds, 2 * 7.12, 0.01);
    EXPECT_EQ(closed.rejoinMs, 0);
    EXPECT_EQ(closed.outcome, "went on at step 2");
}

TEST_F(EffectiveTimeTest, APausedJobDoesNotMissItsCoordinator) {
    step(100);
    Operation pause;
    pause.kind = OperationKind::kPause;
    give(pause);
    step(100);
    loseCoordinator(7000);
    EXPECT_TRUE(facts<fact::IncidentOpened>().empty());
}

TEST_F(EffectiveTimeTest, AStepInWhichTheJobFrozeCountsAsAnUndisturbedOne) {
    for (int i = 0; i < 10; ++i) step(100, 0);
    step(18200, 0);
    EXPECT_NEAR(machine_->effectiveTime(), 1100. / (1000 + 18200), kNear);
    for (int i = 0; i < 10; ++i) step(100, 0);
    EXPECT_NEAR(machine_->effectiveTime(), 2100. / (2000 + 18200), 0.01);
}

TEST_F(EffectiveTimeTest, AStepThatIsDoneAgainCountsOnceAndWithWhoWasLeft) {
    for (int i = 0; i < 10; ++i) step(100, 0);
    pass(100);
    vote(0, false);
    give(RankExited{{1, 0}, 1, 0, 9, "node0", 0, ""});
    pass(60);
    vote(0);
    durable(0);
    ASSERT_EQ(machine_->committedStep(), 11u);
    EXPECT_NEAR(machine_->effectiveTime(), (1000. + 50) / (1000 + 160), kNear);
}

TEST_F(EffectiveTimeTest, APauseIsLost) {
    for (int i = 0; i < 5; ++i) step(100, 0);
    Operation pause;
    pause.kind = OperationKind::kPause;
    give(pause);
    step(100, 0);
    pass(1000);
    Operation resume;
    resume.kind = OperationKind::kResume;
    give(resume);
    step(100, 0);
    EXPECT_NEAR(machine_->effectiveTime(), 700. / 1700, kNear);
}

TEST_F(EffectiveTimeTest, AnExchangeWhoseSumsDifferTwiceBeginsItsIncidentThen) {
    for (int i = 0; i < 5; ++i) step(100, 0);
    for (int attempt = 0; attempt < 2; ++attempt) {
        pass(100);
        vote(0, true, 1);
        vote(1, true, 2);
    }
    const auto phases = facts<fact::IncidentPhase>();
    ASSERT_FALSE(phases.empty());
    EXPECT_EQ(phases.front().phase, IncidentPhaseKind::kDetect);
    EXPECT_EQ(phases.front().begin, at());
}

}  // namespace
}  // namespace bulkhead::protocol
