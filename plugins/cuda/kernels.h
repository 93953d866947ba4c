// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "bulkhead/device.h"
#include "plugins/cuda/ftar/elements.h"

namespace bulkhead::cuda {

/// Loads what is launched below now: the driver would otherwise do it at the first launch, and wait
/// for an idle GPU then, while an exchange's kernel waits for its peers.
cudaError_t loadKernels();

/// Puts `sum` on the stream, on as many blocks as fill the device.
cudaError_t launchSum(const Sum& sum, cudaStream_t stream);

/// Likewise for the types that Sum does not know: F64 (accumulated in double), and I32 and U8,
/// which wrap. At most kMaxSources sources, all of type `type`, as is the target.
cudaError_t launchPlainSum(void* to, const void* const* from, uint32_t sources, size_t count,
                           bulkhead_dtype type, cudaStream_t stream);

}  // namespace bulkhead::cuda
