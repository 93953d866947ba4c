// SPDX-License-Identifier: Apache-2.0
#include "backend/access/audit_log.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

namespace bulkhead::access {
namespace {

class AuditLogTest : public ::testing::Test {
  protected:
    AuditLogTest() {
        std::string pattern = ::testing::TempDir() + "bulkhead-audit-XXXXXX";
        dir_ = ::mkdtemp(pattern.data());
    }
    ~AuditLogTest() override { std::filesystem::remove_all(dir_); }

    std::string path() const { return dir_ + "/audit.db"; }

    void add(AuditLog& log, int count) {
        for (int i = 0; i < count; ++i) {
            model::AuditEntry entry;
            entry.timeNs = 1000 + i;
            entry.principal = "anna";
            entry.via = "token";
            entry.peer = "ipv4:10.0.0.7:5000";
            entry.call = "Jobs/StopJob";
            entry.object = "job-" + std::to_string(i);
            entry.revision = 7;
            entry.outcome = i % 2 == 0 ? "ok" : "NOT_FOUND";
            ASSERT_TRUE(log.add({entry}).ok());
        }
    }
    model::AuditPage checked() {
        const auto log = AuditLog::openForReading(path());
        EXPECT_TRUE(log.ok()) << log.status();
        const auto page =
            (*log)->read({.fromSeq = 0, .limit = 100, .newestFirst = false, .check = true});
        EXPECT_TRUE(page.ok()) << page.status();
        return *page;
    }
    std::string dir_;
};

TEST_F(AuditLogTest, KeepsEntriesInOrderOverARestart) {
    for (const int count : {3, 2}) {
        const auto log = AuditLog::open(path());
        ASSERT_TRUE(log.ok()) << log.status();
        add(**log, count);
    }
    const model::AuditPage page = checked();
    ASSERT_EQ(page.entries.size(), 5u);
    EXPECT_EQ(page.total, 5u);
    EXPECT_EQ(page.brokenAt, 0u);
    EXPECT_EQ(page.head.size(), 64u);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(page.entries[i].seq, i + 1);
    EXPECT_EQ(page.entries[4].object, "job-1");
    EXPECT_EQ(page.entries[4].outcome, "NOT_FOUND");
    struct stat info {};
    ASSERT_EQ(::stat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AuditLogTest, PagesFromBothEnds) {
    const auto log = AuditLog::open(path());
    ASSERT_TRUE(log.ok());
    add(**log, 5);
    const auto last = (*log)->read({.fromSeq = 0, .limit = 2, .newestFirst = true, .check = false});
    ASSERT_TRUE(last.ok());
    ASSERT_EQ(last->entries.size(), 2u);
    EXPECT_EQ(last->entries[0].seq, 5u);
    const auto middle =
        (*log)->read({.fromSeq = 2, .limit = 2, .newestFirst = false, .check = false});
    ASSERT_EQ(middle->entries.size(), 2u);
    EXPECT_EQ(middle->entries[0].seq, 2u);
}

TEST_F(AuditLogTest, KeepsEntriesThatComeTogetherAllOrNone) {
    const auto log = AuditLog::open(path());
    ASSERT_TRUE(log.ok());
    add(**log, 1);
    SQLite::Database(path(), SQLite::OPEN_READWRITE)
        .exec(
            "CREATE TRIGGER full BEFORE INSERT ON audit WHEN NEW.seq = 3 BEGIN SELECT "
            "RAISE(ABORT, 'no room'); END");
    model::AuditEntry entry;
    entry.principal = "anna";
    EXPECT_FALSE((*log)->add({entry, entry, entry}).ok());
    EXPECT_EQ(checked().total, 1u);
    SQLite::Database(path(), SQLite::OPEN_READWRITE).exec("DROP TRIGGER full");
    EXPECT_TRUE((*log)->add({entry, entry, entry}).ok());
    EXPECT_EQ(checked().total, 4u);
    EXPECT_EQ(checked().brokenAt, 0u);
}

TEST_F(AuditLogTest, AFileThatIsRemovedIsMadeAnewAndSaysSo) {
    const auto log = AuditLog::open(path());
    ASSERT_TRUE(log.ok()) << log.status();
    add(**log, 3);
    const std::string head = checked().head;
    for (const char* part : {"", "-wal", "-shm"}) std::filesystem::remove(path() + part);
    add(**log, 2);
    const model::AuditPage page = checked();
    ASSERT_EQ(page.entries.size(), 3u);
    EXPECT_EQ(page.brokenAt, 0u);
    EXPECT_EQ(page.entries[0].call, "audit");
    EXPECT_EQ(page.entries[0].message,
              "The file was removed or replaced while the daemon ran; its last entry was 3, with "
              "the hash " +
                  head + ".");
    EXPECT_EQ(page.entries[2].object, "job-1");
    const auto read = (*log)->read({.fromSeq = 0, .limit = 10, .newestFirst = true, .check = true});
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->total, 3u);
}

TEST_F(AuditLogTest, WhoeverWroteItSeesThatItsEndIsCutOff) {
    const auto log = AuditLog::open(path());
    ASSERT_TRUE(log.ok()) << log.status();
    add(**log, 3);
    const auto brokenAt = [&] {
        return (*log)
            ->read({.fromSeq = 0, .limit = 9, .newestFirst = true, .check = true})
            ->brokenAt;
    };
    EXPECT_EQ(brokenAt(), 0u);
    SQLite::Database(path(), SQLite::OPEN_READWRITE).exec("DELETE FROM audit WHERE seq = 3");
    EXPECT_EQ(brokenAt(), 3u);
}

TEST_F(AuditLogTest, ShowsWhatWasChangedRemovedOrCutOff) {
    const std::pair<const char*, uint64_t> changes[] = {
        {"UPDATE audit SET principal = 'bob' WHERE seq = 3", 3},
        {"UPDATE audit SET outcome = 'ok' WHERE seq = 2", 2},
        {"DELETE FROM audit WHERE seq = 2", 2},
        {"DELETE FROM audit WHERE seq = 1", 1},
        {"UPDATE audit SET seq = 9 WHERE seq = 5", 5},
        {"UPDATE audit SET hash = '' WHERE seq = 4", 4},
        {"UPDATE audit SET principal = CAST(principal AS BLOB) WHERE seq = 3", 3},
        {"UPDATE audit SET hash = CAST(hash AS BLOB) WHERE seq = 5", 5},
    };
    for (const auto& [sql, broken] : changes) {
        std::filesystem::remove_all(dir_);
        std::filesystem::create_directory(dir_);
        {
            const auto log = AuditLog::open(path());
            ASSERT_TRUE(log.ok());
            add(**log, 5);
        }
        SQLite::Database(path(), SQLite::OPEN_READWRITE).exec(sql);
        EXPECT_EQ(checked().brokenAt, broken) << sql;
    }
    // A cut end keeps the chain, but not the hash that somebody noted.
    const std::string noted = checked().head;
    SQLite::Database(path(), SQLite::OPEN_READWRITE).exec("DELETE FROM audit WHERE seq = 5");
    EXPECT_NE(checked().head, noted);
}

}  // namespace
}  // namespace bulkhead::access
