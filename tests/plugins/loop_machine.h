// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/machine.h"

namespace bulkhead::test {

/// Machines that run the kernels of a GPU on the CPU, and products in float32: as loops, one thread
/// a block, or with three real threads a block, so that a missing barrier is a race that
/// ThreadSanitizer sees. On memory of fenced_device they wait for the device's stream to be run, on
/// any other they compute at once.
const llama_moe::gpu::MachineApi* loopMachine();
const llama_moe::gpu::MachineApi* threadMachine();

}  // namespace bulkhead::test
