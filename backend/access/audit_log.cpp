// SPDX-License-Identifier: Apache-2.0
#include "backend/access/audit_log.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

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
    void operator()(std::string_view, std::string& value) {
        value = statement.getColumn(at++).getString();
    }
    void operator()(std::string_view, int64_t& value) {
        value = statement.getColumn(at++).getInt64();
    }
    void operator()(std::string_view, uint64_t& value) {
        value = static_cast<uint64_t>(statement.getColumn(at++).getInt64());
    }
};

Row rowOf(SQLite::Statement& statement) {
    Row row;
    Getter get{statement};
    AuditEntry::fields(row.entry, get);
    row.hash = statement.getColumn(get.at).getString();
    return row;
}

}  // namespace

class AuditLog::Impl {
  public:
    Impl(std::string file, bool writes)
        : file_(std::move(file)),
          db_(file_, writes ? SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE : SQLite::OPEN_READONLY,
              kBusyMs) {
        if (writes) {
            db_.exec("PRAGMA journal_mode = WAL");
            db_.exec("PRAGMA synchronous = FULL");
            db_.exec(kTable);
        }
        SQLite::Statement last(db_, "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1");
        if (!last.executeStep()) return;
        last_ = static_cast<uint64_t>(last.getColumn(0).getInt64());
        head_ = last.getColumn(1).getString();
    }

    absl::Status add(AuditEntry entry) {
        const MutexLock lock(mutex_);
        return history::guarded(file_, [&] {
            mutex_.assertHeld();
            entry.seq = last_ + 1;
            const std::string hash = hashOf(head_, entry);
            SQLite::Statement insert(
                db_, "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
            Binder bind{insert};
            const AuditEntry& kept = entry;
            AuditEntry::fields(kept, bind);
            insert.bind(bind.at + 1, hash);
            insert.exec();
            last_ = entry.seq;
            head_ = hash;
            return absl::OkStatus();
        });
    }

    absl::StatusOr<AuditPage> read(const AuditQuery& query) {
        const MutexLock lock(mutex_);
        return history::guardedValue<AuditPage>(file_, [&]() -> absl::StatusOr<AuditPage> {
            mutex_.assertHeld();
            AuditPage page;
            page.total = last_;
            page.head = head_;
            SQLite::Statement select(
                db_, query.newestFirst
                         ? "SELECT * FROM audit WHERE seq <= ? ORDER BY seq DESC LIMIT ?"
                         : "SELECT * FROM audit WHERE seq >= ? ORDER BY seq LIMIT ?");
            const uint64_t from = query.newestFirst && query.fromSeq == 0 ? last_ : query.fromSeq;
            select.bind(1, static_cast<int64_t>(std::min<uint64_t>(from, INT64_MAX)));
            select.bind(2, static_cast<int64_t>(std::min(query.limit, kMostEntries)));
            while (select.executeStep()) page.entries.push_back(rowOf(select).entry);
            if (query.check) page.brokenAt = firstBroken();
            return page;
        });
    }

  private:
    uint64_t firstBroken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        SQLite::Statement all(db_, "SELECT * FROM audit ORDER BY seq");
        std::string previous;
        uint64_t expected = 1;
        for (; all.executeStep(); ++expected) {
            Row row = rowOf(all);
            if (row.entry.seq != expected || hashOf(previous, row.entry) != row.hash)
                return expected;
            previous = std::move(row.hash);
        }
        return expected == last_ + 1 ? 0 : expected;
    }

    const std::string file_;
    Mutex mutex_;
    SQLite::Database db_ ABSL_GUARDED_BY(mutex_);
    uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
    std::string head_ ABSL_GUARDED_BY(mutex_);
};

AuditLog::AuditLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AuditLog::~AuditLog() = default;

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::open(const std::string& file) {
    // SQLite gives what lies beside it the same mode.
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) ::close(fd);
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

absl::Status AuditLog::add(AuditEntry entry) {
    return impl_->add(std::move(entry));
}
absl::StatusOr<AuditPage> AuditLog::read(const AuditQuery& query) {
    return impl_->read(query);
}

}  // namespace bulkhead::access
