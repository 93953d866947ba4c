// SPDX-License-Identifier: Apache-2.0
// The whole model as a GPU computes it, beside the CPU's: in bfloat16, by kernels, on memory out of
// the CPU's reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "plugins/llama_moe/cpu_math.h"
#include "plugins/llama_moe/decoder.h"
#include "plugins/llama_moe/gpu/gpu_math.h"
#include "tests/plugins/gpu_place.h"
#include "tests/plugins/model.h"

namespace bulkhead::llama_moe {
namespace {

using test::GpuPlace;
using test::Shards;
using GpuGradient = test::OnGpu;

constexpr size_t kBatchSamples = 3;
constexpr size_t kBatchTokens = 22;

/// All kinds of layers; the chunk does not divide the sequence.
ModelConfig smallConfig(size_t topK) {
    ModelConfig c;
    c.dim = 32;
    c.layers = 4;
    c.heads = 4;
    c.kvHeads = 2;
    c.attentionChunk = 9;
    c.ffnHidden = 40;
    c.experts = 4;
    c.topK = topK;
    c.expertHidden = 24;
    c.sharedHidden = 20;
    return c;
}

/// Results of one forward and backward pass over fixed text.
struct Pass {
    double loss = 0;
    std::vector<float> gradient;
    std::vector<uint32_t> routing;
};

template <class A>
Pass passWith(Math<A>& math, const ModelSpec& spec) {
    ParameterStore<A> store;
    Decoder<A> decoder;
    EXPECT_TRUE(math.open(spec.config, kBatchSamples, kBatchTokens).ok());
    EXPECT_TRUE(store.open(spec, &math, defaultPlacement(spec, 1)).ok());
    EXPECT_TRUE(decoder.open(&store, kBatchSamples, kBatchTokens, 1).ok());
    EXPECT_TRUE(store.initialise(3).ok());
    store.clearGradient();
    std::mt19937 random(7);
    std::vector<int32_t> tokens(kBatchSamples * (kBatchTokens + 1));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 60);
    const std::vector<uint32_t> domains(kBatchSamples, 0);
    const Batch batch{kBatchSamples, tokens.data(), domains.data()};
    Sums sums = decoder.emptySums();
    EXPECT_TRUE(decoder.forward(batch).ok());
    EXPECT_TRUE(decoder.backward(true, nullptr).ok());
    EXPECT_TRUE(decoder.settle(&sums).ok());
    Pass pass;
    pass.loss = sums.domainLoss[0];
    pass.gradient.resize(store.layout().count());
    math.copy(pass.gradient.data(), static_cast<const float*>(store.gradient()),
              pass.gradient.size());
    EXPECT_TRUE(math.finish().ok());
    for (size_t s = 0; s < kBatchSamples; ++s) {
        std::vector<uint32_t> chosen(kBatchTokens * spec.config.mixtureLayers() * spec.config.topK);
        EXPECT_TRUE(decoder.routing(s, chosen.data()).ok());
        pass.routing.insert(pass.routing.end(), chosen.begin(), chosen.end());
    }
    return pass;
}

Pass cpuPass(const ModelSpec& spec) {
    const Shards ranks(1);
    CpuMath<float> math(ranks.device(0));
    return passWith(math, spec);
}

Pass gpuPass(const ModelSpec& spec, const GpuPlace& place) {
    const Shards ranks(1, place.device);
    GpuMath math(ranks.device(0), place.machine, nullptr);
    return passWith(math, spec);
}

/// |got - wanted| / |wanted| over [begin, begin + count).
double distance(const Pass& got, const Pass& wanted, size_t begin, size_t count) {
    double apart = 0, size = 0;
    for (size_t i = begin; i < begin + count; ++i) {
        apart += std::pow(double{got.gradient[i]} - double{wanted.gradient[i]}, 2);
        size += std::pow(double{wanted.gradient[i]}, 2);
    }
    return std::sqrt(apart / size);
}

/// Calls visit(name, begin, count) for every tensor of the only shard but the balance, which is a
/// count.
template <class Visit>
void forTensors(const ModelSpec& spec, Visit&& visit) {
    const Layout layout(spec, 0, 1, defaultPlacement(spec, 1));
    for (size_t u = 0; u < spec.units.size(); ++u) {
        const Unit& unit = spec.units[u];
        for (const Tensor& tensor : unit.dense)
            if (tensor.kind != TensorKind::kBalance)
                visit(unit.prefix() + tensor.name, layout.units()[u].begin + tensor.offset,
                      tensor.count());
        for (const size_t e : layout.units()[u].experts)
            visit(unit.prefix() + "expert " + std::to_string(e), layout.units()[u].expertAt[e],
                  unit.expertCount);
    }
}

TEST_P(GpuGradient, OfEveryTensorIsTheCpusWhereRoutingCannotDiffer) {
    // Every expert takes every token. A bfloat16 is off by 2^-9 at most, by 2^-9 / sqrt(3) = 0.11 %
    // on average; a gradient has passed some 40 of them on the way there and back (four layers,
    // each with weights, normed rows, products' results and the way back), which add up like a
    // random walk to 0.7 %; norms and the router, behind differences of large numbers, to a few
    // times that.
    const ModelSpec spec = describeModel(smallConfig(4));
    const Pass wanted = cpuPass(spec);
    const Pass got = gpuPass(spec, place());
    EXPECT_NEAR(got.loss, wanted.loss, 5e-4 * wanted.loss);
    forTensors(spec, [&](const std::string& name, size_t begin, size_t count) {
        EXPECT_LT(distance(got, wanted, begin, count), 0.02) << name;
    });
}

TEST_P(GpuGradient, ComesFromTheCpusChoicesAlmostAlways) {
    const ModelSpec spec = describeModel(smallConfig(1));
    const Pass wanted = cpuPass(spec);
    const Pass got = gpuPass(spec, place());
    size_t alike = 0;
    for (size_t i = 0; i < wanted.routing.size(); ++i)
        alike += got.routing[i] == wanted.routing[i] ? 1 : 0;
    EXPECT_GE(static_cast<double>(alike), 0.95 * static_cast<double>(wanted.routing.size()));
    EXPECT_NEAR(got.loss, wanted.loss, 1e-3 * wanted.loss);
}

TEST_P(GpuGradient, IsTheSameBitsAgain) {
    const ModelSpec spec = describeModel(smallConfig(1));
    EXPECT_EQ(gpuPass(spec, place()).gradient, gpuPass(spec, place()).gradient);
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGradient, testing::Range(size_t{0}, test::gpuPlaces().size()),
                         test::placeName);

}  // namespace
}  // namespace bulkhead::llama_moe

namespace bulkhead::test {
namespace {

/// Samples of real text, one behind the other.
std::vector<Sample> readText(size_t samples, uint32_t sequence, size_t step) {
    std::ifstream file(BULKHEAD_TEXT, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_GT(text.size(), 2000u) << BULKHEAD_TEXT;
    std::vector<Sample> all(samples);
    for (size_t s = 0; s < samples; ++s)
        for (uint32_t t = 0; t <= sequence; ++t) {
            const size_t at = ((step * samples + s) * sequence + t) % text.size();
            all[s].tokens.push_back(static_cast<unsigned char>(text[at]));
        }
    return all;
}

/// On the first of the places.
class GpuModel : public OnGpu {
  protected:
    static ModelOptions on(size_t shards) { return {.shards = shards, .place = &place()}; }
};

TEST_P(GpuModel, LearnsRealTextAsTheCpuDoes) {
    std::vector<double> ends;
    for (const bool onGpu : {false, true}) {
        Model model({.sequence = 32, .microBatch = 8, .place = onGpu ? &place() : nullptr});
        ASSERT_TRUE(model.created()) << model.error();
        model.initialise(5);
        double first = 0, last = 0;
        for (size_t i = 0; i < 60; ++i) {
            const double loss = model.step(readText(8, 32, i));
            if (i < 5) first += loss / 5;
            if (i >= 50) last += loss / 10;
        }
        EXPECT_LT(last, first - 1.5);
        ends.push_back(last);
    }
    EXPECT_NEAR(ends[1], ends[0], 0.02);
}

TEST_P(GpuModel, OneAndTwoShardsGiveTheSameCurve) {
    Model one({.microBatch = 8, .place = &place()});
    Model two({.shards = 2, .microBatch = 4, .place = &place()});
    one.initialise(5);
    two.initialise(5);
    for (uint64_t i = 0; i < 10; ++i)
        EXPECT_NEAR(two.step(someText(8, 16, i), 3e-3f), one.step(someText(8, 16, i), 3e-3f), 0.01);
}

TEST_P(GpuModel, StateStartsAsTheCpusAndIsHashedAlike) {
    Model cpu({.shards = 2});
    Model gpu(on(2));
    cpu.initialise(4);
    gpu.initialise(4);
    EXPECT_EQ(gpu.exportAll(), cpu.exportAll());
    EXPECT_EQ(gpu.hashes(), cpu.hashes());
}

TEST_P(GpuModel, AnUpdateHasTheBitsOfTheCpus) {
    Model cpu({});
    Model gpu(on(1));
    gpu.initialise(4);
    gpu.step(someText(4, 16));  // moments that are not zero
    cpu.importAll(gpu.exportAll());
    ASSERT_EQ(cpu.hashes(), gpu.hashes());
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> reduced(cpu.info().gradient_count);
    for (float& g : reduced) g = normal(random);
    const bulkhead_update update{sizeof(bulkhead_update), 2, 3e-3f, 0.0123f, 0.19f, 0.0975f};
    for (Model* model : {&cpu, &gpu}) {
        void* memory = nullptr;
        model->onDevice(reduced, &memory);
        ASSERT_EQ(model->api().apply(model->shard(0), static_cast<float*>(memory), &update),
                  BULKHEAD_OK);
        model->freeOnDevice(memory);
    }
    EXPECT_EQ(gpu.exportAll(), cpu.exportAll());
}

TEST_P(GpuModel, AnUpdateAfterExpertsMovedHasTheBitsOfTheCpus) {
    Model cpu({.shards = 2});
    Model gpu(on(2));
    gpu.initialise(4);
    cpu.initialise(4);
    for (Model* model : {&cpu, &gpu}) model->step(someText(4, 16));  // by the layout before
    std::vector<int32_t> other = gpu.layout();
    const auto moved = std::find(other.begin(), other.end(), 0);
    *moved = 1;  // so that both shards have other tensors elsewhere
    for (Model* model : {&cpu, &gpu}) {
        EXPECT_GT(model->changeLayout(other), 0u);
        EXPECT_EQ(model->settle(1), BULKHEAD_OK);
    }
    cpu.importAll(gpu.exportAll());
    for (Model* model : {&cpu, &gpu}) {
        model->forwardBackward({});  // no gradient: moments and decay change the parameters
        model->apply(3e-3f, 1);
    }
    EXPECT_EQ(gpu.exportAll(), cpu.exportAll());
}

TEST_P(GpuModel, SumOfSquaresIsTheCpusAndSeesNotANumber) {
    Model cpu({});
    Model gpu(on(1));
    cpu.initialise(4);
    gpu.initialise(4);
    std::mt19937 random(5);
    std::vector<float> reduced(cpu.info().gradient_count);
    for (float& g : reduced) g = static_cast<float>(random() % 1000) * 0.001f;
    const auto sum = [&](Model& model) {
        void* memory = nullptr;
        double squares = 0;
        model.onDevice(reduced, &memory);
        EXPECT_EQ(model.api().sum_of_squares(model.shard(0), static_cast<float*>(memory), &squares),
                  BULKHEAD_OK);
        model.freeOnDevice(memory);
        return squares;
    };
    EXPECT_NEAR(sum(gpu), sum(cpu), 1e-10 * sum(cpu));
    reduced[77] = std::nanf("");
    EXPECT_TRUE(std::isnan(sum(gpu)));
}

TEST_P(GpuModel, GoesOnFromAnExportToEqualBits) {
    Model source(on(2));
    source.initialise(1);
    for (uint64_t i = 0; i < 3; ++i) source.step(someText(8, 16, i));
    Model target(on(2));
    target.initialise(99);
    for (uint64_t i = 0; i < 3; ++i) target.step(someText(8, 16, i));
    target.importAll(source.exportAll());
    EXPECT_EQ(target.hashes(), source.hashes());
    for (Model* model : {&source, &target})
        for (uint64_t i = 3; i < 6; ++i) model->step(someText(8, 16, i));
    EXPECT_EQ(target.hashes(), source.hashes());
}

TEST_P(GpuModel, MovesExpertsAndGoesBackToEveryBit) {
    Model model(on(2));
    model.initialise(3);
    for (uint64_t i = 0; i < 3; ++i) model.step(someText(8, 16, i));
    const auto text = someText(8, 16, 50);
    const double before = model.evaluate(text);
    const auto hashes = model.hashes();
    std::vector<int32_t> other = model.layout();
    for (int32_t& shard : other) shard = 1 - shard;
    EXPECT_GT(model.changeLayout(other), 0u);
    EXPECT_NEAR(model.evaluate(text), before, 1e-3);
    EXPECT_EQ(model.settle(0), BULKHEAD_OK);
    EXPECT_EQ(model.hashes(), hashes);
    EXPECT_EQ(model.evaluate(text), before);
}

TEST_P(GpuModel, AShardWithoutSamplesTakesPart) {
    Model two(on(2));
    Model one(on(1));
    two.initialise(2);
    one.initialise(2);
    const auto text = someText(3, 16);  // all of it is shard 0's
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(two.step(text), one.step(text), 0.01);
    EXPECT_EQ(two.forwardBackward({}), 0);
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuModel, testing::Values(0), placeName);

}  // namespace
}  // namespace bulkhead::test
