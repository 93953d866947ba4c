// SPDX-License-Identifier: Apache-2.0
#include "backend/history/state_loading.h"

#include <limits>

#include "backend/history/event_row.h"

namespace bulkhead::history {
namespace {

/// The nearest keyframe that this program can read; a blank state with seq 0 if there is none.
model::RunState nearestKeyframe(SQLite::Database& db, int64_t run, uint64_t seq) {
    SQLite::Statement query(
        db, "SELECT state FROM keyframes WHERE run = ? AND seq <= ? ORDER BY seq DESC");
    query.bind(1, run);
    query.bind(2, asKey(seq));
    std::string bytes;
    while (query.executeStep()) {
        const SQLite::Column column = query.getColumn(0);
        const absl::Status read = decompress(
            {static_cast<const char*>(column.getBlob()), static_cast<size_t>(column.getBytes())},
            bytes);
        if (!read.ok()) continue;  // a keyframe is only a short cut
        absl::StatusOr<model::RunState> state = model::decodeKeyframe(bytes);
        if (state.ok() && state->seq <= seq) return *std::move(state);
    }
    return {};
}

}  // namespace

int64_t asKey(uint64_t value) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(value < kMost ? value : kMost);
}

absl::Status forEachEvent(SQLite::Database& db, int64_t run, uint64_t fromSeq, uint64_t toSeq,
                          const std::function<bool(const model::Event&)>& take) {
    SQLite::Statement query(db,
                            "SELECT seq, time_ns, severity, body FROM events "
                            "WHERE run = ? AND seq >= ? AND seq <= ? ORDER BY seq");
    query.bind(1, run);
    query.bind(2, asKey(fromSeq));
    query.bind(3, asKey(toSeq));
    std::string json;
    while (query.executeStep()) {
        const absl::StatusOr<model::Event> event = eventOf(query, json);
        if (!event.ok()) return event.status();
        if (!take(*event)) break;
    }
    return absl::OkStatus();
}

absl::StatusOr<model::RunState> loadState(SQLite::Database& db, int64_t run, uint64_t seq,
                                          const RunReader::LoadProgress& progress) {
    model::RunState state = nearestKeyframe(db, run, seq);
    const uint64_t from = state.seq + 1;
    bool goesOn = true;
    const absl::Status status = forEachEvent(db, run, from, seq, [&](const model::Event& event) {
        model::apply(state, event);
        if (progress) goesOn = progress(event.seq - from + 1, seq - from + 1);
        return goesOn;
    });
    if (!status.ok()) return status;
    if (!goesOn) return absl::CancelledError("given up before its end");
    return state;
}

}  // namespace bulkhead::history
