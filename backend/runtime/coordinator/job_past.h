// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "backend/common/clock.h"
#include "backend/model/run_state.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/facts.h"

/// Reconciles a run's history with its commit log for a coordinator that resumes the run. Pure.
namespace bulkhead::runtime {

/// Incidents left open, their numbers, how long the run has lasted, and what history was told of
/// that the log, whose `entries` gave `recovered`, has lost. `clock` tells how Unix time and the
/// machine's time lie to each other.
void addPast(protocol::RecoveredState& recovered, const std::vector<protocol::LogEntry>& entries,
             const model::RunState& past, const Clock& clock);

/// Withholds from a run that begins at `checkpoint` what `past`, the history of the run that wrote
/// it, has quarantined since: its log may be lost.
void withholdQuarantined(protocol::LogCheckpoint& checkpoint, const model::RunState& past);

/// The log has the last link that history knows, or history knows no step of the run yet: it is the
/// run's log, and what stands behind can be told.
bool goesOn(const std::vector<protocol::LogEntry>& entries, const model::RunState& past);

/// Index of the first log entry that `past` need not know of: the one behind the last step it has.
size_t firstUntold(const std::vector<protocol::LogEntry>& entries, const model::RunState& past);

/// Returns the fact of entry `i` that history lacks; nullopt: it has it, or there is none.
std::optional<protocol::Fact> untoldFact(const std::vector<protocol::LogEntry>& entries, size_t i,
                                         const model::RunState& past);

}  // namespace bulkhead::runtime
