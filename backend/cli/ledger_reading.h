// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/cli/ledger_check.h"
#include "backend/cli/session.h"

namespace bulkhead::cli {

/// Adds a run's ledger up from the events in the history.
client::Result<LedgerReport> readLedger(Session& session, const std::string& run);

}  // namespace bulkhead::cli
