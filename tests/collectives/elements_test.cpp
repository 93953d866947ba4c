// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/collectives/elements.h"

#include <gtest/gtest.h>

#include <vector>

namespace bulkhead::runtime {
namespace {

TEST(Elements, Bf16RoundsToNearestEven) {
    EXPECT_EQ(toFloat(toBf16(1.0f)), 1.0f);
    EXPECT_EQ(toFloat(toBf16(1.00390625f)), 1.0f) << "a tie goes to the even neighbour";
    EXPECT_EQ(toFloat(toBf16(1.01171875f)), 1.015625f) << "likewise, upwards";
    EXPECT_EQ(toFloat(toBf16(-2.5f)), -2.5f);
    EXPECT_TRUE(std::isnan(toFloat(toBf16(NAN))));
    EXPECT_TRUE(std::isinf(toFloat(toBf16(3.4e38f))));
}

TEST(Elements, SumsBf16InFloat) {
    // 256 + 1 is not a bfloat16, so an accumulator of that type would stay at 256.
    const std::vector<Bf16> big{toBf16(256)}, one{toBf16(1)};
    std::vector<const void*> sources{big.data(), one.data(), one.data()};
    float sum = 0;
    ASSERT_TRUE(reduceElements(&sum, ElementType::kF32, sources, ElementType::kBf16, 1));
    EXPECT_EQ(sum, 258.0f);
}

TEST(Elements, IntegersWrapAndNeedEqualTypes) {
    const int32_t a = INT32_MAX, b = 1;
    const std::vector<const void*> sources{&a, &b};
    int32_t sum = 0;
    ASSERT_TRUE(reduceElements(&sum, ElementType::kI32, sources, ElementType::kI32, 1));
    EXPECT_EQ(sum, INT32_MIN);
    EXPECT_FALSE(reduceElements(&sum, ElementType::kF32, sources, ElementType::kI32, 1));
}

TEST(Elements, DoublesKeepTheirDigits) {
    std::vector<double> a(3000, 1e16), b(3000, 1.0), c(3000, -1e16);
    std::vector<double> out(3000);
    const std::vector<const void*> sources{a.data(), c.data(), b.data()};
    ASSERT_TRUE(reduceElements(out.data(), ElementType::kF64, sources, ElementType::kF64, 3000));
    for (double x : out) EXPECT_EQ(x, 1.0);
}

}  // namespace
}  // namespace bulkhead::runtime
