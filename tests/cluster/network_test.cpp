// SPDX-License-Identifier: Apache-2.0
// A job over hosts with addresses of their own, whose network fails in every way but loudly.
#include <gmock/gmock.h>

#include "tests/cli/shell.h"
#include "tests/cli/whole_job.h"
#include "tests/cluster/hosts.h"

namespace bulkhead::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Steady = std::chrono::steady_clock;

constexpr size_t kController = 0;  ///< the host; agents are on the others
constexpr size_t kReplicas = 3;
constexpr uint64_t kSeed = 20261129;

class NetworkTest : public WholeJobTest {
  protected:
    void SetUp() override {
        auto hosts = Hosts::make(1 + kReplicas, kSeed);
        if (absl::IsUnavailable(hosts.status()))
            GTEST_SKIP() << "this kernel or user makes no hosts of namespaces: " << hosts.status();
        ASSERT_TRUE(hosts.ok()) << hosts.status();
        hosts_ = *std::move(hosts);
        fs::create_directories(dir_ + "/state");
        ::chmod((dir_ + "/state").c_str(), 0700);
        runOn(kController,
              {kBin + "/bulkheadd", "--role=controller", "--state-dir", dir_ + "/state",
               "--control-listen", Hosts::addressOf(kController) + ":7401"});
        ASSERT_TRUE(waitUntil([&] { return fs::exists(dir_ + "/state/control.token"); }));
        for (size_t n = 1; n <= kReplicas; ++n)
            runOn(n, {kBin + "/bulkheadd", "--role=agent", "--node", nodeOf(n), "--address",
                      Hosts::addressOf(n), "--state-dir", dir_ + "/" + nodeOf(n), "--slots", "2",
                      "--controller", Hosts::addressOf(kController) + ":7401", "--control-token",
                      dir_ + "/state/control.token"});
        auto client = client::Client::open({target(), "", "tester", kForever});
        ASSERT_TRUE(client.ok());
        client_ = std::move(client).value();
    }
    void TearDown() override {
        watch_.reset();
        client_.reset();
        if (HasFailure() && hosts_) std::fprintf(stderr, "%s\n", ctl("events").out.c_str());
        if (HasFailure())
            for (size_t n = 0; hosts_ && n < hosts_->count(); ++n)
                std::fprintf(stderr, "== host %zu\n%s\n", n, read(logOf(n)).c_str());
        hosts_.reset();
        for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
    }

    static std::string nodeOf(size_t host) { return "n" + std::to_string(host); }
    std::string logOf(size_t host) const { return dir_ + "/host" + std::to_string(host) + ".log"; }
    std::string target() const { return "unix:" + dir_ + "/state/bulkhead.sock"; }
    Ran ctl(const std::string& verb) {
        return shellBoth(kBin + "/bulkheadctl -t " + target() + " " + verb + " </dev/null");
    }
    void runOn(size_t host, const std::vector<std::string>& command) {
        std::string line = "exec";
        for (const std::string& word : hosts_->inside(host)) line += " " + word;
        for (const std::string& word : command) line += " " + word;
        pids_.push_back(
            spawn({"/bin/sh", "-c", line + " 2>>" + logOf(host) + " >&2"}, "/dev/null"));
    }

    /// Three replicas, on so many nodes.
    void train(size_t nodes = kReplicas) {
        client::JobText job = smallJob();
        job.text.replace(job.text.find("replicas = 2"), 12, "replicas = 3");
        ASSERT_TRUE(waitUntil([&] {
            const std::string list = ctl("nodes").out;
            return list.find("n1") != std::string::npos && list.find("n2") != std::string::npos &&
                   list.find("n3") != std::string::npos;
        })) << ctl("nodes").out;
        const auto started =
            await<model::JobInfo>([&](auto reply) { client_->startJob(job, {}, reply); });
        ASSERT_TRUE(started.ok()) << started.failure().cause;
        watch_ = client_->watch({.job = started.value().id, .replay = ""}, log_.handlers());
        ASSERT_TRUE(waitForAll(3));
        ASSERT_EQ(hostsInUse().size(), nodes);
        EXPECT_GT(hosts_->passed(), 100u) << "the replicas do not speak over the network";
    }
    uint64_t step() {
        uint64_t step = 0;
        log_.look([&](auto& l) {
            if (l.state && l.state->lastCommit) step = l.state->lastCommit->record.step;
        });
        return step;
    }
    /// All replicas contribute to a step, which is `steps` or more behind the last one.
    bool waitForAll(uint64_t steps) {
        const uint64_t wanted = step() + steps;
        return waitUntil([&] {
            bool all = false;
            log_.look([&](auto& l) {
                all = stepped(l, wanted) &&
                      l.state->lastCommit->record.contributors.size() == kReplicas;
            });
            return all;
        });
    }
    std::set<std::string> hostsInUse() {
        std::set<std::string> nodes;
        log_.look([&](auto& l) {
            for (const auto& replica : l.state->replicas) nodes.insert(replica.node);
        });
        return nodes;
    }
    size_t hostOf(int32_t replica) {
        std::string node;
        log_.look([&](auto& l) { node = l.state->replicas.at(static_cast<size_t>(replica)).node; });
        return static_cast<size_t>(std::stoul(node.substr(1)));
    }
    uint64_t starts() {
        uint64_t sum = 0;
        log_.look([&](auto& l) {
            for (const auto& replica : l.state->replicas) sum += replica.incarnation;
        });
        return sum;
    }
    /// The longest time between two commits while `during` runs and until `steps` more are made.
    double longestWait(const std::function<void()>& during, uint64_t steps) {
        std::atomic<bool> over = false;
        double most = 0;
        std::thread looker([&] {
            auto last = Steady::now();
            for (uint64_t seen = step(); !over;) {
                std::this_thread::sleep_for(milliseconds(5));
                const auto now = Steady::now();
                most = std::max(most, std::chrono::duration<double>(now - last).count());
                if (const uint64_t at = step(); at != seen) {
                    seen = at;
                    last = now;
                }
            }
        });
        during();
        const uint64_t wanted = step() + steps;
        EXPECT_TRUE(waitUntil([&] { return step() >= wanted; })) << ctl("status").out;
        over = true;
        looker.join();
        return most;
    }
    void stopAndAudit() {
        WholeJobTest::stopAndAudit([this](const std::string& verb) { return ctl(verb); });
        log_.look([](auto& l) { EXPECT_TRUE(l.state->broken.empty()); });
    }

    std::unique_ptr<Hosts> hosts_;
    std::unique_ptr<client::Client> client_;
    WatchLog log_;
    std::unique_ptr<client::Watch> watch_;
    std::vector<pid_t> pids_;
};

constexpr Hosts::Link kCut{.cut = true};

TEST_F(NetworkTest, AHostThatNobodyReachesCostsTheOthersSecondsAndItsReplicaTrainsElsewhere) {
    train();
    const size_t host = hostOf(1);
    const double waited = longestWait([&] { hosts_->linkAll(host, kCut); }, 5);
    std::printf("cut off: no step for %.1f s\n", waited);
    EXPECT_LT(waited, 10);
    ASSERT_TRUE(waitForAll(1)) << ctl("status").out;
    EXPECT_NE(hostOf(1), host);
    // The old rank still runs there, and has no say any more.
    hosts_->linkAll(host, {});
    ASSERT_TRUE(waitUntil([&] { return ctl("nodes").out.find("lost") == std::string::npos; }))
        << ctl("nodes").out;
    ASSERT_TRUE(waitForAll(5));
    stopAndAudit();
}

TEST_F(NetworkTest, WithoutItsControllerAJobWaitsAndGoesOnWithTheSameReplicas) {
    train();
    const uint64_t before = starts();
    const double waited = longestWait(
        [&] {
            hosts_->linkAll(kController, kCut);
            std::this_thread::sleep_for(seconds(8));
            hosts_->linkAll(kController, {});
        },
        5);
    std::printf("controller cut off for 8 s: no step for %.1f s\n", waited);
    EXPECT_LT(waited, 8 + 4) << "TCP alone would repeat itself 5 s later";
    ASSERT_TRUE(waitForAll(1)) << ctl("status").out;
    EXPECT_EQ(starts(), before);
    stopAndAudit();
}

TEST_F(NetworkTest, ALinkThatCarriesOneWayIsNoLink) {
    train();
    for (const bool heard : {false, true}) {
        const size_t host = hostOf(2);
        const double waited = longestWait(
            [&] {
                for (size_t other = 0; other < hosts_->count(); ++other) {
                    if (other == host) continue;
                    if (heard)
                        hosts_->link(other, host, kCut);
                    else
                        hosts_->link(host, other, kCut);
                }
            },
            5);
        std::printf("%s only: no step for %.1f s\n", heard ? "heard" : "hears", waited);
        EXPECT_LT(waited, 10);
        ASSERT_TRUE(waitForAll(1)) << ctl("status").out;
        hosts_->linkAll(host, {});
        ASSERT_TRUE(waitForAll(5)) << ctl("status").out;
    }
    stopAndAudit();
}

/// Everybody reaches the controller, and two of the three do not reach each other.
TEST_F(NetworkTest, TwoHostsThatDoNotReachEachOtherDoNotEndTheJob) {
    train();
    const size_t a = hostOf(0);
    const size_t b = hostOf(1);
    const double waited = longestWait(
        [&] {
            hosts_->link(a, b, kCut);
            hosts_->link(b, a, kCut);
        },
        20);
    std::printf("no link between two: no step for %.1f s\n", waited);
    EXPECT_LT(waited, 15);
    // The one that was lost for it starts on another node, the first time.
    const std::string events = ctl("events --type incident_opened,replica_changed").out;
    for (const size_t host : {a, b}) {
        const std::string replica = " replica=" + std::string(host == a ? "0" : "1");
        const size_t lost = events.find("cause=commit_failed incarnation=1 incident=1" + replica);
        const size_t again = events.find(replica + " state=starting", lost);
        if (lost == std::string::npos || again == std::string::npos) continue;
        const size_t begin = events.rfind('\n', again) + 1;
        const std::string line = events.substr(begin, events.find('\n', again) - begin);
        EXPECT_EQ(line.find("node=" + nodeOf(host) + " "), std::string::npos) << line;
    }
    hosts_->linkAll(a, {});
    ASSERT_TRUE(waitForAll(5)) << ctl("status").out;
    stopAndAudit();
}

TEST_F(NetworkTest, ASlowNetworkThatLosesPacketsCostsTime) {
    train();
    const uint64_t before = starts();
    hosts_->everywhere({.delay = milliseconds(50), .loss = 0.05});
    const double waited = longestWait([] {}, 4);
    std::printf("100 ms there and back, 5 %% lost: no step for %.1f s\n", waited);
    std::printf("%llu of 3 replicas started again\n",
                static_cast<unsigned long long>(starts() - before));
    hosts_->everywhere({});
    ASSERT_TRUE(waitForAll(5)) << ctl("status").out;
    stopAndAudit();
}

TEST_F(NetworkTest, ANodeWithoutTheSharedStorageIsNamedAndRunsNothing) {
    fs::create_directories(dir_ + "/checkpoints");
    std::string mount;
    for (const std::string& word : hosts_->inside(3)) mount += word + " ";
    ASSERT_EQ(shell(mount + "mount -t tmpfs tmpfs " + dir_ + "/checkpoints").code, 0);
    train(2);
    EXPECT_THAT(ctl("events --type evidence_seen,incident_opened,replica_changed").out,
                HasSubstr("node n3: it does not see what the controller wrote (cannot read " +
                          dir_ + "/checkpoints/small/controller.lock"));
    stopAndAudit();
}

}  // namespace
}  // namespace bulkhead::testing
