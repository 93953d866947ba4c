// SPDX-License-Identifier: Apache-2.0
// Whole training runs through the C table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/plugins/model.h"

namespace bulkhead::test {
namespace {

std::vector<double> curve(const ModelOptions& options, int steps, float rate = 3e-3f) {
    Model model(options);
    EXPECT_TRUE(model.created()) << model.error();
    model.initialise(5);
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i)
        losses.push_back(model.step(someText(8, options.sequence, static_cast<uint64_t>(i)), rate));
    return losses;
}

TEST(Training, OneTwoAndFourShardsGiveTheSameCurve) {
    const std::vector<double> one = curve({.shards = 1, .microBatch = 8}, 20);
    EXPECT_LT(one.back(), one.front());
    for (const size_t shards : {2, 4}) {
        SCOPED_TRACE(shards);
        EXPECT_THAT(curve({.shards = shards, .microBatch = static_cast<uint32_t>(8 / shards)}, 20),
                    testing::Pointwise(testing::DoubleNear(1e-4), one));
    }
}

TEST(Training, MicroBatchesAddUp) {
    const std::vector<double> whole = curve({.shards = 2, .microBatch = 4}, 10);
    EXPECT_THAT(curve({.shards = 2, .microBatch = 1}, 10),
                testing::Pointwise(testing::DoubleNear(1e-4), whole));
}

TEST(Training, TopTwoExpertsTrainOnShardsToo) {
    const std::string toml = std::string(kSmallModel) + "top_k = 2\n";
    const std::vector<double> one = curve({.shards = 1, .toml = toml, .microBatch = 8}, 10);
    EXPECT_THAT(curve({.shards = 2, .toml = toml, .microBatch = 4}, 10),
                testing::Pointwise(testing::DoubleNear(1e-4), one));
}

TEST(Training, TheSameSeedGivesTheSameBits) {
    std::vector<std::vector<uint64_t>> hashes;
    for (int run = 0; run < 2; ++run) {
        Model model({.shards = 2});
        model.initialise(9);
        for (uint64_t i = 0; i < 5; ++i) model.step(someText(8, 16, i));
        hashes.push_back(model.hashes());
    }
    EXPECT_EQ(hashes[0], hashes[1]);
    Model other({.shards = 2});
    other.initialise(10);
    for (uint64_t i = 0; i < 5; ++i) other.step(someText(8, 16, i));
    EXPECT_NE(hashes[0], other.hashes());
}

TEST(Training, OverfitsASmallText) {
    const char text[] = "the bulkheads keep one flooded compartment from sinking the ship. ";
    std::vector<Sample> samples(4);
    for (size_t k = 0; k < samples.size(); ++k) {
        samples[k].tokens.push_back('0' + static_cast<int32_t>(k));  // the rest is predictable
        for (size_t t = 0; t < 16; ++t)
            samples[k].tokens.push_back(text[(k * 16 + t) % (sizeof(text) - 1)]);
    }
    Model model({.weightDecay = 0});
    model.initialise(1);
    // The number of steps depends on the order in which a processor's kernels add up.
    double loss = 1;
    for (int i = 0; i < 4000 && loss >= 0.02; ++i) loss = model.step(samples);
    EXPECT_LT(loss, 0.02);
}

TEST(Training, AShardWithoutSamplesTakesPart) {
    Model two({.shards = 2});
    Model one({.shards = 1});
    two.initialise(2);
    one.initialise(2);
    const auto text = someText(3, 16);  // all of it is shard 0's
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(two.step(text), one.step(text), 1e-4);
    EXPECT_EQ(two.forwardBackward({}), 0);
}

TEST(Training, BalancingKeepsExpertsInUse) {
    Model model({.microBatch = 16});
    model.initialise(4);
    for (uint64_t i = 0; i < 300; ++i) model.step(someText(16, 16, i), 3e-3f);
    const bulkhead_model_info info = model.info();
    std::vector<uint64_t> counts(size_t{info.moe_layers} * 2 * info.experts);
    bulkhead_metrics metrics{};
    metrics.struct_size = sizeof(metrics);
    metrics.expert_counts = counts.data();
    ASSERT_EQ(model.api().metrics(model.shard(0), &metrics), BULKHEAD_OK);
    const uint64_t share = metrics.tokens / info.experts;
    for (size_t layer = 0; layer < info.moe_layers; ++layer)
        for (size_t e = 0; e < info.experts; ++e) {
            const uint64_t rows =
                counts[layer * 2 * info.experts + e] + counts[(layer * 2 + 1) * info.experts + e];
            EXPECT_GT(rows, share / 5) << "layer " << layer << " expert " << e;
            EXPECT_LT(rows, share * 4) << "layer " << layer << " expert " << e;
        }
}

TEST(Training, TheRoutingOfEverySampleAddsUpToTheCounts) {
    Model model({.toml = std::string(kSmallModel) + "top_k = 2\n", .microBatch = 8});
    model.initialise(4);
    std::vector<Sample> samples = someText(8, 16, 1);
    for (size_t i = 0; i < samples.size(); ++i) samples[i].domain = i % 2;
    model.forwardBackward(samples);
    const bulkhead_model_info info = model.info();
    std::vector<uint64_t> counts(size_t{info.moe_layers} * 2 * info.experts), told(counts.size());
    bulkhead_metrics metrics{};
    metrics.struct_size = sizeof(metrics);
    metrics.expert_counts = counts.data();
    ASSERT_EQ(model.api().metrics(model.shard(0), &metrics), BULKHEAD_OK);
    std::vector<uint32_t> chosen(size_t{16} * info.moe_layers * 2);
    for (uint32_t i = 0; i < samples.size(); ++i) {
        ASSERT_EQ(model.api().routing(model.shard(0), i, chosen.data()), BULKHEAD_OK);
        for (size_t c = 0; c < chosen.size(); ++c)
            ++told[(c / 2 % info.moe_layers * 2 + samples[i].domain) * info.experts + chosen[c]];
    }
    EXPECT_EQ(told, counts);
    EXPECT_EQ(model.api().routing(model.shard(0), 8, chosen.data()), BULKHEAD_INVALID);
    EXPECT_THAT(model.error(), testing::HasSubstr("has 8 samples"));
}

TEST(Training, MetricsAreByDomainAndCountEveryToken) {
    Model model({.microBatch = 6});
    model.initialise(4);
    const auto text = someText(6, 16);
    const double loss = model.forwardBackward(text);
    double domainLoss[2] = {-1, -1};
    uint64_t domainTokens[2] = {77, 77};
    std::vector<uint64_t> counts(2 * 2 * 8, 99);
    bulkhead_metrics metrics{
        sizeof(bulkhead_metrics), 0, 0, domainLoss, domainTokens, counts.data(), 77};
    ASSERT_EQ(model.api().metrics(model.shard(0), &metrics), BULKHEAD_OK);
    EXPECT_EQ(metrics.all_to_all_bytes, 0u);  // one shard: nobody to send to
    EXPECT_EQ(metrics.tokens, 96u);
    EXPECT_EQ(domainTokens[0], 48u);
    EXPECT_EQ(domainTokens[1], 48u);
    EXPECT_NEAR(domainLoss[0] + domainLoss[1], loss, 1e-9);
    for (size_t row = 0; row < 4; ++row) {
        uint64_t sum = 0;
        for (size_t e = 0; e < 8; ++e) sum += counts[row * 8 + e];
        EXPECT_EQ(sum, 48u);
    }
}

TEST(Training, GradientPartsTileTheWholeFromTheEnd) {
    Model model({});
    model.initialise(4);
    const auto text = someText(2, 16);
    std::vector<int32_t> tokens;
    for (const Sample& s : text) tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    const uint32_t domains[2] = {0, 1};
    struct Seen {
        std::vector<std::pair<uint64_t, uint64_t>> parts;
        const float* gradient = nullptr;
        std::vector<float> values;
    } seen;
    float* gradient = nullptr;
    uint64_t count = 0;
    bulkhead_memory kind{};
    ASSERT_EQ(model.api().gradient(model.shard(0), &gradient, &count, &kind), BULKHEAD_OK);
    seen.gradient = gradient;
    seen.values.resize(count);
    const auto ready = [](void* context, uint64_t begin, uint64_t end) {
        auto* s = static_cast<Seen*>(context);
        s->parts.emplace_back(begin, end);
        std::copy(s->gradient + begin, s->gradient + end,
                  s->values.begin() + static_cast<ptrdiff_t>(begin));
    };
    bulkhead_batch batch{sizeof(bulkhead_batch), 2, tokens.data(), domains, 1, 0};
    ASSERT_EQ(model.api().forward_backward(model.shard(0), &batch, ready, &seen), BULKHEAD_OK);
    EXPECT_TRUE(seen.parts.empty()) << "told of parts before the last micro-batch";
    batch.first = 0;
    batch.last = 1;
    ASSERT_EQ(model.api().forward_backward(model.shard(0), &batch, ready, &seen), BULKHEAD_OK);
    uint64_t expected = count;
    for (const auto& [begin, end] : seen.parts) {
        EXPECT_EQ(end, expected);
        expected = begin;
    }
    EXPECT_EQ(expected, 0u);
    EXPECT_EQ(std::memcmp(seen.values.data(), gradient, count * sizeof(float)), 0)
        << "a part changed after it was called final";
}

TEST(Training, EvaluatingChangesNeitherStateNorGradient) {
    Model model({.shards = 2});
    model.initialise(4);
    const auto text = someText(8, 16);
    const double loss = model.forwardBackward(text) / (8 * 16);
    const auto hashes = model.hashes();
    float* gradient = nullptr;
    uint64_t count = 0;
    bulkhead_memory kind{};
    ASSERT_EQ(model.api().gradient(model.shard(0), &gradient, &count, &kind), BULKHEAD_OK);
    const std::vector<float> before(gradient, gradient + count);
    EXPECT_NEAR(model.evaluate(text), loss, 1e-6);
    EXPECT_EQ(model.hashes(), hashes);
    EXPECT_EQ(std::memcmp(before.data(), gradient, count * sizeof(float)), 0);
}

TEST(Training, SumOfSquaresSeesNotANumberAndLeavesTheBalanceOut) {
    Model model({});
    model.initialise(4);
    std::vector<float> reduced(model.info().gradient_count, 0.0f);
    double squares = -1;
    reduced[5] = 3;
    reduced[reduced.size() - 17] = 4;
    ASSERT_EQ(model.api().sum_of_squares(model.shard(0), reduced.data(), &squares), BULKHEAD_OK);
    EXPECT_EQ(squares, 25.0);
    reduced[100] = std::nanf("");
    ASSERT_EQ(model.api().sum_of_squares(model.shard(0), reduced.data(), &squares), BULKHEAD_OK);
    EXPECT_TRUE(std::isnan(squares));
}

TEST(Training, TokensAndDomainsOutOfRangeAreRefusedInOneLine) {
    Model model({});
    model.initialise(4);
    std::vector<int32_t> tokens(17, 'a');
    uint32_t domain = 0;
    bulkhead_batch batch{sizeof(bulkhead_batch), 1, tokens.data(), &domain, 1, 1};
    tokens[4] = 256;
    EXPECT_EQ(model.api().forward_backward(model.shard(0), &batch, nullptr, nullptr),
              BULKHEAD_INVALID);
    EXPECT_EQ(model.error(), "token 4 of sample 0 must be a byte, from 0 to 255, but is 256");
    tokens[4] = 'b';
    domain = 2;
    EXPECT_EQ(model.api().forward_backward(model.shard(0), &batch, nullptr, nullptr),
              BULKHEAD_INVALID);
    EXPECT_EQ(model.error(), "the domain of sample 0 must be below 2, but is 2");
    batch.samples = 5;
    EXPECT_EQ(model.api().forward_backward(model.shard(0), &batch, nullptr, nullptr),
              BULKHEAD_INVALID);
}

}  // namespace
}  // namespace bulkhead::test
