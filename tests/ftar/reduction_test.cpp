// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/reduction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/runtime/ftar/adaptive_timeout.h"
#include "tests/ftar/exchange_group.h"

namespace bulkhead::runtime {
namespace {

TEST(SumInOrder, EqualsThePlainLoopBitForBit) {
    for (size_t sources : {1u, 2u, 3u, 7u, 16u}) {
        for (size_t count : {0u, 1u, 15u, 2048u, 2049u, 10'007u}) {
            std::vector<std::vector<float>> inputs;
            std::vector<size_t> members;
            std::vector<const float*> pointers;
            for (size_t s = 0; s < sources; ++s) {
                members.push_back(s);
                inputs.push_back(testing::gradient(s, 1, 2, count));
            }
            for (const auto& input : inputs) pointers.push_back(input.data());
            std::vector<float> out(count, -1);
            sumInOrder(pointers, out.data(), count);
            EXPECT_TRUE(testing::sameBits(out, testing::reference(members, 1, 2, count)))
                << sources << " sources, " << count << " elements";
        }
    }
}

TEST(SumInOrder, NonFiniteValuesPassThrough) {
    const std::vector<float> a{std::numeric_limits<float>::infinity(), NAN, 1};
    const std::vector<float> b{-std::numeric_limits<float>::infinity(), 1, 2};
    std::vector<float> out(3);
    const std::vector<const float*> sources{a.data(), b.data()};
    sumInOrder(sources, out.data(), 3);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_TRUE(std::isnan(out[1]));
    EXPECT_EQ(out[2], 3.0f);
}

TEST(AdaptiveTimeout, FollowsSlowPeersUpAtOnceAndDownSlowly) {
    AdaptiveTimeout timeout;
    timeout.setFloor(kSecond);
    EXPECT_EQ(timeout.current(), kSecond);
    timeout.observe(2 * kSecond);
    EXPECT_EQ(timeout.current(), 16 * kSecond);
    timeout.observe(0);
    EXPECT_GT(timeout.current(), 14 * kSecond);
    for (int i = 0; i < 200; ++i) timeout.observe(0);
    EXPECT_EQ(timeout.current(), kSecond);
    timeout.observe(1000 * kSecond);
    EXPECT_EQ(timeout.current(), AdaptiveTimeout::kCap);
}

}  // namespace
}  // namespace bulkhead::runtime
