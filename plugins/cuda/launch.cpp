// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plugins/cuda/kernels.h"

namespace bulkhead::cuda {
namespace {

constexpr size_t kMostBlocks = 1024;

dim3 blocksFor(size_t count) {
    const size_t each = kKernelThreads * detail::kPiece;
    return {static_cast<unsigned>(std::clamp<size_t>((count + each - 1) / each, 1, kMostBlocks))};
}

template <class... Arguments>
cudaError_t launch(const void* kernel, dim3 blocks, size_t memory, cudaStream_t stream,
                   Arguments... arguments) {
    void* list[] = {&arguments...};
    return cudaLaunchKernel(kernel, blocks, dim3(kKernelThreads), list, memory, stream);
}

}  // namespace

cudaError_t loadKernels() {
    cudaError_t code = cudaFuncSetAttribute(
        ftarKernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, kFtarMemory);
    for (const void* kernel : {ftarKernel(), sumKernel(), plainSumKernel(BULKHEAD_F64),
                               plainSumKernel(BULKHEAD_I32), plainSumKernel(BULKHEAD_U8)}) {
        cudaFuncAttributes ignored;
        if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, kernel);
    }
    return code;
}

cudaError_t launchFtar(Queue* queue, uint32_t blocks, uint64_t run, cudaStream_t stream) {
    return launch(ftarKernel(), dim3(blocks), kFtarMemory, stream, queue, run);
}

cudaError_t launchSum(const Sum& sum, cudaStream_t stream) {
    return launch(sumKernel(), blocksFor(sum.count), 0, stream, sum);
}

cudaError_t launchPlainSum(void* to, const void* const* from, uint32_t sources, size_t count,
                           bulkhead_dtype type, cudaStream_t stream) {
    Sources list{};
    std::copy_n(from, sources, list.at);
    return launch(plainSumKernel(type), blocksFor(count), 0, stream, to, list, sources, count);
}

}  // namespace bulkhead::cuda
