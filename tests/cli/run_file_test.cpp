// SPDX-License-Identifier: Apache-2.0
// A run file read through a real private bulkheadd, and bad starts of one.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "backend/client/private_daemon.h"
#include "backend/history/event_row.h"
#include "backend/model/json.h"
#include "tests/cli/shell.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/rpc/run_file.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kCtl = std::string(BULKHEAD_BIN) + "/bulkheadctl ";
const std::string kDaemon = std::string(BULKHEAD_BIN) + "/bulkheadd ";

class RunFileTest : public RpcTest {};

/// A run of which replica 1 was lost and came back, and replica 0 was lost for good. Each replica
/// has one GPU.
std::vector<model::Event> runWithIncidents() {
    std::vector<model::Event> events = madeUpRun(3);
    const model::Event end = events.back();
    events.pop_back();
    const int64_t lost = events.back().timeNs + 50 * kMillisecond;
    const auto add = [&](int64_t ms, model::EventBody body) {
        events.push_back(
            {events.size() + 1, lost + ms * kMillisecond, model::Severity::kInfo, std::move(body)});
    };
    using enum model::IncidentPhaseKind;
    const auto phase = [&](model::IncidentPhaseKind kind, int64_t fromMs, int64_t toMs) {
        add(toMs, model::IncidentPhase{1, kind, lost + fromMs * kMillisecond,
                                       lost + toMs * kMillisecond});
    };
    const auto lose = [&](int64_t ms, uint64_t incident, int32_t replica, const char* title) {
        add(ms, model::IncidentOpened{incident, replica, 1, 4, model::EvidenceKind::kProcessExit, 0,
                                      title});
    };
    model::FleetSampled fleet;
    for (int32_t r = 0; r < 2; ++r) {
        model::RankSample& rank = fleet.ranks.emplace_back();
        rank.rank = {r, 0};
        rank.incarnation = 1;
        rank.gpus = {0};
    }
    add(0, fleet);
    add(3, model::EvidenceSeen{model::EvidenceKind::kProcessExit, 1, 0, "agent node0", "signal 9"});
    lose(7, 1, 1, "r1 lost: signal 9");
    phase(kDetect, 0, 3);
    phase(kDecide, 3, 7);
    phase(kReform, 7, 46);
    phase(kReexchange, 46, 118);
    add(1850, model::IncidentClosed{1, 46, 1850, 1.896, 8, "rejoined at step 4"});
    lose(1900, 2, 0, "r0 lost: signal 11");
    add(2000, end.body);
    return events;
}

/// Has this process this file open?
bool isOpen(pid_t pid, const std::string& file) {
    std::error_code error;
    for (const auto& fd :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error))
        if (std::filesystem::read_symlink(fd.path(), error) == file) return true;
    return false;
}

TEST_F(RunFileTest, TheCtlReadsAFileWithoutADaemon) {
    writeRun(dir_ + "/run.db", madeUpRun(7), clock_);
    const Ran runs = shellBoth(kCtl + "runs -f " + dir_ + "/run.db");
    EXPECT_EQ(runs.code, 0) << runs.out;
    EXPECT_THAT(runs.out, HasSubstr("demo"));
    const Ran ledger = shellBoth(kCtl + "ledger -f " + dir_ + "/run.db --json | wc -l");
    EXPECT_EQ(ledger.out, "7\n");
}

TEST_F(RunFileTest, WhatStandardOutputDoesNotTakeIsAnError) {
    writeRun(dir_ + "/run.db", madeUpRun(7), clock_);
    const Ran ran = shell("(" + kCtl + "runs -f " + dir_ + "/run.db >/dev/full) 2>&1");
    EXPECT_EQ(ran.code, 6) << ran.out;
    EXPECT_THAT(ran.out, HasSubstr("Cannot write standard output"));
}

TEST_F(RunFileTest, AFileThatIsNoHistoryIsSaidInOneLine) {
    std::ofstream(dir_ + "/notes.txt") << "this is no database, it is a text of some length\n";
    const Ran ran = shellBoth(kCtl + "runs -f " + dir_ + "/notes.txt");
    EXPECT_EQ(ran.code, 6) << ran.out;
    EXPECT_THAT(ran.out, HasSubstr("notes.txt"));
    EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
    EXPECT_EQ(shellBoth(kCtl + "runs -f " + dir_ + "/absent.db").code, 6);
}

TEST_F(RunFileTest, ADamagedOrForeignFileIsSaidInOneLineAndLeftAsItWas) {
    const std::string file = dir_ + "/run.db";
    writeRun(file, madeUpRun(200), clock_);
    std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    const Ran cut = shellBoth(kCtl + "ledger -f " + file);
    EXPECT_EQ(cut.code, 6) << cut.out;
    EXPECT_EQ(cut.lines(), 1) << cut.out;
    EXPECT_THAT(cut.out, HasSubstr(file));

    std::filesystem::remove(file);
    writeRun(file, madeUpRun(2), clock_);
    SQLite::Database(file, SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 9999");
    const Ran newer = shellBoth(kCtl + "runs -f " + file);
    EXPECT_EQ(newer.code, 6) << newer.out;
    EXPECT_THAT(newer.out, HasSubstr("newer Bulkhead"));
    EXPECT_EQ(newer.lines(), 1) << newer.out;
    // Nor does anything write into it.
    const Ran up = shellBoth(kCtl + "up --steps 1 --db " + file);
    EXPECT_EQ(up.code, 6) << up.out;
    EXPECT_EQ(SQLite::Database(file).execAndGet("PRAGMA user_version").getInt(), 9999);
}

TEST_F(RunFileTest, IncidentsAreCardsOpenOnesFirst) {
    writeRun(dir_ + "/run.db", runWithIncidents(), clock_);
    const std::string incidents = kCtl + "incidents -f " + dir_ + "/run.db ";
    const Ran all = shellBoth(incidents);
    EXPECT_EQ(all.code, 0) << all.out;
    EXPECT_EQ(all.out.find("#2 r0 lost: signal 11 (open since 2.25 s)"), 0u) << all.out;
    for (const char* line :
         {"\n\n#1 r1 lost: signal 9 (at 350 ms)\n",
          "\n  happened    357 ms after the start, in step 4: process exit, incarnation 1.\n",
          "\n  evidence    4 ms before, agent node0: process exit of r1s0, signal 9\n",
          "\n  now         Over after 1.85 s: rejoined at step 4. The others stood still for 46 "
          "ms, "
          "then exchanged again for 72 ms. 8 samples were computed again.\n",
          "\n  cost        1.9 replica-s, 0.001 GPU-h\n", "\n  do          Nothing: it is over.\n"})
        EXPECT_THAT(all.out, HasSubstr(line));

    const Ran open = shellBoth(incidents + "latest --open");
    EXPECT_THAT(open.out, HasSubstr("#2 "));
    EXPECT_THAT(open.out, Not(HasSubstr("#1 ")));
    writeRun(dir_ + "/calm.db", madeUpRun(2), clock_);
    EXPECT_EQ(shellBoth(kCtl + "incidents -f " + dir_ + "/calm.db").out, "no incident\n");
    EXPECT_EQ(shellBoth(kCtl + "incidents --json -f " + dir_ + "/calm.db").out, "");
}

TEST_F(RunFileTest, IncidentsAsJsonAreOneCardALine) {
    writeRun(dir_ + "/run.db", runWithIncidents(), clock_);
    const Ran ran = shell(kCtl + "incidents --json -f " + dir_ + "/run.db");
    ASSERT_EQ(ran.lines(), 2) << ran.out;
    std::istringstream lines(ran.out);
    for (const bool open : {true, false}) {
        std::string line;
        std::getline(lines, line);
        const auto card = model::parseJson(line);
        ASSERT_TRUE(card.ok()) << line;
        EXPECT_EQ(card->value("problem", ""), "incident");
        EXPECT_EQ(card->value("incident", 0), open ? 2 : 1);
        EXPECT_EQ(card->value("open", !open), open);
        EXPECT_EQ(card->value("replica", -1), open ? 0 : 1);
        EXPECT_FALSE(card->value("advice", "").empty());
        const model::Json cost = card->value("cost", model::Json());
        EXPECT_GT(cost.value("gpu_hours", 0.0), 0);
        EXPECT_TRUE(cost.value("money", model::Json()).is_null()) << "nobody set a price";
    }
}

TEST_F(RunFileTest, WhatIncidentsCostHasAPriceByOptionOrEnvironment) {
    writeRun(dir_ + "/run.db", runWithIncidents(), clock_);
    const std::string incidents = kCtl + "incidents -f " + dir_ + "/run.db ";
    EXPECT_THAT(shellBoth(incidents + "--gpu-hour-price 3600 --currency EUR").out,
                HasSubstr("1.9 replica-s, 0.001 GPU-h, 1.90 EUR\n"));
    const std::string price = "BULKHEAD_GPU_HOUR_PRICE=";
    EXPECT_THAT(shellBoth(price + "7200 " + incidents).out, HasSubstr("GPU-h, 3.79 USD\n"));
    for (const std::string& bad :
         {incidents + "--gpu-hour-price many", incidents + "--gpu-hour-price -1",
          incidents + "--gpu-hour-price nan", price + "many " + incidents, incidents + "one two",
          incidents + "--closed"}) {
        const Ran ran = shellBoth(bad);
        EXPECT_EQ(ran.code, 2) << bad << ": " << ran.out;
        EXPECT_EQ(ran.lines(), 1) << bad << ": " << ran.out;
        EXPECT_THAT(ran.out, HasSubstr("incidents --help")) << bad;
    }
    EXPECT_EQ(shellBoth(incidents + "nobody").code, 5);
    EXPECT_EQ(shellBoth(kCtl + "incidents -f " + dir_ + "/absent.db").code, 6);
}

TEST_F(RunFileTest, EventsOfARankAreFoundByItsNameAndThoseOfAReplica) {
    writeRun(dir_ + "/run.db", runWithIncidents(), clock_);
    const std::string events = kCtl + "events -f " + dir_ + "/run.db --type evidence_seen,";
    const std::string both = events + "incident_opened ";
    EXPECT_EQ(shellBoth(both).lines(), 3);
    EXPECT_THAT(shellBoth(both + "--text r1s0").out, HasSubstr("signal 9"));
    EXPECT_EQ(shellBoth(both + "--text R1S0").lines(), 1) << "the evidence alone names the rank";
    EXPECT_EQ(shellBoth(both + "--text r1s1").lines(), 0);
    EXPECT_EQ(shellBoth(both + "--replica r1").out, shellBoth(both + "--replica 1").out);
    EXPECT_EQ(shellBoth(both + "--replica r1").lines(), 2);
    const Ran bad = shellBoth(both + "--replica one");
    EXPECT_EQ(bad.code, 2);
    EXPECT_THAT(bad.out, HasSubstr("such as 2 or r2"));
}

TEST_F(RunFileTest, WithJsonAnErrorIsJsonToo) {
    const Ran ran = shellErrors(kCtl + "--json runs -f " + dir_ + "/absent.db");
    EXPECT_EQ(ran.code, 6);
    const auto error = model::parseJson(ran.out);
    ASSERT_TRUE(error.ok()) << ran.out;
    EXPECT_EQ(error->value("type", ""), "error");
    EXPECT_EQ(error->value("exit_code", 0), 6);
    EXPECT_THAT(error->value("cause", ""), HasSubstr("absent.db"));
    EXPECT_NE(error->value("remedy", ""), "");
    const Ran usage = shellErrors(kCtl + "runs --nonsense --json");
    EXPECT_EQ(usage.code, 2);
    const auto said = model::parseJson(usage.out);
    ASSERT_TRUE(said.ok()) << usage.out;
    EXPECT_THAT(said->value("cause", ""), HasSubstr("--nonsense"));
    EXPECT_THAT(said->value("remedy", ""), HasSubstr("runs --help"));
}

TEST_F(RunFileTest, GarbageOnTheCommandLineIsOneLineOfEveryProgram) {
    for (const std::string& command :
         {kCtl + "--nonsense", kCtl + "frobnicate", kCtl + "drain two", kCtl + "up --steps many",
          kCtl + "events --from x", kCtl, kDaemon + "--nonsense", kDaemon + "extra",
          kDaemon + "--role=captain", kDaemon + "--agents many"}) {
        const Ran ran = shellBoth(command);
        EXPECT_EQ(ran.code, 2) << command << ": " << ran.out;
        EXPECT_EQ(ran.lines(), 1) << command << ": " << ran.out;
        EXPECT_THAT(ran.out, HasSubstr("--help")) << command;
    }
}

TEST_F(RunFileTest, ADaemonSaysWhatItCannotUseInOneLine) {
    writeRun(dir_ + "/run.db", madeUpRun(1), clock_);
    std::ofstream(dir_ + "/notes.txt") << "this is no database, it is a text of some length\n";
    std::ofstream(dir_ + "/job.toml") << "replicsa = 3\n";
    std::filesystem::create_directory(dir_ + "/open");
    std::filesystem::permissions(dir_ + "/open", std::filesystem::perms::all);
    const std::string common = kDaemon + "--state-dir " + dir_ + "/state ";
    const std::pair<std::string, const char*> starts[] = {
        {common + "--db " + dir_ + "/notes.txt", "notes.txt"},
        {common + "--db /proc/nowhere/run.db", "/proc/nowhere"},
        {common + "--job " + dir_ + "/absent.toml", "absent.toml"},
        {common + "--job " + dir_ + "/job.toml", "did you mean \"replicas\""},
        {common + "--inherit A,B", "--inherit"},
        {common + "--worker " + dir_ + "/absent", "--worker"},
        {kDaemon + "--state-dir /proc/nowhere", "--state-dir"},
        {kDaemon + "--state-dir " + dir_ + "/open", "chmod 700"},
        {kDaemon + "--state-dir " + dir_ + "/" + std::string(120, 'x'), "shorter --state-dir"}};
    for (const auto& [command, said] : starts) {
        const Ran ran = shellErrors("timeout 60 " + command);
        EXPECT_EQ(ran.code, 2) << command << ": " << ran.out;
        EXPECT_THAT(ran.out, HasSubstr(said));
        EXPECT_THAT(ran.out, HasSubstr("; ")) << "no remedy";
        EXPECT_EQ(ran.lines(), 1) << command << ": " << ran.out;
    }
}

TEST_F(RunFileTest, ADaemonThatCannotStartExitsWithTwoAndOneLine) {
    writeRun(dir_ + "/run.db", madeUpRun(1), clock_);
    const std::string common = kDaemon + "--state-dir " + dir_ + "/state ";
    const Ran port = shellBoth(common + "--run " + dir_ +
                               "/run.db --listen nonsense:x --token-file " + dir_ + "/token");
    EXPECT_EQ(port.code, 2) << port.out;
    EXPECT_THAT(port.out, HasSubstr("nonsense:x"));
    const Ran token = shellBoth(common + "--run " + dir_ + "/run.db --listen 0");
    EXPECT_EQ(token.code, 2);
    EXPECT_THAT(token.out, HasSubstr("--token-file"));
    EXPECT_EQ(std::count(token.out.begin(), token.out.end(), '\n'), 1) << token.out;
    EXPECT_EQ(shellBoth(common + "--role=captain").code, 2);
}

TEST_F(RunFileTest, APrivateDaemonEndsWithItsOwnerAndLeavesNothing) {
    writeRun(dir_ + "/run.db", madeUpRun(3), clock_);
    client::PrivateDaemonOptions options;
    options.program = std::string(BULKHEAD_BIN) + "/bulkheadd";
    options.runFile = dir_ + "/run.db";
    options.readOnly = true;
    auto daemon = client::PrivateDaemon::create(options);
    ASSERT_TRUE(daemon.ok()) << daemon.failure().cause;
    const std::string state = daemon.value()->stateDir();
    const pid_t pid = daemon.value()->pid();
    EXPECT_FALSE(daemon.value()->ended());
    auto client = client::Client::open({daemon.value()->target(), "", "tester"});
    ASSERT_TRUE(client.ok());
    EXPECT_TRUE(
        await<model::ServerInfo>([&](auto reply) { client.value()->handshake(reply); }).ok());
    { auto owner = std::move(daemon).value(); }
    EXPECT_NE(::kill(pid, 0), 0);
    EXPECT_FALSE(std::filesystem::exists(state));
}

TEST_F(RunFileTest, APrivateDaemonEndsWhileAReadGoesOn) {
    const std::string file = dir_ + "/run.db";
    writeRun(file, madeUpRun(3), clock_);
    // Events that are small in the file and take long to read.
    const std::string frame =
        history::compress(std::string(64 << 20, ' ') + "{\"type\":\"run_finished\"}");
    {
        SQLite::Database db(file, SQLite::OPEN_READWRITE);
        SQLite::Statement add(
            db,
            "WITH RECURSIVE n(i) AS (SELECT 6 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
            "INSERT INTO events (run, seq, time_ns, type, severity, body) "
            "SELECT 1, i, i, 'run_finished', 0, ? FROM n");
        add.bind(1, frame.data(), static_cast<int>(frame.size()));
        add.exec();
    }
    client::PrivateDaemonOptions options;
    options.program = std::string(BULKHEAD_BIN) + "/bulkheadd";
    options.runFile = file;
    options.readOnly = true;
    auto daemon = client::PrivateDaemon::create(options);
    ASSERT_TRUE(daemon.ok()) << daemon.failure().cause;
    auto client = client::Client::open({daemon.value()->target(), "", "tester"});
    ASSERT_TRUE(client.ok());
    model::EventQuery query;
    query.run = "1";
    query.text = "nowhere";
    client.value()->readEvents(query, [](const client::Result<model::EventPage>&) {});
    while (!isOpen(daemon.value()->pid(), file)) std::this_thread::yield();
    ::kill(daemon.value()->pid(), SIGTERM);  // as its --life-fd does when its owner is gone
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    bool ended = false;
    while (!(ended = daemon.value()->ended()) && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
    EXPECT_TRUE(ended);
}

TEST_F(RunFileTest, AShutdownCallEndsAPrivateDaemon) {
    writeRun(dir_ + "/run.db", madeUpRun(3), clock_);
    client::PrivateDaemonOptions options;
    options.program = std::string(BULKHEAD_BIN) + "/bulkheadd";
    options.runFile = dir_ + "/run.db";
    options.readOnly = true;
    auto daemon = client::PrivateDaemon::create(options);
    ASSERT_TRUE(daemon.ok());
    auto client = client::Client::open({daemon.value()->target(), "", "tester"});
    ASSERT_TRUE(await<client::Done>([&](auto reply) { client.value()->shutdown({}, reply); }).ok());
    const int pid = daemon.value()->pid();
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace bulkhead::testing
