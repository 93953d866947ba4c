// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/kernels.h"

namespace bulkhead::cuda {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kMostBlocks = 1024;

unsigned blocksFor(size_t count) {
    const size_t wanted = (count + kThreads * detail::kPack - 1) / (kThreads * detail::kPack);
    return static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMostBlocks ? kMostBlocks : wanted);
}

struct Sources {
    const void* at[kMaxSources];
};

__global__ void __launch_bounds__(kThreads) sumKernel(const __grid_constant__ Sum sum) {
    add(sum, uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    plainSumKernel(T* to, const __grid_constant__ Sources from, uint32_t sources, size_t count) {
    const size_t step = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        T total = static_cast<const T*>(from.at[0])[i];
        for (uint32_t s = 1; s < sources; ++s)
            total = static_cast<T>(total + static_cast<const T*>(from.at[s])[i]);
        to[i] = total;
    }
}

}  // namespace

cudaError_t loadKernels() {
    cudaFuncAttributes ignored;
    cudaError_t code = cudaFuncGetAttributes(&ignored, sumKernel);
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, plainSumKernel<double>);
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, plainSumKernel<uint32_t>);
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, plainSumKernel<uint8_t>);
    return code;
}

cudaError_t launchSum(const Sum& sum, cudaStream_t stream) {
    sumKernel<<<blocksFor(sum.count), kThreads, 0, stream>>>(sum);
    return cudaGetLastError();
}

cudaError_t launchPlainSum(void* to, const void* const* from, uint32_t sources, size_t count,
                           bulkhead_dtype type, cudaStream_t stream) {
    Sources list{};
    for (uint32_t s = 0; s < sources; ++s) list.at[s] = from[s];
    const unsigned blocks = blocksFor(count);
    if (type == BULKHEAD_F64)
        plainSumKernel<<<blocks, kThreads, 0, stream>>>(static_cast<double*>(to), list, sources,
                                                        count);
    else if (type == BULKHEAD_I32)  // unsigned, because signed overflow is not arithmetic
        plainSumKernel<<<blocks, kThreads, 0, stream>>>(static_cast<uint32_t*>(to), list, sources,
                                                        count);
    else
        plainSumKernel<<<blocks, kThreads, 0, stream>>>(static_cast<uint8_t*>(to), list, sources,
                                                        count);
    return cudaGetLastError();
}

}  // namespace bulkhead::cuda
