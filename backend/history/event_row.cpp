// SPDX-License-Identifier: Apache-2.0
#include "backend/history/event_row.h"

#include <zstd.h>

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

absl::StatusOr<std::string> decompress(std::string_view frame) {
    constexpr unsigned long long kMost = 1ull << 30;
    const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > kMost)
        return absl::DataLossError("a compressed value is damaged");
    std::string bytes(static_cast<size_t>(size), '\0');
    const size_t got = ZSTD_decompressDCtx(contextOfThread<ZSTD_createDCtx, ZSTD_freeDCtx>(),
                                           bytes.data(), bytes.size(), frame.data(), frame.size());
    if (ZSTD_isError(got) || got != bytes.size())
        return absl::DataLossError("a compressed value is damaged");
    return bytes;
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

absl::StatusOr<model::Event> eventOf(SQLite::Statement& row, int first, std::string* json) {
    model::Event event;
    event.seq = static_cast<uint64_t>(row.getColumn(first).getInt64());
    event.timeNs = row.getColumn(first + 1).getInt64();
    const int severity = row.getColumn(first + 2).getInt();
    const auto damaged = [&](std::string_view why) {
        return absl::DataLossError(model::concat("event ", event.seq, " cannot be read: ", why));
    };
    if (severity < 0 || severity > static_cast<int>(model::Severity::kError))
        return damaged("its severity is out of range");
    event.severity = static_cast<model::Severity>(severity);
    const SQLite::Column column = row.getColumn(first + 3);
    std::string text(static_cast<const char*>(column.getBlob()),
                     static_cast<size_t>(column.getBytes()));
    if (column.isBlob()) {
        absl::StatusOr<std::string> plain = decompress(text);
        if (!plain.ok()) return damaged(std::string(plain.status().message()));
        text = *std::move(plain);
    }
    absl::StatusOr<model::EventBody> body = model::fromJsonText<model::EventBody>(text);
    if (!body.ok()) return damaged(std::string(body.status().message()));
    event.body = *std::move(body);
    if (json) *json = std::move(text);
    return event;
}

}  // namespace bulkhead::history
