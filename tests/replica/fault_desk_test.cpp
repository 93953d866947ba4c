// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/fault_desk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::runtime {
namespace {

using protocol::CommitFault;
using protocol::Phase;

CommitFault fault(const std::string& kind, uint64_t step = 0, const std::string& phase = "") {
    CommitFault f;
    f.fault = 7;
    f.kind = kind;
    f.step = step;
    f.phase = phase;
    return f;
}

class SetClock final : public Clock {
  public:
    MonoNs now() const override { return at; }
    int64_t unixNs() const override { return at; }
    MonoNs at = 0;
};

class FaultDeskTest : public ::testing::Test {
  protected:
    FaultDesk make(RankId self = {1, 0}) { return make(self, clock_); }
    FaultDesk make(RankId self, const Clock& clock) {
        return FaultDesk(self, 5, clock, &network_,
                         {[this](const protocol::FaultNoted& n) {
                              const MutexLock lock(mutex_);
                              noted_.push_back(n);
                          },
                          [this](MonoNs, std::function<void()> task) { later_.push_back(task); },
                          [this](bool cut) { stateCut_ = cut; },
                          [this](int signal) {
                              const MutexLock lock(mutex_);
                              signal_ = signal;
                              changed_.notify_all();
                          }});
    }
    /// Forgets it then.
    int awaitSignal() {
        MutexLock lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(20),
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return signal_ != 0; });
        return std::exchange(signal_, 0);
    }
    SystemClock clock_;
    NetworkFaults network_{clock_};
    Mutex mutex_;
    ConditionVariable changed_;
    std::vector<protocol::FaultNoted> noted_;
    std::vector<std::function<void()>> later_;
    bool stateCut_ = false;
    int signal_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(FaultDeskTest, slownessBeginsAtItsStepAndEnds) {
    FaultDesk desk = make();
    CommitFault f = fault("slow", 3);
    f.factor = 4;
    f.durationMs = 100;
    desk.inject(f);
    desk.enter(2, Phase::kCompute);
    EXPECT_EQ(desk.slowFactor(), 1);
    desk.enter(3, Phase::kCompute);
    EXPECT_EQ(desk.slowFactor(), 4);
    ASSERT_EQ(later_.size(), 2u);
    later_[0]();
    EXPECT_EQ(desk.slowFactor(), 4);
    later_[1]();
    EXPECT_EQ(desk.slowFactor(), 1);
    ASSERT_EQ(noted_.size(), 2u);
    EXPECT_EQ(noted_[0].step, 3u);
    EXPECT_TRUE(noted_[1].ended);
}

TEST_F(FaultDeskTest, aGradientIsDamagedOnceAndOnlyByTheShardMeant) {
    FaultDesk desk = make();
    desk.inject(fault("nan_gradient", 5));
    std::vector<float> gradient(8, 1.0f);
    desk.touchGradient(4, gradient);
    EXPECT_TRUE(noted_.empty());
    desk.touchGradient(5, gradient);
    EXPECT_TRUE(std::isnan(gradient[4]));
    std::vector<float> next(8, 1.0f);
    desk.touchGradient(5, next);
    EXPECT_EQ(next, std::vector<float>(8, 1.0f));
    FaultDesk sibling = make({1, 1});
    sibling.inject(fault("nan_gradient"));
    sibling.touchGradient(9, next);
    EXPECT_EQ(next, std::vector<float>(8, 1.0f));
}

TEST_F(FaultDeskTest, aFlippedGradientBitChangesOneFiniteValue) {
    FaultDesk desk = make();
    desk.inject(fault("flip_gradient"));
    std::vector<float> gradient(100, 0.5f);
    desk.touchGradient(1, gradient);
    int changed = 0;
    for (float g : gradient) {
        changed += g != 0.5f;
        EXPECT_TRUE(std::isfinite(g));
    }
    EXPECT_EQ(changed, 1);
}

TEST_F(FaultDeskTest, aKillWaitsForItsPhase) {
    FaultDesk desk = make();
    desk.inject(fault("kill_rank", 2, "vote"));
    desk.enter(2, Phase::kCompute);
    desk.enter(2, Phase::kExchange);
    EXPECT_TRUE(noted_.empty());
    desk.enter(2, Phase::kVote);
    EXPECT_EQ(noted_.size(), 1u);
    EXPECT_EQ(awaitSignal(), SIGKILL);
}

TEST_F(FaultDeskTest, aKillIsNotedForTheMomentOfThePhaseAtWhichItComes) {
    SetClock clock;
    FaultDesk desk = make({1, 0}, clock);
    desk.enter(1, Phase::kCompute);
    clock.at = 20 * kMillisecond;
    desk.enter(1, Phase::kVote);  // the phase took 20 ms, so the next will
    desk.inject(fault("kill_rank", 2, "compute"));
    desk.enter(2, Phase::kCompute);
    EXPECT_EQ(awaitSignal(), SIGKILL);
    ASSERT_EQ(noted_.size(), 1u);
    EXPECT_GT(noted_[0].unixNs, clock.at);
    EXPECT_LE(noted_[0].unixNs, clock.at + 20 * kMillisecond);
}

TEST_F(FaultDeskTest, aHangIsNotedForAMomentThatIsStillToComeAndAKillForNow) {
    SetClock clock;
    clock.at = kSecond;
    FaultDesk desk = make({1, 0}, clock);
    desk.inject(fault("kill_rank"));
    EXPECT_EQ(awaitSignal(), SIGKILL);
    ASSERT_EQ(noted_.size(), 1u);
    EXPECT_EQ(noted_[0].unixNs, clock.at) << "whoever reaps it tells";

    CommitFault hang = fault("hang");
    hang.fault = 8;
    desk.inject(hang);
    EXPECT_EQ(awaitSignal(), SIGSTOP);
    ASSERT_EQ(noted_.size(), 2u);
    EXPECT_GT(noted_[1].unixNs, clock.at) << "told while it still can";
}

TEST_F(FaultDeskTest, aCutIsReportedBeforeItHoldsAndEnds) {
    FaultDesk desk = make();
    CommitFault f = fault("cut_network");
    f.durationMs = 60'000;
    desk.inject(f);
    EXPECT_EQ(noted_.size(), 1u);
    EXPECT_FALSE(network_.isCut());
    ASSERT_EQ(later_.size(), 2u);
    later_[0]();
    EXPECT_TRUE(network_.isCut());
    EXPECT_TRUE(stateCut_);
    later_[1]();
    EXPECT_FALSE(stateCut_);
    EXPECT_TRUE(noted_.back().ended);
}

TEST_F(FaultDeskTest, whatLastsEndsOnRequestAndItsTimerThenDoesNothing) {
    FaultDesk desk = make();
    CommitFault cut = fault("cut_network");
    cut.durationMs = 60'000;
    CommitFault delay = fault("delay_network");
    delay.fault = 8;
    delay.delayMs = 30;
    desk.inject(cut);
    desk.inject(delay);
    for (size_t i = 0; i < 3; i += 2) later_[i]();
    EXPECT_TRUE(network_.isCut());
    EXPECT_EQ(network_.currentDelay(), 30 * kMillisecond);
    desk.end(cut.fault);
    EXPECT_FALSE(network_.isCut());
    EXPECT_FALSE(stateCut_);
    EXPECT_EQ(network_.currentDelay(), 30 * kMillisecond) << "the other one goes on";
    desk.end(delay.fault);
    EXPECT_EQ(network_.currentDelay(), 0);
    const size_t told = noted_.size();
    later_[1]();
    desk.end(99);
    EXPECT_EQ(noted_.size(), told);
}

TEST_F(FaultDeskTest, aFaultEndedBeforeItsStepDoesNotHappen) {
    FaultDesk desk = make();
    desk.inject(fault("nan_gradient", 5));
    desk.end(7);
    EXPECT_TRUE(noted_.back().ended);
    std::vector<float> gradient(8, 1.0f);
    desk.touchGradient(5, gradient);
    EXPECT_EQ(gradient, std::vector<float>(8, 1.0f));
}

TEST_F(FaultDeskTest, aParameterFlipIsTakenOnce) {
    FaultDesk desk = make();
    desk.inject(fault("flip_parameter", 3));
    EXPECT_FALSE(desk.takeParameterFlip(2));
    EXPECT_TRUE(desk.takeParameterFlip(3));
    EXPECT_FALSE(desk.takeParameterFlip(4));
    EXPECT_EQ(noted_.size(), 1u);
}

}  // namespace
}  // namespace bulkhead::runtime
