// SPDX-License-Identifier: Apache-2.0
#include "backend/history/schema.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "backend/common/file_system.h"
#include "backend/history/store_status.h"
#include "backend/model/names.h"

namespace bulkhead::history {
namespace {

namespace fs = std::filesystem;
using model::concat;

constexpr int kBusyMs = 2000;

/// Step i leads from version i to i + 1.
constexpr std::array<const char*, kSchemaVersion> kSteps = {
    R"sql(
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    created_ns INTEGER NOT NULL,
    started_ns INTEGER NOT NULL DEFAULT 0,
    ended_ns INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    last_seq INTEGER NOT NULL DEFAULT 0,
    last_step INTEGER NOT NULL DEFAULT 0,
    last_loss REAL DEFAULT 0,
    effective_time REAL DEFAULT 1,
    incidents INTEGER NOT NULL DEFAULT 0,
    faults INTEGER NOT NULL DEFAULT 0,
    replicas INTEGER NOT NULL DEFAULT 0,
    shards INTEGER NOT NULL DEFAULT 0,
    workload TEXT NOT NULL DEFAULT '',
    host TEXT NOT NULL DEFAULT '',
    phase TEXT NOT NULL DEFAULT 'starting',
    resumed_from TEXT NOT NULL DEFAULT '');
CREATE TABLE events (
    run INTEGER NOT NULL REFERENCES runs(id),
    seq INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    type TEXT NOT NULL,
    step INTEGER,
    replica INTEGER,
    severity INTEGER NOT NULL,
    body NOT NULL,  -- JSON: text, or a blob that is its zstd frame
    PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE INDEX events_time ON events (run, time_ns, seq);
CREATE TABLE keyframes (
    run INTEGER NOT NULL REFERENCES runs(id),
    seq INTEGER NOT NULL,
    state BLOB NOT NULL,  -- zstd frame of model::encodeKeyframe
    PRIMARY KEY (run, seq));
CREATE TABLE steps (
    run INTEGER NOT NULL REFERENCES runs(id),
    lineage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    contributors INTEGER NOT NULL,
    members TEXT NOT NULL,
    samples INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    loss REAL,
    grad_norm REAL,
    learning_rate REAL,
    lr_factor REAL,
    step_ms REAL,
    commit_ms REAL,
    compute_ms REAL,
    exchange_ms REAL,
    exposed_ms REAL,
    vote_ms REAL,
    waited_on_ms REAL,
    waited_on INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    tokens_per_second REAL,
    effective_time REAL,
    skip INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    superseded INTEGER NOT NULL,
    hashes TEXT NOT NULL,
    PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE INDEX steps_step ON steps (run, step, seq);
CREATE TABLE incidents (
    run INTEGER NOT NULL REFERENCES runs(id),
    incident INTEGER NOT NULL,
    opened_ns INTEGER NOT NULL,
    closed_ns INTEGER NOT NULL,
    replica INTEGER NOT NULL,
    step INTEGER NOT NULL,
    cause TEXT NOT NULL,
    fault INTEGER NOT NULL,
    title TEXT NOT NULL,
    survivor_stall_ms REAL,
    rejoin_ms REAL,
    replica_seconds REAL,
    samples_redone INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    body TEXT NOT NULL,  -- JSON of model::IncidentView
    PRIMARY KEY (run, incident)) WITHOUT ROWID;
CREATE TABLE faults (
    run INTEGER NOT NULL REFERENCES runs(id),
    fault INTEGER NOT NULL,
    kind TEXT NOT NULL,
    spec TEXT NOT NULL,
    step INTEGER NOT NULL,
    injected_ns INTEGER NOT NULL,
    ended_ns INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    body TEXT NOT NULL,  -- JSON of model::FaultView
    PRIMARY KEY (run, fault)) WITHOUT ROWID;
CREATE TABLE checkpoints (
    run INTEGER NOT NULL REFERENCES runs(id),
    seq INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    step INTEGER NOT NULL,
    replica INTEGER NOT NULL,
    path TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    ms REAL,
    ok INTEGER NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (run, seq)) WITHOUT ROWID;
)sql",
    R"sql(
ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN missing INTEGER NOT NULL DEFAULT 0;
CREATE TABLE gaps (
    run INTEGER NOT NULL REFERENCES runs(id),
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (run, first_seq)) WITHOUT ROWID;
)sql",
    R"sql(
ALTER TABLE steps ADD COLUMN layout INTEGER NOT NULL DEFAULT 0;
ALTER TABLE steps ADD COLUMN copies INTEGER NOT NULL DEFAULT 0;
ALTER TABLE steps ADD COLUMN remote_copies INTEGER NOT NULL DEFAULT 0;
ALTER TABLE steps ADD COLUMN predicted_remote REAL DEFAULT -1;
ALTER TABLE steps ADD COLUMN all_to_all_bytes INTEGER NOT NULL DEFAULT 0;
)sql",
    // A row for each group of replicas that told the same hashes: where they agree, and that is
    // nearly everywhere, one row, however many replicas. The view has a row for each replica.
    R"sql(
ALTER TABLE steps ADD COLUMN link TEXT NOT NULL DEFAULT '';
CREATE TABLE parity (
    run INTEGER NOT NULL REFERENCES runs(id),
    seq INTEGER NOT NULL,
    part INTEGER NOT NULL,
    step INTEGER NOT NULL,  -- whose state
    lineage INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    layout INTEGER NOT NULL,
    agree INTEGER NOT NULL,  -- 0: other replicas told other hashes
    replicas TEXT NOT NULL,  -- JSON array
    incarnations TEXT NOT NULL,  -- JSON array, of `replicas`
    hashes TEXT NOT NULL,  -- by shard, as in steps
    PRIMARY KEY (run, seq, part)) WITHOUT ROWID;
CREATE VIEW parity_votes AS
    SELECT run, seq, step, lineage, epoch, attempt, layout, agree,
           r.value AS replica, json_extract(incarnations, '$[' || r.key || ']') AS incarnation,
           hashes
    FROM parity, json_each(parity.replicas) AS r;
)sql"};

/// Tables that createSchema() makes, and the version in which each came.
struct Table {
    const char* name;
    int since;
};
constexpr Table kTables[] = {{"runs", 1},        {"events", 1},    {"keyframes", 1},
                             {"steps", 1},       {"faults", 1},    {"gaps", 2},
                             {"checkpoints", 1}, {"incidents", 1}, {"parity", 4}};

int pragma(SQLite::Database& db, const char* name) {
    return db.execAndGet(concat("PRAGMA ", name)).getInt();
}

bool hasTables(SQLite::Database& db) {
    return db.execAndGet("SELECT count(*) FROM sqlite_master").getInt() > 0;
}

/// A file holds data: nothing in it is run, whoever wrote it there.
void guard(SQLite::Database& db) {
    sqlite3* handle = db.getHandle();
    sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
    sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
}

/// DataLoss where a table is missing, or where something stands that would be run when the file is
/// read or written.
absl::Status checkTables(SQLite::Database& db, const std::string& file, int version) {
    constexpr const char* kRemedy = "; restore a copy, or take that out with sqlite3";
    SQLite::Statement foreign(db,
                              "SELECT type, name FROM sqlite_schema WHERE "
                              "sql NOT LIKE 'CREATE TABLE %' AND sql NOT LIKE 'CREATE INDEX %' AND "
                              "sql NOT LIKE 'CREATE UNIQUE INDEX %' AND "
                              "sql NOT LIKE 'CREATE VIEW parity_votes %'");
    if (foreign.executeStep())
        return absl::DataLossError(
            concat(file, ": damaged (the ", model::shortened(foreign.getColumn(0).getString(), 80),
                   " ", model::shortened(foreign.getColumn(1).getString(), 80),
                   " is none of Bulkhead's)", kRemedy));
    SQLite::Statement found(db, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?");
    SQLite::Statement computed(db, "SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 0");
    for (const Table& table : kTables) {
        if (table.since > version) continue;
        found.bind(1, table.name);
        if (!found.executeStep())
            return absl::DataLossError(
                concat(file, ": damaged (no table ", table.name, "); restore a copy"));
        found.reset();
        computed.bind(1, table.name);
        if (computed.executeStep())
            return absl::DataLossError(concat(
                file, ": damaged (the column ", table.name, ".",
                model::shortened(computed.getColumn(0).getString(), 80), " is computed)", kRemedy));
        computed.reset();
    }
    return absl::OkStatus();
}

/// Is it a run file that can be read without running anything of somebody else's?
absl::Status checkIdentity(SQLite::Database& db, const std::string& file) {
    if (pragma(db, "application_id") != kApplicationId)
        return absl::InvalidArgumentError(
            concat(file, ": an SQLite file, but not one of Bulkhead's; name a run file"));
    const int version = pragma(db, "user_version");
    if (version > kSchemaVersion)
        return absl::FailedPreconditionError(
            concat(file, ": written by a newer Bulkhead (schema ", version,
                   ", this one knows up to ", kSchemaVersion, "); update Bulkhead to open it"));
    if (version < 1)
        return absl::InvalidArgumentError(
            concat(file, ": its schema version is ", version, "; expected 1 to ", kSchemaVersion));
    return checkTables(db, file, version);
}

/// Takes the write lock first, so that of two processes one migrates and the other finds it done.
absl::Status migrate(SQLite::Database& db, const std::string& file) {
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    if (!hasTables(db)) {
        createSchema(db);
    } else {
        if (absl::Status s = checkIdentity(db, file); !s.ok()) return s;
        const int version = pragma(db, "user_version");
        if (version == kSchemaVersion) return absl::OkStatus();
        for (int v = version; v < kSchemaVersion; ++v) db.exec(kSteps[static_cast<size_t>(v)]);
        db.exec(concat("PRAGMA user_version = ", kSchemaVersion));
    }
    transaction.commit();
    return absl::OkStatus();
}

absl::Status createFile(const fs::path& file) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        ::close(fd);
        return absl::OkStatus();
    }
    const std::string cause = std::strerror(errno);
    if (errno == EISDIR)
        return absl::InvalidArgumentError(concat(file.string(), ": a folder; name a run file"));
    if (errno == ENOSPC)
        return absl::ResourceExhaustedError(
            concat(file.string(), ": no room left on the disk", roomAt(file), "; free some"));
    return absl::PermissionDeniedError(
        concat(file.string(), ": cannot be opened for writing (", cause,
               "); check that the folder exists and may be written"));
}

bool mayBeLocked(const fs::path& file) {
    return ::access(file.parent_path().empty() ? "." : file.parent_path().c_str(), W_OK) == 0;
}

std::string asUri(const fs::path& file, std::string_view query) {
    std::string uri = "file:";
    constexpr char kHex[] = "0123456789ABCDEF";
    for (const char c : fs::absolute(file).string()) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = std::isalnum(byte) || std::strchr("/._-", c);
        if (plain)
            uri += c;
        else
            uri += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
    return concat(uri, query);
}

std::unique_ptr<SQLite::Database> openRead(const fs::path& file) {
    const auto open = [&](std::string_view query) {
        auto db = std::make_unique<SQLite::Database>(
            asUri(file, query), SQLite::OPEN_READONLY | SQLite::OPEN_URI, kBusyMs);
        guard(*db);
        db->execAndGet(
            "SELECT count(*) FROM sqlite_master");  // touches the file, not only opens it
        return db;
    };
    try {
        return open("?mode=ro");
    } catch (const SQLite::Exception& error) {
        const int code = error.getErrorCode() & 0xff;
        const bool noLock = code == SQLITE_CANTOPEN || code == SQLITE_READONLY;
        // WAL wants a -shm file beside it; where none can be made, nobody is writing either.
        if (!noLock || mayBeLocked(file)) throw;
        return open("?immutable=1");
    }
}

}  // namespace

std::vector<const char*> tablesOfRuns() {
    std::vector<const char*> out;
    for (const Table& table : kTables)
        if (std::string_view(table.name) != "runs") out.push_back(table.name);
    return out;
}

void createSchema(SQLite::Database& db, int version) {
    for (int v = 0; v < version; ++v) db.exec(kSteps[static_cast<size_t>(v)]);
    db.exec(concat("PRAGMA application_id = ", kApplicationId));
    db.exec(concat("PRAGMA user_version = ", version));
}

absl::StatusOr<std::unique_ptr<SQLite::Database>> openForWriting(const fs::path& file) {
    if (absl::Status s = createFile(file); !s.ok()) return s;
    using Result = std::unique_ptr<SQLite::Database>;
    return guardedValue<Result>(file.string(), [&]() -> absl::StatusOr<Result> {
        auto db =
            std::make_unique<SQLite::Database>(file.string(), SQLite::OPEN_READWRITE, kBusyMs);
        guard(*db);
        if (hasTables(*db))
            if (absl::Status s = checkIdentity(*db, file.string()); !s.ok()) return s;
        db->exec("PRAGMA journal_mode = WAL");
        // NORMAL: a killed process loses nothing; a power cut may lose the last moments, whole
        // transactions of them, never consistency.
        db->exec("PRAGMA synchronous = NORMAL");
        db->exec("PRAGMA journal_size_limit = 67108864");
        if (absl::Status s = migrate(*db, file.string()); !s.ok()) return s;
        return db;
    });
}

bool holdsNothing(const fs::path& file) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) return false;
    if (fs::file_size(file, error) == 0) return true;
    // Only a process that may write can undo a write that a killed one had begun.
    for (const int how : {SQLite::OPEN_READONLY, SQLite::OPEN_READWRITE}) {
        try {
            SQLite::Database db(file.string(), how, kBusyMs);
            return !hasTables(db);
        } catch (const SQLite::Exception&) {
        }
    }
    return false;
}

absl::StatusOr<std::unique_ptr<SQLite::Database>> openForReading(const fs::path& file) {
    std::error_code error;
    const fs::file_status kind = fs::status(file, error);
    if (!fs::exists(kind))
        return absl::NotFoundError(concat(file.string(), ": no such file; name a run file"));
    if (!fs::is_regular_file(kind))
        return absl::InvalidArgumentError(concat(file.string(), ": not a file; name a run file"));
    using Result = std::unique_ptr<SQLite::Database>;
    return guardedValue<Result>(file.string(), [&]() -> absl::StatusOr<Result> {
        Result db = openRead(file);
        if (!hasTables(*db))
            return absl::InvalidArgumentError(
                concat(file.string(), ": empty; name a file that Bulkhead wrote"));
        if (absl::Status s = checkIdentity(*db, file.string()); !s.ok()) return s;
        if (pragma(*db, "user_version") == kSchemaVersion) return db;
        if (::access(file.c_str(), W_OK) != 0)
            return absl::FailedPreconditionError(
                concat(file.string(),
                       ": written by an older Bulkhead and may not be written; copy "
                       "it to where you may write and open the copy"));
        db.reset();
        absl::StatusOr<Result> migrated = openForWriting(file);
        if (!migrated.ok()) return migrated.status();
        migrated->reset();
        db = openRead(file);
        return db;
    });
}

}  // namespace bulkhead::history
