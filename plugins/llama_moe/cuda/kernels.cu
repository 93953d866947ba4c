// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include "plugins/llama_moe/gpu/grid.h"

namespace bulkhead::llama_moe::gpu {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kBlockThreads / kWarp;

constexpr unsigned kWarpsDown = 4, kWarpsAcross = 2;  ///< how they share a tile's sums
static_assert(kWarpsDown * kWarpsAcross == kWarps);
constexpr unsigned kSide = 16;  ///< of the squares in which operands are loaded
static_assert(kWarps * kSide == kLines);

extern __shared__ __align__(128) char memoryOfBlock[];

/// A thread's part of a square of an operand, as mma.m16n8k16 takes it (PTX ISA, "Matrix Fragments
/// for mma.m16n8k16"): as the first operand [m, k], or as two second ones [k, n], n from 0 and 8.
struct Square {
    unsigned part[4];
};

/// The quarters of the square at `from` in the order of the parts. kAcross: the second quarter is
/// the one beside the first, else the one below; kTurned: each is turned.
template <bool kAcross, bool kTurned>
__device__ Square loadSquare(const Bf16* from, unsigned stride) {
    const unsigned lane = threadIdx.x % kWarp, near = lane / 8 % 2 * 8, far = lane / 16 * 8;
    const Bf16* line = from + (lane % 8 + (kAcross ? far : near)) * stride + (kAcross ? near : far);
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(line));
    Square s;
    if constexpr (kTurned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(s.part[0]), "=r"(s.part[1]), "=r"(s.part[2]), "=r"(s.part[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(s.part[0]), "=r"(s.part[1]), "=r"(s.part[2]), "=r"(s.part[3])
                     : "r"(at)
                     : "memory");
    return s;
}
/// op(A)[m, k] at rows `m` and columns `k`.
template <bool kTurned>
__device__ Square loadA(const Bf16* a, unsigned stride, unsigned m, unsigned k) {
    return kTurned ? loadSquare<true, true>(a + k * stride + m, stride)
                   : loadSquare<false, false>(a + m * stride + k, stride);
}
/// op(B)[k, n] likewise.
template <bool kTurned>
__device__ Square loadB(const Bf16* b, unsigned stride, unsigned k, unsigned n) {
    return kTurned ? loadSquare<true, false>(b + n * stride + k, stride)
                   : loadSquare<false, true>(b + k * stride + n, stride);
}

/// sums[16, 8] += a[16, 16] b[16, 8], b the half of a square.
__device__ inline void multiply(float (&sums)[4], const Square& a, unsigned low, unsigned high) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(low), "r"(high));
}
/// Two of them, side by side.
__device__ inline void multiply(float (&left)[4], float (&right)[4], const Square& a,
                                const Square& b) {
    multiply(left, a, b.part[0], b.part[1]);
    multiply(right, a, b.part[2], b.part[3]);
}
/// The first of the rows of such sums that a thread holds, the other is 8 below, and of the two
/// columns.
__device__ inline unsigned rowOfSums() {
    return threadIdx.x % kWarp / 4;
}
__device__ inline unsigned columnOfSums() {
    return threadIdx.x % 4 * 2;
}
__device__ inline void storeSums(const float (&sums)[4], float* c, unsigned ldc) {
    float* at = c + rowOfSums() * ldc + columnOfSums();
    *reinterpret_cast<float2*>(at) = make_float2(sums[0], sums[1]);
    *reinterpret_cast<float2*>(at + 8 * ldc) = make_float2(sums[2], sums[3]);
}
__device__ inline unsigned rounded(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const unsigned*>(&pair);
}

/// The block that a body runs on.
struct GpuBlock {
    __device__ uint32_t block() const { return blockIdx.x; }
    __device__ uint32_t blocks() const { return gridDim.x; }
    __device__ uint32_t thread() const { return threadIdx.x; }
    static constexpr uint32_t kLeastThreads = kBlockThreads;
    __device__ static constexpr uint32_t threads() { return kBlockThreads; }

    __device__ void sync() const { __syncthreads(); }
    __device__ char* shared() const { return memoryOfBlock; }
    __device__ void fetch(Bf16* to, const Bf16* from) const {
        __pipeline_memcpy_async(to, from, 8 * sizeof(Bf16));
    }
    __device__ void sent() const { __pipeline_commit(); }
    template <unsigned kBatches>
    __device__ void await() const {
        __pipeline_wait_prior(kBatches);
    }

    /// A warp's part of a tile's sums.
    template <unsigned kM, unsigned kN>
    struct Sums {
        static constexpr unsigned kDown = kM / kSide / kWarpsDown;
        static constexpr unsigned kAcross = kN / kSide / kWarpsAcross;
        static_assert(kDown * kSide * kWarpsDown == kM && kAcross * kSide * kWarpsAcross == kN);
        float at[kDown][2 * kAcross][4];

        __device__ static unsigned row() {
            return threadIdx.x / kWarp / kWarpsAcross * kDown * kSide;
        }
        __device__ static unsigned column() {
            return threadIdx.x / kWarp % kWarpsAcross * kAcross * kSide;
        }
    };
    template <unsigned kM, unsigned kN>
    __device__ void clear(Sums<kM, kN>& sums) const {
        BULKHEAD_UNROLL
        for (auto& line : sums.at) clearAll(line);
    }
    template <bool kTurnA, bool kTurnB, unsigned kM, unsigned kN>
    __device__ void add(Sums<kM, kN>& sums, const Bf16* a, unsigned lda, const Bf16* b,
                        unsigned ldb, Extent extent) const {
        using S = Sums<kM, kN>;
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kMostDepth; k += kSide) {
            if (k >= extent.k) break;
            Square x[S::kDown];
            BULKHEAD_UNROLL
            for (unsigned i = 0; i < S::kDown; ++i)
                x[i] = loadA<kTurnA>(a, lda, S::row() + i * kSide, k);
            BULKHEAD_UNROLL
            for (unsigned j = 0; j < S::kAcross; ++j) {
                const Square y = loadB<kTurnB>(b, ldb, k, S::column() + j * kSide);
                BULKHEAD_UNROLL
                for (unsigned i = 0; i < S::kDown; ++i)
                    multiply(sums.at[i][2 * j], sums.at[i][2 * j + 1], x[i], y);
            }
        }
    }
    template <unsigned kM, unsigned kN>
    __device__ void store(const Sums<kM, kN>& sums, float* c, unsigned ldc) const {
        using S = Sums<kM, kN>;
        BULKHEAD_UNROLL
        for (unsigned i = 0; i < S::kDown; ++i) {
            BULKHEAD_UNROLL
            for (unsigned j = 0; j < 2 * S::kAcross; ++j)
                storeSums(sums.at[i][j], c + (S::row() + i * kSide) * ldc + S::column() + 8 * j,
                          ldc);
        }
    }

    /// A warp holds kSide lines, four threads each.
    template <unsigned kN>
    struct Lines {
        float at[kN / 8][4];
    };
    template <unsigned kK>
    struct Operand {
        Square at[kK / kSide];
    };
    struct OfLines {
        float at[2];
    };
    __device__ uint32_t lineBegin() const { return threadIdx.x / kWarp * kSide; }
    __device__ uint32_t lineEnd() const { return lineBegin() + kSide; }
    __device__ uint32_t lineOf(uint32_t slot) const { return lineBegin() + rowOfSums() + 8 * slot; }
    template <class F>
    __device__ void eachSlot(F f) const {
        f(0);
        f(1);
    }
    template <unsigned kN>
    __device__ void clear(Lines<kN>& lines) const {
        clearAll(lines.at);
    }
    template <unsigned kN, class F>
    __device__ void eachPair(Lines<kN>& lines, F f) const {
        BULKHEAD_UNROLL
        for (unsigned j = 0; j < kN / 8; ++j) {
            f(0, 8 * j + columnOfSums(), lines.at[j][0], lines.at[j][1]);
            f(1, 8 * j + columnOfSums(), lines.at[j][2], lines.at[j][3]);
        }
    }
    template <unsigned kN, class F>
    __device__ void eachBoth(Lines<kN>& lines, const Lines<kN>& others, F f) const {
        BULKHEAD_UNROLL
        for (unsigned j = 0; j < kN / 8; ++j) {
            BULKHEAD_UNROLL
            for (unsigned i = 0; i < 4; ++i)
                f(i / 2, 8 * j + columnOfSums() + i % 2, lines.at[j][i], others.at[j][i]);
        }
    }
    template <class Two>
    __device__ void overLines(OfLines& numbers, Two two) const {
        BULKHEAD_UNROLL
        for (float& number : numbers.at) {
            number = two(number, __shfl_xor_sync(~0u, number, 1));
            number = two(number, __shfl_xor_sync(~0u, number, 2));
        }
    }
    template <unsigned kK>
    __device__ void take(Operand<kK>& operand, const Bf16* a, unsigned lda) const {
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kK; k += kSide)
            operand.at[k / kSide] = loadA<false>(a, lda, lineBegin(), k);
    }
    template <unsigned kN>
    __device__ void round(Operand<kN>& operand, const Lines<kN>& lines) const {
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kN / kSide; ++k) {
            const auto &left = lines.at[2 * k], &right = lines.at[2 * k + 1];
            operand.at[k] = {{rounded(left[0], left[1]), rounded(left[2], left[3]),
                              rounded(right[0], right[1]), rounded(right[2], right[3])}};
        }
    }
    template <bool kTurnB, unsigned kN, unsigned kK>
    __device__ void add(Lines<kN>& lines, const Operand<kK>& operand, const Bf16* b,
                        unsigned ldb) const {
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kK; k += kSide)
            addSquare<kTurnB>(lines, operand.at[k / kSide], b, ldb, k);
    }
    template <bool kTurnB, unsigned kK, unsigned kN>
    __device__ void add(Lines<kN>& lines, const Bf16* a, unsigned lda, const Bf16* b,
                        unsigned ldb) const {
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kK; k += kSide)
            addSquare<kTurnB>(lines, loadA<false>(a, lda, lineBegin(), k), b, ldb, k);
    }
    template <unsigned kN>
    __device__ void store(const Lines<kN>& lines, float* c, unsigned ldc) const {
        BULKHEAD_UNROLL
        for (unsigned j = 0; j < kN / 8; ++j)
            storeSums(lines.at[j], c + lineBegin() * ldc + 8 * j, ldc);
    }

    template <class T>
    __device__ T sum(T mine) const {
        return overAll(mine, [](T a, T b) { return a + b; });
    }
    __device__ float most(float mine) const {
        return overAll(mine, [](float a, float b) { return a < b ? b : a; });
    }

  private:
    template <unsigned kCount>
    __device__ static void clearAll(float (&sums)[kCount][4]) {
        BULKHEAD_UNROLL
        for (auto& four : sums) {
            BULKHEAD_UNROLL
            for (float& sum : four) sum = 0;
        }
    }
    template <bool kTurnB, unsigned kN>
    __device__ static void addSquare(Lines<kN>& lines, const Square& a, const Bf16* b, unsigned ldb,
                                     unsigned k) {
        BULKHEAD_UNROLL
        for (unsigned j = 0; j < kN / 8; j += 2)
            multiply(lines.at[j], lines.at[j + 1], a, loadB<kTurnB>(b, ldb, k, 8 * j));
    }
    template <class T, class Two>
    __device__ static T overAll(T mine, Two two) {
        __shared__ T ofWarps[kWarps];
        for (unsigned apart = kWarp / 2; apart > 0; apart /= 2)
            mine = two(mine, __shfl_down_sync(~0u, mine, apart));
        if (threadIdx.x % kWarp == 0) ofWarps[threadIdx.x / kWarp] = mine;
        __syncthreads();
        T all = ofWarps[0];
        for (unsigned warp = 1; warp < kWarps; ++warp) all = two(all, ofWarps[warp]);
        __syncthreads();  // or the next call would overwrite what a slow thread still reads
        return all;
    }
};

/// Blocks that a multiprocessor holds at once, as far as they have memory of their own; 0: it does
/// not matter.
template <class Body, class = void>
constexpr unsigned kAtOnce = SharedOf<Body>::bytes == 0 ? 0 : 2;
template <class Body>
constexpr unsigned kAtOnce<Body, std::void_t<decltype(Body::kBlocksAtOnce)>> = Body::kBlocksAtOnce;

template <class Body>
__global__ void __launch_bounds__(kBlockThreads, kAtOnce<Body>)
    runOnGpu(const __grid_constant__ Body body) {
    GpuBlock block;
    body.run(block);
}

}  // namespace

cudaError_t loadKernels() {
    cudaFuncAttributes ignored;
    cudaError_t code = cudaSuccess;
    // More than 48 KiB of a block's own memory must be asked for.
#define BULKHEAD_LOAD(K)                                                                      \
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, runOnGpu<K>);             \
    if (code == cudaSuccess && SharedOf<K>::bytes > 0)                                        \
        code = cudaFuncSetAttribute(runOnGpu<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                    SharedOf<K>::bytes);
    BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_LOAD)
#undef BULKHEAD_LOAD
    return code;
}

cudaError_t launchKernel(Kernel kernel, const void* body, uint32_t blocks) {
    // The launch's own error: the last error of this thread may be that of a call before.
    void* arguments[] = {const_cast<void*>(body)};
    switch (kernel) {
#define BULKHEAD_LAUNCH(K)                                                                 \
    case Kernel::k##K:                                                                     \
        return cudaLaunchKernel(runOnGpu<K>, dim3(blocks), dim3(kBlockThreads), arguments, \
                                SharedOf<K>::bytes, 0);
        BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_LAUNCH)
#undef BULKHEAD_LAUNCH
    }
    return cudaErrorInvalidDeviceFunction;
}

const char* nameOf(Kernel kernel) {
    switch (kernel) {
#define BULKHEAD_SAY(K) \
    case Kernel::k##K:  \
        return #K;
        BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_SAY)
#undef BULKHEAD_SAY
    }
    return "?";
}

}  // namespace bulkhead::llama_moe::gpu
