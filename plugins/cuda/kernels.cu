// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/kernels.h"

#include <cuda_pipeline_primitives.h>

#include "plugins/cuda/ftar/kernel_body.h"

namespace bulkhead::cuda {
namespace {

/// It begins with a line of 128 bytes, as what is fetched into it does. Behind 560 bytes of other
/// memory an H100 read every sector twice and wrote 32 bytes at a time.
extern __shared__ __align__(128) char ringOfBlock[];

/// The block that serve() runs on.
struct GpuBlock {
    BlockShared* common;
    __device__ uint64_t lane() const { return blockIdx.x; }
    __device__ uint64_t thread() const { return threadIdx.x; }
    __device__ uint64_t threads() const { return blockDim.x; }
    __device__ void sync() const { __syncthreads(); }
    __device__ BlockShared* shared() const { return common; }
    __device__ char* ring() const { return ringOfBlock; }
    template <unsigned kBytes>
    __device__ void fetch(void* to, const void* from) const {
        __pipeline_memcpy_async(to, from, kBytes);
    }
    __device__ void sent() const { __pipeline_commit(); }
    template <unsigned kBatches>
    __device__ void await() const {
        __pipeline_wait_prior(kBatches);
    }
};

/// Two blocks on a multiprocessor, so that one of the exchange leaves half of it to training.
__global__ void __launch_bounds__(kKernelThreads, 2) ftar(Queue* queue, uint64_t run) {
    __shared__ BlockShared shared;
    GpuBlock block{&shared};
    serve(block, queue, run);
}

__global__ void __launch_bounds__(kKernelThreads) sumOfSources(const __grid_constant__ Sum sum) {
    add(sum, uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x);
}

template <class T>
__global__ void __launch_bounds__(kKernelThreads)
    plainSum(T* to, const __grid_constant__ Sources from, uint32_t sources, size_t count) {
    const size_t step = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        T total = static_cast<const T*>(from.at[0])[i];
        for (uint32_t s = 1; s < sources; ++s)
            total = static_cast<T>(total + static_cast<const T*>(from.at[s])[i]);
        to[i] = total;
    }
}

template <class Kernel>
const void* addressOf(Kernel* kernel) {
    return reinterpret_cast<const void*>(kernel);
}

}  // namespace

const void* ftarKernel() {
    return addressOf(&ftar);
}

const void* sumKernel() {
    return addressOf(&sumOfSources);
}

const void* plainSumKernel(bulkhead_dtype type) {
    if (type == BULKHEAD_F64) return addressOf(&plainSum<double>);
    // Unsigned, because signed overflow is not arithmetic.
    if (type == BULKHEAD_I32) return addressOf(&plainSum<uint32_t>);
    return addressOf(&plainSum<uint8_t>);
}

}  // namespace bulkhead::cuda
