// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/model/event.h"

namespace bulkhead::support {

/// Everything the events of a run must agree on, whatever happened in it: numbers without gaps, no
/// step committed twice within a lineage or left out, no sample trained on twice, no invariant
/// broken, the ledger's chain whole (model/ledger_audit.h). Returns what is wrong, in words; empty
/// when all is well.
std::vector<std::string> auditRun(const std::vector<model::Event>& events);

}  // namespace bulkhead::support
