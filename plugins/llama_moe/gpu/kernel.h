// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

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
///
/// For products of tiles it has memory of its own, shared(): the body's kShared bytes, aligned to
/// 128, in which anything may stand at first; and sync(), a barrier that orders this and all other
/// memory among the block's threads. Block::Sums<M, N> are float32 sums of a tile, M a multiple of
/// 64 and N of 32, each thread's share of them in its registers:
///   clear(sums);
///   add<turnA, turnB>(sums, a, lda, b, ldb, extent)  sums += op(A)[M, k] op(B)[k, N]
///   store(sums, c, ldc)                              c[M, N] = sums
/// A, B and c are in shared(), A and B in bfloat16, row-major. A tile begins at a multiple of 32
/// bytes; lda and ldb are multiples of 8, ldc of 4. An extent says how much counts: the rest of M
/// and N may become anything that finite operands give, and up to the next multiple of 16 behind k
/// both operands are zero. A GPU takes its tensor cores for it, a CPU loops. None is a barrier.
///
/// fetch(to, from) copies 16 bytes into shared(), both addresses multiples of 16, while the thread
/// goes on. What it fetched up to sent() is a batch; await<N>() waits for all of the thread's
/// batches but the last N, and other threads see them behind the next sync().
#ifdef __CUDACC__
#define BULKHEAD_BODY __device__
#else
#define BULKHEAD_BODY
#endif

namespace bulkhead::llama_moe::gpu {

/// The part of a product of tiles that counts.
struct Extent {
    uint32_t m, n, k;
};

/// Bytes of shared() that a body asks for.
template <class Body, class = void>
struct SharedOf {
    static constexpr uint32_t bytes = 0;
};
template <class Body>
struct SharedOf<Body, std::void_t<decltype(Body::kShared)>> {
    static constexpr uint32_t bytes = Body::kShared;
};

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
