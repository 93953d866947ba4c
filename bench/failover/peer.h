// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/failover/faults.h"
#include "bench/report.h"

namespace bulkhead::bench {

/// The same seeded kills upon the demo as four replicas of one process each, and upon a job of that
/// shape on torchft, in turn. Without torchft: its reason in one line and our own rows.
Report besideTorchft(const Settings& settings);

}  // namespace bulkhead::bench
