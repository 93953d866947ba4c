// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/reactor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <thread>

namespace bulkhead::runtime {
namespace {

/// Stands still until told; the reactor's timers follow it.
class ManualClock final : public Clock {
  public:
    MonoNs now() const override { return now_; }
    int64_t unixNs() const override { return now_; }
    void advance(MonoNs by) { now_ += by; }

  private:
    MonoNs now_ = kSecond;
};

TEST(Reactor, TimersRunInOrderAndOnlyWhenDue) {
    ManualClock clock;
    auto reactor = Reactor::create(clock);
    ASSERT_TRUE(reactor.ok());
    std::string order;
    (*reactor)->after(2 * kSecond, [&] { order += "b"; });
    (*reactor)->after(1 * kSecond, [&] { order += "a"; });
    const auto cancelled = (*reactor)->after(1 * kSecond, [&] { order += "x"; });
    (*reactor)->cancel(cancelled);
    (*reactor)->runOnce(0);
    EXPECT_EQ(order, "");
    clock.advance(1 * kSecond);
    (*reactor)->runOnce(0);
    EXPECT_EQ(order, "a");
    clock.advance(5 * kSecond);
    (*reactor)->runOnce(0);
    EXPECT_EQ(order, "ab");
}

TEST(Reactor, APeriodicTimerMayCancelItself) {
    ManualClock clock;
    auto reactor = Reactor::create(clock);
    ASSERT_TRUE(reactor.ok());
    int ticks = 0;
    Reactor::TimerId id = 0;
    id = (*reactor)->every(kSecond, [&] {
        if (++ticks == 3) (*reactor)->cancel(id);
    });
    for (int i = 0; i < 10; ++i) {
        clock.advance(kSecond);
        (*reactor)->runOnce(0);
    }
    EXPECT_EQ(ticks, 3);
}

TEST(Reactor, PostedTasksComeFromOtherThreadsInOrder) {
    SystemClock clock;
    auto reactor = Reactor::create(clock);
    ASSERT_TRUE(reactor.ok());
    std::vector<int> seen;
    std::thread poster([&] {
        for (int i = 0; i < 100; ++i) (*reactor)->post([&seen, i] { seen.push_back(i); });
        (*reactor)->post([&] { (*reactor)->stop(); });
    });
    (*reactor)->run();
    poster.join();
    ASSERT_EQ(seen.size(), 100u);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST(Reactor, ACallbackMayUnwatchAnother) {
    SystemClock clock;
    auto reactor = Reactor::create(clock);
    ASSERT_TRUE(reactor.ok());
    int a[2], b[2];
    ASSERT_EQ(::pipe(a), 0);
    ASSERT_EQ(::pipe(b), 0);
    int calls = 0;
    const auto once = [&](uint32_t) {
        ++calls;
        (*reactor)->unwatch(a[0]);
        (*reactor)->unwatch(b[0]);
    };
    ASSERT_TRUE((*reactor)->watch(a[0], EPOLLIN, once).ok());
    ASSERT_TRUE((*reactor)->watch(b[0], EPOLLIN, once).ok());
    EXPECT_FALSE((*reactor)->watch(b[0], EPOLLIN, once).ok());
    ASSERT_EQ(::write(a[1], "x", 1), 1);
    ASSERT_EQ(::write(b[1], "x", 1), 1);
    (*reactor)->runOnce(0);
    (*reactor)->runOnce(0);
    EXPECT_EQ(calls, 1);
    for (int fd : {a[0], a[1], b[0], b[1]}) ::close(fd);
}

}  // namespace
}  // namespace bulkhead::runtime
