// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/loop_machine.h"

#include <functional>
#include <vector>

#include "plugins/llama_moe/blas.h"
#include "tests/plugins/fenced_device.h"
#include "tests/plugins/loop_block.h"

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
            runBlocks(kept, blocks, machine->threads);                        \
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
