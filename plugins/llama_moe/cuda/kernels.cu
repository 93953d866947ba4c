// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/cuda/kernels.h"

#include "plugins/llama_moe/gpu/grid.h"

namespace bulkhead::llama_moe::gpu {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kBlockThreads / kWarp;

/// What bodies know of the block they run on.
struct GpuBlock {
    __device__ uint32_t block() const { return blockIdx.x; }
    __device__ uint32_t blocks() const { return gridDim.x; }
    __device__ uint32_t thread() const { return threadIdx.x; }
    __device__ uint32_t threads() const { return blockDim.x; }

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

template <class Body>
__global__ void __launch_bounds__(kBlockThreads) runOnGpu(const __grid_constant__ Body body) {
    GpuBlock block;
    body.run(block);
}

}  // namespace

cudaError_t loadKernels() {
    cudaFuncAttributes ignored;
    cudaError_t code = cudaSuccess;
#define BULKHEAD_LOAD(K) \
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, runOnGpu<K>);
    BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_LOAD)
#undef BULKHEAD_LOAD
    return code;
}

cudaError_t launchKernel(Kernel kernel, const void* body, uint32_t blocks) {
    // The launch's own error: the last error of this thread may be that of a call before.
    void* arguments[] = {const_cast<void*>(body)};
    switch (kernel) {
#define BULKHEAD_LAUNCH(K) \
    case Kernel::k##K:     \
        return cudaLaunchKernel(runOnGpu<K>, dim3(blocks), dim3(kBlockThreads), arguments, 0, 0);
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
