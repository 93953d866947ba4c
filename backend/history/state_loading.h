// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/history/run_store.h"
#include "backend/model/run_state.h"

/// Reading a run's events and state over an open connection. Throws SQLite::Exception beside what
/// it returns; the caller holds a transaction if it wants one moment.
namespace bulkhead::history {

/// Calls `take` for each event with fromSeq <= seq <= toSeq in order, until it returns false.
[[nodiscard]] absl::Status forEachEvent(SQLite::Database& db, int64_t run, uint64_t fromSeq,
                                        uint64_t toSeq,
                                        const std::function<bool(const model::Event&)>& take);

/// The state after the last event with seq <= `seq`, as RunReader::stateAtSeq.
[[nodiscard]] absl::StatusOr<model::RunState> loadState(SQLite::Database& db, int64_t run,
                                                        uint64_t seq,
                                                        const RunReader::LoadProgress& progress);

/// SQLite's integers have a sign: the greatest seq there can be stands for any beyond.
[[nodiscard]] int64_t asKey(uint64_t value);

}  // namespace bulkhead::history
