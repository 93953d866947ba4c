// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/llama_moe/gpu/kernels.h"
#include "tests/support/barrier.h"

/// The Block of plugins/llama_moe/gpu/kernel.h on the CPU: its threads are real ones, or one.
namespace bulkhead::test {

using llama_moe::gpu::Extent;
using llama_moe::gpu::kLines;
using llama_moe::gpu::kMostDepth;
using llama_moe::gpu::placeIn;

/// State that the threads of one block share.
struct Shared {
    /// Memory of a block holds not-a-numbers at first, so that nobody counts on zeros.
    Shared(uint32_t threads, uint32_t bytes)
        : barrier(threads), values(threads), memory(bytes / kLine + 1) {
        std::memset(static_cast<void*>(memory.data()), 0xff, memory.size() * kLine);
    }
    static constexpr size_t kLine = 1024;
    struct alignas(kLine) Line {
        char bytes[kLine];
    };
    support::Barrier barrier;
    std::vector<double> values;
    std::vector<Line> memory;
};

class Block {
  public:
    Block(Shared& shared, uint32_t thread, uint32_t block, uint32_t blocks)
        : shared_(shared), thread_(thread), block_(block), blocks_(blocks) {}
    static constexpr uint32_t kLeastThreads = 1;
    uint32_t block() const { return block_; }
    uint32_t blocks() const { return blocks_; }
    uint32_t thread() const { return thread_; }
    uint32_t threads() const { return static_cast<uint32_t>(shared_.values.size()); }
    void sync() {
        if (shared_.values.size() > 1) shared_.barrier.meet();
    }
    char* shared() { return shared_.memory.front().bytes; }

    /// Delays the copy as long as allowed: until await() needs it.
    void fetch(Bf16* to, const Bf16* from) {
        need(aligned(to, 16) && aligned(from, 16));
        fetches_.push_back({to, from});
    }
    void written() {}
    void sent() { batches_.push_back(fetches_.size()); }
    template <uint32_t kBatches>
    void await() {
        if (batches_.size() <= kBatches) return;
        const size_t known = batches_.size() - kBatches, end = batches_[known - 1];
        for (; fetched_ < end; ++fetched_)
            std::copy_n(fetches_[fetched_].from, 8, fetches_[fetched_].to);
    }

    /// Rows are the threads' in turn.
    template <uint32_t kM, uint32_t kN>
    struct Sums {
        std::array<float, size_t{kM} * kN> at;
    };
    template <uint32_t kM, uint32_t kN>
    void clear(Sums<kM, kN>& sums) {
        sums.at.fill(0);
    }
    /// The sum is made as late as it may be.
    template <bool kTurnA, bool kTurnB, uint32_t kM, uint32_t kN>
    void add(Sums<kM, kN>& sums, const Bf16* a, const Bf16* b, Extent extent) {
        need(extent.m <= kM && extent.n <= kN && extent.k <= kMostDepth && !adding_);
        need(aligned(a, 1024) && aligned(b, 1024));
        adding_ = [=, this, &sums] {
            const auto atA = [&](uint32_t r, uint32_t k) {
                return widen(a[kTurnA ? placeIn<kMostDepth>(k, r) : placeIn<kM>(r, k)]);
            };
            const auto atB = [&](uint32_t k, uint32_t c) {
                return widen(b[kTurnB ? placeIn<kN>(c, k) : placeIn<kMostDepth>(k, c)]);
            };
            for (uint32_t k = extent.k; k < kMostDepth; ++k) {
                for (uint32_t r = thread_; r < extent.m; r += threads()) need(atA(r, k) == 0);
                for (uint32_t c = thread_; c < extent.n; c += threads()) need(atB(k, c) == 0);
            }
            for (uint32_t r = thread_; r < extent.m; r += threads())
                for (uint32_t k = 0; k < extent.k; ++k) {
                    const float x = atA(r, k);
                    float* line = sums.at.data() + r * kN;
                    for (uint32_t c = 0; c < extent.n; ++c) line[c] += x * atB(k, c);
                }
        };
    }
    template <uint32_t kM, uint32_t kN>
    void added(Sums<kM, kN>&) {
        std::exchange(adding_, nullptr)();
    }
    template <uint32_t kM, uint32_t kN>
    void store(const Sums<kM, kN>& sums, float* c, uint32_t ldc) {
        need(aligned(c, 32) && ldc % 4 == 0);
        for (uint32_t r = thread_; r < kM; r += threads())
            std::copy_n(sums.at.data() + r * kN, kN, c + r * ldc);
    }

    /// A line is held by one thread, its slot is its number.
    template <uint32_t kN>
    struct Lines {
        std::array<float, size_t{kLines} * kN> at;
    };
    template <uint32_t kK>
    struct Operand {
        std::array<Bf16, size_t{kLines} * kK> at;
    };
    struct OfLines {
        std::array<float, kLines> at;
    };
    uint32_t lineBegin() const { return 0; }
    uint32_t lineEnd() const { return kLines; }
    uint32_t lineOf(uint32_t slot) const { return slot; }
    template <class F>
    void eachSlot(F&& f) const {
        for (uint32_t r = thread_; r < kLines; r += threads()) f(r);
    }
    template <uint32_t kN>
    void clear(Lines<kN>& lines) {
        lines.at.fill(0);
    }
    template <uint32_t kN, class F>
    void eachPair(Lines<kN>& lines, F&& f) const {
        eachSlot([&](uint32_t r) {
            float* line = lines.at.data() + r * kN;
            for (uint32_t c = 0; c < kN; c += 2) f(r, c, line[c], line[c + 1]);
        });
    }
    template <uint32_t kN, class F>
    void eachBoth(Lines<kN>& lines, const Lines<kN>& others, F&& f) const {
        eachSlot([&](uint32_t r) {
            for (uint32_t c = 0; c < kN; ++c) f(r, c, lines.at[r * kN + c], others.at[r * kN + c]);
        });
    }
    template <class Two>
    void overLines(OfLines&, Two&&) const {}
    template <uint32_t kK>
    void take(Operand<kK>& operand, const Bf16* a, uint32_t lda) {
        need(aligned(a, 32) && lda % 8 == 0);
        eachSlot([&](uint32_t r) { std::copy_n(a + r * lda, kK, operand.at.data() + r * kK); });
    }
    template <uint32_t kN>
    void round(Operand<kN>& operand, const Lines<kN>& lines) const {
        eachSlot([&](uint32_t r) {
            for (uint32_t c = 0; c < kN; ++c) operand.at[r * kN + c] = narrow(lines.at[r * kN + c]);
        });
    }
    template <bool kTurnB, uint32_t kN, uint32_t kK>
    void add(Lines<kN>& lines, const Operand<kK>& operand, const Bf16* b, uint32_t ldb) {
        add<kTurnB, kK>(lines, operand.at.data(), kK, b, ldb);
    }
    template <bool kTurnB, uint32_t kK, uint32_t kN>
    void add(Lines<kN>& lines, const Bf16* a, uint32_t lda, const Bf16* b, uint32_t ldb) {
        static_assert(kN % 16 == 0 && kK % 16 == 0);
        need(aligned(b, 32) && ldb % 8 == 0);
        // Most of a small head, and of lines behind its rows, is zero.
        eachSlot([&](uint32_t r) {
            float* line = lines.at.data() + r * kN;
            for (uint32_t k = 0; k < kK; ++k) {
                const float x = widen(a[r * lda + k]);
                if (x == 0) continue;
                for (uint32_t c = 0; c < kN; ++c)
                    line[c] += x * widen(b[kTurnB ? c * ldb + k : k * ldb + c]);
            }
        });
    }
    template <uint32_t kN>
    void store(const Lines<kN>& lines, float* c, uint32_t ldc) {
        need(aligned(c, 32) && ldc % 4 == 0);
        eachSlot([&](uint32_t r) { std::copy_n(lines.at.data() + r * kN, kN, c + r * ldc); });
    }

    template <class T>
    T sum(T mine) {
        return overAll(mine, [](T a, T b) { return a + b; });
    }
    float most(float mine) {
        return overAll(mine, [](float a, float b) { return a < b ? b : a; });
    }

  private:
    template <class T, class Two>
    T overAll(T mine, Two&& two) {
        shared_.values[thread_] = static_cast<double>(mine);
        sync();
        T all = static_cast<T>(shared_.values[0]);
        for (size_t t = 1; t < shared_.values.size(); ++t)
            all = two(all, static_cast<T>(shared_.values[t]));
        sync();
        return all;
    }

    /// Aborts unless a kernel body keeps the rules of kernel.h.
    static void need(bool kept) {
        if (!kept) std::abort();
    }
    static bool aligned(const void* at, size_t bytes) {
        return reinterpret_cast<uintptr_t>(at) % bytes == 0;
    }

    struct Fetch {
        Bf16* to;
        const Bf16* from;
    };

    Shared& shared_;
    const uint32_t thread_, block_, blocks_;
    std::vector<Fetch> fetches_;
    std::vector<size_t> batches_;  ///< where each ends
    size_t fetched_ = 0;
    std::function<void()> adding_;  ///< the work that add() deferred
};

template <class Body>
void runBlocks(const Body& body, uint32_t blocks, uint32_t threads) {
    Shared shared(threads, llama_moe::gpu::SharedOf<Body>::bytes);
    const auto one = [&](uint32_t thread) {
        for (uint32_t b = 0; b < blocks; ++b) {
            Block block(shared, thread, b, blocks);
            body.run(block);
        }
    };
    std::vector<std::jthread> others;
    for (uint32_t t = 1; t < threads; ++t) others.emplace_back(one, t);
    one(0);
}

}  // namespace bulkhead::test
