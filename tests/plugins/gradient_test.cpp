// SPDX-License-Identifier: Apache-2.0
// Gradients of every kind of layer against central differences, in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "plugins/llama_moe/cpu_math.h"
#include "plugins/llama_moe/decoder.h"
#include "tests/plugins/shards.h"

namespace bulkhead::llama_moe {
namespace {

constexpr size_t kSamples = 2;
constexpr size_t kSequence = 11;

/// Four layers: chunked and dense, chunked and mixture, chunked and dense, full and mixture. The
/// chunk does not divide the sequence.
ModelConfig smallConfig() {
    ModelConfig c;
    c.dim = 12;
    c.layers = 4;
    c.heads = 3;
    c.kvHeads = 1;
    c.attentionChunk = 4;
    c.ffnHidden = 10;
    c.experts = 4;
    c.topK = 2;
    c.expertHidden = 6;
    c.sharedHidden = 5;
    return c;
}

struct Text {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> domains;
    Batch batch() const { return {domains.size(), tokens.data(), domains.data()}; }
};

Text randomText(size_t samples) {
    std::mt19937 random(7);
    Text text;
    for (size_t i = 0; i < samples * (kSequence + 1); ++i)
        text.tokens.push_back(static_cast<int32_t>(random() % kVocabulary));
    text.domains.assign(samples, 0);
    return text;
}

class GradientTest : public testing::Test {
  protected:
    void SetUp() override {
        spec_ = describeModel(smallConfig());
        ASSERT_TRUE(math_.open(spec_.config, kSamples, kSequence).ok());
        ASSERT_TRUE(store_.open(spec_, &math_, defaultPlacement(spec_, 1)).ok());
        ASSERT_TRUE(decoder_.open(&store_, kSamples, kSequence, 1).ok());
        ASSERT_TRUE(store_.initialise(3).ok());
        text_ = randomText(kSamples);
    }

    double loss() {
        Sums sums = decoder_.emptySums();
        EXPECT_TRUE(decoder_.forward(text_.batch()).ok());
        EXPECT_TRUE(decoder_.settle(&sums).ok());
        return sums.domainLoss[0];
    }

    void computeGradient() {
        store_.clearGradient();
        loss();
        ASSERT_TRUE(decoder_.backward(true, nullptr).ok());
    }

    /// Compares `checks` elements spread over [begin, begin + count).
    void check(const std::string& name, size_t begin, size_t count, size_t checks = 24) {
        double* parameters = store_.parameters();
        const double* gradient = store_.gradient();
        double largest = 0;
        for (size_t i = 0; i < count; ++i)
            largest = std::max(largest, std::abs(gradient[begin + i]));
        EXPECT_GT(largest, 1e-6) << name << " has no gradient at all";
        for (size_t c = 0; c < std::min(checks, count); ++c) {
            const size_t at = begin + c * count / std::min(checks, count);
            const double kept = parameters[at];
            constexpr double kStep = 1e-5;
            parameters[at] = kept + kStep;
            const double above = loss();
            parameters[at] = kept - kStep;
            const double below = loss();
            parameters[at] = kept;
            EXPECT_NEAR(gradient[at], (above - below) / (2 * kStep), 1e-6 * (1 + largest))
                << name << " element " << at - begin;
        }
    }

    void checkTensor(size_t unit, const std::string& name) {
        for (const Tensor& tensor : spec_.units[unit].dense)
            if (tensor.name == name)
                return check(spec_.units[unit].prefix() + name,
                             store_.layout().units()[unit].begin + tensor.offset, tensor.count());
        FAIL() << "no tensor " << name;
    }

    test::Shards shards_{1};
    ModelSpec spec_;
    CpuMath<double> math_{shards_.device(0)};
    ParameterStore<double> store_;
    Decoder<double> decoder_;
    Text text_;
};

TEST_F(GradientTest, EmbeddingOfTheBytesThatOccur) {
    computeGradient();
    const auto byte = static_cast<size_t>(text_.tokens[3]);
    check("embedding", byte * spec_.config.dim, spec_.config.dim);
}

TEST_F(GradientTest, HeadAndFinalNorm) {
    computeGradient();
    checkTensor(5, "head.norm");
    checkTensor(5, "head.w");
}

TEST_F(GradientTest, NormsOfEveryLayer) {
    computeGradient();
    for (size_t unit = 1; unit <= 4; ++unit) {
        checkTensor(unit, "attention.norm");
        checkTensor(unit, "ffn.norm");
    }
}

TEST_F(GradientTest, ChunkedAttentionWithRotaryPositions) {
    computeGradient();
    checkTensor(1, "attention.wqkv");
    checkTensor(1, "attention.wo");
}

TEST_F(GradientTest, FullAttentionWithoutPositions) {
    computeGradient();
    checkTensor(4, "attention.wqkv");
    checkTensor(4, "attention.wo");
}

TEST_F(GradientTest, DenseSwiglu) {
    computeGradient();
    checkTensor(3, "ffn.w13");
    checkTensor(3, "ffn.w2");
}

TEST_F(GradientTest, RouterAndSharedExpert) {
    computeGradient();
    checkTensor(2, "moe.router");
    checkTensor(2, "moe.shared.w13");
    checkTensor(2, "moe.shared.w2");
}

TEST_F(GradientTest, RoutedExperts) {
    computeGradient();
    for (size_t e = 0; e < spec_.config.experts; ++e)
        check("expert " + std::to_string(e), store_.layout().units()[2].expertAt[e],
              spec_.units[2].expertCount, 40);
}

TEST_F(GradientTest, BalanceCollectsTheSurplusOfRows) {
    computeGradient();
    Sums sums = decoder_.emptySums();
    ASSERT_TRUE(decoder_.forward(text_.batch()).ok());
    EXPECT_TRUE(decoder_.settle(&sums).ok());
    const double share = static_cast<double>(kSamples * kSequence * spec_.config.topK) / 4;
    const size_t at =
        store_.layout().units()[2].begin + offsetOf(spec_.units[2].dense, "moe.balance");
    double sum = 0;
    for (size_t e = 0; e < 4; ++e) {
        EXPECT_EQ(store_.gradient()[at + e], static_cast<double>(sums.expertCounts[e]) - share);
        sum += store_.gradient()[at + e];
    }
    EXPECT_EQ(sum, 0);
}

TEST_F(GradientTest, ATokenSeesNothingBehindItselfNorOutsideItsChunkInALocalLayer) {
    // With one layer the loss of position 5 may depend on 4 and 5 (its chunk) but not on 3 or 6.
    ModelConfig config = smallConfig();
    config.layers = 1;
    const ModelSpec spec = describeModel(config);
    CpuMath<double> math(shards_.device(0));
    ParameterStore<double> store;
    Decoder<double> decoder;
    ASSERT_TRUE(math.open(config, 1, 6).ok());
    ASSERT_TRUE(store.open(spec, &math, defaultPlacement(spec, 1)).ok());
    ASSERT_TRUE(decoder.open(&store, 1, 6, 1).ok());
    ASSERT_TRUE(store.initialise(3).ok());
    const auto last = [&](std::vector<int32_t> tokens) {
        // The sum over 6 positions less that over a text equal but for what follows.
        const uint32_t domain = 0;
        Sums sums = decoder.emptySums();
        EXPECT_TRUE(decoder.forward({1, tokens.data(), &domain}).ok());
        EXPECT_TRUE(decoder.settle(&sums).ok());
        return sums.domainLoss[0];
    };
    const double base = last({1, 2, 3, 4, 5, 6, 7}) - last({1, 2, 3, 4, 5, 6, 8});
    const double outside = last({9, 2, 3, 4, 5, 6, 7}) - last({9, 2, 3, 4, 5, 6, 8});
    const double inside = last({1, 2, 3, 4, 9, 6, 7}) - last({1, 2, 3, 4, 9, 6, 8});
    EXPECT_NEAR(base, outside, 1e-12);
    EXPECT_GT(std::abs(base - inside), 1e-6);
}

/// Whole dense gradients and all experts, gathered from however many shards.
std::vector<double> gradientWith(size_t shards, double* loss) {
    const ModelSpec spec = describeModel(smallConfig());
    test::Shards ranks(shards);
    const size_t each = 4 / shards;
    const Text all = randomText(4);
    std::vector<ParameterStore<double>> stores(shards);
    std::vector<double> losses(shards);
    test::Shards::onEach(shards, [&](size_t s) {
        CpuMath<double> math(ranks.device(s));
        Decoder<double> decoder;
        ASSERT_TRUE(math.open(spec.config, each, kSequence).ok());
        ASSERT_TRUE(stores[s].open(spec, &math, defaultPlacement(spec, shards)).ok());
        ASSERT_TRUE(decoder.open(&stores[s], each, kSequence, 1).ok());
        ASSERT_TRUE(stores[s].initialise(3).ok());
        stores[s].clearGradient();
        const Batch batch{each, all.tokens.data() + s * each * (kSequence + 1), all.domains.data()};
        Sums sums = decoder.emptySums();
        ASSERT_TRUE(decoder.forward(batch).ok());
        ASSERT_TRUE(decoder.backward(true, nullptr).ok());
        ASSERT_TRUE(decoder.settle(&sums).ok());
        losses[s] = sums.domainLoss[0];
    });
    *loss = std::accumulate(losses.begin(), losses.end(), 0.0);
    std::vector<double> whole;
    for (size_t u = 0; u < spec.units.size(); ++u) {
        std::vector<double> dense;
        for (auto& store : stores) {
            const UnitRegion& region = store.layout().units()[u];
            dense.insert(dense.end(), store.gradient() + region.begin,
                         store.gradient() + region.begin + region.slice);
        }
        dense.resize(spec.units[u].denseCount);
        whole.insert(whole.end(), dense.begin(), dense.end());
        if (spec.units[u].mixture < 0) continue;
        for (size_t e = 0; e < spec.config.experts; ++e)
            for (auto& store : stores)
                if (const size_t at = store.layout().units()[u].expertAt[e]; at != kElsewhere)
                    whole.insert(whole.end(), store.gradient() + at,
                                 store.gradient() + at + spec.units[u].expertCount);
    }
    return whole;
}

TEST(ShardedGradient, IsTheSameOnOneTwoAndFourShards) {
    double one = 0;
    const std::vector<double> expected = gradientWith(1, &one);
    for (const size_t shards : {2, 4}) {
        SCOPED_TRACE(shards);
        double loss = 0;
        const std::vector<double> got = gradientWith(shards, &loss);
        EXPECT_NEAR(loss, one, 1e-9);
        EXPECT_THAT(got, testing::Pointwise(testing::DoubleNear(1e-10), expected));
    }
}

}  // namespace
}  // namespace bulkhead::llama_moe
