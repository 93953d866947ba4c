// SPDX-License-Identifier: Apache-2.0
// Each operation as kernels against the CPU's in double, from inputs that bfloat16 holds exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "bulkhead/state_hash.h"
#include "plugins/llama_moe/cpu_math.h"
#include "plugins/llama_moe/gpu/gpu_math.h"
#include "tests/plugins/gpu_place.h"
#include "tests/plugins/shards.h"

namespace bulkhead::llama_moe {
namespace {

using Doubles = std::vector<double>;

/// Tolerances of a result, relative to itself: float32 sums, one rounding to bfloat16, and sums of
/// products of rounded numbers.
constexpr double kWide = 1e-5, kNarrow = 1.0 / 256, kProducts = 0.01;

ModelConfig config() {
    ModelConfig c;
    c.dim = 24;
    c.heads = 4;
    c.kvHeads = 2;
    c.experts = 5;
    c.topK = 2;
    return c;
}
constexpr size_t kSamples = 2, kSequence = 13, kRows = kSamples * kSequence, kDim = 24;

/// Values that CPU and GPU both reach: after finish(), no sooner.
template <class V>
class Both {
  public:
    Both(const Device& device, const std::vector<V>& values) : size_(values.size()) {
        EXPECT_TRUE(memory_.reserve(device, size_).ok());
        std::copy(values.begin(), values.end(), data());
    }
    V* data() const { return memory_.data(); }
    size_t size() const { return size_; }
    const V& operator[](size_t i) const { return data()[i]; }

  private:
    Buffer<V, BULKHEAD_MEMORY_HOST> memory_;
    size_t size_;
};

class GpuKernels : public test::OnGpu {
  protected:
    void SetUp() override {
        OnGpu::SetUp();
        if (IsSkipped()) return;
        ranks_ = std::make_unique<test::Shards>(1, place().device);
        gpu_ = std::make_unique<GpuMath>(ranks_->device(0), place().machine, nullptr);
        ASSERT_TRUE(cpu_.open(config(), kSamples, kSequence).ok());
        ASSERT_TRUE(gpu_->open(config(), kSamples, kSequence).ok());
    }

    /// Values of bfloat16 around zero.
    Doubles some(size_t count, double deviation = 1) {
        std::normal_distribution<float> normal(0, static_cast<float>(deviation));
        Doubles values(count);
        for (double& v : values) v = static_cast<double>(widen(narrow(normal(random_))));
        return values;
    }
    std::vector<int32_t> someBelow(size_t count, uint32_t bound) {
        std::vector<int32_t> values(count);
        for (int32_t& v : values) v = static_cast<int32_t>(random_() % bound);
        return values;
    }
    template <class V>
    Both<V> both(const std::vector<V>& values) const {
        return {ranks_->device(0), values};
    }
    Both<float> floats(const Doubles& from) const {
        return both(std::vector<float>(from.begin(), from.end()));
    }
    Both<Bf16> bf16s(const Doubles& from) const {
        std::vector<Bf16> to;
        for (const double v : from) to.push_back(narrow(static_cast<float>(v)));
        return both(to);
    }

    /// Elements are off by so much of themselves at most, and a trifle of the largest one.
    template <class V>
    void expectNear(const Both<V>& got, const Doubles& wanted, double relative) {
        ASSERT_TRUE(gpu_->finish().ok());
        ASSERT_EQ(got.size(), wanted.size());
        double largest = 0;
        for (const double w : wanted) largest = std::max(largest, std::abs(w));
        EXPECT_GT(largest, 0);
        for (size_t i = 0; i < got.size(); ++i)
            EXPECT_NEAR(valueOf(got[i]), wanted[i],
                        relative * (std::abs(wanted[i]) + 0.01 * largest))
                << i;
    }
    /// All elements together are off by so much of all of them.
    void expectDistance(const Both<Bf16>& got, const Doubles& wanted, double relative) {
        ASSERT_TRUE(gpu_->finish().ok());
        double apart = 0, size = 0;
        for (size_t i = 0; i < got.size(); ++i) {
            apart += std::pow(valueOf(got[i]) - wanted[i], 2);
            size += std::pow(wanted[i], 2);
        }
        EXPECT_LT(std::sqrt(apart / size), relative);
    }
    static double valueOf(Bf16 x) { return static_cast<double>(widen(x)); }
    static double valueOf(double x) { return x; }

    std::mt19937 random_{11};
    const test::Shards cpuRanks_{1};
    CpuMath<double> cpu_{cpuRanks_.device(0)};
    std::unique_ptr<test::Shards> ranks_;
    std::unique_ptr<GpuMath> gpu_;
};

TEST_P(GpuKernels, Norm) {
    const Doubles x = some(kRows * kDim, 3), gain = some(kDim), dy = some(kRows * kDim);
    Doubles y(x.size()), scale(kRows), dx = some(x.size()), dGain = some(kDim);
    const auto gx = floats(x), gdy = floats(dy);
    const auto gGain = bf16s(gain);
    const auto gy = bf16s(y);
    const auto gScale = floats(scale), gdx = floats(dx), gdGain = floats(dGain);
    const auto gRounded = bf16s(dx);
    Doubles same(x.size());
    const auto gSame = floats(same);
    cpu_.normForward(x.data(), gain.data(), y.data(), scale.data(), same.data(), kRows, kDim, 1e-5);
    gpu_->normForward(gx.data(), gGain.data(), gy.data(), gScale.data(), gSame.data(), kRows, kDim,
                      1e-5f);
    EXPECT_EQ(same, x);
    expectNear(gSame, x, 0);
    expectNear(gy, y, kNarrow);
    expectNear(gScale, scale, kWide);
    cpu_.normBackward(dy.data(), x.data(), gain.data(), scale.data(), dx.data(), dx.data(),
                      dGain.data(), kRows, kDim);
    gpu_->normBackward(gdy.data(), gx.data(), gGain.data(), gScale.data(), gdx.data(),
                       gRounded.data(), gdGain.data(), kRows, kDim);
    expectNear(gdx, dx, kWide);
    expectNear(gRounded, dx, kNarrow);
    expectNear(gdGain, dGain, 10 * kWide);
}

TEST_P(GpuKernels, ManyRowsAddToANormsGain) {
    const size_t rows = 1100, dim = 35;  // more than there are parts, and columns of a block
    const Doubles x = some(rows * dim), gain = some(dim), dy = some(rows * dim);
    Doubles scale(rows, 1), dx(rows * dim), dGain = some(dim);
    const auto gx = floats(x), gdy = floats(dy), gScale = floats(scale), gdx = floats(dx);
    const auto gGain = bf16s(gain);
    const auto gdGain = floats(dGain);
    const auto gRounded = bf16s(dx);
    GpuMath gpu(ranks_->device(0), place().machine, nullptr);
    ModelConfig shaped = config();
    shaped.dim = dim;
    shaped.heads = shaped.kvHeads = 1;
    ASSERT_TRUE(gpu.open(shaped, 1, rows).ok());
    cpu_.normBackward(dy.data(), x.data(), gain.data(), scale.data(), dx.data(), dx.data(),
                      dGain.data(), rows, dim);
    gpu.normBackward(gdy.data(), gx.data(), gGain.data(), gScale.data(), gdx.data(),
                     gRounded.data(), gdGain.data(), rows, dim);
    ASSERT_TRUE(gpu.finish().ok());
    expectNear(gdGain, dGain, 10 * kWide);
}

TEST_P(GpuKernels, Swiglu) {
    const size_t hidden = 17;
    Doubles h = some(kRows * 2 * hidden, 2), act(kRows * hidden);
    const Doubles dAct = some(act.size());
    const auto gh = bf16s(h), gAct = bf16s(act);
    const auto gdAct = bf16s(dAct);
    cpu_.swigluForward(h.data(), act.data(), kRows, hidden);
    gpu_->swigluForward(gh.data(), gAct.data(), kRows, hidden);
    expectNear(gAct, act, kNarrow);
    cpu_.swigluBackward(h.data(), dAct.data(), kRows, hidden);
    gpu_->swigluBackward(gh.data(), gdAct.data(), kRows, hidden);
    expectNear(gh, h, kNarrow);
}

TEST_P(GpuKernels, Attention) {
    // A chunk that is the sample, one that leaves a rest, samples cut into whole chunks; several
    // tiles of a chunk, heads of each width, and a last tile and chunk that are not whole.
    struct Case {
        size_t chunk;
        bool rotary;
        size_t sequence, heads, kvHeads, headDim;
    };
    for (const auto& [chunk, rotary, sequence, heads, kvHeads, headDim] :
         {Case{13, false, 13, 4, 2, 6}, Case{5, true, 13, 4, 2, 6}, Case{6, true, 12, 4, 2, 6},
          Case{150, false, 150, 2, 1, 32}, Case{130, true, 200, 1, 1, 40},
          Case{128, true, 256, 2, 2, 64}, Case{70, true, 70, 1, 1, 128}}) {
        SCOPED_TRACE(chunk);
        test::Shards ranks(1);
        CpuMath<double> cpu(ranks.device(0));
        GpuMath gpu(ranks_->device(0), place().machine, nullptr);
        ModelConfig shaped = config();
        shaped.dim = heads * headDim;
        shaped.heads = heads;
        ASSERT_TRUE(cpu.open(shaped, kSamples, sequence).ok());
        ASSERT_TRUE(gpu.open(shaped, kSamples, sequence).ok());
        const AttentionShape shape{.samples = kSamples,
                                   .sequence = sequence,
                                   .heads = heads,
                                   .kvHeads = kvHeads,
                                   .headDim = headDim,
                                   .chunk = chunk,
                                   .rotary = rotary};
        Doubles qkv = some(shape.tokens() * shape.width()), mixed(shape.tokens() * shape.dim());
        Doubles p(cpu.keptOfAttention(shape)), dQkv(qkv.size());
        const Doubles up = some(mixed.size());
        const auto gQkv = bf16s(qkv), gMixed = bf16s(mixed), gdQkv = bf16s(dQkv);
        const auto gp = floats(Doubles(gpu.keptOfAttention(shape)));
        const auto gUp = bf16s(up);
        cpu.attentionForward(shape, qkv.data(), p.data(), mixed.data());
        gpu.attentionForward(shape, gQkv.data(), gp.data(), gMixed.data());
        expectNear(gQkv, qkv, 2 * kNarrow);
        expectDistance(gMixed, mixed, kProducts);
        cpu.attentionBackward(shape, qkv.data(), p.data(), mixed.data(), up.data(), dQkv.data());
        gpu.attentionBackward(shape, gQkv.data(), gp.data(), gMixed.data(), gUp.data(),
                              gdQkv.data());
        expectDistance(gdQkv, dQkv, kProducts);
    }
}

TEST_P(GpuKernels, RoutingAndRowsThereAndBack) {
    const size_t experts = 5, k = 2, rows = kRows * k;
    const Doubles logits = some(kRows * experts), balance = some(experts, 0.3);
    std::vector<int32_t> chosen(rows), place(rows);
    for (size_t i = 0; i < rows; ++i) place[i] = static_cast<int32_t>((7 * i) % rows);
    Doubles gates(rows);
    const auto gLogits = floats(logits), gGates = floats(gates);
    const auto gBalance = bf16s(balance);
    const auto gChosen = both(chosen), gPlace = both(place);
    cpu_.route(logits.data(), balance.data(), chosen.data(), gates.data(), kRows, experts, k);
    gpu_->route(gLogits.data(), gBalance.data(), gChosen.data(), gGates.data(), kRows, experts, k);
    expectNear(gGates, gates, kWide);
    for (size_t a = 0; a < rows; ++a) EXPECT_EQ(gChosen[a], chosen[a]) << a;

    const Doubles normed = some(kRows * kDim);
    const auto gNormed = bf16s(normed);
    Doubles sorted(rows * kDim), out = some(kRows * kDim);
    const auto gSorted = bf16s(sorted);
    const auto gOut = floats(out);
    for (const bool gated : {true, false}) {
        cpu_.spread(normed.data(), place.data(), gated ? gates.data() : nullptr, sorted.data(),
                    kRows, k, kDim);
        gpu_->spread(gNormed.data(), gPlace.data(), gated ? gGates.data() : nullptr, gSorted.data(),
                     kRows, k, kDim);
        expectNear(gSorted, sorted, kNarrow);
    }
    cpu_.collect(sorted.data(), place.data(), out.data(), kRows, k, kDim);
    gpu_->collect(gSorted.data(), gPlace.data(), gOut.data(), kRows, k, kDim);
    expectNear(gOut, out, kWide);

    const Doubles dSpread = some(sorted.size());
    const auto gdSpread = bf16s(dSpread);
    Doubles dLogits(kRows * experts, 9), dNormed = some(kRows * kDim), surplus = some(experts);
    const auto gdLogits = bf16s(dLogits);
    const auto gdNormed = floats(dNormed), gSurplus = floats(surplus);
    cpu_.routeBackward(dSpread.data(), place.data(), normed.data(), chosen.data(), gates.data(),
                       dLogits.data(), dNormed.data(), kRows, experts, k, kDim);
    gpu_->routeBackward(gdSpread.data(), gPlace.data(), gNormed.data(), gChosen.data(),
                        gGates.data(), gdLogits.data(), gdNormed.data(), kRows, experts, k, kDim);
    expectNear(gdLogits, dLogits, kNarrow);
    expectNear(gdNormed, dNormed, kWide);
    cpu_.addSurplus(chosen.data(), surplus.data(), rows, experts);
    gpu_->addSurplus(gChosen.data(), gSurplus.data(), rows, experts);
    expectNear(gSurplus, surplus, kWide);
}

TEST_P(GpuKernels, ChoicesAreSortedByExpert) {
    for (const auto& [choices, experts] : {std::pair{size_t{700}, uint32_t{5}}, {1, 3}, {90, 64}}) {
        const std::vector<int32_t> chosen = someBelow(choices, experts);
        std::vector<int32_t> place(choices), starts(experts + 1);
        GpuMath gpu(ranks_->device(0), OnGpu::place().machine, nullptr);
        ModelConfig shaped = config();
        shaped.experts = experts;
        shaped.topK = 1;
        ASSERT_TRUE(gpu.open(shaped, 1, choices).ok());
        const auto gChosen = both(chosen), gPlace = both(place), gStarts = both(starts);
        cpu_.sortByExpert(chosen.data(), place.data(), starts.data(), choices, experts);
        gpu.sortByExpert(gChosen.data(), gPlace.data(), gStarts.data(), choices, experts);
        ASSERT_TRUE(gpu.finish().ok());
        for (size_t a = 0; a < choices; ++a) EXPECT_EQ(gPlace[a], place[a]) << a;
        for (size_t e = 0; e <= experts; ++e) EXPECT_EQ(gStarts[e], starts[e]) << e;
        for (size_t a = 0; a < choices; ++a) {
            const auto e = static_cast<size_t>(chosen[a]);
            EXPECT_TRUE(place[a] >= starts[e] && place[a] < starts[e + 1]) << a;
        }
    }
}

TEST_P(GpuKernels, ProductsOfGroupsThereAndBack) {
    // Groups without rows, smaller and larger than a tile; widths below, beside and above a tile's,
    // and one that does not go by eight.
    const std::vector<int32_t> starts{0, 3, 3, 140, 141};
    const size_t rows = 141, groups = starts.size() - 1;
    const auto gStarts = both(starts);
    const Groups here{starts.data(), groups, rows};
    const Groups there{gStarts.data(), groups, rows + 17};
    for (const auto& [in, out] : {std::pair{size_t{24}, size_t{40}}, {144, 136}, {7, 130}}) {
        SCOPED_TRACE(in);
        const size_t apart = in * out + 16;
        const Doubles x = some(rows * in), w = some(groups * apart), dy = some(rows * out);
        Doubles y(rows * out), dw = some(w.size()), dx(x.size());
        const auto gx = bf16s(x), gw = bf16s(w), gdy = bf16s(dy), gy = bf16s(y), gdx = bf16s(dx);
        const auto gdw = floats(dw);
        cpu_.multiplyGroups(here, x.data(), {w.data(), apart, in, out}, y.data());
        gpu_->multiplyGroups(there, gx.data(), {gw.data(), apart, in, out}, gy.data());
        expectNear(gy, y, kNarrow);
        cpu_.multiplyGroupsBack(here, x.data(), dy.data(), {w.data(), apart, in, out}, dw.data(),
                                dx.data());
        gpu_->multiplyGroupsBack(there, gx.data(), gdy.data(), {gw.data(), apart, in, out},
                                 gdw.data(), gdx.data());
        expectNear(gdx, dx, kNarrow);
        expectNear(gdw, dw, 10 * kWide);
    }
}

TEST_P(GpuKernels, TheFirstFreeExpertIsTakenWhereNothingCompares) {
    const auto logits = both(std::vector<float>(4, std::nanf("")));
    const auto balance = both(std::vector<Bf16>(4));
    const auto chosen = both(std::vector<int32_t>(2, -1));
    const auto gates = both(std::vector<float>(2));
    gpu_->route(logits.data(), balance.data(), chosen.data(), gates.data(), 1, 4, 2);
    ASSERT_TRUE(gpu_->finish().ok());
    EXPECT_EQ(chosen[0], 0);
    EXPECT_EQ(chosen[1], 1);
}

TEST_P(GpuKernels, EmbeddingThereAndBack) {
    const std::vector<int32_t> tokens = someBelow(kRows, 40);
    const Doubles table = some(kVocabulary * kDim), dOut = some(kRows * kDim);
    const auto gTable = bf16s(table);
    const auto gdOut = floats(dOut);
    Doubles out(kRows * kDim), dTable = some(table.size());
    const auto gOut = floats(out), gdTable = floats(dTable);
    const auto gTokens = both(tokens);
    cpu_.embed(table.data(), tokens.data(), out.data(), kRows, kDim);
    gpu_->embed(gTable.data(), gTokens.data(), gOut.data(), kRows, kDim);
    expectNear(gOut, out, 0);
    std::vector<int32_t> order, starts;
    for (size_t v = 0; v <= kVocabulary; ++v) {
        starts.push_back(static_cast<int32_t>(order.size()));
        for (size_t row = 0; row < kRows; ++row)
            if (tokens[row] == static_cast<int32_t>(v)) order.push_back(static_cast<int32_t>(row));
    }
    const auto gOrder = both(order), gStarts = both(starts);
    cpu_.embedBackward(dOut.data(), order.data(), starts.data(), dTable.data(), kDim);
    gpu_->embedBackward(gdOut.data(), gOrder.data(), gStarts.data(), gdTable.data(), kDim);
    expectNear(gdTable, dTable, kWide);
}

TEST_P(GpuKernels, CrossEntropy) {
    const size_t classes = 31;
    Doubles logits = some(kRows * classes, 4), loss(kRows);
    const std::vector<int32_t> targets = someBelow(kRows, classes);
    const auto gLogits = floats(logits);
    const auto gdLogits = bf16s(logits);
    const auto gLoss = both(loss);
    const auto gTargets = both(targets);
    cpu_.crossEntropy(logits.data(), targets.data(), loss.data(), logits.data(), kRows, classes);
    gpu_->crossEntropy(gLogits.data(), gTargets.data(), gLoss.data(), gdLogits.data(), kRows,
                       classes);
    expectNear(gLoss, loss, kWide);
    expectNear(gdLogits, logits, kNarrow);
}

TEST_P(GpuKernels, ProductsTurnedAddedAndNarrow) {
    const size_t m = 7, n = 9, k = 11;
    const Doubles a = some(m * k), b = some(k * n), c = some(m * n);
    const auto ga = bf16s(a), gb = bf16s(b);
    for (const Turn turnA : {Turn::kNo, Turn::kYes})
        for (const Turn turnB : {Turn::kNo, Turn::kYes}) {
            const size_t lda = turnA == Turn::kYes ? m : k, ldb = turnB == Turn::kYes ? k : n;
            Doubles wanted = c;
            const auto wide = floats(c);
            const auto small = bf16s(c);
            cpu_.product({turnA, turnB, m, n, k, a.data(), lda, b.data(), ldb, wanted.data(), n,
                          0.5, 2, true});
            gpu_->product({turnA, turnB, m, n, k, ga.data(), lda, gb.data(), ldb, wide.data(), n,
                           0.5f, 2, true});
            gpu_->product({turnA, turnB, m, n, k, ga.data(), lda, gb.data(), ldb, small.data(), n,
                           0.5f, 2, false});
            expectNear(wide, wanted, 10 * kWide);
            expectNear(small, wanted, kNarrow);
        }
}

TEST_P(GpuKernels, FlatRuns) {
    const Doubles from = some(5000);
    Doubles to = some(5000);
    const auto gTo = floats(to);
    const auto gFrom = floats(from);
    const auto narrowed = bf16s(to);
    cpu_.add(to.data(), from.data(), to.size());
    gpu_->add(gTo.data(), gFrom.data(), to.size());
    expectNear(gTo, to, kWide);
    gpu_->narrow(gFrom.data(), narrowed.data(), from.size());
    expectNear(narrowed, from, 0);
}

TEST_P(GpuKernels, AStatesHashIsThatOfItsPiecesHashes) {
    constexpr size_t kPiece = BULKHEAD_STATE_PIECE;
    std::vector<uint32_t> random(40 * kPiece / sizeof(uint32_t));
    for (uint32_t& value : random) value = static_cast<uint32_t>(random_());
    const auto state = both(random);
    const auto* bytes = reinterpret_cast<const char*>(state.data());
    for (const size_t size :
         {size_t{0}, size_t{4}, size_t{16}, size_t{64}, size_t{240}, size_t{244}, size_t{1024},
          kPiece - 4, kPiece, kPiece + 4, 2 * kPiece - 64, 2 * kPiece, 3 * kPiece + 1028,
          17 * kPiece, 33 * kPiece + 8192, 40 * kPiece}) {
        std::vector<uint64_t> pieces;
        for (size_t at = 0; at < size; at += kPiece)
            pieces.push_back(XXH3_64bits(bytes + at, std::min(kPiece, size - at)));
        const uint64_t wanted = XXH3_64bits(pieces.data(), pieces.size() * sizeof(uint64_t));
        EXPECT_EQ(bulkhead_state_hash(bytes, size), wanted) << size;
        const absl::StatusOr<uint64_t> got = gpu_->stateHash(bytes, size);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(*got, wanted) << size;
    }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuKernels, testing::Range(size_t{0}, test::gpuPlaces().size()),
                         test::placeName);

}  // namespace
}  // namespace bulkhead::llama_moe
