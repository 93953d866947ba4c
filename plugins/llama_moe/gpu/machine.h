// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "bulkhead/device.h"
#include "plugins/llama_moe/gpu/kernels.h"

/// Runner of kernels and matrix products, as a table of plain C functions, so that it may be a
/// shared object of its own (on a GPU it is: only that one needs CUDA and cuBLAS) or threads of a
/// test. Host and machine must be of one build.
namespace bulkhead::llama_moe::gpu {

/// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, row-major. A and B are bfloat16, C is
/// float32 if wide, else bfloat16; sums are in float32.
struct MatrixProduct {
    uint32_t turnA, turnB, wide;
    uint64_t m, n, k;
    const Bf16* a;
    uint64_t lda;
    const Bf16* b;
    uint64_t ldb;
    void* c;
    uint64_t ldc;
    float alpha, beta;
};

struct Machine;  // created by `open`

struct MachineApi {
    uint32_t build;  ///< kMachineBuild of what it was built with

    /// `workspace` is `bytes` of device memory for the products, aligned to 256 bytes; it and
    /// `host` outlive the machine. Whatever memory is named later is on the same device. Errors are
    /// told to the host.
    bulkhead_status (*open)(const bulkhead_host* host, void* workspace, size_t bytes,
                            Machine** out);
    void (*close)(Machine* machine);

    /// Both put work on the device's default stream and keep the first error. `body` is a struct of
    /// the kernel's name, copied before the call returns; `blocks` is at least 1.
    void (*launch)(Machine* machine, Kernel kernel, const void* body, uint32_t blocks);
    void (*product)(Machine* machine, const MatrixProduct* product);
    /// The first error since the last call, after the stream was waited for; told to the host.
    bulkhead_status (*check)(Machine* machine);
    /// Products that follow leave so many multiprocessors free; 0: none. Keeps the first error.
    void (*spare)(Machine* machine, uint32_t processors);
};

/// Changes with what passes between the two.
constexpr uint32_t kMachineBuild = 4;
/// A module's one symbol, and its type.
#define BULKHEAD_LLAMA_MOE_GET_MACHINE "bulkhead_llama_moe_get_machine"
using GetMachine = const MachineApi* (*)();

}  // namespace bulkhead::llama_moe::gpu
