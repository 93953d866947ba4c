// SPDX-License-Identifier: Apache-2.0
// Even load: never worse than what EPLB's steps give, within the bound, and every shape holds.
#include "backend/planner/solve/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

std::vector<double> zipf(uint32_t experts, double s, uint64_t seed) {
    Random random(seed);
    std::vector<double> load(experts);
    for (uint32_t e = 0; e < experts; ++e)
        load[e] = 1e6 * std::pow(e + 1.0, -s) * (0.7 + 0.6 * random.unit());
    for (uint32_t e = experts; e > 1; --e) std::swap(load[e - 1], load[random.below(e)]);
    return load;
}

struct Shape {
    uint32_t experts, slots, groups, nodes, gpus;
};
class Balance : public testing::TestWithParam<Shape> {};

TEST_P(Balance, isAtLeastEplbsAndAtMostTheBound) {
    const Shape& s = GetParam();
    const BalanceShape shape{s.experts, s.nodes, std::vector<uint32_t>(s.gpus, s.slots / s.gpus),
                             s.groups};
    ASSERT_TRUE(checkBalanceShape(shape).ok()) << checkBalanceShape(shape);
    Balancer ours(shape), eplb(shape, false);
    for (const double skew : {0.4, 0.8, 1.2})
        for (uint64_t seed = 1; seed <= 5; ++seed) {
            const std::vector<double> load = zipf(s.experts, skew, seed);
            std::vector<uint32_t> mine(s.slots), theirs(s.slots);
            ours.balance(load, mine);
            eplb.balance(load, theirs);
            const double a = balancednessOf(load, mine, shape.slotsOfGpu);
            EXPECT_GE(a, balancednessOf(load, theirs, shape.slotsOfGpu) - 1e-6);
            EXPECT_LE(a, balanceBound(load, shape) + 1e-6);
            EXPECT_EQ(std::set<uint32_t>(mine.begin(), mine.end()).size(), s.experts);
            for (uint32_t g = 0; s.groups > 1 && g < s.groups; ++g) {
                std::set<uint32_t> nodes;
                for (uint32_t slot = 0; slot < s.slots; ++slot)
                    if (mine[slot] / (s.experts / s.groups) == g)
                        nodes.insert(slot / (s.slots / s.nodes));
                EXPECT_EQ(nodes.size(), 1u) << "group " << g;
            }
        }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Balance,
                         testing::Values(Shape{256, 288, 8, 4, 32}, Shape{256, 288, 1, 4, 32},
                                         Shape{128, 160, 1, 4, 32}, Shape{256, 512, 1, 32, 256},
                                         Shape{8, 8, 1, 1, 4}));

TEST(BalanceShapes, thatDoNotDivideAreRefused) {
    const auto says = [](BalanceShape shape) {
        return std::string(checkBalanceShape(shape).message());
    };
    EXPECT_THAT(says({8, 3, {4, 4}, 1}), HasSubstr("2 GPUs do not divide over 3 nodes"));
    EXPECT_THAT(says({8, 1, {3, 4}, 1}), HasSubstr("7 slots cannot hold 8 experts"));
    EXPECT_THAT(says({8, 2, {4, 4}, 3}), HasSubstr("3 groups do not divide 8 experts"));
    EXPECT_THAT(says({9, 2, {5, 5}, 3}), HasSubstr("3 router groups do not divide over 2 nodes"));
    EXPECT_THAT(says({8, 2, {5, 4}, 2}), HasSubstr("another number of slots"));
}

TEST(BalanceShapes, gpusMayDifferBySlots) {
    const std::vector<double> load{5, 4, 3, 2, 1};
    const std::vector<uint32_t> bin = packEvenly(load, std::vector<uint32_t>{1, 4});
    EXPECT_EQ(bin[0], 0u);
    for (size_t i = 1; i < 5; ++i) EXPECT_EQ(bin[i], 1u);
}

TEST(BalanceShapes, noLoadAtAllIsStillAPlacement) {
    std::vector<uint32_t> experts(6);
    Balancer({4, 1, {3, 3}, 1}).balance(std::vector<double>(4, 0), experts);
    EXPECT_EQ(std::set<uint32_t>(experts.begin(), experts.end()).size(), 4u);
}

}  // namespace
}  // namespace bulkhead::planner
