// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/checkpoint_desk.h"

#include <gtest/gtest.h>

namespace bulkhead::runtime {
namespace {

TEST(CheckpointThread, runsJobsInOrderAndDrains) {
    CheckpointThread thread;
    std::vector<int> order;
    for (int i = 0; i < 100; ++i) thread.post([&order, i] { order.push_back(i); });
    thread.drain();
    ASSERT_EQ(order.size(), 100u);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace bulkhead::runtime
