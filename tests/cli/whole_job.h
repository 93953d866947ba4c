// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>

#include "backend/client/private_daemon.h"
#include "tests/cli/shell.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {

inline const std::string kBin = BULKHEAD_BIN;

inline std::string lastLine(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
}

/// A port that nobody listened on a moment ago.
inline int freePort() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    socklen_t size = sizeof at;
    ::bind(fd, reinterpret_cast<sockaddr*>(&at), size);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
    ::close(fd);
    return ntohs(at.sin_port);
}

/// The process of that parent whose command line contains `word`; 0 when there is none.
inline pid_t childOf(pid_t parent, const std::string& word) {
    std::ifstream children("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                           "/children");
    for (pid_t pid = 0; children >> pid;) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
        const std::string line((std::istreambuf_iterator<char>(file)), {});
        if (line.find(word) != std::string::npos) return pid;
    }
    return 0;
}

/// A small job on the real programs, in a folder of its own.
class WholeJobTest : public RpcTest {
  protected:
    client::JobText smallJob() {
        std::ofstream(dir_ + "/text.txt") << std::string(20000, 'a') << std::string(20000, 'b');
        client::JobText job;
        job.fileName = "small.toml";
        job.baseDir = dir_;
        job.text =
            "name = \"small\"\nreplicas = 2\nshards = 1\nfaults = \"on\"\ncheckpoint_dir = \"" +
            dir_ +
            "/checkpoints\"\n[model]\nsize = \"tiny\"\n[policies]\nmin_replicas = 1\n"
            "[[domains]]\nname = \"t\"\npaths = [\"text.txt\"]\n";
        return job;
    }
    pid_t spawn(const std::vector<std::string>& args, const std::string& outFile) {
        std::vector<char*> argv;
        for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
        argv.push_back(nullptr);
        const pid_t pid = ::fork();
        if (pid == 0) {
            const int out = ::open(outFile.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            ::dup2(out, STDOUT_FILENO);
            ::execv(argv[0], argv.data());
            ::_exit(127);
        }
        return pid;
    }
    /// A daemon of that role alone, on the state folder dir_/state.
    pid_t role(const std::string& name) {
        return spawn({kBin + "/bulkheadd", "--role=" + name, "--state-dir", dir_ + "/state"},
                     dir_ + "/" + name + ".out");
    }
    static bool stepped(const WatchLog& log, uint64_t step) {
        return log.state && log.state->lastCommit && log.state->lastCommit->record.step >= step;
    }
    static std::string read(const std::string& file) {
        std::ifstream in(file);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    template <class Condition>
    static bool waitUntil(Condition condition, std::chrono::seconds most = 3 * kForever) {
        const auto limit = std::chrono::steady_clock::now() + most;
        while (!condition() && std::chrono::steady_clock::now() < limit)
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return condition();
    }
    /// Step of the newest whole checkpoint below the folder; 0: there is none.
    uint64_t lastCheckpoint() const {
        uint64_t last = 0;
        std::error_code error;
        // checkpoints/RUN/l0001-step000000003-layout0-r0/manifest.json, which the job may remove
        std::filesystem::recursive_directory_iterator entry(dir_ + "/checkpoints", error);
        for (; !error && entry != std::filesystem::recursive_directory_iterator();
             entry.increment(error)) {
            if (entry->path().filename() != "manifest.json") continue;
            const std::string name = entry->path().parent_path().filename().string();
            last = std::max<uint64_t>(last, std::stoull(name.substr(name.find("step") + 4)));
        }
        return last;
    }
    static std::vector<std::string> processesThatName(const std::string& word) {
        std::vector<std::string> pids;
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
            const std::string pid = entry.path().filename().string();
            if (pid.find_first_not_of("0123456789") == std::string::npos &&
                read(entry.path() / "cmdline").find(word) != std::string::npos)
                pids.push_back(pid);
        }
        return pids;
    }
    /// kill -9 of every process whose command line contains `word`, until there is none. Returns
    /// when none of them holds a file or a socket any more: one that ends has no command line for
    /// some time before that.
    static void killAllThatName(const std::string& word) {
        std::set<std::string> killed;
        const auto ended = [](const std::string& pid) {
            const std::string stat = read("/proc/" + pid + "/stat");
            const size_t name = stat.rfind(") ");
            if (name == std::string::npos || stat[name + 2] == 'X') return true;
            std::error_code gone;
            std::filesystem::directory_iterator threads("/proc/" + pid + "/task", gone);
            const auto left = std::distance(threads, std::filesystem::directory_iterator());
            return stat[name + 2] == 'Z' && left <= 1;
        };
        for (bool found = true; found;) {
            std::erase_if(killed, ended);
            found = !killed.empty();
            for (const std::string& pid : processesThatName(word)) {
                found = true;
                killed.insert(pid);
                ::kill(std::stoi(pid), SIGKILL);
            }
        }
    }
    /// Stops the job; each of its samples was committed once, and the commit log says the same.
    /// `ctl` runs bulkheadctl with a verb.
    static void stopAndAudit(const std::function<Ran(const std::string& verb)>& ctl) {
        EXPECT_EQ(ctl("stop --yes").code, 0);
        ASSERT_TRUE(waitUntil([&] {
            return ctl("jobs").out.find("finished") != std::string::npos;
        })) << ctl("jobs").out;
        const Ran audit = ctl("ledger --check");
        EXPECT_EQ(audit.code, 0) << audit.out;
        for (const char* said : {"0 twice", "held against the commit log"})
            EXPECT_NE(audit.out.find(said), std::string::npos) << audit.out;
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

}  // namespace bulkhead::testing
