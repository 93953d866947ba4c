// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "plugins/common/bfloat16.h"

/// Rules for kernels: each is a struct of its arguments with a body, run(block), that nvcc compiles
/// into a kernel and a C++ compiler into the code of a test's threads. C++17, and nothing but
/// arithmetic.
///
/// A Block has block(), blocks(), thread(), threads() (uint32_t; kLeastThreads at least), and
/// sum(x), for float and double, and most(x), for float, over the block's threads, in an order that
/// depends on nothing but their number. These two are barriers that order memory among the block's
/// threads, and what one of them is reached by is reached by all. Results depend on the number of
/// threads and blocks, never on when they run.
///
/// For products of tiles it has memory of its own, shared(): the body's kShared bytes, aligned to
/// 1024, in which anything may stand at first; and sync(), a barrier that orders this and all other
/// memory among the block's threads. Block::Sums<M, N> are float32 sums of a tile, M 128 and N 256,
/// each thread's share of them in its registers:
///   clear(sums);
///   add<turnA, turnB>(sums, a, b, extent)            sums += op(A)[M, k] op(B)[k, N]
///   added(sums)                                      waits for it
///   store(sums, c, ldc)                              c[M, N] = sums
/// A and B are in bfloat16 in shared(), at multiples of 1024 bytes, [M][kMostDepth] and
/// [kMostDepth][N], or the other way round where they are turned; placeIn<rows>(row, column) says
/// where in them an element lies. They are there when the threads that wrote or fetched them have
/// called written() and then sync(), and are read until added(). An extent says how much counts,
/// kMostDepth of k at most: the rest of M and N may become anything that finite operands give, and
/// behind k both operands are zero. c is in shared(), row-major, at a
/// multiple of 32 bytes, ldc a multiple of 4. A GPU takes its tensor cores for it, a CPU loops.
/// None is a barrier.
///
/// Block::Lines<N> are float32 sums [kLines][N], N a multiple of 16, and Block::Operand<K> a factor
/// [kLines][K] in bfloat16, K a multiple of 16. A line is held by a few threads, which hold the
/// same lines of all of these, lineBegin() to lineEnd() at most; `slot` counts the lines of a
/// thread, and Block::OfLines a number for each, at[slot]:
///   clear(lines);
///   eachSlot(f)                                      f(slot) for the thread's lines
///   lineOf(slot)                                     which one it is
///   eachPair(lines, f)   f(slot, column, x, y) for its elements `column`, which is even, and
///                        column + 1
///   eachBoth(lines, others, f)                       f(slot, column, x, y) for one of each
///   overLines(numbers, two)   makes the numbers of the threads that hold a line one, by two(a, b)
///   take(operand, a, lda)                            operand = A[kLines, K]
///   round(operand, lines)                            operand = lines
///   add<turnB>(lines, operand, b, ldb)               lines += operand op(B)[K, N]
///   add<turnB, K>(lines, a, lda, b, ldb)             lines += A[kLines, K] op(B)[K, N]
///   store(lines, c, ldc)                             c[kLines, N] = lines
/// A and B are in bfloat16 in shared(), row-major, at multiples of 32 bytes, lda and ldb multiples
/// of 8, and c is as above. All threads of a line reach overLines and add together.
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

/// Lines that a block holds at a time.
constexpr uint32_t kLines = 128;
/// Largest summed dimension in one product of tiles.
constexpr uint32_t kMostDepth = 64;

/// An element of an operand [kRows][...] of Sums lies at this place in it: panels of 64 columns
/// stand behind each other, and in each row of one its eights are interchanged by the row's number.
/// So Hopper's tensor cores read them (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory
/// Layout", 128 bytes swizzled), and eight rows of one column lie in different banks.
constexpr uint32_t kPanel = 64;
template <uint32_t kRows>
BULKHEAD_BOTH constexpr uint32_t placeIn(uint32_t row, uint32_t column) {
    const uint32_t eight = column % kPanel / 8 ^ row % 8;
    return (column / kPanel * kRows + row) * kPanel + eight * 8 + column % 8;
}

/// Neighbours that a thread takes at once; they begin at a multiple of their size.
template <class T, uint32_t kCount>
struct alignas(kCount * sizeof(T)) Several {
    T at[kCount];
};
template <uint32_t kCount, class T>
BULKHEAD_BODY Several<T, kCount> load(const T* from) {
    return *reinterpret_cast<const Several<T, kCount>*>(from);
}
template <uint32_t kCount, class T>
BULKHEAD_BODY void store(T* to, const Several<T, kCount>& values) {
    *reinterpret_cast<Several<T, kCount>*>(to) = values;
}

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

/// 2^x; what is too small for a float32 of full precision is zero on a GPU.
BULKHEAD_BODY inline float powerOfTwo(float x) {
#ifdef __CUDA_ARCH__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return exp2f(x);
#endif
}

BULKHEAD_BODY inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

}  // namespace bulkhead::llama_moe::gpu
