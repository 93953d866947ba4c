// SPDX-License-Identifier: Apache-2.0
#include "backend/history/event_row.h"

#include <zstd.h>

#include "backend/history/written_json.h"
#include "backend/model/event_json.h"
#include "backend/model/names.h"

namespace bulkhead::history {
namespace {

/// Making one costs more than most events: each thread keeps its own.
template <auto create, auto release>
auto* contextOfThread() {
    struct Context {
        decltype(create()) made = create();
        ~Context() { release(made); }
    };
    static thread_local const Context context;
    return context.made;
}

}  // namespace

std::string compress(std::string_view bytes, int level) {
    std::string frame(ZSTD_compressBound(bytes.size()), '\0');
    const size_t size =
        ZSTD_compressCCtx(contextOfThread<ZSTD_createCCtx, ZSTD_freeCCtx>(), frame.data(),
                          frame.size(), bytes.data(), bytes.size(), level);
    if (ZSTD_isError(size)) return {};
    frame.resize(size);
    return frame;
}

absl::Status decompress(std::string_view frame, std::string& bytes) {
    constexpr unsigned long long kMost = 1ull << 30;
    const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > kMost)
        return absl::DataLossError("a compressed value is damaged");
    bytes.resize(static_cast<size_t>(size));
    const size_t got = ZSTD_decompressDCtx(contextOfThread<ZSTD_createDCtx, ZSTD_freeDCtx>(),
                                           bytes.data(), bytes.size(), frame.data(), frame.size());
    if (ZSTD_isError(got) || got != bytes.size())
        return absl::DataLossError("a compressed value is damaged");
    return absl::OkStatus();
}

std::optional<int64_t> stepOf(const model::EventBody& body) {
    return std::visit(
        [](const auto& b) -> std::optional<int64_t> {
            if constexpr (requires { b.record.step; })
                return static_cast<int64_t>(b.record.step);
            else if constexpr (requires { b.step; })
                return static_cast<int64_t>(b.step);
            else
                return std::nullopt;
        },
        body);
}

std::optional<int32_t> replicaOf(const model::EventBody& body) {
    return std::visit(
        [](const auto& b) -> std::optional<int32_t> {
            int32_t replica = -1;
            if constexpr (requires { b.rank.replica; })
                replica = b.rank.replica;
            else if constexpr (requires { b.replica; })
                replica = b.replica;
            else if constexpr (requires { b.spec.replica; })
                replica = b.spec.replica;
            else if constexpr (requires { b.action.replica; })
                replica = b.action.replica;
            return replica < 0 ? std::nullopt : std::optional<int32_t>(replica);
        },
        body);
}

EventRow rowOf(const model::Event& event) {
    constexpr size_t kWorthTrying = 512;
    EventRow row;
    row.json = model::toJsonText(event.body);
    row.step = stepOf(event.body);
    row.replica = replicaOf(event.body);
    if (row.json.size() < kWorthTrying) return row;
    std::string frame = compress(row.json);
    if (!frame.empty() && frame.size() * 4 <= row.json.size() * 3) row.frame = std::move(frame);
    return row;
}

absl::StatusOr<model::Event> eventOf(SQLite::Statement& row, std::string& json) {
    model::Event event;
    event.seq = static_cast<uint64_t>(row.getColumn(0).getInt64());
    event.timeNs = row.getColumn(1).getInt64();
    const int severity = row.getColumn(2).getInt();
    const auto damaged = [&](std::string_view why) {
        return absl::DataLossError(model::concat("event ", event.seq, " cannot be read: ", why));
    };
    if (severity < 0 || severity > static_cast<int>(model::Severity::kError))
        return damaged("its severity is out of range");
    event.severity = static_cast<model::Severity>(severity);
    const SQLite::Column column = row.getColumn(3);
    const std::string_view stored(static_cast<const char*>(column.getBlob()),
                                  static_cast<size_t>(column.getBytes()));
    if (!column.isBlob())
        json = stored;
    else if (absl::Status s = decompress(stored, json); !s.ok())
        return damaged(std::string(s.message()));
    if (auto body = bodyAsWritten(json)) {
        event.body = *std::move(body);
    } else {
        auto other = model::fromJsonText<model::EventBody>(json);
        if (!other.ok()) return damaged(std::string(other.status().message()));
        event.body = *std::move(other);
    }
    return event;
}

}  // namespace bulkhead::history
