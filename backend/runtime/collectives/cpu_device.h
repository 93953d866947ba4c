// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bulkhead/device.h"

namespace bulkhead::runtime {

/// The built-in device: memory of this process, streams that are already done when a call returns,
/// groups over shared memory between equal hosts and TCP otherwise. Several devices and groups may
/// live in one process (tests run ranks as threads). Returns null for another ABI version.
const bulkhead_device_api* cpuDeviceApi(uint32_t abiVersion);

}  // namespace bulkhead::runtime
