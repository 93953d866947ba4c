// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/workload.h"

extern "C" __attribute__((visibility("default"))) const bulkhead_workload_api*
bulkhead_workload_get_api(uint32_t abiVersion) {
    return abiVersion == BULKHEAD_WORKLOAD_ABI ? bulkhead::llama_moe::workloadApi() : nullptr;
}
