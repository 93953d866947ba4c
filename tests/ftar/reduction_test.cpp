// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/reduction.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/runtime/ftar/adaptive_timeout.h"
#include "backend/runtime/ftar/algorithm.h"
#include "tests/ftar/exchange_group.h"

namespace bulkhead::runtime {
namespace {

TEST(SumInOrder, EqualsThePlainLoopBitForBit) {
    for (size_t sources : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u}) {
        for (size_t count : {0u, 1u, 15u, 2048u, 2049u, 10'007u}) {
            std::vector<std::vector<float>> inputs;
            std::vector<const float*> pointers;
            for (size_t s = 0; s < sources; ++s) {
                inputs.push_back(testing::gradient(s, 1, 2, count));
            }
            for (const auto& input : inputs) pointers.push_back(input.data());
            std::vector<float> out(count, -1);
            sumInOrder(pointers, out.data(), count);
            EXPECT_TRUE(testing::sameBits(out, testing::sumOf(inputs, false)))
                << sources << " sources, " << count << " elements";
            const std::vector<float> rounded = testing::sumOf(inputs, true);
            sumRounded(pointers, out.data(), count);
            EXPECT_TRUE(testing::sameBits(out, rounded));
            std::vector<std::vector<Bfloat16>> narrow(sources, std::vector<Bfloat16>(count));
            std::vector<const Bfloat16*> sent;
            for (size_t s = 0; s < sources; ++s) {
                toBfloat16(inputs[s], narrow[s]);
                sent.push_back(narrow[s].data());
            }
            sumRounded(sent, out.data(), count);
            EXPECT_TRUE(testing::sameBits(out, rounded));
        }
    }
}

TEST(SumInOrder, MayWriteOverAnyOfItsSources) {
    for (size_t over = 0; over < 10; ++over) {
        std::vector<std::vector<float>> inputs;
        for (size_t s = 0; s < (over < 4 ? 4 : 10); ++s)
            inputs.push_back(testing::gradient(s, 1, 2, 5000));
        const std::vector<float> want = testing::sumOf(inputs, false);
        std::vector<const float*> pointers;
        for (const auto& input : inputs) pointers.push_back(input.data());
        sumInOrder(pointers, inputs[over].data(), 5000);
        EXPECT_TRUE(testing::sameBits(inputs[over], want));
    }
}

TEST(Bfloat16, RoundsEveryPatternToTheNearerNeighbour) {
    std::vector<float> from;
    for (uint32_t upper = 0; upper < 0x10000; ++upper)
        for (uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            const float x = std::bit_cast<float>((upper << 16) | lower);
            if (!std::isnan(x)) from.push_back(x);
        }
    std::vector<Bfloat16> narrow(from.size());
    std::vector<float> back(from.size()), rounded(from.size()), want;
    for (float x : from) want.push_back(testing::plainBfloat16(x));
    toBfloat16(from, narrow);
    fromBfloat16(narrow, back);
    roundToBfloat16(from, rounded);
    EXPECT_TRUE(testing::sameBits(back, want));
    EXPECT_TRUE(testing::sameBits(rounded, want));
}

TEST(Bfloat16, NanStaysNanAndWhatIsTooLargeIsInfinite) {
    const std::vector<float> from{NAN, -NAN, std::bit_cast<float>(0x7f800001u),
                                  std::numeric_limits<float>::max(), 3.38e38f};
    std::vector<float> to(from.size());
    roundToBfloat16(from, to);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(to[i])) << i;
    EXPECT_TRUE(std::isinf(to[3]));
    EXPECT_TRUE(std::isfinite(to[4]));
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

TEST(Choose, DependsOnSizePeersAndHowTheyAreReached) {
    const MeshFacts memory{4, false, false}, network{4, true, false}, many{12, true, false},
        tiers{8, false, true};
    for (size_t bytes : {size_t{1} << 10, size_t{1} << 20, size_t{256} << 20}) {
        EXPECT_EQ(choose(memory, bytes), Algorithm::kDirect);
        EXPECT_EQ(choose(network, bytes), Algorithm::kDirect);
    }
    EXPECT_EQ(choose(many, 1u << 20), Algorithm::kDirect);
    EXPECT_EQ(choose(many, 256u << 20), Algorithm::kRing);
    EXPECT_EQ(choose(tiers, 1u << 10), Algorithm::kDirect);
    EXPECT_EQ(choose(tiers, 1u << 20), Algorithm::kHierarchical);
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

TEST(AdaptiveTimeout, IsLongerUntilTheFirstSumOverNewConnectionsIsDone) {
    AdaptiveTimeout timeout;
    timeout.setFloor(kSecond);
    timeout.connected(2 * kSecond);
    EXPECT_EQ(timeout.current(), 3 * kSecond);
    timeout.observe(0);
    EXPECT_EQ(timeout.current(), 3 * kSecond) << "one of its rounds";
    timeout.summed();
    EXPECT_EQ(timeout.current(), kSecond);
}

}  // namespace
}  // namespace bulkhead::runtime
