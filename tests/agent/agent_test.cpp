// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/agent.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "backend/common/codec.h"
#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/agent/process.h"
#include "backend/runtime/agent/rank_registry.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/reactor.h"
#include "tests/support/held_at_exit.h"

namespace bulkhead::runtime {
namespace {

using testing::HasSubstr;

const RankProcess kRank{"run-1", {0, 1}, 1};

/// A controller's end of the wire, driven by the test's own thread.
class AgentTest : public testing::Test {
  protected:
    AgentTest() {
        char name[] = "/tmp/bulkhead-agent-XXXXXX";
        dir_ = ::mkdtemp(name);
        reactor_ = *Reactor::create(clock_);
        listener_ =
            *listenControl(*reactor_, "unix:" + dir_ + "/c", keyed(),
                           [this](std::unique_ptr<ControlChannel> c) { accept(std::move(c)); });
        startAgent();
    }
    ~AgentTest() override {
        for (const int32_t pid : pids_) ::kill(pid, SIGKILL);
        stopAgent();
        std::filesystem::remove_all(dir_);
    }

    /// Credentials of a controller that knows the agent's secret.
    static ChannelOptions keyed() {
        ChannelOptions options;
        options.keyOf = [](std::string_view identity) {
            return Secret::ofText("secret").derive(identity);
        };
        return options;
    }
    void startAgent() {
        AgentOptions options;
        options.node = "node7";
        options.address = "127.0.0.7";
        options.slots = slots_;
        options.gpus = gpus_;
        options.gpuLibrary = gpuLibrary_;
        options.controllers = {"unix:" + dir_ + "/c"};
        options.controllers.insert(options.controllers.end(), others_.begin(), others_.end());
        options.key = Secret::ofText("secret").derive(agentIdentity("node7"));
        options.runDir = dir_ + "/node7";
        options.sampleMs = 20;
        options.worker = worker_;
        options.allow = allow_;
        options.allowFile = "allow.toml";
        options.onKillNode = [this] { nodeKilled_ = true; };
        auto agent = Agent::create(std::move(options), clock_);
        ASSERT_TRUE(agent.ok()) << agent.status();
        agent_ = *std::move(agent);
        thread_ = std::thread([this] {
            agentThread_ = ::gettid();
            result_ = agent_->run();
        });
        until([this] { return hello_.has_value(); });
    }
    void stopAgent() {
        if (!agent_) return;
        agent_->stop();
        thread_.join();
        agent_.reset();
        channel_.reset();  // with what is still on its way
        hello_.reset();
    }
    /// The files that a dead agent has left on disk.
    void note(const RegisteredRank& rank) {
        auto registry = RankRegistry::open(diskFiles(), dir_ + "/node7");
        ASSERT_TRUE(registry.ok()) << registry.status();
        ASSERT_TRUE(registry->add(rank).ok());
    }
    void accept(std::unique_ptr<ControlChannel> channel) {
        channel_ = std::move(channel);
        hello_.reset();
        channel_->start(
            [this](std::string bytes) {
                if (hello_) {
                    messages_.push_back(*decode<AgentMessage>(bytes));
                    if (answers_ && std::holds_alternative<AgentBeat>(messages_.back()))
                        tell(AgentHeard{});
                    return;
                }
                hello_ = *decode<AgentHello>(bytes);
                ++hellos_;
                if (deaf_) return channel_.reset();
                if (!another_.empty()) return (void)channel_->send(another_);
                tell(welcome_);
            },
            [](const absl::Status&) {});
    }
    void tell(const AgentCommand& command) { ASSERT_TRUE(channel_->send(encode(command)).ok()); }

    template <class F>
    void until(F condition) {
        const MonoNs deadline = clock_.now() + 20 * kSecond;
        while (!condition()) {
            ASSERT_LT(clock_.now(), deadline) << "it did not happen";
            reactor_->runOnce(50 * kMillisecond);
        }
    }
    template <class T>
    const T* seen(std::function<bool(const T&)> matches = [](const T&) { return true; }) const {
        for (const AgentMessage& m : messages_)
            if (const T* t = std::get_if<T>(&m); t != nullptr && matches(*t)) return t;
        return nullptr;
    }
    template <class T>
    T await(std::function<bool(const T&)> matches = [](const T&) { return true; }) {
        until([&] { return seen<T>(matches) != nullptr; });
        const T* found = seen<T>(matches);
        return found == nullptr ? T{} : *found;
    }
    RankUp start(const RankProcess& process, std::vector<std::string> argv, bool onGpu = false,
                 bool shareGpu = false) {
        tell(StartRank{process, std::move(argv), {"BULKHEAD_TEST=1"}, "", onGpu, shareGpu});
        const RankUp up = await<RankUp>([&](const RankUp& u) { return u.process == process; });
        if (up.pid != 0) pids_.push_back(up.pid);
        return up;
    }
    static char stateOf(int32_t pid) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
        std::string line;
        std::getline(file, line);
        return line.rfind(')') == std::string::npos ? '?' : line[line.rfind(')') + 2];
    }

    SystemClock clock_;
    std::string dir_;
    uint32_t slots_ = 2;
    std::string worker_;
    std::optional<model::AllowList> allow_;
    std::string gpus_ = "all", gpuLibrary_ = "libno-such-driver.so.1";
    AgentWelcome welcome_;
    std::vector<std::string> others_;  ///< further controllers of the agent
    bool answers_ = false;             ///< to beats
    std::string another_;              ///< said in its place, by a controller of another build
    int hellos_ = 0;
    bool deaf_ = false;  ///< as to a hello that arrives damaged
    std::unique_ptr<Reactor> reactor_;
    std::unique_ptr<ControlListener> listener_;
    std::unique_ptr<ControlChannel> channel_;
    std::unique_ptr<Agent> agent_;
    std::thread thread_;
    std::atomic<pid_t> agentThread_{0};
    absl::Status result_;
    std::optional<AgentHello> hello_;
    std::vector<AgentMessage> messages_;
    std::vector<int32_t> pids_;
    std::atomic<bool> nodeKilled_{false};
};

TEST_F(AgentTest, DeclaresItselfAndItsSlots) {
    ASSERT_TRUE(hello_.has_value());
    EXPECT_EQ(hello_->magic, kAgentMagic);
    EXPECT_EQ(hello_->node, "node7");
    EXPECT_EQ(hello_->address, "127.0.0.7");
    EXPECT_EQ(hello_->slots, 2u);
    EXPECT_TRUE(hello_->running.empty());
}

TEST_F(AgentTest, AnExitComesWithItsCodeAndTheLastWords) {
    start(kRank, {"/bin/sh", "-c", "echo hello $BULKHEAD_TEST; echo oops >&2; exit 3"});
    const RankGone gone = await<RankGone>();
    EXPECT_EQ(gone.process, kRank);
    EXPECT_TRUE(gone.statusKnown);
    EXPECT_EQ(gone.exitCode, 3);
    EXPECT_EQ(await<OutputLine>([](const OutputLine& l) { return !l.isStderr; }).line, "hello 1");
    EXPECT_EQ(await<OutputLine>([](const OutputLine& l) { return l.isStderr; }).line, "oops");
}

TEST_F(AgentTest, WhatAProgramStartsMayPrintMoreThanAPipeHolds) {
    start(kRank,
          {"/bin/sh", "-c", "seq 1 400000 || exit 4; head -c 900000 /dev/zero; echo; echo last"});
    EXPECT_EQ(await<RankGone>().exitCode, 0);
    EXPECT_EQ(await<OutputLine>([](const OutputLine& l) { return l.line == "last"; }).line, "last");
    uint64_t lines = 0;
    for (const AgentMessage& m : messages_)
        if (const auto* line = std::get_if<OutputLine>(&m)) lines += 1 + line->dropped;
    EXPECT_EQ(lines, 400'002u) << "what is not told is counted";
}

TEST_F(AgentTest, SaysWhichFilesAProcessWasStartedFrom) {
    const auto fileAt = [](const RankFiles& from, const std::string& path) {
        for (const RunFile& file : from.files)
            if (file.path == path) return file.sha256;
        return std::string();
    };
    const std::string script = dir_ + "/train.sh";
    std::ofstream(script) << "exit 0\n";
    const std::string shell = std::filesystem::canonical("/bin/sh").string();
    start(kRank, {"sh", script, "no-file"});
    const RankFiles first = await<RankFiles>();
    ASSERT_EQ(first.files.size(), 2u);
    EXPECT_EQ(fileAt(first, script), sha256Hex("exit 0\n"));
    EXPECT_EQ(fileAt(first, shell), sha256Hex(*readAtMost(shell, 1 << 30)));
    await<RankGone>();
    std::ofstream(script) << "exit 7\n";
    const RankProcess again{kRank.job, kRank.rank, kRank.incarnation + 1};
    start(again, {"sh", script});
    const RankFiles second =
        await<RankFiles>([&](const RankFiles& from) { return from.process == again; });
    EXPECT_EQ(fileAt(second, script), sha256Hex("exit 7\n"));
    EXPECT_EQ(fileAt(second, shell), fileAt(first, shell));
}

TEST_F(AgentTest, ALargeFileIsReadOnAnotherThreadThanTheOneThatBeats) {
    constexpr uint64_t kBytes = uint64_t{64} << 20;
    const auto bytesRead = [this] {
        std::ifstream file("/proc/self/task/" + std::to_string(agentThread_) + "/io");
        std::string field;
        uint64_t count = kBytes;
        file >> field >> count;
        EXPECT_EQ(field, "rchar:");
        return count;
    };
    const std::string large = dir_ + "/large";
    std::ofstream(large) << "x";
    std::filesystem::resize_file(large, kBytes);
    start(kRank, {"/bin/sh", "-c", "exit 0", large});
    std::string bytes(kBytes, 0);
    bytes[0] = 'x';
    EXPECT_EQ(await<RankFiles>().files.back(), (RunFile{large, sha256Hex(bytes)}));
    EXPECT_LT(bytesRead(), kBytes / 4);
}

TEST_F(AgentTest, FilesAreToldAgainUntilTheControllerHasHeard) {
    start(kRank, {"/bin/sh", "-c", "exit 0"});
    const RankFiles told = await<RankFiles>();
    messages_.clear();
    channel_.reset();
    EXPECT_EQ(await<RankFiles>().files, told.files);
    tell(AgentHeard{told.receipt});
    await<NodeSample>();
    messages_.clear();
    channel_.reset();
    until([this] { return hello_.has_value(); });
    await<NodeSample>();
    EXPECT_EQ(seen<RankFiles>(), nullptr);
}

TEST_F(AgentTest, AKillIsReportedAsTheSignal) {
    start(kRank, {"/bin/sleep", "100"});
    tell(SignalRank{kRank, SIGKILL, 5, 0});
    EXPECT_EQ(await<AgentFaultNoted>().fault, 5u);
    EXPECT_EQ(await<RankGone>().signal, SIGKILL);
}

TEST_F(AgentTest, ADeathIsToldBeforeTheMemoryIsGivenBack) {
    start(kRank, {TEST_RANK, "memory"});
    await<OutputLine>([](const OutputLine& l) { return l.line == "ready"; });
    tell(SignalRank{kRank, SIGKILL, 0, 0});
    EXPECT_EQ(await<RankGone>().signal, SIGKILL);
    const auto place = [this](auto is) {
        return std::find_if(messages_.begin(), messages_.end(), is) - messages_.begin();
    };
    EXPECT_LT(place([](const AgentMessage& m) { return std::holds_alternative<RankDied>(m); }),
              place([](const AgentMessage& m) { return std::holds_alternative<RankGone>(m); }));
}

TEST_F(AgentTest, ADeathIsToldAgainByTheNextAgentUntilTheProcessIsGone) {
    const int32_t pid = start(kRank, {TEST_RANK, "hold"}).pid;
    await<OutputLine>([](const OutputLine& l) { return l.line == "ready"; });
    support::HeldAtExit held(pid);
    ::kill(pid, SIGKILL);
    ASSERT_TRUE(held.awaitDeath());
    EXPECT_EQ(await<RankDied>().pid, pid);
    stopAgent();
    messages_.clear();
    startAgent();
    EXPECT_EQ(hello_->running.size(), 1u) << "it is not gone";
    EXPECT_EQ(await<RankDied>().process, kRank);
    EXPECT_EQ(seen<RankGone>(), nullptr);
    held.release();
    EXPECT_EQ(await<RankGone>().signal, SIGKILL);
}

TEST_F(AgentTest, ARankWhoseLockSaysNothingIsReportedWhenItIsGone) {
    for (const char* what : {"none", "garbage", "thread-ends", "other-owner", "exec"}) {
        messages_.clear();
        const RankProcess process{"run-1", {0, 0}, 1};
        start(process, {TEST_RANK, what});
        await<OutputLine>([](const OutputLine& l) { return l.line == "ready"; });
        tell(SignalRank{process, SIGKILL, 0, 0});
        EXPECT_EQ(await<RankGone>().signal, SIGKILL) << what;
    }
}

TEST_F(AgentTest, AHangWithDurationEndsByItself) {
    const int32_t pid = start(kRank, {"/bin/sleep", "100"}).pid;
    tell(SignalRank{kRank, SIGSTOP, 6, 200});
    await<AgentFaultNoted>([](const AgentFaultNoted& n) { return !n.ended; });
    until([&] { return stateOf(pid) == 'T'; });
    await<AgentFaultNoted>([](const AgentFaultNoted& n) { return n.ended; });
    until([&] { return stateOf(pid) == 'S'; });
}

TEST_F(AgentTest, AHangWithoutDurationLastsUntilItIsEnded) {
    const int32_t pid = start(kRank, {"/bin/sleep", "100"}).pid;
    tell(SignalRank{kRank, SIGSTOP, 6, 0});
    until([&] { return stateOf(pid) == 'T'; });
    tell(EndFault{kRank.job, 6, {}});
    await<AgentFaultNoted>([](const AgentFaultNoted& n) { return n.ended; });
    until([&] { return stateOf(pid) == 'S'; });
}

TEST_F(AgentTest, TheEndOfAFaultReachesTheRankItLastsIn) {
    start(kRank, {"/bin/bash", "-c",
                  "trap 'exit 7' " + std::to_string(protocol::endFaultSignal()) +
                      "; echo ready; while :; do sleep 0.02; done"});
    await<OutputLine>([](const OutputLine& l) { return l.line == "ready"; });
    tell(EndFault{kRank.job, 6, {{kRank.job, kRank.rank, kRank.incarnation + 1}}});
    tell(EndFault{kRank.job, 6, {kRank}});
    EXPECT_EQ(await<RankGone>().exitCode, 7);
}

TEST_F(AgentTest, WhatCannotStartSaysWhy) {
    const RankUp up = start(kRank, {"/nowhere/worker"});
    EXPECT_EQ(up.pid, 0);
    EXPECT_THAT(up.error, HasSubstr("/nowhere/worker"));
}

TEST_F(AgentTest, RunsItsOwnWorkerAndOfCommandsWhatItsListAllows) {
    stopAgent();
    slots_ = 4;
    worker_ = "/bin/echo";
    allow_ = model::AllowList{{"sh"}, {}, {}, {}, {}, {"LANG"}};
    startAgent();
    const auto up = [&](int32_t shard, std::vector<std::string> argv,
                        std::vector<std::string> environment) {
        const RankProcess process{"j", {0, shard}, 1};
        tell(StartRank{process, std::move(argv), std::move(environment)});
        return await<RankUp>([&](const RankUp& u) { return u.process == process; });
    };
    EXPECT_NE(up(0, {"/tmp/evil", "trains"}, {}).pid, 0);
    await<OutputLine>([](const OutputLine& o) { return o.line == "trains"; });
    EXPECT_NE(up(1, {"sh", "-c", "echo allowed"}, {"BULKHEAD_JOB=j", "LANG=C"}).pid, 0);
    await<OutputLine>([](const OutputLine& o) { return o.line == "allowed"; });
    EXPECT_THAT(up(2, {"/tmp/evil"}, {"BULKHEAD_JOB=j"}).error,
                HasSubstr("node node7: command: /tmp/evil is not allowed here"));
    EXPECT_THAT(up(3, {"sh"}, {"BULKHEAD_JOB=j", "LD_PRELOAD=/tmp/evil.so"}).error,
                HasSubstr("env: LD_PRELOAD is not allowed here"));
}

TEST_F(AgentTest, NoMoreProcessesThanSlots) {
    start({"run-1", {0, 0}, 1}, {"/bin/sleep", "100"});
    start({"run-1", {0, 1}, 1}, {"/bin/sleep", "100"});
    EXPECT_THAT(start({"run-1", {1, 0}, 1}, {"/bin/sleep", "100"}).error, HasSubstr("2 slots"));
}

TEST_F(AgentTest, RanksOutliveTheAgentAndAreTakenUpAgain) {
    const int32_t pid = start(kRank, {"/bin/sleep", "100"}).pid;
    stopAgent();
    EXPECT_TRUE(processStartTime(pid).has_value()) << "the rank died with its agent";
    startAgent();
    ASSERT_EQ(hello_->running.size(), 1u);
    EXPECT_EQ(hello_->running[0].process, kRank);
    EXPECT_EQ(hello_->running[0].pid, pid);
    tell(SignalRank{kRank, SIGKILL, 0, 0});
    EXPECT_EQ(await<RankGone>().pid, pid);
}

/// Its notes name the original's processes.
TEST_F(AgentTest, TheAgentOfACopiedFolderLeavesTheOriginalsRanksAlone) {
    const std::string quiet =
        "exec sleep 100 >/dev/null 2>&1";  // proves itself by what it was told
    const int32_t pid = start(kRank, {"/bin/sleep", "100"}).pid;
    const RankProcess other{"run-1", {1, 0}, 1};
    const int32_t second = start(other, {"/bin/sh", "-c", quiet}).pid;
    stopAgent();
    const std::string mine = dir_ + "/node7", kept = dir_ + "/kept";
    std::filesystem::rename(mine, kept);
    ASSERT_EQ(std::system(("cp -a " + kept + " " + mine).c_str()), 0);
    startAgent();
    EXPECT_TRUE(hello_->running.empty());
    tell(SignalRank{kRank, SIGKILL, 0, 0});
    tell(SignalRank{other, SIGKILL, 0, 0});
    EXPECT_NE(start({"run-1", {0, 1}, 2}, {"/bin/sleep", "100"}).pid, 0);
    for (const int32_t one : {pid, second}) EXPECT_TRUE(processStartTime(one).has_value());
    stopAgent();
    std::filesystem::remove_all(mine);
    std::filesystem::rename(kept, mine);
    startAgent();
    EXPECT_EQ(hello_->running.size(), 2u) << "the original finds them";
}

/// The agent was killed before it could write down the process.
TEST_F(AgentTest, ARankThatWasStartedAndNotNotedIsFoundByItsOutput) {
    const int32_t pid = start(kRank, {"/bin/sleep", "100"}).pid;
    stopAgent();
    note({kRank, 0, 0});
    startAgent();
    ASSERT_EQ(hello_->running.size(), 1u);
    EXPECT_EQ(hello_->running[0].pid, pid);
    tell(SignalRank{kRank, SIGKILL, 0, 0});
    EXPECT_EQ(await<RankGone>().pid, pid);
}

/// A later life of the agent would not find it.
TEST_F(AgentTest, ARankThatCannotBeNotedIsNotStarted) {
    const std::string note = dir_ + "/node7/run-1-r0s1-i1.rank.new";
    std::filesystem::create_directories(note + "/in the way");
    const RankUp up = start(kRank, {"/bin/sleep", "100"});
    EXPECT_EQ(up.pid, 0);
    EXPECT_THAT(up.error, HasSubstr(note));
    std::filesystem::remove_all(note);
    EXPECT_NE(start({"run-1", {0, 1}, 2}, {"/bin/sleep", "100"}).pid, 0);
}

TEST_F(AgentTest, ARankThatWasNotedAndNotStartedIsMissedByNobody) {
    stopAgent();
    note({kRank, 0, 0});
    startAgent();
    EXPECT_TRUE(hello_->running.empty());
    EXPECT_NE(start(kRank, {"/bin/sleep", "100"}).pid, 0);
    EXPECT_EQ(seen<RankGone>(), nullptr);
}

TEST_F(AgentTest, ARankThatEndedWhileTheAgentWasAwayIsReportedGone) {
    const int32_t pid = start(kRank, {"/bin/sleep", "100"}).pid;
    stopAgent();
    ::kill(pid, SIGKILL);
    const MonoNs deadline = clock_.now() + 20 * kSecond;
    while (processStartTime(pid).has_value()) ASSERT_LT(clock_.now(), deadline);
    startAgent();
    EXPECT_TRUE(hello_->running.empty());
    EXPECT_FALSE(await<RankGone>().statusKnown);
}

TEST_F(AgentTest, OutputIsHeardAgainAfterTheAgentCameBack) {
    start(kRank,
          {"/bin/sh", "-c", "while [ ! -e " + dir_ + "/go ]; do sleep 0.02; done; echo back"});
    stopAgent();
    startAgent();
    std::ofstream(dir_ + "/go") << "";
    EXPECT_EQ(await<OutputLine>().line, "back");
}

/// An agent of a node with eight GPUs.
class GpuNode : public AgentTest {
  protected:
    GpuNode() {
        gpuLibrary_ = FAKE_NVML "/eight/libnvidia-ml.so.1";
        slots_ = 16;
        stopAgent();  // before the environment changes
        ::setenv("BULKHEAD_FAKE_XID", xidFile_.c_str(), 1);
        again("all");
    }
    void again(const std::string& gpus) {
        stopAgent();
        messages_.clear();
        gpus_ = gpus;
        startAgent();
    }
    static std::string uuid(int gpu) {
        return "GPU-b0000000-0000-4000-8000-00000000000" + std::to_string(gpu);
    }
    static RankProcess rank(int shard) { return {"run-1", {0, shard}, 1}; }
    /// One that says which GPUs CUDA will show it, and stays.
    RankUp startOne(int shard, bool onGpu = true, bool shareGpu = false) {
        return start(rank(shard),
                     {"/bin/sh", "-c", "echo sees ${CUDA_VISIBLE_DEVICES-all}; exec sleep 600"},
                     onGpu, shareGpu);
    }
    std::string seenBy(int shard) {
        return await<OutputLine>([&](const OutputLine& l) { return l.process == rank(shard); })
            .line;
    }
    const std::string xidFile_ = dir_ + "/xid";
};

TEST_F(GpuNode, EveryRankIsGivenAGpuOfItsOwn) {
    EXPECT_EQ(hello_->gpus.size(), 8u);
    for (int shard = 0; shard < 8; ++shard) {
        const RankUp up = startOne(shard);
        EXPECT_EQ(up.error, "");
        EXPECT_EQ(up.gpu, (GpuPlace{static_cast<uint32_t>(shard), uuid(shard)}));
        EXPECT_EQ(seenBy(shard), "sees " + uuid(shard));
    }
}

TEST_F(GpuNode, OneMoreThanThereAreGpusIsRefusedUnlessItMayShare) {
    for (int shard = 0; shard < 8; ++shard) startOne(shard);
    const RankUp refused = startOne(8);
    EXPECT_EQ(refused.pid, 0);
    EXPECT_THAT(refused.error, HasSubstr("node node7 gives 8 GPUs to ranks"));
    EXPECT_THAT(refused.error, HasSubstr("GPU 0 by run-1 r0s0 incarnation 1"));
    EXPECT_THAT(refused.error, HasSubstr("share_gpu = true"));
    EXPECT_EQ(startOne(11, false).gpu.uuid, "") << "one that computes on the CPU needs none";
    EXPECT_EQ(seenBy(11), "sees all");
}

TEST_F(GpuNode, ThoseThatShareTakeNoGpuThatAnotherHasForItself) {
    again("1,2,3");
    EXPECT_EQ(startOne(0).gpu.uuid, uuid(1));
    for (int shard = 1; shard < 5; ++shard)
        EXPECT_EQ(startOne(shard, true, true).gpu.uuid, uuid(shard % 2 == 1 ? 2 : 3))
            << "the one that fewest use";
    again("1,2,3");
    EXPECT_EQ(startOne(5, true, true).gpu.uuid, uuid(2)) << "the next agent knows who shares";
    EXPECT_THAT(startOne(6).error, HasSubstr("all are taken, GPU 3 by run-1 r0s2"));
    again("1");
    EXPECT_THAT(startOne(7, true, true).error,
                HasSubstr("all are taken, GPU 1 by run-1 r0s0 incarnation 1; use another node, or "
                          "set share_gpu = true in that job too"));
}

TEST_F(GpuNode, AGpuThatAnAgentOfAnotherControllerHasIsGivenToNobody) {
    again("1,2");
    const auto claim = [](int gpu, int how) {
        UniqueFd file(
            ::open(("/dev/shm/bulkhead-gpu-" + uuid(gpu)).c_str(), O_RDONLY | O_CREAT, 0644));
        return ::flock(file.get(), how | LOCK_NB) == 0 ? std::move(file) : UniqueFd();
    };
    UniqueFd others = claim(1, LOCK_EX);
    ASSERT_TRUE(others.valid());
    EXPECT_EQ(startOne(0).gpu.uuid, uuid(2));
    EXPECT_FALSE(claim(2, LOCK_SH).valid()) << "it has one for itself";
    EXPECT_THAT(startOne(1).error, HasSubstr("GPU 1 by a rank of another agent on this machine"));
    again("1,2");
    EXPECT_FALSE(claim(2, LOCK_SH).valid()) << "the next agent claims it again";
    others.reset();
    others = claim(1, LOCK_SH);
    EXPECT_EQ(startOne(2).gpu.uuid, "") << "shared by the others";
    EXPECT_EQ(startOne(3, true, true).gpu.uuid, uuid(1));
    EXPECT_FALSE(claim(1, LOCK_EX).valid());
}

TEST_F(GpuNode, AGpuIsFreeWhenItsRankIsGoneAndNotBefore) {
    for (int shard = 0; shard < 8; ++shard) startOne(shard);
    ::kill(seen<RankUp>([&](const RankUp& u) { return u.process == rank(5); })->pid, SIGKILL);
    await<RankGone>([&](const RankGone& g) { return g.process == rank(5); });
    EXPECT_EQ(startOne(8).gpu.uuid, uuid(5));
}

TEST_F(GpuNode, TheNextAgentKnowsWhoHasWhichGpu) {
    startOne(0);
    startOne(1);
    again("all");
    ASSERT_EQ(hello_->running.size(), 2u);
    for (const RunningRank& running : hello_->running)
        EXPECT_EQ(running.gpu.uuid, uuid(running.process.rank.shard));
    EXPECT_EQ(startOne(2).gpu.uuid, uuid(2));
}

TEST_F(GpuNode, AGpuThatFellOffTheBusIsGivenToNobody) {
    again("1,2");
    const RankUp first = startOne(0);
    EXPECT_EQ(first.gpu.uuid, uuid(1));
    std::ofstream(xidFile_) << "";
    const GpuTroubleSeen seen = await<GpuTroubleSeen>();
    EXPECT_EQ(seen.trouble.xid, 79u);
    EXPECT_THAT(seen.ranks, testing::ElementsAre(rank(0))) << "it was given to this one";
    EXPECT_THAT(seen.gpusLeft, testing::ElementsAre(uuid(2)));
    ::kill(first.pid, SIGKILL);
    await<RankGone>([&](const RankGone& g) { return g.process == rank(0); });
    EXPECT_EQ(startOne(1).gpu.uuid, uuid(2));
    EXPECT_THAT(startOne(2).error, HasSubstr("gives 1 GPUs to ranks"));
    again("1");
    EXPECT_EQ(hello_->gpus.size(), 1u) << "the next agent finds it again";
    messages_.clear();
    std::ofstream(xidFile_) << "";
    await<GpuTroubleSeen>();
    const RankUp refused = startOne(3);
    EXPECT_EQ(refused.pid, 0);
    EXPECT_THAT(refused.error, HasSubstr("node node7 has no GPU left to give to a rank: GPU 1"));
    EXPECT_THAT(refused.error, HasSubstr("Xid 79: the GPU has fallen off the bus"));
    EXPECT_THAT(refused.error, HasSubstr("start the agent again"));
}

TEST_F(GpuNode, GpusCanBeNarrowed) {
    again("6," + uuid(3));
    EXPECT_EQ(hello_->gpus.size(), 2u);
    EXPECT_EQ(startOne(0).gpu.uuid, uuid(6));
    EXPECT_EQ(startOne(1).gpu.uuid, uuid(3));
    again("none");
    EXPECT_EQ(hello_->gpus.size(), 0u);
    EXPECT_EQ(startOne(2).gpu.uuid, "");
    EXPECT_EQ(seenBy(2), "sees") << "none was given to it";
    start(rank(3), {"/bin/sh", "-c", "echo \"$BULKHEAD_NO_GPU\"; exec sleep 600"}, true, false);
    EXPECT_EQ(seenBy(3), "node node7 gave it no GPU: its agent has --gpus none");
}

TEST_F(AgentTest, OnlyGpusThatThisProcessMaySeeAreGivenToRanks) {
    const std::vector<GpuPlace> all{{0, "GPU-a1"}, {1, "GPU-b2"}, {2, "GPU-c3"}};
    const auto visible = [&](const char* variable) {
        std::string names;
        for (const GpuPlace& gpu : visibleGpus(all, variable)) names += gpu.uuid.back();
        return names;
    };
    EXPECT_EQ(visible(nullptr), "123");
    EXPECT_EQ(visible(""), "");
    EXPECT_EQ(visible("2,0"), "31");
    EXPECT_EQ(visible("GPU-b,GPU-c3"), "23") << "a UUID's beginning does";
    EXPECT_EQ(visible("1,-1,2"), "2") << "what names none ends the list, as in CUDA";
    EXPECT_EQ(visible("NoDevFiles"), "");
}

TEST_F(AgentTest, GpusAreNamedOrCounted) {
    const std::vector<GpuPlace> all{{0, "GPU-a"}, {1, "GPU-b"}, {3, "GPU-c"}};
    const auto chosen = [&](const std::string& wanted) {
        std::string names;
        const auto gpus = chooseGpus(all, wanted);
        if (!gpus.ok()) return std::string(gpus.status().message());
        for (const GpuPlace& gpu : *gpus) names += gpu.uuid.back();
        return names;
    };
    EXPECT_EQ(chosen("all"), "abc");
    EXPECT_EQ(chosen("none"), "");
    EXPECT_EQ(chosen("3,GPU-a,3"), "ca");
    EXPECT_EQ(chosen("1/2"), "ac");
    EXPECT_EQ(chosen("2/2"), "b");
    EXPECT_EQ(chosen("4/4"), "");
    EXPECT_EQ(chosen("2"),
              "no GPU of this node is \"2\"; it has 0 (GPU-a), 1 (GPU-b), 3 (GPU-c); "
              "expected all, none, indices or UUIDs with commas between, or i/n");
    EXPECT_THAT(chosen(""), HasSubstr("no GPU of this node is \"\""));
    EXPECT_THAT(chosen("3/2"), HasSubstr("no GPU of this node is \"3/2\""));
}

TEST_F(AgentTest, SamplesProcessorAndMemoryOfItsRanks) {
    start(kRank, {"/bin/sh", "-c", "while :; do :; done"});
    const NodeSample sample = await<NodeSample>([](const NodeSample& s) {
        return !s.ranks.empty() && s.ranks[0].cpuPercent.value_or(0) > 0 &&
               s.ranks[0].rssBytes.value_or(0) > 0;
    });
    EXPECT_TRUE(sample.node.memoryTotalBytes.has_value());
    EXPECT_TRUE(sample.node.gpus.empty());
    EXPECT_NE(sample.node.noGpus, "") << "why there is none";
    EXPECT_FALSE(sample.ranks[0].gpuPercent.has_value()) << "no GPU here: absent, not zero";
}

TEST_F(AgentTest, TheMachinesOwnDiskIsNeverFilled) {
    tell(FillDisk{"run-1", 9, "/", 1000});
    const AgentFaultNoted noted = await<AgentFaultNoted>();
    EXPECT_EQ(noted.fault, 9u);
    EXPECT_THAT(noted.error, HasSubstr("file system of their own"));
}

TEST_F(AgentTest, ANodeThatDiesTakesItsRanksAlong) {
    start(kRank, {"/bin/sleep", "100"});
    tell(KillNode{3});
    EXPECT_EQ(await<RankGone>().signal, SIGKILL);
    EXPECT_TRUE(nodeKilled_);
}

TEST_F(AgentTest, ARefusedAgentGivesUpWithTheReason) {
    stopAgent();
    welcome_.error = "its token is not this controller's";
    startAgent();
    thread_.join();
    EXPECT_TRUE(absl::IsPermissionDenied(result_));
    EXPECT_THAT(std::string(result_.message()), HasSubstr("token"));
    thread_ = std::thread([] {});
}

TEST_F(AgentTest, AnAgentWhoseControllerIsAnotherBuildGivesUpWithTheReason) {
    stopAgent();
    another_ = "\xff\xff\xff\xff of another build";
    startAgent();
    thread_.join();
    EXPECT_TRUE(absl::IsPermissionDenied(result_));
    EXPECT_THAT(std::string(result_.message()), HasSubstr("install the same release"));
    thread_ = std::thread([] {});
}

TEST_F(AgentTest, AnAgentThatIsPutOutUnheardComesAgainMoreAndMoreRarely) {
    stopAgent();
    deaf_ = true;
    hellos_ = 0;
    startAgent();
    until([this] { return hellos_ >= 5; });
    const MonoNs fifth = clock_.now();
    until([this] { return hellos_ >= 6; });
    EXPECT_GT(clock_.now() - fifth, kSecond);
    deaf_ = false;
    hello_.reset();
    until([this] { return hello_.has_value(); });
}

TEST_F(AgentTest, ASilentControllerIsGivenUpForTheNextAndItsRanksLearnOfIt) {
    stopAgent();
    others_ = {"unix:" + dir_ + "/nobody", "unix:" + dir_ + "/d"};
    welcome_.beatMs = 100;
    startAgent();
    until([this] { return hello_.has_value(); });
    const auto note = [this] { return diskFiles().read(controllerNote(dir_ + "/node7")); };
    until([&] { return note().ok(); });
    EXPECT_EQ(*note(), "unix:" + dir_ + "/c");
    start(kRank, {"/bin/sh", "-c", "echo note:$BULKHEAD_CONTROLLER_NOTE; sleep 100"});
    const OutputLine line = await<OutputLine>(
        [](const OutputLine& l) { return l.line.find("note:") != std::string::npos; });
    EXPECT_EQ(line.line, "note:" + controllerNote(dir_ + "/node7"));

    const auto other =
        listenControl(*reactor_, others_[1], keyed(),
                      [this](std::unique_ptr<ControlChannel> c) { accept(std::move(c)); });
    ASSERT_TRUE(other.ok()) << other.status();
    answers_ = true;
    const MonoNs answered = clock_.now();
    until([&] { return clock_.now() > answered + 3 * kSecond; });
    EXPECT_EQ(*note(), "unix:" + dir_ + "/c") << "it answers, and is kept";
    answers_ = false;
    until([&] { return note().value_or("") == others_[1]; });
    until([this] { return hello_ && hello_->running.size() == 1; });
}

TEST_F(AgentTest, AnAgentWhoseNameIsTakenComesAgainUntilItIsFree) {
    stopAgent();
    welcome_ = {"a node named node7 is connected already", 0, 60000};
    hellos_ = 0;
    startAgent();
    until([this] { return hellos_ >= 2; });
    welcome_ = {"", 10, 0};
    hello_.reset();
    until([this] { return hellos_ >= 3 && hello_.has_value(); });
    await<AgentBeat>();
}

TEST_F(AgentTest, AnAgentWhoseNameStaysTakenGivesUpWithTheReason) {
    stopAgent();
    welcome_ = {"a node named node7 is connected already", 0, 1};
    hellos_ = 0;
    startAgent();
    until([this] { return hellos_ >= 2; });
    thread_.join();
    EXPECT_THAT(std::string(result_.message()), HasSubstr("connected already"));
    thread_ = std::thread([] {});
}

}  // namespace
}  // namespace bulkhead::runtime
