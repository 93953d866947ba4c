// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/failover/faults.h"

namespace bulkhead::bench {

/// The same kills of a rank with ever more memory, on one node (shared memory) and on two (TCP
/// between their ranks): whether its size decides how long the survivors stand still.
void killsBySize(const Settings& settings, Report& report);

}  // namespace bulkhead::bench
