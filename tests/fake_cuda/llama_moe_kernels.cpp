// SPDX-License-Identifier: Apache-2.0
// The kernels of plugins/llama_moe/cuda/kernels.cu, run by the thread of their stream.
#include "plugins/llama_moe/cuda/kernels.h"

#include "plugins/llama_moe/gpu/grid.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/plugins/loop_block.h"

namespace bulkhead::llama_moe::gpu {
namespace {

template <class Body>
const fake_cuda::Kernel& loopsOf() {
    static const fake_cuda::Kernel kernel{[](unsigned blocks, void** arguments) {
        return std::function<void()>([blocks, body = *static_cast<const Body*>(arguments[0])] {
            test::runBlocks(body, blocks, 1);
        });
    }};
    return kernel;
}

}  // namespace

cudaError_t loadKernels() {
    cudaFuncAttributes ignored;
    cudaError_t code = cudaSuccess;
#define BULKHEAD_LOAD(K)                                                                        \
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&ignored, &loopsOf<K>());             \
    if (code == cudaSuccess)                                                                    \
        code = cudaFuncSetAttribute(&loopsOf<K>(), cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                    SharedOf<K>::bytes);
    BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_LOAD)
#undef BULKHEAD_LOAD
    return code;
}

cudaError_t launchKernel(Kernel kernel, const void* body, uint32_t blocks) {
    void* arguments[] = {const_cast<void*>(body)};
    switch (kernel) {
#define BULKHEAD_LAUNCH(K)                                                                   \
    case Kernel::k##K:                                                                       \
        return cudaLaunchKernel(&loopsOf<K>(), dim3(blocks), dim3(kBlockThreads), arguments, \
                                SharedOf<K>::bytes, nullptr);
        BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_LAUNCH)
#undef BULKHEAD_LAUNCH
    }
    return cudaErrorInvalidDeviceFunction;
}

const char* nameOf(Kernel) {
    return "a kernel";
}

}  // namespace bulkhead::llama_moe::gpu
