// SPDX-License-Identifier: Apache-2.0
// The kernel's sums against those of the CPU's FTAR: the same bits, so that a job may have both.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <span>

#include "backend/runtime/ftar/reduction.h"
#include "tests/cuda/thread_machine.h"

namespace bulkhead::cuda {
namespace {

struct Case {
    uint32_t sources;
    size_t count;
    size_t offset;  ///< elements from a boundary of 16 bytes
    uint64_t threads;
    bool ring;  ///< as a block of the persistent kernel does it
};

class SumTest : public ::testing::TestWithParam<Case> {
  protected:
    SumTest() {
        std::mt19937 random(7);
        std::uniform_int_distribution<uint32_t> bits;
        for (uint32_t s = 0; s < param().sources; ++s) {
            auto& wide = wide_.emplace_back(param().offset + param().count);
            for (float& x : wide) x = number(bits(random), random);
            auto& narrow = narrow_.emplace_back(wide.size());
            runtime::toBfloat16(wide, narrow);
        }
    }

    static const Case& param() { return GetParam(); }

    /// All magnitudes, denormals, infinities and -0; no NaN, whose payload is the processor's.
    static float number(uint32_t bits, std::mt19937& random) {
        constexpr float kOdd[] = {INFINITY, 1e-42f, -0.0f};
        if (random() % 64 == 0) return kOdd[random() % 3];
        if (random() % 4 == 0) return static_cast<float>(static_cast<int32_t>(bits)) * 1e-9f;
        const float x = std::bit_cast<float>(bits & 0xbfffffffu);
        return std::isnan(x) ? 0.5f : x;
    }

    Sum sum(std::span<float> to) const {
        Sum sum{};
        sum.to = reinterpret_cast<uint64_t>(to.data() + param().offset);
        sum.count = param().count;
        sum.sources = param().sources;
        for (uint32_t s = 0; s < sum.sources; ++s)
            sum.from[s] = reinterpret_cast<uint64_t>(wide_[s].data() + param().offset);
        return sum;
    }
    static void run(const Sum& sum) {
        const std::function<void()> atSync;
        testing::ThreadBlock::Shared shared(param().threads);
        for (uint64_t t = 0; t < param().threads; ++t) {
            testing::ThreadBlock block(shared, 0, t, param().threads, &atSync);
            if (param().ring)
                add(sum, block);
            else
                add(sum, t, param().threads);
        }
    }
    std::vector<const float*> sources() const {
        std::vector<const float*> all;
        for (const auto& s : wide_) all.push_back(s.data() + param().offset);
        return all;
    }
    static void expectSame(std::span<const float> a, std::span<const float> b) {
        for (size_t i = 0; i < b.size(); ++i) {
            if (std::isnan(a[i]) && std::isnan(b[i])) continue;
            ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
                << "element " << i;
        }
    }

    std::vector<std::vector<float>> wide_;
    std::vector<std::vector<runtime::Bfloat16>> narrow_;
};

TEST_P(SumTest, ofFloat32IsThatOfTheCpu) {
    std::vector<float> got(param().offset + param().count), wanted(param().count);
    run(sum(got));
    runtime::sumInOrder(sources(), wanted.data(), wanted.size());
    expectSame(std::span(got).subspan(param().offset), wanted);
}

TEST_P(SumTest, roundedIsThatOfTheCpu) {
    std::vector<float> got(param().offset + param().count), wanted(param().count);
    Sum rounded = sum(got);
    rounded.rounded = 1;
    run(rounded);
    runtime::sumRounded(std::span<const float* const>(sources()), wanted.data(), wanted.size());
    expectSame(std::span(got).subspan(param().offset), wanted);
}

TEST_P(SumTest, ofBfloat16AndFloat32MixedIsThatOfTheRounded) {
    std::vector<float> got(param().offset + param().count), wanted(param().count);
    Sum mixed = sum(got);
    mixed.rounded = 1;
    for (uint32_t s = 0; s < mixed.sources; s += 2) {
        mixed.narrow |= uint64_t{1} << s;
        mixed.from[s] = reinterpret_cast<uint64_t>(narrow_[s].data() + param().offset);
    }
    run(mixed);
    runtime::sumRounded(std::span<const float* const>(sources()), wanted.data(), wanted.size());
    expectSame(std::span(got).subspan(param().offset), wanted);
}

TEST_P(SumTest, ofBfloat16AloneIsThatOfTheRounded) {
    std::vector<float> got(param().offset + param().count), wanted(param().count);
    Sum narrow = sum(got);
    narrow.rounded = 1;
    narrow.narrow = ~uint64_t{0};
    for (uint32_t s = 0; s < narrow.sources; ++s)
        narrow.from[s] = reinterpret_cast<uint64_t>(narrow_[s].data() + param().offset);
    run(narrow);
    runtime::sumRounded(std::span<const float* const>(sources()), wanted.data(), wanted.size());
    expectSame(std::span(got).subspan(param().offset), wanted);
}

TEST_P(SumTest, storedAsBfloat16ItIsTheSumRoundedOnce) {
    std::vector<runtime::Bfloat16> got(param().offset + param().count), wanted(param().count);
    std::vector<float> wide(param().count);
    Sum narrowing = sum(wide);
    narrowing.to = reinterpret_cast<uint64_t>(got.data() + param().offset);
    narrowing.narrowTo = 1;
    run(narrowing);
    runtime::sumInOrder(sources(), wide.data(), wide.size());
    runtime::toBfloat16(wide, wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
        if (std::isnan(wide[i])) continue;
        ASSERT_EQ(got[param().offset + i], wanted[i]) << "element " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SumTest,
                         ::testing::Values(Case{1, 1, 0, 1, false}, Case{1, 4096, 0, 3, false},
                                           Case{2, 1000, 0, 4, false}, Case{3, 1003, 1, 2, false},
                                           Case{4, 4099, 0, 5, false}, Case{5, 77, 3, 64, false},
                                           Case{64, 129, 0, 2, false}));

INSTANTIATE_TEST_SUITE_P(OfARing, SumTest,
                         ::testing::Values(Case{1, 1, 0, 1, true}, Case{1, 4096, 0, 3, true},
                                           Case{2, 1000, 0, 4, true}, Case{3, 1003, 1, 2, true},
                                           Case{4, 4099, 0, 5, true}, Case{5, 77, 3, 64, true},
                                           Case{7, 2051, 0, 8, true}, Case{64, 129, 0, 2, true}));

TEST(Bf16, everyValueWidensAndNarrowsToItself) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
        const Bf16 x{static_cast<uint16_t>(bits)};
        if (std::isnan(widen(x)))
            EXPECT_TRUE(std::isnan(widen(narrow(widen(x)))));
        else
            EXPECT_EQ(narrow(widen(x)).bits, x.bits);
    }
}

}  // namespace
}  // namespace bulkhead::cuda
