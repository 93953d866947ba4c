// SPDX-License-Identifier: Apache-2.0
#include "backend/history/run_reader.h"
#include "backend/model/event_json.h"
#include "backend/model/names.h"
#include "backend/model/parse_number.h"

namespace bulkhead::history {
namespace {

using model::concat;

bool endsWith(std::string_view name, std::string_view end) {
    return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}

/// "step_ms [ms]": a reader of the file should not have to guess.
std::string headed(std::string_view name) {
    if (endsWith(name, "_ns")) return concat(name, " [ns since 1970]");
    if (endsWith(name, "_ms")) return concat(name, " [ms]");
    if (name == "bytes") return "bytes [B]";
    if (name == "tokens_per_second") return "tokens_per_second [1/s]";
    if (name == "loss") return "loss [nats/token]";
    if (name == "effective_time") return "effective_time [0..1]";
    return std::string(name);
}

struct HeaderLine {
    std::string line;
    template <class T>
    void operator()(std::string_view name, const T&) {
        if (!line.empty()) line += ',';
        line += headed(name);
    }
};

struct ValueLine {
    std::string line;
    bool first = true;
    template <class T>
    void operator()(std::string_view, const T& value) {
        if (!first) line += ',';
        first = false;
        if constexpr (std::same_as<T, std::string>)
            quote(value);
        else if constexpr (std::same_as<T, double>)
            line += model::shortest(value);
        else
            line += std::to_string(value);
    }
    void quote(const std::string& text) {
        if (text.find_first_of(",\"\r\n") == std::string::npos) {
            line += text;
            return;
        }
        line += '"';
        for (const char c : text) {
            if (c == '"') line += '"';
            line += c;
        }
        line += '"';
    }
};

absl::Status written(const std::ostream& out) {
    if (out.good()) return absl::OkStatus();
    return absl::UnavailableError(
        "the export could not be written; check the disk's free space and permissions");
}

}  // namespace

absl::Status SqliteRunReader::exportLedger(int64_t runId, ExportFormat format, std::ostream& out,
                                           const LedgerFilter& filter) {
    const absl::StatusOr<std::vector<LedgerRow>> rows = ledger(runId, filter);
    if (!rows.ok()) return rows.status();
    if (format == ExportFormat::kCsv) {
        HeaderLine header;
        const LedgerRow columns;
        LedgerRow::fields(columns, header);
        out << header.line << '\n';
    }
    for (const LedgerRow& row : *rows) {
        if (format == ExportFormat::kJsonLines) {
            out << model::toJsonText(row) << '\n';
        } else {
            ValueLine values;
            LedgerRow::fields(row, values);
            out << values.line << '\n';
        }
        if (!out.good()) break;
    }
    out.flush();
    return written(out);
}

absl::Status SqliteRunReader::exportEvents(int64_t runId, std::ostream& out,
                                           const EventFilter& filter) {
    const absl::StatusOr<StoredRun> known = run(runId);
    if (!known.ok()) return known.status();
    const absl::Status status = scan(runId, filter, [&](const model::Event& event) {
        out << model::toJsonText(event) << '\n';
        return written(out);
    });
    out.flush();
    return status.ok() ? written(out) : status;
}

}  // namespace bulkhead::history
