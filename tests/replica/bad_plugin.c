/* SPDX-License-Identifier: Apache-2.0 */
#include "bulkhead/workload.h"

#if defined(BAD_OTHER_ABI)
const bulkhead_workload_api* bulkhead_workload_get_api(uint32_t abi_version) {
    (void)abi_version;
    return NULL;
}
#elif defined(BAD_SHORT_TABLE)
const bulkhead_workload_api* bulkhead_workload_get_api(uint32_t abi_version) {
    static bulkhead_workload_api api;
    api.abi_version = abi_version;
    api.struct_size = 16;
    api.name = "short";
    return &api;
}
#else
int bulkhead_is_no_plugin(void);
int bulkhead_is_no_plugin(void) {
    return 1;
}
#endif
