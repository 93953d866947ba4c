// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "plugins/cuda/ftar/command.h"

namespace bulkhead::cuda {

/// As loadKernels().
cudaError_t loadFtar();

/// Puts the persistent kernel on the stream: 512 threads on each of `blocks` lanes of `queue`,
/// which is pinned host memory.
cudaError_t launchFtar(Queue* queue, uint32_t blocks, uint64_t run, cudaStream_t stream);

}  // namespace bulkhead::cuda
