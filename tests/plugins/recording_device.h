// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "bulkhead/device.h"
#include "plugins/llama_moe/gpu/machine.h"

namespace bulkhead::test {

/// Device calls of a workload since clearRecord().
struct Record {
    uint64_t kernels = 0;
    uint64_t products = 0;          ///< each at least one kernel
    uint64_t productsWithRoom = 0;  ///< of these while multiprocessors were to be left free
    uint32_t processorsLeft = 0;    ///< so many, at the last of these
    uint64_t synchronisations = 0;
    uint64_t allocations = 0;
    uint64_t bytesToHost = 0;
    uint64_t bytesToDevice = 0;
};

/// A device of any size that computes nothing, so that a step of a large model can be counted: its
/// memory has pages only where something was written, copies within it do nothing, and no kernel
/// runs: with one shard none tells the host what to do next. One for the process. Threads: one.
const bulkhead_device_api* recordingDevice();
const llama_moe::gpu::MachineApi* recordingMachine();
const Record& record();
void clearRecord();

}  // namespace bulkhead::test
