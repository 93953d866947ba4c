// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "plugins/common/bfloat16.h"

/// How kernels are written: each is a struct of its arguments with a body, run(block), that nvcc
/// compiles into a kernel and a C++ compiler into what the threads of a test do. C++17, and nothing
/// but arithmetic.
///
/// A Block has block(), blocks(), thread(), threads() (uint32_t), and sum(x), for float and double,
/// and most(x), for float, over the block's threads, in an order that depends on nothing but their
/// number. These two are barriers that order memory among the block's threads, and what one of them
/// is reached by is reached by all. Results depend on the number of threads and blocks, never on
/// when they run.
#ifdef __CUDACC__
#define BULKHEAD_BODY __device__
#else
#define BULKHEAD_BODY
#endif

namespace bulkhead::llama_moe::gpu {

/// Every operation rounded on its own, where replicas compare bits.
struct Exact {
    static BULKHEAD_BODY float times(float a, float b) {
#ifdef __CUDA_ARCH__
        return __fmul_rn(a, b);
#else
        return a * b;
#endif
    }
    static BULKHEAD_BODY float plus(float a, float b) {
#ifdef __CUDA_ARCH__
        return __fadd_rn(a, b);
#else
        return a + b;
#endif
    }
    static BULKHEAD_BODY float over(float a, float b) {
#ifdef __CUDA_ARCH__
        return __fdiv_rn(a, b);
#else
        return a / b;
#endif
    }
    static BULKHEAD_BODY float root(float a) {
#ifdef __CUDA_ARCH__
        return __fsqrt_rn(a);
#else
        return sqrtf(a);
#endif
    }
};

BULKHEAD_BODY inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

}  // namespace bulkhead::llama_moe::gpu
