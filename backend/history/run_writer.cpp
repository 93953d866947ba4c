// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/history/event_buffer.h"
#include "backend/history/event_tail.h"
#include "backend/history/row_io.h"
#include "backend/history/run_store.h"
#include "backend/history/run_tables.h"
#include "backend/history/schema.h"
#include "backend/history/state_loading.h"
#include "backend/history/store_status.h"
#include "backend/history/writer_lock.h"
#include "backend/model/names.h"

namespace bulkhead::history {
namespace {

using std::chrono::milliseconds;
namespace fs = std::filesystem;

constexpr milliseconds kFarewell{5000};

/// Identity of the file at a path: it changes with a rename, a removal or a restored copy.
struct FileId {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const FileId&) const = default;
};

/// Nothing stands there: zeros. nullopt: that cannot be found out now.
std::optional<FileId> fileAt(const fs::path& file) {
    struct stat found {};
    if (::stat(file.c_str(), &found) == 0) return FileId{found.st_dev, found.st_ino};
    if (errno == ENOENT || errno == ENOTDIR) return FileId{};
    return std::nullopt;
}

/// A file that SQLite keeps beside this one while it is open.
fs::path beside(const fs::path& file, const char* suffix) {
    return fs::path(file.string() + suffix);
}

/// An open connection with the statements of one run; made anew after an error.
struct Connection {
    std::unique_ptr<SQLite::Database> db;
    std::unique_ptr<RunTables> tables;

    /// SQLite closes only when no statement is left.
    void close() {
        tables.reset();
        db.reset();
    }

    static absl::StatusOr<Connection> open(const fs::path& file, int64_t run) {
        absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openForWriting(file);
        if (!db.ok()) return db.status();
        return guardedValue<Connection>(file.string(), [&]() -> absl::StatusOr<Connection> {
            Connection c{*std::move(db), nullptr};
            c.tables = std::make_unique<RunTables>(*c.db, run);
            return c;
        });
    }
};

/// The state that a writer starts from.
struct Beginning {
    StoredRun info;
    model::RunState state;
    Connection connection;
    std::optional<FileId> opened;
    std::unique_ptr<WriterLock> lock;
    std::unique_ptr<EventTail> tail;
};

class SqliteRunWriter final : public RunWriter {
  public:
    SqliteRunWriter(fs::path file, Beginning beginning, const Clock& clock, WriterOptions options)
        : file_(std::move(file)),
          clock_(clock),
          options_(std::move(options)),
          lock_(std::move(beginning.lock)),
          tail_(std::move(beginning.tail)),
          opened_(beginning.opened),
          connection_(std::move(beginning.connection)),
          past_(beginning.state),
          state_(std::move(beginning.state)),
          id_(beginning.info.id),
          info_(std::move(beginning.info)),
          durableSeq_(state_.seq),
          buffer_(std::max<size_t>(1, options_.bufferEvents), options_.bufferBytes, state_.seq),
          thread_([this] { loop(); }) {}

    ~SqliteRunWriter() override {
        {
            const MutexLock guard(mutex_);
            stopping_ = true;
            giveUpAt_ = std::chrono::steady_clock::now() + kFarewell;
        }
        wake_.notify_all();
        thread_.join();
        if (!isThere().ok()) leave();
        // Beside another file, what the tail holds would be taken for that one's.
        if (durableSeq_ == buffer_.lastSeq() || !isThere().ok()) tail_->removeAtEnd();
    }

    /// Writes the events that a killed writer had accepted and not written, before any new ones.
    absl::Status writeLeft() {
        std::vector<model::Event> left;
        {
            const MutexLock guard(mutex_);
            left = tail_->takeLeft();
        }
        for (const model::Event& event : left) {
            const MutexLock guard(mutex_);
            if (event.seq != buffer_.lastSeq() + 1) continue;
            if (absl::Status s = buffer_.push(event, clock_.unixNs(), "the buffer is full");
                !s.ok())
                return s;
            model::apply(past_, event);
        }
        MutexLock lock(mutex_);
        leftSeq_ = buffer_.lastSeq();
        ++flushers_;
        wake_.notify_all();
        // A full disk keeps nobody waiting: it is tried again until there is room.
        written_.wait_for(lock, milliseconds(5000), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return durableSeq_ >= leftSeq_ || !health_.ok();
        });
        --flushers_;
        settled_ = durableSeq_ >= leftSeq_;
        if (settled_) tail_->clear();
        return absl::OkStatus();
    }

    absl::Status append(const model::Event& event) override {
        const MutexLock guard(mutex_);
        if (isLost()) return health_;
        const std::string why = health_.ok() ? "events came faster than they could be written"
                                             : std::string(health_.message());
        absl::Status status = buffer_.push(event, clock_.unixNs(), why);
        // A tail that cannot be written leaves what there was before it: the batch.
        if (status.ok()) (void)tail_->add(event);
        if (buffer_.size() == 1 || buffer_.size() >= options_.batchEvents) wake_.notify_all();
        return status;
    }

    absl::Status flush(uint32_t timeoutMs) override {
        MutexLock lock(mutex_);
        const uint64_t wanted = buffer_.lastSeq();
        ++flushers_;
        wake_.notify_all();
        written_.wait_for(lock, milliseconds(timeoutMs),
                          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                              return durableSeq_ >= wanted || isLost();
                          });
        --flushers_;
        if (isLost()) return health_;
        if (durableSeq_ >= wanted) return absl::OkStatus();
        return absl::DeadlineExceededError(model::concat(
            file_.string(), ": events ", durableSeq_ + 1, " to ", wanted, " are not written yet",
            health_.ok() ? "" : ": " + std::string(health_.message())));
    }

    int64_t runId() const override { return id_; }
    StoredRun info() const override {
        const MutexLock guard(mutex_);
        return info_;
    }
    uint64_t lastSeq() const override {
        const MutexLock guard(mutex_);
        return buffer_.lastSeq();
    }
    uint64_t durableSeq() const override {
        const MutexLock guard(mutex_);
        return durableSeq_;
    }
    absl::Status health() const override {
        const MutexLock guard(mutex_);
        if (health_.ok()) return isThere();
        return health_;
    }
    model::RunState takePast() override { return std::move(past_); }

  private:
    /// Aborted as health().
    absl::Status isThere() const {
        const std::optional<FileId> there = fileAt(file_);
        if (!there || !opened_) return absl::OkStatus();
        if (*there == *opened_ && !isEmptied()) return absl::OkStatus();
        return absl::AbortedError(model::concat(file_.string(),
                                                *there == FileId{}   ? ": was removed"
                                                : *there == *opened_ ? ": was emptied"
                                                                     : ": was replaced",
                                                " while it was written"));
    }
    bool isEmptied() const {
        std::error_code error;
        return fs::file_size(file_, error) == 0 && !error;
    }
    /// Without them other readers see another file than this writer does.
    absl::Status isWhole() const {
        for (const auto& [suffix, known] : beside_)
            if (const auto there = fileAt(beside(file_, suffix)); there && *there != known)
                return absl::AbortedError(model::concat(beside(file_, suffix).string(),
                                                        ": was removed or replaced while ",
                                                        file_.string(), " was written"));
        return absl::OkStatus();
    }
    /// The file is not this writer's any more. What SQLite kept beside it would be read into
    /// whatever stands there now, and an empty file in its place keeps a new one from being made.
    void leave() {
        for (const auto& [suffix, known] : beside_)
            if (fileAt(beside(file_, suffix)) == known) ::unlink(beside(file_, suffix).c_str());
        if (fileAt(file_) == opened_ && isEmptied())
            ::rename(file_.c_str(), beside(file_, ".emptied").c_str());
        connection_.close();
    }
    bool isLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return absl::IsAborted(health_); }

    void loop() {
        while (true) {
            Batch batch = nextBatch();
            if (batch.events.empty()) return;
            addKeyframe(batch);
            if (!writeUntilDone(batch)) return;
        }
    }

    /// Waits for events, then for more of them up to flushMs. Empty: stopping, nothing is left.
    Batch nextBatch() {
        std::vector<model::Event> events;
        {
            MutexLock lock(mutex_);
            wake_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return stopping_ || !buffer_.empty();
            });
            wake_.wait_for(
                lock, milliseconds(options_.flushMs), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                    return stopping_ || flushers_ > 0 || buffer_.size() >= options_.batchEvents;
                });
            events = buffer_.take(options_.batchEvents, options_.batchBytes, clock_.unixNs());
            turned_ = settled_ && buffer_.empty();
            if (turned_) tail_->turn();
        }
        Batch batch;
        for (model::Event& event : events) batch.fold(state_, std::move(event));
        batch.makeRows();
        return batch;
    }

    /// A keyframe costs as much as the state is large: one only after as many bytes of events. Who
    /// seeks reads the events behind it, so that large ones count by their bytes.
    void addKeyframe(Batch& batch) {
        eventsSinceKeyframe_ += batch.events.size();
        bytesSinceKeyframe_ += batch.bytes;
        if (eventsSinceKeyframe_ < options_.keyframeEvents &&
            bytesSinceKeyframe_ < options_.keyframeBytes)
            return;
        if (bytesSinceKeyframe_ < lastKeyframeBytes_) return;
        batch.keyframe = compress(model::encodeKeyframe(state_));
        lastKeyframeBytes_ = batch.keyframe.size();
        eventsSinceKeyframe_ = 0;
        bytesSinceKeyframe_ = 0;
    }

    bool writeUntilDone(const Batch& batch) {
        while (true) {
            absl::Status status = writeOnce(batch);
            const bool good = status.ok();
            const bool mayWait = report(std::move(status), batch);
            if (good) return true;
            if (!mayWait) return false;
        }
    }

    absl::Status writeOnce(const Batch& batch) {
        if (absl::Status s = isThere(); !s.ok()) {
            leave();
            return s;
        }
        if (absl::Status s = isWhole(); !s.ok()) {
            // This connection still has the log that was removed; nobody else will.
            if (connection_.db)
                (void)guarded(file_.string(), [&] {
                    connection_.db->exec("PRAGMA wal_checkpoint(FULL)");
                    return absl::OkStatus();
                });
            connection_.close();
            return s;
        }
        if (!connection_.db) {
            absl::StatusOr<Connection> again = Connection::open(file_, id_);
            if (!again.ok()) return again.status();
            connection_ = *std::move(again);
        }
        absl::Status status = guarded(file_.string(), [&] {
            SQLite::Transaction transaction(*connection_.db,
                                            SQLite::TransactionBehavior::IMMEDIATE);
            if (options_.fence) options_.fence();
            connection_.tables->write(batch, state_);
            transaction.commit();
            return absl::OkStatus();
        });
        if (!status.ok()) connection_.close();
        beside_.clear();
        for (const char* suffix : {"-wal", "-shm"})
            if (const auto there = fileAt(beside(file_, suffix)); status.ok() && there)
                beside_.emplace_back(suffix, *there);
        return status;
    }

    /// Tells of the outcome and, after a failure, waits for the next try. False: no more tries.
    bool report(absl::Status status, const Batch& batch) {
        const bool good = status.ok();
        MutexLock lock(mutex_);
        const bool changed = health_.ok() != good;
        health_ = std::move(status);
        if (good) {
            durableSeq_ = state_.seq;
            settled_ = settled_ || durableSeq_ >= leftSeq_;
            if (turned_) tail_->drop();
            noteInfo(batch);
        }
        written_.notify_all();
        if (changed && options_.onHealth) {
            const absl::Status health = health_;
            lock.unlock();
            options_.onHealth(health);
            lock.lock();
        }
        if (good) return true;
        if (isLost()) return false;
        const auto now = std::chrono::steady_clock::now();
        if (stopping_ && now >= giveUpAt_) return false;
        // A stop cuts the pause short once; afterwards it is waited out, so as not to spin.
        const bool wasStopping = stopping_;
        wake_.wait_for(
            lock, milliseconds(options_.retryMs),
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ && !wasStopping; });
        return true;
    }

    void noteInfo(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        info_.startedNs = state_.startedNs;
        info_.endedNs = state_.lastEventNs;
        info_.events += batch.events.size();
        info_.lastSeq = state_.seq;
        info_.lastStep = state_.lastCommit ? state_.lastCommit->record.step : 0;
        info_.lastLoss = state_.lastCommit ? state_.lastCommit->loss : 0;
        info_.effectiveTime = state_.effectiveTime;
        info_.incidents = state_.counters.incidents;
        info_.faults = state_.counters.faults;
        info_.replicas = state_.spec.replicas;
        info_.shards = state_.spec.shards;
        info_.workload = state_.spec.workload;
        info_.phase = enumName(state_.phase);
        info_.resumedFrom = state_.resumedFrom;
        for (const model::Event& event : batch.events)
            if (const std::optional<Gap> gap = gapOf(event))
                info_.missing += gap->last - gap->first + 1;
    }

    const fs::path file_;
    const Clock& clock_;
    const WriterOptions options_;
    const std::unique_ptr<WriterLock> lock_;
    const std::unique_ptr<EventTail> tail_ ABSL_PT_GUARDED_BY(mutex_);

    const std::optional<FileId> opened_;

    // The writer's thread only.
    std::vector<std::pair<const char*, FileId>> beside_;  ///< suffix: as after the last write
    Connection connection_;
    model::RunState past_;  ///< as it was begun; until somebody takes it
    model::RunState state_;
    uint64_t eventsSinceKeyframe_ = 0;
    size_t bytesSinceKeyframe_ = 0;
    size_t lastKeyframeBytes_ = 0;

    const int64_t id_;  ///< of the run in the file

    mutable Mutex mutex_;
    ConditionVariable wake_;
    ConditionVariable written_;
    StoredRun info_ ABSL_GUARDED_BY(mutex_);
    uint64_t durableSeq_ ABSL_GUARDED_BY(mutex_);
    EventBuffer buffer_ ABSL_GUARDED_BY(mutex_);
    absl::Status health_ ABSL_GUARDED_BY(mutex_);
    int flushers_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t leftSeq_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;  ///< the last event of an earlier life
    bool settled_ ABSL_GUARDED_BY(mutex_) =
        false;  ///< nothing of an earlier life stands in the tail alone
    bool turned_ ABSL_GUARDED_BY(mutex_) =
        false;  ///< the batch being written is all of the tail's other part
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    std::chrono::steady_clock::time_point giveUpAt_ ABSL_GUARDED_BY(mutex_);

    std::thread thread_;  // last: it uses all of the above
};

absl::StatusOr<std::unique_ptr<SQLite::Database>> openExisting(const fs::path& file) {
    std::error_code error;
    if (!fs::exists(file, error))
        return absl::NotFoundError(model::concat(file.string(), ": no such file; name a run file"));
    return openForWriting(file);
}

/// Random, for telling apart files that were copied; nothing depends on it being unguessable.
std::string newUuid() {
    std::random_device device;
    constexpr char kDigits[] = "0123456789abcdef";
    std::string uuid = "xxxxxxxx-xxxx-4xxx-axxx-xxxxxxxxxxxx";
    for (char& c : uuid)
        if (c == 'x') c = kDigits[device() & 15];
    return uuid;
}

/// `name`, or the first of name-2, name-3 ... that is free.
std::string freeName(SQLite::Database& db, std::string_view wanted, const WriterOptions& options) {
    const std::string base = wanted.empty() ? "run" : std::string(wanted);
    SQLite::Statement taken(db, "SELECT 1 FROM runs WHERE name = ?");
    for (uint64_t n = 1;; ++n) {
        const std::string name = n == 1 ? base : model::concat(base, "-", n);
        taken.reset();
        taken.bind(1, name);
        if (taken.executeStep()) continue;
        if (!options.isTaken || !options.isTaken(name)) return name;
    }
}

absl::StatusOr<StoredRun> insertRun(SQLite::Database& db, std::string_view name, int64_t nowNs,
                                    const WriterOptions& options) {
    StoredRun info;
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    info.uuid = options.uuid.empty() ? newUuid() : options.uuid;
    info.name = freeName(db, name, options);
    if (options.claim)
        if (absl::Status s = options.claim(info.name); !s.ok()) return s;
    info.createdNs = nowNs;
    info.phase = "starting";
    SQLite::Statement insert(db, "INSERT INTO runs (uuid, name, created_ns) VALUES (?, ?, ?)");
    insert.bind(1, info.uuid);
    insert.bind(2, info.name);
    insert.bind(3, nowNs);
    insert.exec();
    info.id = db.getLastInsertRowid();
    transaction.commit();
    return info;
}

absl::StatusOr<StoredRun> selectRun(SQLite::Database& db, const std::string& file, int64_t id) {
    SQLite::Statement query(
        db, model::concat("SELECT ", columnsOf<StoredRun>().names, " FROM runs WHERE id = ?"));
    query.bind(1, id);
    if (!query.executeStep()) return absl::NotFoundError(model::concat(file, ": no run ", id));
    return readRow<StoredRun>(query);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunWriter>> RunWriter::create(const fs::path& file,
                                                             std::string_view name,
                                                             const Clock& clock,
                                                             WriterOptions options) {
    using Result = std::unique_ptr<RunWriter>;
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openForWriting(file);
    if (!db.ok()) return db.status();
    return guardedValue<Result>(file.string(), [&]() -> absl::StatusOr<Result> {
        Beginning beginning;
        absl::StatusOr<StoredRun> inserted = insertRun(**db, name, clock.unixNs(), options);
        if (!inserted.ok()) return inserted.status();
        beginning.info = *std::move(inserted);
        beginning.opened = fileAt(file);
        auto lock = WriterLock::take(file, beginning.info.id);
        if (!lock.ok()) return lock.status();
        beginning.lock = *std::move(lock);
        auto tail =
            EventTail::open(*options.files, file.string(), beginning.info.id, beginning.info.uuid);
        if (!tail.ok()) return tail.status();
        beginning.tail = *std::move(tail);
        (void)beginning.tail->takeLeft();
        beginning.connection.db = *std::move(db);
        beginning.connection.tables =
            std::make_unique<RunTables>(*beginning.connection.db, beginning.info.id);
        auto writer = std::make_unique<SqliteRunWriter>(file, std::move(beginning), clock,
                                                        std::move(options));
        if (absl::Status s = writer->writeLeft(); !s.ok()) return s;
        return writer;
    });
}

absl::StatusOr<std::unique_ptr<RunWriter>> RunWriter::resume(const fs::path& file, int64_t runId,
                                                             const Clock& clock,
                                                             WriterOptions options) {
    using Result = std::unique_ptr<RunWriter>;
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openExisting(file);
    if (!db.ok()) return db.status();
    return guardedValue<Result>(file.string(), [&]() -> absl::StatusOr<Result> {
        absl::StatusOr<StoredRun> info = selectRun(**db, file.string(), runId);
        if (!info.ok()) return info.status();
        auto lock = WriterLock::take(file, runId);
        if (!lock.ok()) return lock.status();
        absl::StatusOr<model::RunState> state = loadState(**db, runId, UINT64_MAX, {});
        if (!state.ok()) return state.status();
        Beginning beginning;
        beginning.info = *std::move(info);
        beginning.opened = fileAt(file);
        beginning.state = *std::move(state);
        beginning.lock = *std::move(lock);
        auto tail = EventTail::open(*options.files, file.string(), runId, beginning.info.uuid);
        if (!tail.ok()) return tail.status();
        beginning.tail = *std::move(tail);
        beginning.connection.db = *std::move(db);
        beginning.connection.tables = std::make_unique<RunTables>(*beginning.connection.db, runId);
        auto writer = std::make_unique<SqliteRunWriter>(file, std::move(beginning), clock,
                                                        std::move(options));
        if (absl::Status s = writer->writeLeft(); !s.ok()) return s;
        return writer;
    });
}

absl::Status renameRun(const fs::path& file, int64_t runId, std::string_view name) {
    if (name.empty()) return absl::InvalidArgumentError("a run's name cannot be empty");
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openExisting(file);
    if (!db.ok()) return db.status();
    return guarded(file.string(), [&]() -> absl::Status {
        SQLite::Transaction transaction(**db, SQLite::TransactionBehavior::IMMEDIATE);
        SQLite::Statement taken(**db, "SELECT 1 FROM runs WHERE name = ? AND id <> ?");
        taken.bind(1, std::string(name));
        taken.bind(2, runId);
        if (taken.executeStep())
            return absl::AlreadyExistsError(
                model::concat("another run is called \"", name, "\"; choose a free name"));
        SQLite::Statement update(**db, "UPDATE runs SET name = ? WHERE id = ?");
        update.bind(1, std::string(name));
        update.bind(2, runId);
        if (update.exec() == 0)
            return absl::NotFoundError(model::concat(file.string(), ": no run ", runId));
        transaction.commit();
        return absl::OkStatus();
    });
}

absl::Status removeUnusedRun(const fs::path& file, int64_t runId) {
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openExisting(file);
    if (!db.ok()) return db.status();
    return guarded(file.string(), [&]() -> absl::Status {
        SQLite::Statement remove(**db,
                                 "DELETE FROM runs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM "
                                 "events WHERE run = runs.id)");
        remove.bind(1, runId);
        remove.exec();
        return absl::OkStatus();
    });
}

absl::StatusOr<std::vector<std::string>> removeOldRuns(const fs::path& file,
                                                       const Removal& removal) {
    constexpr int kEventsAtOnce = 1000;
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openExisting(file);
    if (!db.ok()) return db.status();
    using Names = std::vector<std::string>;
    return guardedValue<Names>(file.string(), [&]() -> absl::StatusOr<Names> {
        std::vector<std::pair<int64_t, std::string>> old;
        SQLite::Statement query(
            **db, "SELECT id, name FROM runs WHERE max(ended_ns, created_ns) < ? ORDER BY id");
        query.bind(1, removal.endedBeforeNs);
        while (query.executeStep())
            old.emplace_back(query.getColumn(0).getInt64(), query.getColumn(1).getString());
        const auto exec = [&](const std::string& sql, int64_t run) {
            SQLite::Statement statement(**db, sql);
            statement.bind(1, run);
            return statement.exec();
        };
        Names removed;
        for (const auto& [run, name] : old) {
            if (removal.isKept(name)) continue;
            const auto lock = WriterLock::take(file, run);
            if (!lock.ok()) continue;
            for (bool more = true; more;) {
                if (!removal.goesOn()) return removed;
                SQLite::Transaction transaction(**db, SQLite::TransactionBehavior::IMMEDIATE);
                if (removal.fence) removal.fence();
                more =
                    exec(model::concat("DELETE FROM events WHERE run = ?1 AND seq IN (SELECT seq "
                                       "FROM events WHERE run = ?1 ORDER BY seq LIMIT ",
                                       kEventsAtOnce, ")"),
                         run) == kEventsAtOnce;
                if (!more) {
                    for (const char* table : tablesOfRuns())
                        exec(model::concat("DELETE FROM ", table, " WHERE run = ?"), run);
                    exec("DELETE FROM runs WHERE id = ?", run);
                }
                transaction.commit();
            }
            removed.push_back(name);
        }
        return removed;
    });
}

absl::Status setRunNote(const fs::path& file, int64_t runId, std::string_view note) {
    absl::StatusOr<std::unique_ptr<SQLite::Database>> db = openExisting(file);
    if (!db.ok()) return db.status();
    return guarded(file.string(), [&]() -> absl::Status {
        SQLite::Statement update(**db, "UPDATE runs SET note = ? WHERE id = ?");
        update.bind(1, std::string(note));
        update.bind(2, runId);
        if (update.exec() == 0)
            return absl::NotFoundError(model::concat(file.string(), ": no run ", runId));
        return absl::OkStatus();
    });
}

}  // namespace bulkhead::history
