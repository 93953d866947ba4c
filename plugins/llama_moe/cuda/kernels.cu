// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include "plugins/llama_moe/gpu/grid.h"

namespace bulkhead::llama_moe::gpu {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kBlockThreads / kWarp;

constexpr unsigned kSide = 16;  ///< of the squares in which operands are loaded
static_assert(kWarps * kSide == kLines);

extern __shared__ __align__(1024) char memoryOfBlock[];

/// A thread's part of a square of an operand, as mma.m16n8k16 takes it (PTX ISA, "Matrix Fragments
/// for mma.m16n8k16"): as the first operand [m, k], or as two second ones [k, n], n from 0 and 8.
struct Square {
    unsigned part[4];
};

/// The quarters of a square in the order of the parts; `place(row, column)` is where its element
/// lies. kAcross: the second quarter is the one beside the first, else the one below; kTurned: each
/// is turned.
template <bool kAcross, bool kTurned, class Place>
__device__ Square loadSquare(Place place) {
    const unsigned lane = threadIdx.x % kWarp, near = lane / 8 % 2 * 8, far = lane / 16 * 8;
    const Bf16* line = place(lane % 8 + (kAcross ? far : near), kAcross ? near : far);
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
/// op(A)[m, k] and op(B)[k, n] from such rows and columns on; an operand's `place(row, column)` is
/// that of the matrix as it lies.
template <bool kTurned, class Place>
__device__ Square loadA(Place place, unsigned m, unsigned k) {
    return loadSquare<kTurned, kTurned>([&](unsigned row, unsigned column) {
        return place((kTurned ? k : m) + row, (kTurned ? m : k) + column);
    });
}
template <bool kTurned, class Place>
__device__ Square loadB(Place place, unsigned k, unsigned n) {
    return loadSquare<kTurned, !kTurned>([&](unsigned row, unsigned column) {
        return place((kTurned ? n : k) + row, (kTurned ? k : n) + column);
    });
}
/// The place in a matrix whose rows are so far apart.
__device__ inline auto inRows(const Bf16* first, unsigned stride) {
    return [=](unsigned row, unsigned column) { return first + row * stride + column; };
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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Hopper's tensor cores read memory past what orders the threads' own accesses.
__device__ inline void showTensorCores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// A warp's part of a tile's sums: four warps take 64 rows together, all columns of them, by
/// Hopper's own products (PTX ISA, "wgmma.mma_async").
template <unsigned kM, unsigned kN>
struct TileSums {
    static constexpr unsigned kDown = 1, kAcross = kN / 8;
    static_assert(kM == kSide * kWarps && kN == 256);
    float at[kDown][kAcross][4];

    __device__ static unsigned row() { return threadIdx.x / kWarp * kSide; }
    __device__ static unsigned column() { return 0; }

    template <bool kTurnA, bool kTurnB>
    __device__ void add(const Bf16* a, const Bf16* b) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        // A group's rows have a panel of their own if A stands, else they lie behind each other.
        const unsigned group = threadIdx.x / (4 * kWarp);
        const uint64_t fromA = operand(a + group * 64 * kPanel, kMostDepth);
        const uint64_t fromB = operand(b, kTurnB ? kN : kMostDepth);
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kMostDepth; k += kSide)
            multiply<kTurnA, kTurnB>(fromA + stepTo(k, kTurnA), fromB + stepTo(k, !kTurnB));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    __device__ static void added() {
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }

  private:
    /// A descriptor (PTX ISA, "Matrix Descriptor Format"), in 16 bytes: panels of `rows` rows are
    /// so far apart, and eight rows of one 1024 bytes.
    __device__ static uint64_t operand(const Bf16* at, unsigned rows) {
        constexpr uint64_t kSwizzled128 = uint64_t{1} << 62, kEightRows = 8 * kPanel * sizeof(Bf16);
        const uint64_t apart = rows * kPanel * sizeof(Bf16);
        return kSwizzled128 | kEightRows / 16 << 32 | apart / 16 << 16 |
               (__cvta_generic_to_shared(at) & 0x3ffff) / 16;
    }
    /// Offset, in 16 bytes, to the descriptor of summed element k, which is a row if `stands`.
    __device__ static constexpr uint64_t stepTo(unsigned k, bool stands) {
        return k * (stands ? kPanel : 1) * sizeof(Bf16) / 16;
    }
#define BULKHEAD_FOUR(j) "+f"(at[0][j][0]), "+f"(at[0][j][1]), "+f"(at[0][j][2]), "+f"(at[0][j][3])
#define BULKHEAD_SIXTEEN(j) \
    BULKHEAD_FOUR(j), BULKHEAD_FOUR(j + 1), BULKHEAD_FOUR(j + 2), BULKHEAD_FOUR(j + 3)
    /// sums[64, 256] += op(A)[64, 16] op(B)[16, 256] of a group of warps.
    template <bool kTurnA, bool kTurnB>
    __device__ void multiply(uint64_t a, uint64_t b) {
        asm volatile(
            "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
            "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
            "%124, %125, %126, %127}, %128, %129, add, 1, 1, %130, %131;\n}\n"
            : BULKHEAD_SIXTEEN(0), BULKHEAD_SIXTEEN(4), BULKHEAD_SIXTEEN(8), BULKHEAD_SIXTEEN(12),
              BULKHEAD_SIXTEEN(16), BULKHEAD_SIXTEEN(20), BULKHEAD_SIXTEEN(24), BULKHEAD_SIXTEEN(28)
            : "l"(a), "l"(b), "n"(int{kTurnA}), "n"(int{!kTurnB}));
    }
#undef BULKHEAD_SIXTEEN
#undef BULKHEAD_FOUR
};
#else
__device__ inline void showTensorCores() {}

/// A warp's part of a tile's sums, by products of one warp.
template <unsigned kM, unsigned kN>
struct TileSums {
    static constexpr unsigned kWarpsDown = 2, kWarpsAcross = kWarps / kWarpsDown;
    static constexpr unsigned kDown = kM / kSide / kWarpsDown;
    static constexpr unsigned kAcross = kN / 8 / kWarpsAcross;
    static_assert(kDown * kSide * kWarpsDown == kM && kAcross * 8 * kWarpsAcross == kN);
    float at[kDown][kAcross][4];

    __device__ static unsigned row() { return threadIdx.x / kWarp / kWarpsAcross * kDown * kSide; }
    __device__ static unsigned column() { return threadIdx.x / kWarp % kWarpsAcross * kAcross * 8; }

    template <bool kTurnA, bool kTurnB>
    __device__ void add(const Bf16* a, const Bf16* b) {
        constexpr unsigned kRowsA = kTurnA ? kMostDepth : kM, kRowsB = kTurnB ? kN : kMostDepth;
        const auto inA = inPanels<kRowsA>(a);
        const auto inB = inPanels<kRowsB>(b);
        BULKHEAD_UNROLL
        for (unsigned k = 0; k < kMostDepth; k += kSide) {
            Square x[kDown];
            BULKHEAD_UNROLL
            for (unsigned i = 0; i < kDown; ++i) x[i] = loadA<kTurnA>(inA, row() + i * kSide, k);
            BULKHEAD_UNROLL
            for (unsigned j = 0; j < kAcross; j += 2) {
                const Square y = loadB<kTurnB>(inB, k, column() + 8 * j);
                BULKHEAD_UNROLL
                for (unsigned i = 0; i < kDown; ++i) multiply(at[i][j], at[i][j + 1], x[i], y);
            }
        }
    }
    __device__ static void added() {}

  private:
    template <unsigned kRows>
    __device__ static auto inPanels(const Bf16* first) {
        return [=](unsigned row, unsigned column) { return first + placeIn<kRows>(row, column); };
    }
};
#endif

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

    template <unsigned kM, unsigned kN>
    using Sums = TileSums<kM, kN>;
    template <unsigned kM, unsigned kN>
    __device__ void clear(Sums<kM, kN>& sums) const {
        BULKHEAD_UNROLL
        for (auto& line : sums.at) clearAll(line);
    }
    __device__ void written() const { showTensorCores(); }
    template <bool kTurnA, bool kTurnB, unsigned kM, unsigned kN>
    __device__ void add(Sums<kM, kN>& sums, const Bf16* a, const Bf16* b, Extent) const {
        sums.template add<kTurnA, kTurnB>(a, b);
    }
    template <unsigned kM, unsigned kN>
    __device__ void added(Sums<kM, kN>& sums) const {
        sums.added();
    }
    template <unsigned kM, unsigned kN>
    __device__ void store(const Sums<kM, kN>& sums, float* c, unsigned ldc) const {
        using S = Sums<kM, kN>;
        BULKHEAD_UNROLL
        for (unsigned i = 0; i < S::kDown; ++i) {
            BULKHEAD_UNROLL
            for (unsigned j = 0; j < S::kAcross; ++j)
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
            operand.at[k / kSide] = loadA<false>(inRows(a, lda), lineBegin(), k);
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
            addSquare<kTurnB>(lines, loadA<false>(inRows(a, lda), lineBegin(), k), b, ldb, k);
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
            multiply(lines.at[j], lines.at[j + 1], a, loadB<kTurnB>(inRows(b, ldb), k, 8 * j));
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
