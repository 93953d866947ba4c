// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/run_state.h"

/// Reading a run's events and state over an open connection. Throws SQLite::Exception beside what
/// it returns; the caller holds a transaction if it wants one moment.
namespace bulkhead::history {

/// Calls `take` for each event with fromSeq <= seq <= toSeq in order, until it returns false.
[[nodiscard]] absl::Status forEachEvent(SQLite::Database& db, int64_t run, uint64_t fromSeq,
                                        uint64_t toSeq,
                                        const std::function<bool(const model::Event&)>& take);

/// The state after the last event with seq <= `seq`. `keyframeSeq`, if given, gets the seq of the
/// keyframe it was built on, 0 for none.
[[nodiscard]] absl::StatusOr<model::RunState> loadState(SQLite::Database& db, int64_t run,
                                                        uint64_t seq,
                                                        uint64_t* keyframeSeq = nullptr);

/// SQLite's integers have a sign: the greatest seq there can be stands for any beyond.
[[nodiscard]] int64_t asKey(uint64_t value);

}  // namespace bulkhead::history
