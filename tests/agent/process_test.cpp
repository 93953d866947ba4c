// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "backend/runtime/transport/rank_secrets.h"

namespace bulkhead::runtime {
namespace {

using testing::HasSubstr;

bool ends(const UniqueFd& process) {
    pollfd p{process.get(), POLLIN, 0};
    return ::poll(&p, 1, 10000) == 1;
}

TEST(Process, ExitCodeIsReaped) {
    const auto pid = launch({{"/bin/sh", "-c", "exit 7"}, {}, -1, -1});
    ASSERT_TRUE(pid.ok()) << pid.status();
    auto fd = openProcess(*pid);
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(ends(*fd));
    const ExitStatus status = reap(*fd);
    EXPECT_TRUE(status.known);
    EXPECT_EQ(status.exitCode, 7);
    EXPECT_EQ(status.signal, 0);
}

TEST(Process, DeathBySignalNamesTheSignal) {
    const auto pid = launch({{"/bin/sleep", "60"}, {}, -1, -1});
    ASSERT_TRUE(pid.ok());
    auto fd = openProcess(*pid);
    ASSERT_TRUE(signalProcess(*fd, SIGKILL).ok());
    ASSERT_TRUE(ends(*fd));
    EXPECT_EQ(reap(*fd).signal, SIGKILL);
    EXPECT_TRUE(absl::IsNotFound(signalProcess(*fd, SIGKILL)));
}

TEST(Process, UnknownProgramIsNamed) {
    const auto pid = launch({{"/nowhere/bulkhead-worker"}, {}, -1, -1});
    EXPECT_TRUE(absl::IsNotFound(pid.status()));
    EXPECT_THAT(std::string(pid.status().message()), HasSubstr("/nowhere/bulkhead-worker"));
}

TEST(Process, RunsWhereItIsToldAndIsFoundByItsName) {
    const auto pid = launch({{"sh", "-c", "test $PWD = /usr"}, {}, -1, -1, -1, -1, "/usr"});
    ASSERT_TRUE(pid.ok()) << pid.status();
    auto fd = openProcess(*pid);
    ASSERT_TRUE(ends(*fd));
    EXPECT_EQ(reap(*fd).exitCode, 0);
    const auto nowhere = launch({{"sh"}, {}, -1, -1, -1, -1, "/nowhere"});
    EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("sh in /nowhere"));
}

TEST(Process, SecretsAreHandedDownByAPipeAndNowhereElse) {
    RankSecrets secrets;
    secrets.rank = Secret::ofText("rank");
    const auto pipe = secretsPipe(secrets);
    ASSERT_TRUE(pipe.ok()) << pipe.status();
    // Both secrets and no byte more; no descriptor in front of it or behind it but the shell's own.
    const auto pid = launch({{"/bin/bash", "-c",
                              "test $BULKHEAD_SECRETS = 4 && test $(wc -c <&4) = 64 && "
                              "! test -e /proc/$$/fd/3 && ! test -e /proc/$$/fd/5 && "
                              "! tr '\\0' '\\n' < /proc/$$/environ | grep -q LIFE_LOCK"},
                             {},
                             -1,
                             -1,
                             -1,
                             pipe->get()});
    ASSERT_TRUE(pid.ok()) << pid.status();
    auto fd = openProcess(*pid);
    ASSERT_TRUE(ends(*fd));
    EXPECT_EQ(reap(*fd).exitCode, 0);
}

TEST(Process, StartTimeTellsLivesOfAPidApart) {
    const auto pid = launch({{"/bin/sleep", "60"}, {}, -1, -1});
    ASSERT_TRUE(pid.ok());
    auto fd = openProcess(*pid);
    const auto first = processStartTime(*pid);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(processStartTime(*pid), first);
    ASSERT_TRUE(signalProcess(*fd, SIGKILL).ok());
    ASSERT_TRUE(ends(*fd));
    EXPECT_EQ(processStartTime(*pid), std::nullopt) << "a zombie counts as gone";
    reap(*fd);
}

TEST(Process, HasOfOurEnvironmentOnlyWhatIsListed) {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    const std::pair<const char*, const char*> ours[] = {{"SITE_TOKEN", "secret"},
                                                        {"SITE_A", "named"},
                                                        {"SITE_AB", "prefixed"},
                                                        {"NCCL_DEBUG", "listed"},
                                                        {"OMP_NUM_THREADS", "replaced"}};
    for (const auto& [name, value] : ours) ::setenv(name, value, 1);
    const auto pid = launch({.argv = {"/usr/bin/env"},
                             .environment = {"OMP_NUM_THREADS=3"},
                             .out = pipe[1],
                             .inherited = {"SITE_A*"}});
    for (const auto& [name, value] : ours) ::unsetenv(name);
    ASSERT_TRUE(pid.ok());
    ::close(pipe[1]);
    std::string out = "\n";
    char buffer[4096];
    for (ssize_t n; (n = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
        out.append(buffer, static_cast<size_t>(n));
    ::close(pipe[0]);
    for (const char* line :
         {"SITE_A=named", "SITE_AB=prefixed", "NCCL_DEBUG=listed", "OMP_NUM_THREADS=3", "PATH="})
        EXPECT_NE(out.find(std::string("\n") + line), std::string::npos) << line << out;
    EXPECT_EQ(out.find("SITE_TOKEN"), std::string::npos) << out;
    EXPECT_EQ(out.find("replaced"), std::string::npos) << out;
    auto fd = openProcess(*pid);
    if (fd.ok() && ends(*fd)) reap(*fd);
}

TEST(Process, RunsInItsOwnSessionWithTheGivenEnvironmentAndNoStrayDescriptors) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const int stray = ::open("/dev/null", O_RDONLY);  // not close-on-exec
    const auto pid =
        launch({{"/bin/sh", "-c",
                 "echo $BULKHEAD_X; cut -d' ' -f6 /proc/self/stat; ls /proc/self/fd | wc -l"},
                {"BULKHEAD_X=set"},
                pipe[1],
                -1});
    ASSERT_TRUE(pid.ok());
    ::close(pipe[1]);
    std::string out;
    char buffer[256];
    for (ssize_t n; (n = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
        out.append(buffer, static_cast<size_t>(n));
    ::close(pipe[0]);
    ::close(stray);
    // ls itself opens the folder: 0, 1, 2 and that.
    EXPECT_EQ(out, "set\n" + std::to_string(*pid) + "\n4\n");
    auto fd = openProcess(*pid);
    if (fd.ok() && ends(*fd)) reap(*fd);
}

}  // namespace
}  // namespace bulkhead::runtime
