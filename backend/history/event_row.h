// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "backend/model/event.h"

/// An event as a row: its body as JSON text, or as a zstd frame of it where that pays.
namespace bulkhead::history {

/// A zstd frame; `level` as zstd has it.
[[nodiscard]] std::string compress(std::string_view bytes, int level = 1);
/// Into `bytes`, whose memory is used again. DataLoss when it is no frame, or one that says it
/// holds more than a gigabyte.
[[nodiscard]] absl::Status decompress(std::string_view frame, std::string& bytes);

struct EventRow {
    std::string json;   ///< of the body
    std::string frame;  ///< empty: store `json` as it is
    std::optional<int64_t> step;
    std::optional<int32_t> replica;
    size_t bytes() const { return frame.empty() ? json.size() : frame.size(); }
};

[[nodiscard]] EventRow rowOf(const model::Event& event);

/// The step and the replica an event speaks of, if it speaks of one.
[[nodiscard]] std::optional<int64_t> stepOf(const model::EventBody& body);
[[nodiscard]] std::optional<int32_t> replicaOf(const model::EventBody& body);

/// Columns seq, time_ns, severity, body of a row. `json` gets the body's text; one string for all
/// rows spares memory of its own for each. DataLoss naming seq when the body cannot be read.
[[nodiscard]] absl::StatusOr<model::Event> eventOf(SQLite::Statement& row, std::string& json);

}  // namespace bulkhead::history
