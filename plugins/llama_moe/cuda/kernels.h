// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "plugins/llama_moe/gpu/kernels.h"

namespace bulkhead::llama_moe::gpu {

/// Loads every kernel now: the driver would otherwise do it at the first launch, and wait for an
/// idle GPU then, while an exchange's kernel waits for its peers.
cudaError_t loadKernels();

/// Puts the kernel with the arguments in `body` on the default stream of the current device.
cudaError_t launchKernel(Kernel kernel, const void* body, uint32_t blocks);

/// "NormForward"
const char* nameOf(Kernel kernel);

}  // namespace bulkhead::llama_moe::gpu
