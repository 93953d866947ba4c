// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/loop_machine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "plugins/llama_moe/blas.h"
#include "tests/plugins/fenced_device.h"
#include "tests/support/barrier.h"

namespace bulkhead::llama_moe::gpu {

struct Machine {
    test::FencedDevice* device = nullptr;
    uint32_t threads = 1;

    void put(std::function<void()> work) const {
        if (device != nullptr)
            device->put(std::move(work));
        else
            work();
    }
};

}  // namespace bulkhead::llama_moe::gpu

namespace bulkhead::test {
namespace {

using namespace llama_moe::gpu;
using llama_moe::Turn;

/// What the threads of one block share.
struct Shared {
    /// Memory of a block holds not-a-numbers at first, so that nobody counts on zeros.
    Shared(uint32_t threads, uint32_t bytes)
        : barrier(threads), values(threads), memory(bytes / kLine + 1) {
        std::memset(static_cast<void*>(memory.data()), 0xff, memory.size() * kLine);
    }
    static constexpr size_t kLine = 128;
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
    uint32_t block() const { return block_; }
    uint32_t blocks() const { return blocks_; }
    uint32_t thread() const { return thread_; }
    uint32_t threads() const { return static_cast<uint32_t>(shared_.values.size()); }
    void sync() {
        if (shared_.values.size() > 1) shared_.barrier.meet();
    }
    char* shared() { return shared_.memory.front().bytes; }

    /// As late as they may: when somebody waits.
    void fetch(Bf16* to, const Bf16* from) { fetches_.push_back({to, from}); }
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
    template <bool kTurnA, bool kTurnB, uint32_t kM, uint32_t kN>
    void add(Sums<kM, kN>& sums, const Bf16* a, uint32_t lda, const Bf16* b, uint32_t ldb,
             Extent extent) {
        for (uint32_t r = thread_; r < extent.m; r += threads())
            for (uint32_t k = 0; k < extent.k; ++k) {
                const float x = widen(a[kTurnA ? k * lda + r : r * lda + k]);
                float* line = sums.at.data() + r * kN;
                for (uint32_t c = 0; c < extent.n; ++c)
                    line[c] += x * widen(b[kTurnB ? c * ldb + k : k * ldb + c]);
            }
    }
    template <uint32_t kM, uint32_t kN>
    void store(const Sums<kM, kN>& sums, float* c, uint32_t ldc) {
        for (uint32_t r = thread_; r < kM; r += threads())
            std::copy_n(sums.at.data() + r * kN, kN, c + r * ldc);
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

    struct Fetch {
        Bf16* to;
        const Bf16* from;
    };

    Shared& shared_;
    const uint32_t thread_, block_, blocks_;
    std::vector<Fetch> fetches_;
    std::vector<size_t> batches_;  ///< where each ends
    size_t fetched_ = 0;
};

template <class Body>
void runAll(const Body& body, uint32_t blocks, uint32_t threads) {
    Shared shared(threads, SharedOf<Body>::bytes);
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

bulkhead_status open(void* workspace, uint32_t threads, Machine** out) {
    *out = new Machine{FencedDevice::of(workspace), threads};
    return BULKHEAD_OK;
}

void close(Machine* machine) {
    delete machine;
}

void launch(Machine* machine, Kernel kernel, const void* body, uint32_t blocks) {
    switch (kernel) {
#define BULKHEAD_CASE(K)                                                      \
    case Kernel::k##K:                                                        \
        machine->put([kept = *static_cast<const K*>(body), blocks, machine] { \
            runAll(kept, blocks, machine->threads);                           \
        });                                                                   \
        return;
        BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_CASE)
#undef BULKHEAD_CASE
    }
    std::abort();
}

/// Rows of a matrix, widened, one behind the other.
std::vector<float> widened(const Bf16* from, size_t rows, size_t columns, size_t stride) {
    std::vector<float> to(rows * columns);
    for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) to[r * columns + c] = widen(from[r * stride + c]);
    return to;
}

void multiply(const MatrixProduct& p) {
    const size_t rowsA = p.turnA ? p.k : p.m, columnsA = p.turnA ? p.m : p.k;
    const size_t rowsB = p.turnB ? p.n : p.k, columnsB = p.turnB ? p.k : p.n;
    const auto a = widened(p.a, rowsA, columnsA, p.lda);
    const auto b = widened(p.b, rowsB, columnsB, p.ldb);
    const auto turn = [](uint32_t yes) { return yes ? Turn::kYes : Turn::kNo; };
    const auto into = [&](float beta, float* c, size_t ldc) {
        llama_moe::gemm(turn(p.turnA), turn(p.turnB), p.m, p.n, p.k, p.alpha, a.data(), columnsA,
                        b.data(), columnsB, beta, c, ldc);
    };
    if (p.wide) return into(p.beta, static_cast<float*>(p.c), p.ldc);
    Bf16* c = static_cast<Bf16*>(p.c);
    std::vector<float> sums(p.m * p.n);
    if (p.beta != 0) sums = widened(c, p.m, p.n, p.ldc);
    into(p.beta, sums.data(), p.n);
    for (size_t r = 0; r < p.m; ++r)
        for (size_t i = 0; i < p.n; ++i) c[r * p.ldc + i] = narrow(sums[r * p.n + i]);
}

void product(Machine* machine, const MatrixProduct* product) {
    machine->put([p = *product] { multiply(p); });
}

bulkhead_status check(Machine*) {
    return BULKHEAD_OK;
}

void spare(Machine*, uint32_t) {}

constexpr MachineApi kLoops{kMachineBuild,
                            [](const bulkhead_host*, void* workspace, size_t, Machine** out) {
                                return open(workspace, 1, out);
                            },
                            close,
                            launch,
                            product,
                            check,
                            spare};
constexpr MachineApi kThreads{kMachineBuild,
                              [](const bulkhead_host*, void* workspace, size_t, Machine** out) {
                                  return open(workspace, 3, out);
                              },
                              close,
                              launch,
                              product,
                              check,
                              spare};

}  // namespace

const MachineApi* loopMachine() {
    return &kLoops;
}

const MachineApi* threadMachine() {
    return &kThreads;
}

}  // namespace bulkhead::test
