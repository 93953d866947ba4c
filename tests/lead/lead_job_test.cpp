// SPDX-License-Identifier: Apache-2.0
// Controllers that stand by for each other: a real etcd, a real job, real signals.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/cli/shell.h"
#include "tests/cli/whole_job.h"

namespace bulkhead::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LeadTest : public WholeJobTest {
  protected:
    void SetUp() override {
        ASSERT_EQ(shell("command -v etcd && command -v etcdctl").code, 0)
            << "etcd is not installed: ./dev deps --cluster";
        startEtcd();
        fs::create_directories(dir_ + "/state");
        ::chmod((dir_ + "/state").c_str(), 0700);
    }
    void TearDown() override {
        if (HasFailure())
            for (const auto& [name, pid] : pids_)
                std::fprintf(stderr, "== %s\n%s\n", name.c_str(),
                             read(dir_ + "/" + name + ".log").c_str());
        killAllThatName(dir_);
        for (const auto& [name, pid] : pids_)
            if (pid > 0) ::waitpid(pid, nullptr, 0);
    }

    void start(const std::string& name, const std::string& command) {
        pids_[name] =
            spawn({"/bin/sh", "-c", "exec " + command + " 2>>" + dir_ + "/" + name + ".log >&2"},
                  "/dev/null");
    }
    void startEtcd() {
        const std::string client = "http://127.0.0.1:" + std::to_string(etcd_);
        const std::string peer = "http://127.0.0.1:" + std::to_string(peer_);
        start("etcd", "etcd --name e --data-dir " + dir_ + "/etcd --listen-client-urls " + client +
                          " --advertise-client-urls " + client + " --listen-peer-urls " + peer +
                          " --initial-advertise-peer-urls " + peer +
                          " --initial-cluster e=" + peer);
    }
    std::string commandOf(const std::string& name, const std::string& more = "") {
        if (!ports_.contains(name)) ports_[name] = {freePort(), freePort()};
        return kBin + "/bulkheadd --role=controller --node " + name + " --state-dir " + dir_ +
               "/state --socket " + dir_ + "/" + name +
               ".sock --control-listen 127.0.0.1:" + std::to_string(ports_[name].first) +
               " --listen 127.0.0.1:" + std::to_string(ports_[name].second) + " --token-file " +
               dir_ + "/admin.token --etcd 127.0.0.1:" + std::to_string(etcd_) + " " + more;
    }
    void startController(const std::string& name) { start(name, commandOf(name)); }
    void startAgent() {
        std::string command = kBin + "/bulkheadd --role=agent --node n0 --state-dir " + dir_ +
                              "/agent --control-token " + dir_ + "/state/control.token";
        for (const auto& [name, ports] : ports_)
            command += " --controller 127.0.0.1:" + std::to_string(ports.first);
        start("n0", command);
    }
    std::string etcdctl(const std::string& command) {
        return shell("ETCDCTL_API=3 etcdctl --endpoints http://127.0.0.1:" + std::to_string(etcd_) +
                     " " + command)
            .out;
    }
    /// Etcd has it so.
    std::string leader() {
        std::string name = etcdctl("get --prefix bulkhead/lead/ --print-value-only");
        while (!name.empty() && name.back() == '\n') name.pop_back();
        return name;
    }
    bool says(const std::string& name, const std::string& what) const {
        return read(dir_ + "/" + name + ".log").find(what) != std::string::npos;
    }
    /// bulkheadctl of an operator who names all controllers.
    Ran ctl(const std::string& verb) {
        std::string target;
        for (const auto& [name, ports] : ports_)
            target +=
                (target.empty() ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(ports.second);
        return shellBoth(kBin + "/bulkheadctl " + verb + " --target " + target + " --token-file " +
                         dir_ + "/admin.token </dev/null");
    }
    void startJob() {
        std::ofstream(dir_ + "/small.toml") << smallJob().text;
        bool started = false;  // waitUntil() asks once more
        ASSERT_TRUE(waitUntil([&] {
            return started = started || ctl("start " + dir_ + "/small.toml").code == 0;
        })) << ctl("jobs").out;
        ASSERT_TRUE(waitUntil([&] { return step() > 2; })) << ctl("jobs").out;
    }
    uint64_t step() {
        const std::string out = ctl("jobs").out;
        const size_t at = out.find("  step ");
        return at == std::string::npos ? 0 : std::strtoull(out.c_str() + at + 7, nullptr, 10);
    }
    void end(const std::string& name, int signal) {
        ::kill(pids_[name], signal);
        ASSERT_TRUE(ended(name));
    }
    bool ended(const std::string& name) {
        return waitUntil([&] {
            int status = 0;
            if (pids_[name] <= 0 || ::waitpid(pids_[name], &status, WNOHANG) != pids_[name])
                return pids_[name] <= 0;
            code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            pids_[name] = 0;
            return true;
        });
    }
    void stopAndAudit() {
        WholeJobTest::stopAndAudit([this](const std::string& verb) { return ctl(verb); });
    }
    /// `a` leads, `b` stands by, a job trains.
    void startPair() {
        startController("a");
        ASSERT_TRUE(waitUntil([&] { return says("a", "leads, as a"); }));
        startController("b");
        ASSERT_TRUE(waitUntil([&] { return says("b", "stands by: a leads"); }));
        startAgent();
        startJob();
    }

    const int etcd_ = freePort();
    const int peer_ = freePort();
    std::map<std::string, pid_t> pids_;
    std::map<std::string, std::pair<int, int>> ports_;
    int code_ = -1;
};

TEST_F(LeadTest, AJobTrainsOnWithTheNextControllerWhateverEndsTheOneThatLeads) {
    startPair();
    ASSERT_TRUE(waitUntil([&] { return says("a", "standing by: b"); }));
    EXPECT_THAT(ctl("controllers").out,
                ::testing::MatchesRegex("CONTROLLER +STATE *\na +leads *\nb +stands by *\n"));
    EXPECT_THAT(ctl("metrics --once").out, HasSubstr("\nbulkhead_controllers_standing_by 1\n"));

    uint64_t before = step();
    end("a", SIGKILL);
    ASSERT_TRUE(waitUntil([&] { return says("b", "leads, as b"); }));
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; })) << "the operator's list has it";
    EXPECT_THAT(ctl("controllers").out, HasSubstr("no other stands by"));

    // Asked to end it gives the lead up, and nobody waits for its lease.
    startController("a");
    ASSERT_TRUE(waitUntil([&] { return says("a", "stands by: b leads"); }));
    before = step();
    end("b", SIGTERM);
    EXPECT_EQ(code_, 0);
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; }));

    // Stopped it still has its connections, files and locks.
    startController("b");
    ASSERT_TRUE(waitUntil([&] { return says("b", "stands by: a leads"); }));
    before = step();
    ::kill(pids_["a"], SIGSTOP);
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; }));
    ::kill(pids_["a"], SIGCONT);
    ASSERT_TRUE(ended("a"));
    EXPECT_EQ(code_, 1);
    EXPECT_TRUE(says("a", "this controller does not lead any more and ends"));
    before = step();
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; })) << "it took nothing with it";
    stopAndAudit();
}

TEST_F(LeadTest, AKeyThatSomebodyDeletesLetsNobodyLeadBesideTheLeader) {
    startPair();

    // The leader has its key back before the other may take it.
    const std::string key = etcdctl("get --keys-only --prefix bulkhead/lead/");
    const std::string put = "put " + lastLine(key.substr(0, key.find('\n'))) + " x";
    for (const std::string& hand : {std::string("del --prefix bulkhead/lead/"), put}) {
        etcdctl(hand);
        ASSERT_TRUE(waitUntil([&] { return leader() == "a"; })) << hand;
    }
    etcdctl("del --prefix bulkhead/candidate/");
    ASSERT_TRUE(waitUntil([&] {
        const std::string names = etcdctl("get --prefix bulkhead/candidate/ --print-value-only");
        return names.find("a\n") != std::string::npos && names.find("b\n") != std::string::npos;
    }));
    uint64_t before = step();
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; }));

    // Without its lease it ends; it may have believed in it until then.
    const std::string holds = etcdctl("get --prefix bulkhead/lead/ -w fields");
    const size_t at = holds.find("\"Lease\" : ");
    ASSERT_NE(at, std::string::npos) << holds;
    char lease[32];
    std::snprintf(lease, sizeof lease, "%llx", std::strtoull(holds.c_str() + at + 10, nullptr, 10));
    const auto revoked = std::chrono::steady_clock::now();
    etcdctl(std::string("lease revoke ") + lease);
    ASSERT_TRUE(ended("a"));
    EXPECT_TRUE(says("a", "its lease in etcd has ended")) << read(dir_ + "/a.log");
    EXPECT_FALSE(says("b", "leads, as b"));
    ASSERT_TRUE(waitUntil([&] { return says("b", "leads, as b"); }));
    // A lease lasts 3 s, and is seen to be gone a look later at the earliest.
    EXPECT_GE(std::chrono::steady_clock::now() - revoked, std::chrono::milliseconds(2900));
    EXPECT_TRUE(says("b", "stands by: nobody leads; takes the lead 3 s from now"));
    before = step();
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; }));
    stopAndAudit();
}

TEST_F(LeadTest, WithoutEtcdNobodyLeadsAndTheJobWaitsForItsReturn) {
    startController("a");
    startController("b");
    ASSERT_TRUE(waitUntil([&] { return says("a", "leads, as a") || says("b", "leads, as b"); }));
    startAgent();
    startJob();
    const std::string leader = says("a", "leads, as a") ? "a" : "b";
    const std::string other = leader == "a" ? "b" : "a";
    end("etcd", SIGKILL);
    ASSERT_TRUE(ended(leader));
    EXPECT_TRUE(says(leader, "has renewed its lease in time")) << read(dir_ + "/a.log");
    ASSERT_TRUE(waitUntil([&] { return says(other, "cannot ask who leads"); }));
    EXPECT_FALSE(says(other, "leads, as"));
    startEtcd();
    ASSERT_TRUE(waitUntil([&] { return says(other, "leads, as " + other); }));
    const uint64_t before = step();
    EXPECT_TRUE(waitUntil([&] { return step() > before + 2; }));
    stopAndAudit();
}

TEST_F(LeadTest, WhatACandidateCannotDoIsSaidBeforeItStandsBy) {
    const auto refused = [&](const std::string& command) {
        const Ran ran = shellErrors("timeout 20 " + command);
        EXPECT_EQ(ran.code, 2) << ran.out;
        return ran.out;
    };
    EXPECT_THAT(refused(commandOf("a", "--worker /nowhere/worker")),
                HasSubstr("/nowhere/worker is not there"));
    EXPECT_THAT(refused(commandOf("a", "--etcd-certs /nowhere")), HasSubstr("/nowhere/ca.pem"));
    EXPECT_THAT(refused(commandOf("a", "--etcd nonsense")), HasSubstr("expected host:port"));
    EXPECT_THAT(refused(commandOf("a", "--job x.toml")), HasSubstr("--job: not with --etcd"));
    EXPECT_THAT(refused(kBin + "/bulkheadd --etcd 127.0.0.1:1 --state-dir " + dir_ + "/state"),
                HasSubstr("--role controller"));
    startController("a");
    ASSERT_TRUE(waitUntil([&] { return says("a", "leads, as a"); }));
    EXPECT_THAT(refused(kBin + "/bulkheadd --role=controller --state-dir " + dir_ + "/state"),
                HasSubstr("another daemon uses the state directory"));
    const std::string port = std::to_string(ports_["a"].first);
    ports_["b"] = {ports_["a"].first, freePort()};
    EXPECT_THAT(refused(commandOf("b")), HasSubstr("127.0.0.1:" + port));
    end("a", SIGTERM);
    EXPECT_EQ(code_, 0);
}

}  // namespace
}  // namespace bulkhead::testing
