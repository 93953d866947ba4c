// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/ftar/kernel_body.h"
#include "plugins/cuda/ftar_kernel.h"

namespace bulkhead::cuda {
namespace {

constexpr unsigned kThreads = 512;

/// What serve() knows of the block it runs on.
struct GpuBlock {
    BlockShared* common;
    __device__ uint64_t lane() const { return blockIdx.x; }
    __device__ uint64_t thread() const { return threadIdx.x; }
    __device__ uint64_t threads() const { return blockDim.x; }
    __device__ void sync() const { __syncthreads(); }
    __device__ BlockShared* shared() const { return common; }
};

__global__ void __launch_bounds__(kThreads) ftarKernel(Queue* queue, uint64_t run) {
    __shared__ BlockShared shared;
    GpuBlock block{&shared};
    serve(block, queue, run);
}

}  // namespace

cudaError_t loadFtar() {
    cudaFuncAttributes ignored;
    return cudaFuncGetAttributes(&ignored, ftarKernel);
}

cudaError_t launchFtar(Queue* queue, uint32_t blocks, uint64_t run, cudaStream_t stream) {
    ftarKernel<<<blocks, kThreads, 0, stream>>>(queue, run);
    return cudaGetLastError();
}

}  // namespace bulkhead::cuda
