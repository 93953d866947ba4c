// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/runtime/transport/shared_heap.h"
#include "bulkhead/device.h"

namespace bulkhead::runtime {

/// The built-in device: memory of this process, streams that are already done when a call returns,
/// groups over shared memory between equal hosts and TCP otherwise. Several devices and groups may
/// live in one process (tests run ranks as threads). Returns null for another ABI version.
const bulkhead_device_api* cpuDeviceApi(uint32_t abiVersion);

/// Heap in which a CPU device keeps BULKHEAD_MEMORY_PEER. Lives as long as the device.
const SharedHeap* cpuDeviceHeap(const bulkhead_device* device);

}  // namespace bulkhead::runtime
