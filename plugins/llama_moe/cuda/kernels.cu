// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include "plugins/llama_moe/gpu/grid.h"

namespace bulkhead::llama_moe::gpu {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kBlockThreads / kWarp;

constexpr unsigned kWarpsDown = 4, kWarpsAcross = 2;  ///< how they share a tile's sums
static_assert(kWarpsDown * kWarpsAcross == kWarps);
constexpr unsigned kSide = 16;  ///< of what a warp multiplies at once

extern __shared__ __align__(128) char memoryOfBlock[];

/// wmma::load_matrix_sync and store_matrix_sync of memory that is known to be the block's own,
/// which they would look for in all memory.
#define BULKHEAD_LOAD_FRAGMENT(operand, order, to, from, stride)                               \
    {                                                                                          \
        static_assert(sizeof((to).x) == 4 * sizeof(unsigned));                                 \
        auto* part = reinterpret_cast<unsigned*>(&(to).x);                                     \
        asm volatile("wmma.load." operand ".sync.aligned." order                               \
                     ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"                      \
                     : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])              \
                     : "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))), "r"(stride) \
                     : "memory");                                                              \
    }
template <bool kTurned, class Fragment>
__device__ void loadA(Fragment& to, const Bf16* from, unsigned stride) {
    if constexpr (kTurned)
        BULKHEAD_LOAD_FRAGMENT("a", "col", to, from, stride)
    else
        BULKHEAD_LOAD_FRAGMENT("a", "row", to, from, stride)
}
template <bool kTurned, class Fragment>
__device__ void loadB(Fragment& to, const Bf16* from, unsigned stride) {
    if constexpr (kTurned)
        BULKHEAD_LOAD_FRAGMENT("b", "col", to, from, stride)
    else
        BULKHEAD_LOAD_FRAGMENT("b", "row", to, from, stride)
}
#undef BULKHEAD_LOAD_FRAGMENT
template <class Fragment>
__device__ void storeSums(float* to, const Fragment& from, unsigned stride) {
    static_assert(sizeof(from.x) == 8 * sizeof(float));
    asm volatile(
        "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, "
        "%8}, "
        "%9;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
        "f"(from.x[0]), "f"(from.x[1]), "f"(from.x[2]), "f"(from.x[3]), "f"(from.x[4]),
        "f"(from.x[5]), "f"(from.x[6]), "f"(from.x[7]), "r"(stride)
        : "memory");
}

/// The block that a body runs on.
struct GpuBlock {
    __device__ uint32_t block() const { return blockIdx.x; }
    __device__ uint32_t blocks() const { return gridDim.x; }
    __device__ uint32_t thread() const { return threadIdx.x; }
    __device__ uint32_t threads() const { return blockDim.x; }

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
        nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kSide, kSide, kSide, float> at[kDown]
                                                                                        [kAcross];

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
        for (auto& line : sums.at) {
            BULKHEAD_UNROLL
            for (auto& part : line) nvcuda::wmma::fill_fragment(part, 0.0f);
        }
    }
    template <bool kTurnA, bool kTurnB, unsigned kM, unsigned kN>
    __device__ void add(Sums<kM, kN>& sums, const Bf16* a, unsigned lda, const Bf16* b,
                        unsigned ldb, Extent extent) const {
        using namespace nvcuda;
        using LayoutA = std::conditional_t<kTurnA, wmma::col_major, wmma::row_major>;
        using LayoutB = std::conditional_t<kTurnB, wmma::col_major, wmma::row_major>;
        using S = Sums<kM, kN>;
        wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, __nv_bfloat16, LayoutA> x[S::kDown];
        wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, __nv_bfloat16, LayoutB> y[S::kAcross];
        for (unsigned k = 0; k < extent.k; k += kSide) {
            BULKHEAD_UNROLL
            for (unsigned i = 0; i < S::kDown; ++i) {
                const unsigned m = S::row() + i * kSide;
                loadA<kTurnA>(x[i], a + (kTurnA ? k * lda + m : m * lda + k), lda);
            }
            BULKHEAD_UNROLL
            for (unsigned j = 0; j < S::kAcross; ++j) {
                const unsigned n = S::column() + j * kSide;
                loadB<kTurnB>(y[j], b + (kTurnB ? n * ldb + k : k * ldb + n), ldb);
            }
            BULKHEAD_UNROLL
            for (unsigned i = 0; i < S::kDown; ++i) {
                BULKHEAD_UNROLL
                for (unsigned j = 0; j < S::kAcross; ++j)
                    wmma::mma_sync(sums.at[i][j], x[i], y[j], sums.at[i][j]);
            }
        }
    }
    template <unsigned kM, unsigned kN>
    __device__ void store(const Sums<kM, kN>& sums, float* c, unsigned ldc) const {
        using S = Sums<kM, kN>;
        BULKHEAD_UNROLL
        for (unsigned i = 0; i < S::kDown; ++i) {
            BULKHEAD_UNROLL
            for (unsigned j = 0; j < S::kAcross; ++j)
                storeSums(c + (S::row() + i * kSide) * ldc + S::column() + j * kSide, sums.at[i][j],
                          ldc);
        }
    }

    template <class T>
    __device__ T sum(T mine) const {
        return overAll(mine, [](T a, T b) { return a + b; });
    }
    __device__ float most(float mine) const {
        return overAll(mine, [](float a, float b) { return a < b ? b : a; });
    }

  private:
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

/// Blocks that a multiprocessor holds at once by their own memory, as far as it says; 0: it does
/// not.
template <class Body>
constexpr unsigned blocksAtOnce() {
    return SharedOf<Body>::bytes == 0 ? 0 : SharedOf<Body>::bytes > 100 * 1024 ? 1 : 2;
}

template <class Body>
__global__ void __launch_bounds__(kBlockThreads, blocksAtOnce<Body>())
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
