// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/values.h"

#include "bulkhead/state_hash.h"

namespace bulkhead::simulation {

uint64_t moved(uint64_t state, uint64_t layout) {
    const StateBytes bytes{state, layout};
    return bulkhead_state_hash(&bytes, sizeof(bytes));
}

}  // namespace bulkhead::simulation
