// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "plugins/llama_moe/gpu/machine.h"

namespace bulkhead::llama_moe {

/// The machine of bulkhead_llama_moe_cuda.so, which lies beside the object that this is linked
/// into; it is loaded once and stays. NotFound, with the loader's reason, where it is not there or
/// cannot be loaded; FailedPrecondition when it is of another build. Threads: any.
absl::StatusOr<const gpu::MachineApi*> cudaMachine();

}  // namespace bulkhead::llama_moe
