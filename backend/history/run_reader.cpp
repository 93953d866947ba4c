// SPDX-License-Identifier: Apache-2.0
#include "backend/history/run_reader.h"

#include <algorithm>

#include "backend/history/event_row.h"
#include "backend/history/row_io.h"
#include "backend/history/schema.h"
#include "backend/history/state_loading.h"
#include "backend/history/store_status.h"
#include "backend/history/writer_lock.h"
#include "backend/model/json.h"
#include "backend/model/names.h"
#include "backend/model/parse_number.h"
#include "backend/model/rank_name.h"

namespace bulkhead::history {
namespace {

namespace fs = std::filesystem;
using model::concat;

bool holds(std::string_view text, std::string_view wanted) {
    const auto lower = [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    return std::search(text.begin(), text.end(), wanted.begin(), wanted.end(),
                       [&](char a, char b) { return lower(a) == lower(b); }) != text.end();
}

/// A rank in JSON has its two numbers apart.
bool namesRank(const model::Json& value, RankId rank) {
    if (value.is_object() && value.value("replica", model::Json()) == rank.replica &&
        value.value("shard", model::Json()) == rank.shard)
        return true;
    return value.is_structured() &&
           std::any_of(value.begin(), value.end(),
                       [rank](const model::Json& part) { return namesRank(part, rank); });
}

/// True when the event has the text somewhere, or the rank that the text names.
bool matches(const std::string& json, const EventFilter& f) {
    if (f.text.empty() || holds(json, f.text)) return true;
    const std::optional<RankId> rank = model::parseRank(f.text);
    if (!rank) return false;
    const auto parsed = model::parseJson(json);
    return parsed.ok() && namesRank(*parsed, *rank);
}

std::string eventSql(const EventFilter& f) {
    std::string sql =
        "SELECT seq, time_ns, severity, body FROM events WHERE run = ?1 AND seq >= ?2 AND "
        "seq <= ?3 AND time_ns >= ?4 AND time_ns <= ?5 AND severity >= ?6";
    if (f.replica) sql += " AND replica = ?7";
    std::string marks;
    for (size_t i = 0; i < f.types.size(); ++i) marks += concat(i == 0 ? "?" : ", ?", 8 + i);
    if (!marks.empty()) sql += concat(" AND type IN (", marks, ")");
    return sql + (f.newestFirst ? " ORDER BY seq DESC" : " ORDER BY seq");
}

template <class View>
absl::StatusOr<std::vector<View>> viewsOf(SQLite::Database& db, int64_t run,
                                          const std::string& sql) {
    std::vector<View> views;
    SQLite::Statement query(db, sql);
    query.bind(1, run);
    while (query.executeStep()) {
        absl::StatusOr<View> view = model::fromJsonText<View>(query.getColumn(0).getString());
        if (!view.ok())
            return absl::DataLossError(concat(
                "a row of run ", run, " cannot be read: ", std::string(view.status().message())));
        views.push_back(*std::move(view));
    }
    return views;
}

}  // namespace

SqliteRunReader::SqliteRunReader(fs::path file, std::unique_ptr<SQLite::Database> db)
    : file_(std::move(file)), db_(std::move(db)) {}

StoredRun SqliteRunReader::rowToRun(SQLite::Statement& row) {
    auto run = readRow<StoredRun>(row);
    const bool said = run.phase == enumName(model::JobPhase::kFinished) ||
                      run.phase == enumName(model::JobPhase::kFailed);
    if (!said && !WriterLock::isHeld(file_, run.id)) run.phase = "interrupted";
    return run;
}

absl::StatusOr<std::vector<StoredRun>> SqliteRunReader::runs(const RunFilter& filter) {
    using Result = std::vector<StoredRun>;
    return guardedValue<Result>(file_.string(), [&]() -> absl::StatusOr<Result> {
        SQLite::Statement query(
            *db_,
            concat("SELECT ", columnsOf<StoredRun>().names,
                   " FROM runs WHERE instr(lower(name || char(10) || note || char(10) || "
                   "workload || char(10) || host), lower(?1)) > 0 ORDER BY created_ns ",
                   filter.newestFirst ? "DESC, id DESC" : "ASC, id ASC", " LIMIT ?2 OFFSET ?3"));
        query.bind(1, filter.text);
        query.bind(2, static_cast<int64_t>(filter.limit));
        query.bind(3, static_cast<int64_t>(filter.offset));
        Result out;
        while (query.executeStep()) out.push_back(rowToRun(query));
        return out;
    });
}

absl::StatusOr<StoredRun> SqliteRunReader::run(int64_t runId) {
    return guardedValue<StoredRun>(file_.string(), [&]() -> absl::StatusOr<StoredRun> {
        SQLite::Statement query(
            *db_, concat("SELECT ", columnsOf<StoredRun>().names, " FROM runs WHERE id = ?"));
        query.bind(1, runId);
        if (!query.executeStep()) return noRun(runId);
        return rowToRun(query);
    });
}

absl::StatusOr<StoredRun> SqliteRunReader::findRun(std::string_view idOrName) {
    return guardedValue<StoredRun>(file_.string(), [&]() -> absl::StatusOr<StoredRun> {
        const bool latest = idOrName == "latest";
        // A name goes before an id: a run may be called "7".
        SQLite::Statement query(*db_, concat("SELECT ", columnsOf<StoredRun>().names, " FROM runs ",
                                             latest ? "ORDER BY created_ns DESC, id DESC LIMIT 1"
                                                    : "WHERE name = ?1 OR uuid = ?1 OR id = ?2 "
                                                      "ORDER BY (name = ?1) DESC LIMIT 1"));
        if (!latest) {
            query.bind(1, std::string(idOrName));
            query.bind(2, model::parseNumber<int64_t>(idOrName).value_or(-1));
        }
        if (query.executeStep()) return rowToRun(query);
        return absl::NotFoundError(concat(file_.string(), ": no run is called \"",
                                          model::shortened(idOrName, 80),
                                          "\"; list them with `bulkheadctl runs`"));
    });
}

absl::StatusOr<std::vector<model::Event>> SqliteRunReader::events(int64_t runId,
                                                                  const EventFilter& filter) {
    using Result = std::vector<model::Event>;
    Result out;
    const absl::Status status = scan(runId, filter, [&](model::Event event) {
        out.push_back(std::move(event));
        return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return out;
}

absl::Status SqliteRunReader::scan(int64_t runId, const EventFilter& f,
                                   const std::function<absl::Status(model::Event)>& take) {
    return guarded(file_.string(), [&]() -> absl::Status {
        SQLite::Statement query(*db_, eventSql(f));
        query.bind(1, runId);
        query.bind(2, asKey(f.fromSeq));
        query.bind(3, asKey(f.toSeq));
        query.bind(4, f.fromNs);
        query.bind(5, f.toNs);
        query.bind(6, static_cast<int>(f.minSeverity));
        if (f.replica) query.bind(7, *f.replica);
        for (size_t i = 0; i < f.types.size(); ++i) query.bind(static_cast<int>(8 + i), f.types[i]);
        std::string json;
        uint64_t bytes = 0;
        for (uint32_t found = 0; found < f.limit && bytes < f.limitBytes && query.executeStep();) {
            absl::StatusOr<model::Event> event = eventOf(query, json);
            if (!event.ok()) return damaged(file_.string(), std::string(event.status().message()));
            if (!matches(json, f)) continue;
            ++found;
            bytes += json.size();
            if (absl::Status s = take(*std::move(event)); !s.ok()) return s;
        }
        return absl::OkStatus();
    });
}

absl::StatusOr<model::RunState> SqliteRunReader::stateAtSeq(int64_t runId, uint64_t seq,
                                                            const LoadProgress& progress) {
    return guardedValue<model::RunState>(file_.string(), [&]() -> absl::StatusOr<model::RunState> {
        SQLite::Transaction oneMoment(*db_);
        if (!exists(runId)) return noRun(runId);
        absl::StatusOr<model::RunState> state = loadState(*db_, runId, seq, progress);
        if (absl::IsDataLoss(state.status()))
            return damaged(file_.string(), std::string(state.status().message()));
        return state;
    });
}

absl::StatusOr<model::RunState> SqliteRunReader::stateAtTime(int64_t runId, int64_t timeNs) {
    const absl::StatusOr<uint64_t> seq = seqAtTime(runId, timeNs);
    if (!seq.ok()) return seq.status();
    return stateAtSeq(runId, *seq, {});
}

absl::StatusOr<uint64_t> SqliteRunReader::seqAtTime(int64_t runId, int64_t timeNs) {
    return guardedValue<uint64_t>(file_.string(), [&]() -> absl::StatusOr<uint64_t> {
        if (!exists(runId)) return noRun(runId);
        SQLite::Statement query(*db_,
                                "SELECT seq FROM events WHERE run = ? AND time_ns <= ? "
                                "ORDER BY time_ns DESC, seq DESC LIMIT 1");
        query.bind(1, runId);
        query.bind(2, timeNs);
        if (!query.executeStep()) return uint64_t{0};
        return static_cast<uint64_t>(query.getColumn(0).getInt64());
    });
}

absl::StatusOr<uint64_t> SqliteRunReader::seqOfStep(int64_t runId, uint64_t step) {
    return guardedValue<uint64_t>(file_.string(), [&]() -> absl::StatusOr<uint64_t> {
        SQLite::Statement query(
            *db_, "SELECT seq FROM steps WHERE run = ? AND step = ? ORDER BY seq DESC LIMIT 1");
        query.bind(1, runId);
        query.bind(2, asKey(step));
        if (query.executeStep()) return static_cast<uint64_t>(query.getColumn(0).getInt64());
        return absl::NotFoundError(
            concat(file_.string(), ": run ", runId, " has no committed step ", step));
    });
}

absl::StatusOr<std::vector<LedgerRow>> SqliteRunReader::ledger(int64_t runId,
                                                               const LedgerFilter& f) {
    using Result = std::vector<LedgerRow>;
    return guardedValue<Result>(file_.string(), [&]() -> absl::StatusOr<Result> {
        if (!exists(runId)) return noRun(runId);
        SQLite::Statement query(
            *db_, concat("SELECT ", columnsOf<LedgerRow>().names,
                         " FROM steps WHERE run = ? AND step >= ? AND step <= ?",
                         f.withSuperseded ? "" : " AND superseded = 0", " ORDER BY seq",
                         f.newestFirst ? " DESC" : "", " LIMIT ?"));
        query.bind(1, runId);
        query.bind(2, asKey(f.fromStep));
        query.bind(3, asKey(f.toStep));
        query.bind(4, static_cast<int64_t>(f.limit));
        Result out;
        while (query.executeStep()) out.push_back(readRow<LedgerRow>(query));
        return out;
    });
}

absl::StatusOr<std::vector<model::IncidentView>> SqliteRunReader::incidents(int64_t runId) {
    using Result = std::vector<model::IncidentView>;
    return guardedValue<Result>(file_.string(), [&]() -> absl::StatusOr<Result> {
        if (!exists(runId)) return noRun(runId);
        return viewsOf<model::IncidentView>(
            *db_, runId, "SELECT body FROM incidents WHERE run = ? ORDER BY incident");
    });
}

absl::StatusOr<std::vector<model::FaultView>> SqliteRunReader::faults(int64_t runId) {
    using Result = std::vector<model::FaultView>;
    return guardedValue<Result>(file_.string(), [&]() -> absl::StatusOr<Result> {
        if (!exists(runId)) return noRun(runId);
        return viewsOf<model::FaultView>(*db_, runId,
                                         "SELECT body FROM faults WHERE run = ? ORDER BY fault");
    });
}

absl::StatusOr<std::vector<model::CheckpointView>> SqliteRunReader::checkpoints(int64_t runId) {
    using Result = std::vector<model::CheckpointView>;
    return guardedValue<Result>(file_.string(), [&]() -> absl::StatusOr<Result> {
        if (!exists(runId)) return noRun(runId);
        SQLite::Statement query(
            *db_, concat("SELECT time_ns, ", columnsOf<model::CheckpointWritten>().names,
                         " FROM checkpoints WHERE run = ? ORDER BY seq"));
        query.bind(1, runId);
        Result out;
        while (query.executeStep())
            out.push_back(
                {query.getColumn(0).getInt64(), readRow<model::CheckpointWritten>(query, 1)});
        return out;
    });
}

bool SqliteRunReader::exists(int64_t runId) {
    SQLite::Statement query(*db_, "SELECT 1 FROM runs WHERE id = ?");
    query.bind(1, runId);
    return query.executeStep();
}

absl::Status SqliteRunReader::noRun(int64_t runId) const {
    return absl::NotFoundError(
        concat(file_.string(), ": no run ", runId, "; list them with `bulkheadctl runs`"));
}

absl::StatusOr<std::unique_ptr<RunReader>> RunReader::open(const fs::path& file) {
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openForReading(file);
    if (!db.ok()) return db.status();
    return std::make_unique<SqliteRunReader>(file, *std::move(db));
}

}  // namespace bulkhead::history
