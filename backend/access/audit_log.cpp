// SPDX-License-Identifier: Apache-2.0
#include "backend/access/audit_log.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/codec.h"
#include "backend/common/digest.h"
#include "backend/common/threads.h"
#include "backend/history/store_status.h"

namespace bulkhead::access {
namespace {

using model::AuditEntry;
using model::AuditPage;
using model::AuditQuery;

constexpr int kBusyMs = 2000;
/// The columns of an entry, in its own order, and its hash.
constexpr const char* kTable =
    "CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL, "
    "principal TEXT NOT NULL, via TEXT NOT NULL, peer TEXT NOT NULL, by TEXT NOT NULL, "
    "call TEXT NOT NULL, object TEXT NOT NULL, revision INTEGER NOT NULL, request TEXT NOT NULL, "
    "outcome TEXT NOT NULL, message TEXT NOT NULL, repeated INTEGER NOT NULL, hash TEXT NOT NULL)";

std::string hashOf(const std::string& previous, const AuditEntry& entry) {
    return sha256Hex(previous + encode(entry));
}

struct Row {
    AuditEntry entry;
    std::string hash;
    bool typed = true;  ///< every column has the type of its declaration
};

/// Binds and reads the fields of an entry by their order.
struct Binder {
    SQLite::Statement& statement;
    int at = 0;
    void operator()(std::string_view, const std::string& value) { statement.bind(++at, value); }
    void operator()(std::string_view, int64_t value) { statement.bind(++at, value); }
    void operator()(std::string_view, uint64_t value) {
        statement.bind(++at, static_cast<int64_t>(value));
    }
};
struct Getter {
    SQLite::Statement& statement;
    int at = 0;
    bool typed = true;
    void operator()(std::string_view, std::string& value) {
        const SQLite::Column column = statement.getColumn(at++);
        typed = typed && column.isText();
        value = column.getString();
    }
    void operator()(std::string_view, int64_t& value) {
        const SQLite::Column column = statement.getColumn(at++);
        typed = typed && column.isInteger();
        value = column.getInt64();
    }
    void operator()(std::string_view name, uint64_t& value) {
        int64_t number = 0;
        (*this)(name, number);
        value = static_cast<uint64_t>(number);
    }
};

Row rowOf(SQLite::Statement& statement) {
    Row row;
    Getter get{statement};
    AuditEntry::fields(row.entry, get);
    get("hash", row.hash);
    row.typed = get.typed;
    return row;
}

}  // namespace

class AuditLog::Impl {
  public:
    Impl(std::string file, bool writes) : file_(std::move(file)), writes_(writes) {
        const MutexLock lock(mutex_);
        const MutexLock reading(readMutex_);
        open();
    }

    absl::Status add(std::vector<AuditEntry> entries) {
        if (!writes_) return absl::FailedPreconditionError(file_ + ": was opened for reading");
        const MutexLock lock(mutex_);
        return history::guarded(file_, [&] {
            mutex_.assertHeld();
            if (fileNow() != opened_ || writer_ == nullptr) {
                const MutexLock reading(readMutex_);
                entries.insert(entries.begin(), removal());
                open();
            }
            uint64_t last = last_;
            std::string head = head_;
            SQLite::Transaction whole(*writer_);
            SQLite::Statement insert(
                *writer_, "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
            for (AuditEntry& entry : entries) {
                entry.seq = ++last;
                head = hashOf(head, entry);
                Binder bind{insert};
                const AuditEntry& kept = entry;
                AuditEntry::fields(kept, bind);
                insert.bind(bind.at + 1, head);
                insert.exec();
                insert.reset();
            }
            whole.commit();
            last_ = last;
            head_ = head;
            return absl::OkStatus();
        });
    }

    absl::StatusOr<AuditPage> read(const AuditQuery& query) {
        End written;
        if (query.check) {
            const MutexLock lock(mutex_);
            written = {last_, head_};
        }
        const MutexLock lock(readMutex_);
        return history::guardedValue<AuditPage>(file_, [&]() -> absl::StatusOr<AuditPage> {
            readMutex_.assertHeld();
            if (reader_ == nullptr)
                return absl::UnavailableError(file_ + ": cannot be opened; see the daemon's log");
            SQLite::Transaction moment(*reader_);  // later entries are not seen
            AuditPage page;
            std::tie(page.total, page.head) = end(*reader_);
            SQLite::Statement select(
                *reader_, query.newestFirst
                              ? "SELECT * FROM audit WHERE seq <= ? ORDER BY seq DESC LIMIT ?"
                              : "SELECT * FROM audit WHERE seq >= ? ORDER BY seq LIMIT ?");
            const uint64_t from =
                query.newestFirst && query.fromSeq == 0 ? page.total : query.fromSeq;
            select.bind(1, static_cast<int64_t>(std::min<uint64_t>(from, INT64_MAX)));
            select.bind(2, static_cast<int64_t>(std::min(query.limit, kMostEntries)));
            while (select.executeStep()) page.entries.push_back(rowOf(select).entry);
            if (query.check) page.brokenAt = firstBroken(page.total, written);
            return page;
        });
    }

  private:
    /// Device and inode; zeros: there is no file.
    std::pair<dev_t, ino_t> fileNow() const {
        struct stat about {};
        if (::stat(file_.c_str(), &about) != 0) return {};
        return {about.st_dev, about.st_ino};
    }

    /// The old connections end first: with the last one SQLite removes what lies beside the file,
    /// by name.
    void open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_, readMutex_) {
        writer_.reset();
        reader_.reset();
        if (writes_) {
            // SQLite gives what lies beside it the same mode.
            const int fd = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (fd >= 0) ::close(fd);
            writer_ = openWriter(file_);
            std::tie(last_, head_) = end(*writer_);
        }
        reader_ = std::make_unique<SQLite::Database>(file_, SQLite::OPEN_READONLY, kBusyMs);
        opened_ = fileNow();
    }

    AuditEntry removal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        AuditEntry out;
        out.timeNs = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
        out.call = "audit";
        out.outcome = absl::StatusCodeToString(absl::StatusCode::kDataLoss);
        out.message = "The file was removed or replaced while the daemon ran; its last entry was " +
                      std::to_string(last_) + ", with the hash " + head_ + ".";
        return out;
    }

    static std::unique_ptr<SQLite::Database> openWriter(const std::string& file) {
        auto db = std::make_unique<SQLite::Database>(
            file, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, kBusyMs);
        db->exec("PRAGMA journal_mode = WAL");
        db->exec("PRAGMA synchronous = FULL");
        db->exec(kTable);
        return db;
    }

    /// Number and hash of the last entry; 0 and none before the first.
    using End = std::pair<uint64_t, std::string>;
    static End end(SQLite::Database& db) {
        SQLite::Statement last(db, "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1");
        if (!last.executeStep()) return {};
        return {static_cast<uint64_t>(last.getColumn(0).getInt64()), last.getColumn(1).getString()};
    }

    /// `written`: an entry that is there; 0: nobody knows of one.
    uint64_t firstBroken(uint64_t total, const End& written)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(readMutex_) {
        SQLite::Statement all(*reader_, "SELECT * FROM audit ORDER BY seq");
        std::string previous;
        uint64_t expected = 1;
        for (; all.executeStep(); ++expected) {
            Row row = rowOf(all);
            if (!row.typed || row.entry.seq != expected || hashOf(previous, row.entry) != row.hash)
                return expected;
            if (row.entry.seq == written.first && row.hash != written.second) return expected;
            previous = std::move(row.hash);
        }
        return expected == total + 1 && written.first <= total ? 0 : expected;
    }

    const std::string file_;
    const bool writes_;
    Mutex mutex_;                                                       ///< before readMutex_
    std::unique_ptr<SQLite::Database> writer_ ABSL_GUARDED_BY(mutex_);  ///< null: only read
    std::pair<dev_t, ino_t> opened_ ABSL_GUARDED_BY(mutex_);
    uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
    std::string head_ ABSL_GUARDED_BY(mutex_);
    /// A connection of its own: whoever reads or checks a long audit keeps no change waiting.
    Mutex readMutex_;
    std::unique_ptr<SQLite::Database> reader_ ABSL_GUARDED_BY(readMutex_);
};

AuditLog::AuditLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AuditLog::~AuditLog() = default;

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::open(const std::string& file) {
    return history::guardedValue<std::unique_ptr<AuditLog>>(
        file, [&]() -> absl::StatusOr<std::unique_ptr<AuditLog>> {
            return std::unique_ptr<AuditLog>(new AuditLog(std::make_unique<Impl>(file, true)));
        });
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::openForReading(const std::string& file) {
    std::error_code error;
    if (!std::filesystem::exists(file, error))
        return absl::NotFoundError(file + ": no such file; name the audit.db of a state folder");
    return history::guardedValue<std::unique_ptr<AuditLog>>(
        file, [&]() -> absl::StatusOr<std::unique_ptr<AuditLog>> {
            return std::unique_ptr<AuditLog>(new AuditLog(std::make_unique<Impl>(file, false)));
        });
}

absl::Status AuditLog::add(std::vector<AuditEntry> entries) {
    return impl_->add(std::move(entries));
}
absl::StatusOr<AuditPage> AuditLog::read(const AuditQuery& query) {
    return impl_->read(query);
}

}  // namespace bulkhead::access
