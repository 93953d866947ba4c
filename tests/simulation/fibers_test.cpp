// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/fibers.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/common/threads.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::simulation {
namespace {

class VirtualClock final : public Clock {
  public:
    explicit VirtualClock(const MonoNs& now) : now_(now) {}
    MonoNs now() const override { return now_; }
    int64_t unixNs() const override { return now_; }

  private:
    const MonoNs& now_;
};

/// One process whose threads are fibers, and the time it lives in.
class FibersTest : public testing::Test {
  protected:
    explicit FibersTest() { begin(1); }
    ~FibersTest() override { fibers_->unwind(); }
    void begin(uint64_t seed) {
        if (fibers_) fibers_->unwind();
        fibers_ = std::make_unique<Fibers>(
            events_, now_, clock_, [](MonoNs local) { return local; }, seed);
    }
    void runUntilNothingIsLeft() {
        while (!events_.empty()) runOne();
    }
    void runOne() {
        now_ = events_.nextAt();
        events_.takeNext()();
    }

    MonoNs now_ = kSecond;
    EventQueue events_;
    VirtualClock clock_{now_};
    std::unique_ptr<Fibers> fibers_;
};

TEST_F(FibersTest, ThreadsWaitForEachOtherAsTheKernelsDo) {
    std::vector<int> seen;
    fibers_->start([&] {
        Mutex mutex;
        ConditionVariable changed;
        int turn = 0;
        const auto count = [&](int mine) {
            for (int i = 0; i < 50; ++i) {
                MutexLock lock(mutex);
                changed.wait(lock, [&] { return turn % 2 == mine; });
                seen.push_back(turn++);
                changed.notify_all();
            }
        };
        Thread even([&] { count(0); }), odd([&] { count(1); });
        even.join();
        odd.join();
    });
    runUntilNothingIsLeft();
    ASSERT_EQ(seen.size(), 100u);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_F(FibersTest, AWaitWithALimitEndsInVirtualTime) {
    bool came = true;
    MonoNs waited = 0;
    fibers_->start([&] {
        Mutex mutex;
        ConditionVariable changed;
        MutexLock lock(mutex);
        const MonoNs begun = now_;
        came = changed.wait_for(lock, std::chrono::seconds(30), [] { return false; });
        waited = now_ - begun;
    });
    runUntilNothingIsLeft();
    EXPECT_FALSE(came);
    EXPECT_GE(waited, 30 * kSecond);
    EXPECT_LT(waited, 31 * kSecond);
}

TEST_F(FibersTest, TheSeedSaysWhoGoesOn) {
    const auto run = [&](uint64_t seed) {
        begin(seed);
        std::string order;
        for (char name : {'a', 'b', 'c', 'd'})
            fibers_->start([&order, name] {
                for (int i = 0; i < 3; ++i) {
                    order += name;
                    sleepFor(kMillisecond);
                }
            });
        runUntilNothingIsLeft();
        return order;
    };
    EXPECT_EQ(run(1), run(1));
    EXPECT_NE(run(1), run(2));
}

TEST_F(FibersTest, AStoppedProcessDoesNothingUntilItIsToldToGoOn) {
    int beats = 0;
    fibers_->start([&] {
        for (; beats < 10; ++beats) sleepFor(kMillisecond);
    });
    while (beats < 3) runOne();
    fibers_->stop();
    runUntilNothingIsLeft();
    EXPECT_EQ(beats, 3);
    fibers_->goOn();
    runUntilNothingIsLeft();
    EXPECT_EQ(beats, 10);
}

TEST_F(FibersTest, AKilledProcessGoesNoFurtherAndLeavesNothing) {
    const auto witness = std::make_shared<int>(0);
    bool wentOn = false;
    fibers_->start([&, witness] {
        Mutex mutex;
        ConditionVariable changed;
        bool never = false;
        const auto wait = [&, witness] {
            MutexLock lock(mutex);
            changed.wait(lock, [&] { return never; });
            wentOn = true;
        };
        Thread one(wait), two(wait);
        one.join();
        two.join();
        wentOn = true;
    });
    runUntilNothingIsLeft();
    EXPECT_GT(witness.use_count(), 1);
    fibers_->unwind();
    EXPECT_FALSE(wentOn);
    EXPECT_EQ(witness.use_count(), 1);
}

TEST_F(FibersTest, AReactorOfItWaitsInVirtualTime) {
    std::vector<MonoNs> ticks;
    fibers_->start([&] {
        const auto reactor = *runtime::Reactor::create(clock_);
        Thread control([&] { reactor->run(); });
        reactor->post([&] {
            reactor->every(kSecond, [&] {
                ticks.push_back(now_);
                if (ticks.size() == 5) reactor->stop();
            });
        });
        control.join();
    });
    runUntilNothingIsLeft();
    ASSERT_EQ(ticks.size(), 5u);
    EXPECT_GE(ticks[4] - ticks[0], 4 * kSecond - 50 * kMillisecond);
}

}  // namespace
}  // namespace bulkhead::simulation
