// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "plugins/llama_moe/layout.h"

namespace bulkhead::llama_moe {
namespace {

ModelSpec smallSpec() {
    ModelConfig c;
    c.dim = 8;
    c.layers = 2;
    c.heads = 2;
    c.kvHeads = 1;
    c.attentionChunk = 4;
    c.ffnHidden = 8;
    c.experts = 4;
    c.expertHidden = 6;
    c.sharedHidden = 6;
    return describeModel(c);
}

struct Flat {
    explicit Flat(size_t n) : parameters(n), first(n), second(n), gradient(n) {
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        for (size_t i = 0; i < n; ++i) {
            parameters[i] = normal(random);
            first[i] = 0.1f * normal(random);
            second[i] = std::abs(0.01f * normal(random));
            gradient[i] = 100.0f * normal(random);
        }
    }
    std::vector<float> parameters, first, second, gradient;
};

constexpr AdamW<float> kRule{.beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .epsilon = 1e-8f,
                             .weightDecay = 0.1f,
                             .learningRate = 3e-3f,
                             .gradientScale = 0.0123f,
                             .correction1 = 0.271f,
                             .correction2 = 0.142625f,
                             .balanceRate = 0.01f};

/// The formula as it is written, one rounding an operation: this file is built without vectors of
/// this machine and without fused multiply-adds.
void expected(TensorKind kind, float& p, float& m, float& v, float g) {
    if (kind == TensorKind::kPadding) return;
    if (kind == TensorKind::kBalance) {
        p -= g > 0 ? kRule.balanceRate : -kRule.balanceRate;
        return;
    }
    const float scaled = g * kRule.gradientScale;
    m = kRule.beta1 * m + (1.0f - kRule.beta1) * scaled;
    v = kRule.beta2 * v + (1.0f - kRule.beta2) * scaled * scaled;
    const float mean = m / kRule.correction1;
    const float deviation = std::sqrt(v / kRule.correction2) + kRule.epsilon;
    const float decay = kind == TensorKind::kMatrix ? kRule.weightDecay : 0.0f;
    p -= kRule.learningRate * (mean / deviation + decay * p);
}

TEST(Optimizer, FollowsTheFormulaBitForBitInEverySegment) {
    const ModelSpec spec = smallSpec();
    const Layout layout(spec, 1, 2, defaultPlacement(spec, 2));
    Flat got(layout.count());
    Flat want = got;
    apply(kRule, layout, got.gradient.data(),
          {got.parameters.data(), got.first.data(), got.second.data()});
    for (const Segment& segment : layout.segments())
        for (size_t i = segment.begin; i < segment.end; ++i)
            expected(segment.kind, want.parameters[i], want.first[i], want.second[i],
                     want.gradient[i]);
    EXPECT_EQ(got.parameters, want.parameters);
    EXPECT_EQ(got.first, want.first);
    EXPECT_EQ(got.second, want.second);
}

TEST(Optimizer, SegmentsTileTheShardAndCoverEveryTensorOnce) {
    const ModelSpec spec = smallSpec();
    for (const size_t shards : {1, 2, 4}) {
        uint64_t elements = 0;
        for (size_t shard = 0; shard < shards; ++shard) {
            const Layout layout(spec, shard, shards, defaultPlacement(spec, shards));
            size_t at = 0;
            for (const Segment& segment : layout.segments()) {
                EXPECT_EQ(segment.begin, at);
                at = segment.end;
                if (segment.kind != TensorKind::kPadding) elements += at - segment.begin;
            }
            EXPECT_EQ(at, layout.count());
        }
        EXPECT_EQ(elements, spec.parameters()) << shards << " shards";
    }
}

TEST(Optimizer, SumOfSquaresSkipsTheBalanceButNotItsNan) {
    const ModelSpec spec = smallSpec();
    const Layout layout(spec, 0, 1, defaultPlacement(spec, 1));
    std::vector<float> gradient(layout.count(), 0.0f);
    size_t balance = 0;
    for (const Segment& segment : layout.segments())
        if (segment.kind == TensorKind::kBalance) balance = segment.begin;
    gradient[balance] = 7;
    gradient[3] = 2;
    EXPECT_EQ(sumOfSquares(layout, gradient.data()), 4.0);
    gradient[balance] = std::nanf("");
    EXPECT_TRUE(std::isnan(sumOfSquares(layout, gradient.data())));
}

}  // namespace
}  // namespace bulkhead::llama_moe
