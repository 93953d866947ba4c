// SPDX-License-Identifier: Apache-2.0
#include "backend/history/schema.h"

#include <gmock/gmock.h>
#include <sqlite3.h>

#include <fstream>

#include "tests/history/store_fixture.h"

namespace bulkhead::history {
namespace {

using testing::HasSubstr;

class Schema : public StoreTest {
  protected:
    void execute(const std::string& sql) {
        SQLite::Database db(file_.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        db.exec(sql);
    }
    absl::Status openStatus() { return RunReader::open(file_).status(); }
    absl::Status writeStatus() { return RunWriter::create(file_, "a", clock_).status(); }
};

TEST_F(Schema, migratesAnOlderFileAndKeepsItsRuns) {
    {
        SQLite::Database db(file_.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        createSchema(db, 1);
        db.exec(
            "INSERT INTO runs (uuid, name, created_ns, events, last_seq) "
            "VALUES ('u', 'old', 5, 1, 1)");
        db.exec(
            "INSERT INTO events (run, seq, time_ns, type, severity, body) VALUES (1, 1, 9, "
            "'job_phase_changed', 0, '{\"type\":\"job_phase_changed\",\"phase\":\"paused\"}')");
    }
    auto reading = reader();
    const auto run = reading->findRun("old");
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->missing, 0u);
    EXPECT_EQ(reading->stateAtSeq(run->id, 1)->phase, model::JobPhase::kPaused);
    EXPECT_TRUE(reading->verify(run->id).ok()) << reading->verify(run->id);
    auto writing = RunWriter::resume(file_, run->id, clock_);
    ASSERT_TRUE(writing.ok()) << writing.status();
    EXPECT_TRUE((*writing)->append(eventAt(2, 10, model::RunFinished{})).ok());
    EXPECT_TRUE((*writing)->flush().ok());
}

TEST_F(Schema, aRunOlderThanTheChainIsMigratedCountedAndSaidToBeNoMore) {
    {
        SQLite::Database db(file_.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        createSchema(db, 3);
        db.exec(
            "INSERT INTO runs (uuid, name, created_ns, events, last_seq, last_step) "
            "VALUES ('u', 'old', 5, 3, 3, 3)");
        for (int step = 1; step <= 3; ++step) {
            const std::string n = std::to_string(step);
            const std::string from = std::to_string(4 * step - 4);
            const std::string to = std::to_string(4 * step);
            db.exec(
                "INSERT INTO events (run, seq, time_ns, type, step, severity, body) VALUES (1, " +
                n + ", 9, 'step_committed', " + n +
                ", 0, "
                "'{\"type\":\"step_committed\",\"record\":{\"lineage\":1,\"samples\":4,\"step\":" +
                n +
                ",\"contributors\":[{\"replica\":0,\"incarnation\":1,\"ranges\":[{\"domain\":0,"
                "\"begin\":" +
                from + ",\"end\":" + to + "}]}]},\"loss\":2.5}')");
            db.exec(
                "INSERT INTO steps (run, lineage, step, seq, time_ns, epoch, attempt, "
                "contributors, members, samples, tokens, loss, grad_norm, learning_rate, "
                "lr_factor, step_ms, commit_ms, compute_ms, exchange_ms, exposed_ms, vote_ms, "
                "waited_on_ms, waited_on, bytes, tokens_per_second, effective_time, skip, "
                "suspect, superseded, hashes) VALUES (1, 1, " +
                n + ", " + n +
                ", 9, 0, 1, 1, '0', 4, 0, 2.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 1, 0, 0, "
                "0, '')");
        }
    }
    const auto noLog = []() -> absl::StatusOr<std::vector<model::LogLink>> {
        return absl::NotFoundError("no log");
    };
    auto report = reader()->audit(1, noLog);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok) << report->findings[0].what;
    EXPECT_EQ(report->steps, 3u);
    EXPECT_EQ(report->samples, 12u);
    EXPECT_EQ(report->unlinked, 3u);
    EXPECT_THAT(model::ledgerText(*report),
                HasSubstr("recorded before steps were chained: only the counts can be checked"));
    execute("DELETE FROM events WHERE seq = 2");
    report = reader()->audit(1, noLog);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_FALSE(report->ok);
}

TEST_F(Schema, refusesANewerFileWithCauseAndRemedy) {
    writer().reset();
    execute("PRAGMA user_version = 99");
    for (const absl::Status& status : {openStatus(), writeStatus()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("runs.db: written by a newer Bulkhead (schema 99"));
        EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
    }
}

TEST_F(Schema, refusesWhatIsNoRunFile) {
    std::ofstream(file_) << "dear diary, this is not a database but long enough to be one" +
                                std::string(4096, '.');
    for (const absl::Status& status : {openStatus(), writeStatus()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(status.message()), HasSubstr("runs.db: not an SQLite file"));
    }
    std::ifstream back(file_);
    std::string word;
    back >> word;
    EXPECT_EQ(word, "dear");  // and left it as it was
}

TEST_F(Schema, refusesAnotherProgramsDatabase) {
    execute("CREATE TABLE songs (title TEXT)");
    for (const absl::Status& status : {openStatus(), writeStatus()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(status.message()), HasSubstr("not one of Bulkhead's"));
    }
}

TEST_F(Schema, saysWhatIsMissingOrEmpty) {
    EXPECT_EQ(openStatus().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(RunWriter::resume(file_, 1, clock_).status().code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(std::filesystem::exists(file_));
    std::ofstream(file_) << "";
    EXPECT_EQ(openStatus().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(RunReader::open(folder_).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(RunWriter::create(folder_, "a", clock_).status().code(),
              absl::StatusCode::kInvalidArgument);
    const auto lost = RunWriter::create(folder_ / "no/such/folder/a.db", "a", clock_);
    EXPECT_EQ(lost.status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(lost.status().message()), HasSubstr("check that the folder exists"));
}

TEST_F(Schema, aFileThatSqliteHasOnlyBegunHoldsNothing) {
    EXPECT_FALSE(holdsNothing(file_));
    EXPECT_FALSE(holdsNothing(folder_));
    std::ofstream(file_) << "";
    EXPECT_TRUE(holdsNothing(file_));
    execute("PRAGMA journal_mode = WAL");
    ASSERT_EQ(std::filesystem::file_size(file_), 4096u);
    EXPECT_TRUE(holdsNothing(file_));
    EXPECT_EQ(openStatus().code(), absl::StatusCode::kInvalidArgument);
    // Killed a moment earlier: the journal that undoes the first page is still there.
    std::string undo("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8);
    undo.resize(512);
    undo[22] = 2;   // sectors of 512 bytes
    undo[26] = 16;  // pages of 4096 bytes
    std::ofstream(file_.string() + "-journal", std::ios::binary) << undo;
    EXPECT_TRUE(holdsNothing(file_));
    writer().reset();
    EXPECT_FALSE(holdsNothing(file_));
    std::ofstream(file_) << "dear diary";
    EXPECT_FALSE(holdsNothing(file_));
}

TEST_F(Schema, refusesWhatWouldRunWhenItIsRead) {
    struct Case {
        const char* sql;
        const char* undo;
        const char* said;
    };
    const Case cases[] = {
        {"ALTER TABLE events RENAME TO other; CREATE VIEW events AS WITH RECURSIVE "
         "n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1 AS run, i AS seq, 0 AS "
         "time_ns, 'x' AS type, 0 AS step, 0 AS replica, 0 AS severity, '{}' AS body FROM n",
         "DROP VIEW events; ALTER TABLE other RENAME TO events", "the view events is none of"},
        {"CREATE TRIGGER more AFTER INSERT ON events BEGIN DELETE FROM runs; END",
         "DROP TRIGGER more", "the trigger more is none of"},
        {"CREATE VIEW mine AS SELECT 1", "DROP VIEW mine", "the view mine is none of"},
        {"ALTER TABLE gaps ADD COLUMN slow AS (why LIKE '%a%a%a%b')",
         "ALTER TABLE gaps DROP COLUMN slow", "the column gaps.slow is computed"},
        {"ALTER TABLE gaps RENAME TO other", "ALTER TABLE other RENAME TO gaps", "no table gaps"},
    };
    writer().reset();
    for (const Case& c : cases) {
        execute(c.sql);
        for (const absl::Status& status : {openStatus(), writeStatus()}) {
            EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
            EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
            EXPECT_THAT(std::string(status.message()), HasSubstr("restore a copy"));
        }
        execute(c.undo);
        EXPECT_TRUE(openStatus().ok()) << openStatus();
    }
}

TEST_F(Schema, aViewThatComesLaterIsNotRun) {
    writer().reset();
    auto reading = reader();
    ASSERT_TRUE(reading->events(1, {}).ok());
    execute("ALTER TABLE events RENAME TO other; CREATE VIEW events AS SELECT * FROM other");
    EXPECT_FALSE(reading->events(1, {}).ok());
}

TEST_F(Schema, namesDamage) {
    {
        auto writing = writer();
        for (const model::Event& event : someEvents(3, 600))
            ASSERT_TRUE(writing->append(event).ok());
    }
    std::fstream damage(file_, std::ios::in | std::ios::out | std::ios::binary);
    damage.seekp(8192);
    damage << std::string(65536, '\xee');
    damage.close();
    auto opened = RunReader::open(file_);
    const absl::Status status = opened.ok() ? (*opened)->verify(1) : opened.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

}  // namespace
}  // namespace bulkhead::history
