// SPDX-License-Identifier: Apache-2.0
#include "backend/service/workers.h"

#include <gmock/gmock.h>

#include <future>

namespace bulkhead::service {
namespace {

using ::testing::ElementsAre;

TEST(WorkersTest, CallersTakeTurnsHoweverManyCallsEachHas) {
    std::vector<std::string> order;  // by the only thread, read when it has ended
    {
        std::promise<void> release;
        Workers workers(1);
        workers.post("x", [&] { release.get_future().wait(); });
        for (int i = 0; i < 3; ++i) workers.post("a", [&] { order.push_back("a"); });
        workers.post("b", [&] { order.push_back("b"); });
        workers.post("c", [&] { order.push_back("c"); });
        release.set_value();
    }
    EXPECT_THAT(order, ElementsAre("a", "b", "c", "a", "a"));
}

TEST(WorkersTest, OneThreadIsLeftToTheOthersWhateverACallerStarts) {
    std::promise<void> release, second;
    const auto released = release.get_future().share();
    Workers workers(2);
    workers.post("a", [released] { released.wait(); });
    workers.post("a", [&] { second.set_value(); });
    for (int i = 0; i < 100; ++i) {
        std::promise<void> done;
        workers.post("b", [&] { done.set_value(); });
        done.get_future().wait();
    }
    auto waiting = second.get_future();
    EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    release.set_value();
    waiting.wait();
}

}  // namespace
}  // namespace bulkhead::service
