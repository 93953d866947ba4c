// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "bulkhead/device.h"
#include "plugins/cuda/ftar/command.h"

namespace bulkhead::cuda {

/// The sources of a plain sum, by value.
struct Sources {
    const void* at[kMaxSources];
};

/// Kernels as cudaLaunchKernel() names them, with the arguments that they take: by nvcc, and in
/// tests by a C++ compiler.
const void* ftarKernel();  ///< (Queue* queue, uint64_t run), the persistent one
const void* sumKernel();   ///< (Sum sum)
/// (void* to, Sources from, uint32_t sources, size_t count), of type F64, I32 or U8.
const void* plainSumKernel(bulkhead_dtype type);

constexpr unsigned kKernelThreads = 512;                          ///< of a block, of each of them
constexpr unsigned kFtarMemory = kKernelThreads * detail::kRing;  ///< of a persistent block's own

/// Loads what is launched below now: the driver would otherwise do it at the first launch, and wait
/// for an idle GPU then, while an exchange's kernel waits for its peers.
cudaError_t loadKernels();

// The functions below give the launch's own error: the last error of this thread may be that of a
// call before, such as a query that found the GPU at work.

/// Puts the persistent kernel on the stream, on `blocks` lanes of `queue`, which is pinned host
/// memory.
cudaError_t launchFtar(Queue* queue, uint32_t blocks, uint64_t run, cudaStream_t stream);

/// Puts `sum` on the stream, on as many blocks as fill the device.
cudaError_t launchSum(const Sum& sum, cudaStream_t stream);

/// Likewise for the types that Sum does not know: F64 (accumulated in double), and I32 and U8,
/// which wrap. At most kMaxSources sources, all of type `type`, as is the target.
cudaError_t launchPlainSum(void* to, const void* const* from, uint32_t sources, size_t count,
                           bulkhead_dtype type, cudaStream_t stream);

}  // namespace bulkhead::cuda
