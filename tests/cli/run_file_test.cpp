// SPDX-License-Identifier: Apache-2.0
// A run file read through a real private bulkheadd, and bad starts of one.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "backend/client/private_daemon.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/rpc/run_file.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;

struct Ran {
    int code = -1;
    std::string out;
};

Ran shell(const std::string& command) {
    Ran ran;
    FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    std::array<char, 4096> text;
    for (size_t n; (n = std::fread(text.data(), 1, text.size(), pipe)) > 0;)
        ran.out.append(text.data(), n);
    const int status = ::pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
}

const std::string kCtl = std::string(BULKHEAD_BIN) + "/bulkheadctl ";
const std::string kDaemon = std::string(BULKHEAD_BIN) + "/bulkheadd ";

class RunFileTest : public RpcTest {};

TEST_F(RunFileTest, TheCtlReadsAFileWithoutADaemon) {
    writeRun(dir_ + "/run.db", madeUpRun(7), clock_);
    const Ran runs = shell(kCtl + "runs -f " + dir_ + "/run.db");
    EXPECT_EQ(runs.code, 0) << runs.out;
    EXPECT_THAT(runs.out, HasSubstr("demo"));
    const Ran ledger = shell(kCtl + "ledger -f " + dir_ + "/run.db --json | wc -l");
    EXPECT_EQ(ledger.out, "7\n");
}

TEST_F(RunFileTest, AFileThatIsNoHistoryIsSaidInOneLine) {
    std::ofstream(dir_ + "/notes.txt") << "this is no database, it is a text of some length\n";
    const Ran ran = shell(kCtl + "runs -f " + dir_ + "/notes.txt");
    EXPECT_EQ(ran.code, 6) << ran.out;
    EXPECT_THAT(ran.out, HasSubstr("notes.txt"));
    EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
    EXPECT_EQ(shell(kCtl + "runs -f " + dir_ + "/absent.db").code, 6);
}

TEST_F(RunFileTest, ADaemonThatCannotStartExitsWithTwoAndOneLine) {
    writeRun(dir_ + "/run.db", madeUpRun(1), clock_);
    const std::string common = kDaemon + "--state-dir " + dir_ + "/state ";
    const Ran port = shell(common + "--run " + dir_ + "/run.db --listen nonsense:x --token-file " +
                           dir_ + "/token");
    EXPECT_EQ(port.code, 2) << port.out;
    EXPECT_THAT(port.out, HasSubstr("nonsense:x"));
    const Ran token = shell(common + "--run " + dir_ + "/run.db --listen 0");
    EXPECT_EQ(token.code, 2);
    EXPECT_THAT(token.out, HasSubstr("--token-file"));
    EXPECT_EQ(std::count(token.out.begin(), token.out.end(), '\n'), 1) << token.out;
    EXPECT_EQ(shell(common + "--role=captain").code, 2);
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
