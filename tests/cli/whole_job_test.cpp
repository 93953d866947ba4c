// SPDX-License-Identifier: Apache-2.0
// The programs as a person uses them: a job on a daemon of its own, and a daemon that is hurt.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "backend/client/private_daemon.h"
#include "backend/model/json.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;

const std::string kBin = BULKHEAD_BIN;

struct Ran {
    int code = -1;
    std::string out;
};

Ran shell(const std::string& command) {
    Ran ran;
    FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> text;
    for (size_t n; (n = std::fread(text.data(), 1, text.size(), pipe)) > 0;)
        ran.out.append(text.data(), n);
    const int status = ::pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
}

std::string lastLine(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
}

/// The process of that parent whose command line contains `word`; 0 when there is none.
pid_t childOf(pid_t parent, const std::string& word) {
    std::ifstream children("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                           "/children");
    for (pid_t pid = 0; children >> pid;) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
        const std::string line((std::istreambuf_iterator<char>(file)), {});
        if (line.find(word) != std::string::npos) return pid;
    }
    return 0;
}

class WholeJobTest : public RpcTest {
  protected:
    client::JobText smallJob() {
        std::ofstream(dir_ + "/text.txt") << std::string(20000, 'a') << std::string(20000, 'b');
        client::JobText job;
        job.fileName = "small.toml";
        job.baseDir = dir_;
        job.text = "name = \"small\"\nreplicas = 2\nshards = 1\ncheckpoint_dir = \"" + dir_ +
                   "/checkpoints\"\n[model]\nsize = \"tiny\"\n[policies]\nmin_replicas = 1\n"
                   "[[domains]]\nname = \"t\"\npaths = [\"text.txt\"]\n";
        return job;
    }
    std::unique_ptr<client::PrivateDaemon> daemon() {
        client::PrivateDaemonOptions options;
        options.program = kBin + "/bulkheadd";
        options.stateDir = dir_ + "/state";
        options.runFile = dir_ + "/runs.db";
        auto daemon = client::PrivateDaemon::create(options);
        EXPECT_TRUE(daemon.ok()) << daemon.failure().cause;
        return std::move(daemon).value();
    }
};

TEST_F(WholeJobTest, UpRunsAJobThroughAFaultAndItsLedgerAddsUp) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const Ran ran = shell(kBin + "/bulkheadctl --json up " + dir_ + "/small.toml --steps 30 --db " +
                          dir_ + "/run.db --fault kill:replica=1@step=5");
    EXPECT_EQ(ran.code, 0) << ran.out;
    const auto result = model::parseJson(lastLine(ran.out));
    ASSERT_TRUE(result.ok()) << ran.out;
    EXPECT_EQ(result->value("steps", 0), 30);
    EXPECT_EQ(result->value("faults", 0), 1);
    EXPECT_TRUE((*result)["ledger"].value("ok", false)) << ran.out;
    ASSERT_FALSE((*result)["incidents"].empty());
    EXPECT_EQ((*result)["incidents"][0].value("fault", 0), 1);
    const Ran check = shell(kBin + "/bulkheadctl ledger -f " + dir_ + "/run.db --check");
    EXPECT_EQ(check.code, 0) << check.out;
}

TEST_F(WholeJobTest, AJobOutlivesItsControllerAndAWatchFindsItAgain) {
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    WatchLog log;
    auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
    const auto stepped = [](const WatchLog& l, uint64_t step) {
        return l.state && l.state->lastCommit && l.state->lastCommit->record.step >= step;
    };
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, 5); }));
    const pid_t controller = childOf(owner->pid(), "--role=controller");
    ASSERT_GT(controller, 0);
    ::kill(controller, SIGKILL);
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots >= 2; }));
    const uint64_t before = log.state->lastCommit->record.step;
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, before + 5); }));
    EXPECT_EQ(log.state->lineage, 1u);  // nothing was rolled back
    watch.reset();
}

TEST_F(WholeJobTest, ASecondDaemonOnTheSameStateIsRefused) {
    const auto owner = daemon();
    const Ran second = shell(kBin + "/bulkheadd --state-dir " + dir_ + "/state 2>&1");
    EXPECT_EQ(second.code, 2);
    EXPECT_THAT(second.out, HasSubstr("another daemon uses the state directory"));
    EXPECT_FALSE(owner->ended());
}

TEST_F(WholeJobTest, AskedToEndADaemonWritesACheckpointFirst) {
    auto owner = daemon();
    {
        auto client = client::Client::open({owner->target(), "", "tester", kForever});
        ASSERT_TRUE(client.ok());
        const auto job = await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
        ASSERT_TRUE(job.ok()) << job.failure().cause;
        WatchLog log;
        const auto watch =
            client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        ASSERT_TRUE(log.waitFor([](auto& l) { return l.state && l.state->lastCommit; }));
    }
    owner->stop();
    const Ran events = shell(kBin + "/bulkheadctl events -f " + dir_ +
                             "/runs.db --json --type checkpoint_written,run_finished");
    EXPECT_THAT(events.out, HasSubstr("\"type\":\"checkpoint_written\""));
    const auto last = model::parseJson(lastLine(events.out));
    ASSERT_TRUE(last.ok()) << events.out;
    EXPECT_EQ((*last)["body"].value("type", ""), "run_finished");
    EXPECT_TRUE((*last)["body"].value("ok", false));
}

}  // namespace
}  // namespace bulkhead::testing
