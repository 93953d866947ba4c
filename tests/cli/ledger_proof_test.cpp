// SPDX-License-Identifier: Apache-2.0
// Run files that real jobs wrote, then tampered with: `ledger --check` has to notice each time.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <signal.h>

#include "backend/history/run_store.h"
#include "backend/model/command_text.h"
#include "backend/model/event_json.h"
#include "tests/cli/shell.h"
#include "tests/cli/whole_job.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;

class LedgerProofTest : public WholeJobTest {
  protected:
    std::string file() const { return dir_ + "/runs.db"; }
    std::string forged() const { return dir_ + "/forged.db"; }

    /// `jobs`: where the commit log is looked for.
    Ran check(const std::string& of, const std::string& jobs) const {
        return shellBoth(kBin + "/bulkheadctl ledger latest -f " + of + " --check --jobs " + jobs);
    }
    Ran check(const std::string& of) const { return check(of, jobs_); }

    /// A copy of the run file, changed; the events of its committed steps are at hand.
    template <class Change>
    Ran forge(Change change) {
        std::filesystem::remove(forged());
        { SQLite::Database(file(), SQLite::OPEN_READWRITE).exec("VACUUM INTO '" + forged() + "'"); }
        {
            SQLite::Database db(forged(), SQLite::OPEN_READWRITE);
            db.exec("BEGIN");
            change(db);
            db.exec("COMMIT");
        }
        return check(forged());
    }

    void readSteps() {
        auto reader = history::RunReader::open(file());
        ASSERT_TRUE(reader.ok()) << reader.status();
        history::EventFilter filter;
        filter.types = {"step_committed"};
        auto events = (*reader)->events(1, filter);
        ASSERT_TRUE(events.ok()) << events.status();
        steps_ = *std::move(events);
        ASSERT_GE(steps_.size(), 12u);
    }

    static uint64_t stepOf(const model::Event& event) {
        return std::get<model::StepCommitted>(event.body).record.step;
    }

    static void setBody(SQLite::Database& db, uint64_t seq, const model::EventBody& body) {
        SQLite::Statement update(db, "UPDATE events SET body = ?, step = ? WHERE seq = ?");
        update.bind(1, model::toJsonText(body));
        update.bind(2, static_cast<int64_t>(std::get<model::StepCommitted>(body).record.step));
        update.bind(3, static_cast<int64_t>(seq));
        update.exec();
    }

    /// Edits the file as an expert would: the events behind close up, the counters follow.
    static void deleteStep(SQLite::Database& db, uint64_t seq) {
        const std::string at = std::to_string(seq);
        for (const char* table : {"events", "steps", "parity"})
            db.exec("DELETE FROM " + std::string(table) + " WHERE seq = " + at);
        for (const char* table : {"events", "steps", "parity", "checkpoints"}) {
            db.exec("UPDATE " + std::string(table) + " SET seq = -(seq - 1) WHERE seq > " + at);
            db.exec("UPDATE " + std::string(table) + " SET seq = -seq WHERE seq < 0");
        }
        db.exec("DELETE FROM keyframes");
        db.exec("UPDATE runs SET events = events - 1, last_seq = last_seq - 1");
    }

    void tamperings();

    std::string jobs_;
    std::vector<model::Event> steps_;
};

void LedgerProofTest::tamperings() {
    ASSERT_NO_FATAL_FAILURE(readSteps());
    size_t middle = steps_.size() / 2;
    while (std::get<model::StepCommitted>(steps_[middle].body).parity.empty()) ++middle;
    const model::Event& one = steps_[middle];
    const model::Event& next = steps_[middle + 1];
    const std::string seq = std::to_string(one.seq);
    const std::string step = std::to_string(stepOf(one));
    const auto noticed = [](const Ran& ran, const std::string& what) {
        EXPECT_EQ(ran.code, 1) << what << "\n" << ran.out;
        EXPECT_THAT(ran.out, HasSubstr(what));
        EXPECT_THAT(ran.out, HasSubstr("DOES NOT ADD UP"));
    };
    noticed(forge([&](auto& db) { db.exec("DELETE FROM events WHERE seq = " + seq); }),
            "event " + seq + " is missing");
    noticed(forge([&](auto& db) { deleteStep(db, one.seq); }), "step " + step + " is missing");
    noticed(forge([&](auto& db) {
                for (uint64_t i = 3; i > 0; --i) deleteStep(db, steps_[2 + i].seq);
            }),
            "are missing: deleted after the coordinator recorded it");
    noticed(forge([&](auto& db) { db.exec("DELETE FROM steps WHERE seq = " + seq); }),
            "table steps, step " + step + ", row " + seq + ": it is missing");
    noticed(forge([&](auto& db) { db.exec("UPDATE steps SET loss = 0.5 WHERE seq = " + seq); }),
            "column loss is \"0.5\"");
    noticed(forge([&](auto& db) {
                auto body = std::get<model::StepCommitted>(one.body);
                body.loss = 0.5;
                setBody(db, one.seq, body);
                db.exec("UPDATE steps SET loss = 0.5 WHERE seq = " + seq);
            }),
            "the chain is broken at step " + step);
    noticed(forge([&](auto& db) {
                setBody(db, one.seq, next.body);
                setBody(db, next.seq, one.body);
            }),
            "step " + step);
    noticed(forge([&](auto& db) { db.exec("DELETE FROM parity WHERE seq = " + seq); }),
            "table parity, step " + std::to_string(stepOf(one) - 1));
    noticed(forge([&](auto& db) {
                auto body = std::get<model::StepCommitted>(one.body);
                body.parity[0].replicas.pop_back();
                body.parity[0].incarnations.pop_back();
                setBody(db, one.seq, body);
                db.exec("DELETE FROM parity WHERE seq = " + seq);
            }),
            "the chain is broken at step " + step);
    noticed(forge([&](auto& db) {
                auto body = std::get<model::StepCommitted>(one.body);
                const auto& later = std::get<model::StepCommitted>(next.body).record.contributors;
                body.record.contributors.at(0).ranges.push_back(later.at(0).ranges.at(0));
                setBody(db, one.seq, body);
            }),
            "samples of domain 0");

    const auto cutOff = [&](auto& db) {
        const std::string from = std::to_string(steps_[steps_.size() - 3].seq);
        for (const char* table : {"events", "steps", "parity", "checkpoints", "keyframes"})
            db.exec("DELETE FROM " + std::string(table) + " WHERE seq >= " + from);
        db.exec("DELETE FROM incidents");
        db.exec("DELETE FROM faults");
        db.exec("UPDATE runs SET last_seq = " + from + " - 1, events = " + from + " - 1");
    };
    const uint64_t last = stepOf(steps_.back());
    noticed(forge(cutOff), "the run file ends at step " +
                               std::to_string(stepOf(steps_[steps_.size() - 4])) +
                               " of the log's " + std::to_string(last));
    EXPECT_THAT(check(forged(), dir_ + "/nowhere").out, HasSubstr("no commit log"));
}

TEST_F(LedgerProofTest, ARunWithKillRollbackRestartAndLayoutMoveAddsUpUntilItIsTamperedWith) {
    jobs_ = dir_ + "/state/jobs";
    std::string runName;
    {
        auto owner = daemon();
        auto client = client::Client::open({owner->target(), "", "tester", kForever});
        ASSERT_TRUE(client.ok());
        client::JobText text = smallJob();
        text.overrides = {"replicas=3", "shards=2", "policies.checkpoint_every_steps=4"};
        const auto job =
            await<model::JobInfo>([&](auto reply) { client.value()->startJob(text, {}, reply); });
        ASSERT_TRUE(job.ok()) << job.failure().cause;
        runName = job.value().run;
        WatchLog log;
        auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        const auto stepped = [](const WatchLog& l, uint64_t step) {
            return l.state && l.state->lastCommit && l.state->lastCommit->record.step >= step;
        };
        const auto inject = [&](const char* fault) {
            return await<uint64_t>([&](auto reply) {
                       client.value()->inject(job.value().id, *model::parseFault(fault), {}, reply);
                   })
                .ok();
        };
        const auto allTrain = [](const WatchLog& l) {
            return l.state && l.state->lastCommit &&
                   l.state->lastCommit->record.contributors.size() == 3;
        };
        ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, 5) && allTrain(l); }));
        // A bit of one replica's parameters: its peers vote it out.
        ASSERT_TRUE(inject("flip-parameter:replica=1"));
        ASSERT_TRUE(log.waitFor([&](auto& l) { return l.state->incidents.total() >= 1; }));
        ASSERT_TRUE(log.waitFor(
            [&](auto& l) { return allTrain(l) && l.state->incidents[0].rejoinMs > 0; }));
        // Experts change shards.
        const auto layout = log.state->layout;
        std::ofstream(dir_ + "/placement.json") << [&] {
            model::Json place;
            const model::ModelInfo& info = log.state->model;
            for (uint32_t layer = 0; layer < info.moeLayers; ++layer) {
                model::Json row;
                for (uint32_t e = 0; e < info.experts; ++e) row.push_back((e + 1) % 2);
                place["expert_shard"].push_back(row);
            }
            return model::dumpJson(place);
        }();
        const Ran moved = shellBoth(kBin + "/bulkheadctl -t " + owner->target() + " layout " +
                                    dir_ + "/placement.json --yes");
        ASSERT_EQ(moved.code, 0) << moved.out;
        ASSERT_TRUE(log.waitFor([&](auto& l) { return l.state->layout != layout; }));
        // The controller dies; the supervisor starts another.
        const int snapshots = log.snapshots;
        ::kill(childOf(owner->pid(), "--role=controller"), SIGKILL);
        ASSERT_TRUE(log.waitFor([&](auto& l) { return l.snapshots > snapshots; }));
        const uint64_t before = log.state->lastCommit->record.step;
        ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, before + 6); }));
        // All replicas at once: back to a checkpoint.
        std::vector<pid_t> workers;
        for (const model::RankView& rank : log.state->ranks) workers.push_back(rank.pid);
        ASSERT_EQ(workers.size(), 6u);
        for (const pid_t pid : workers) ::kill(pid, SIGKILL);
        ASSERT_TRUE(log.waitFor([&](auto& l) { return l.state->lineage >= 2; }));
        const uint64_t back = log.state->lastCommit->record.step;
        ASSERT_TRUE(log.waitFor([&](auto& l) {
            return l.state->lastCommit->record.lineage >= 2 && stepped(l, back + 4);
        }));
        // While it runs the check is of what is there.
        const Ran running =
            shellBoth(kBin + "/bulkheadctl -t " + owner->target() + " ledger --check " + runName);
        EXPECT_EQ(running.code, 0) << running.out;
        watch.reset();
        owner->stop();
    }
    const Ran sound = check(file());
    EXPECT_EQ(sound.code, 0) << sound.out;
    EXPECT_THAT(sound.out, HasSubstr("held against the commit log"));
    EXPECT_THAT(sound.out, HasSubstr("expelled: r1"));
    SQLite::Database db(file());
    EXPECT_EQ(
        db.execAndGet("SELECT count(DISTINCT replica) FROM parity_votes WHERE agree = 0").getInt(),
        3)
        << "who agreed and who did not can be asked of the file";
    EXPECT_GT(db.execAndGet("SELECT count(*) FROM parity_votes v JOIN steps s ON "
                            "s.seq = v.seq WHERE v.agree = 1 AND v.hashes = s.hashes "
                            "AND v.layout = s.layout AND v.incarnation > 0")
                  .getInt(),
              30);
    tamperings();
}

TEST_F(LedgerProofTest, RunsOfOtherShapesAddUpUntilTheyAreTamperedWith) {
    jobs_ = file() + ".state/jobs";
    for (const char* shape :
         {"--replicas 2 --shards 1 --set seed=7 --fault kill:replica=0@step=6",
          "--replicas 4 --shards 1 --set seed=11 --set spares=1 "
          "--set policies.parity_every_steps=2 --fault kill:replica=2@step=8"}) {
        SCOPED_TRACE(shape);
        for (const char* end : {"", "-wal", "-shm", ".state"})
            std::filesystem::remove_all(file() + end);
        std::filesystem::remove_all(dir_ + "/checkpoints");
        std::ofstream(dir_ + "/small.toml") << smallJob().text;
        const Ran up = shellBoth(kBin + "/bulkheadctl up " + dir_ + "/small.toml --steps 24 --db " +
                                 file() + " " + shape);
        ASSERT_EQ(up.code, 0) << up.out;
        const Ran sound = check(file());
        EXPECT_EQ(sound.code, 0) << sound.out;
        ASSERT_NO_FATAL_FAILURE(tamperings());
    }
}

}  // namespace
}  // namespace bulkhead::testing
