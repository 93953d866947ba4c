// SPDX-License-Identifier: Apache-2.0
// Hosts that freeze and connections that die without a word.
#include <signal.h>

#include <chrono>
#include <thread>

#include "backend/common/codec.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/transport/control_channel.h"
#include "tests/coordinator/scripted_job.h"

namespace bulkhead::runtime {
namespace {

using testing::HasSubstr;

constexpr AgentHeartbeat kBeats{100, 3};

class AgentBeatTest : public ScriptedJob {};

/// A frozen host: its agent and its ranks stop, and no connection closes.
class FrozenHost {
  public:
    explicit FrozenHost(std::vector<pid_t> pids) : pids_(std::move(pids)) { signal(SIGSTOP); }
    ~FrozenHost() { thaw(); }
    void thaw() {
        signal(SIGCONT);
        pids_.clear();
    }

  private:
    void signal(int number) const {
        for (const pid_t pid : pids_) ::kill(pid, number);
    }
    std::vector<pid_t> pids_;
};

TEST_F(AgentBeatTest, AFrozenHostIsLostItsReplicaStartsElsewhereAndWhenItThawsItComesBack) {
    host(3, kBeats);
    model::JobSpec s = spec(0, 3);
    s.placement.clear();
    while (host_->controller().nodes().size() < 3) std::this_thread::yield();
    start(s);
    awaitStep(5);
    model::RankStarted victim;
    for (const auto& started : all<model::RankStarted>())
        if (started.node == "node0") victim = started;
    ASSERT_GE(victim.rank.replica, 0);
    ASSERT_NE(victim.pid, 0);
    const size_t before = at_;
    FrozenHost frozen({host_->agentPid(0), victim.pid});
    const auto lost = await<model::NodeChanged>([](const model::NodeChanged& n) {
        return n.node == "node0" && n.state == model::NodeState::kLost;
    });
    ASSERT_TRUE(lost.has_value());
    EXPECT_THAT(lost->why, HasSubstr("does not respond"));
    at_ = before;
    const auto closed = await<model::IncidentClosed>(
        [](const model::IncidentClosed& i) { return i.outcome.starts_with("rejoined"); });
    ASSERT_TRUE(closed.has_value());
    for (const auto& started : all<model::RankStarted>())
        if (started.rank == victim.rank && started.incarnation > victim.incarnation) {
            EXPECT_NE(started.node, "node0");
        }
    frozen.thaw();
    await<model::NodeChanged>([](const model::NodeChanged& n) {
        return n.node == "node0" && n.state == model::NodeState::kUp;
    });
    await<model::RankExited>([&](const model::RankExited& e) { return e.pid == victim.pid; });
    awaitStep(host_->controller().status(run_)->step + 5);
    EXPECT_EQ(all<model::StepCommitted>().back().record.contributors.size(), 3u);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(AgentBeatTest, ASurvivorWhoseHostIsSlowIsWaitedForWhenTheControllerReturns) {
    host(3, {1000, 15});
    model::JobSpec s = spec(0, 3);
    s.placement.clear();
    s.timeouts.joinMs = 15000;
    s.timeouts.heartbeatMs = 15000;
    while (host_->controller().nodes().size() < 3) std::this_thread::yield();
    start(s);
    awaitStep(5);
    model::RankStarted slow;
    for (const auto& started : all<model::RankStarted>())
        if (started.node == "node0") slow = started;
    ASSERT_NE(slow.pid, 0);
    host_->loseController();
    FrozenHost frozen({host_->agentPid(0), slow.pid});
    ASSERT_TRUE(host_->comeBack().ok());
    while (host_->controller().nodes().size() < 2) std::this_thread::yield();
    // The host itself is slow here: nothing tells when it has been away for too long.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    frozen.thaw();
    awaitStep(all<model::StepCommitted>().back().record.step + 5);
    EXPECT_EQ(all<model::RankStarted>().size(), 3u) << lastEvents();
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

/// An agent as the controller sees it, with connections that the test opens and forgets.
class AgentByHand {
  public:
    explicit AgentByHand(std::string controller) : controller_(std::move(controller)) {
        reactor_ = *Reactor::create(clock_);
    }
    /// The answer to a new connection, which stays open; the one before it is kept open, too.
    AgentWelcome connect() {
        std::optional<AgentWelcome> answer;
        ChannelOptions options;
        const std::string identity = agentIdentity("node9");
        options.credential = {identity, Secret::ofText(support::JobHost::kToken).derive(identity)};
        auto connector = connectControl(*reactor_, controller_, options, [&](auto channel) {
            if (!channel.ok()) return;
            channels_.push_back(*std::move(channel));
            channels_.back()->start(
                [&](std::string bytes) {
                    const auto command = decode<AgentCommand>(bytes);
                    if (answer || !command.ok()) return;
                    if (const auto* welcome = std::get_if<AgentWelcome>(&*command))
                        answer = *welcome;
                },
                [](const absl::Status&) {});
            AgentHello hello;
            hello.version = agentVersion();
            hello.node = "node9";
            hello.slots = 1;
            (void)channels_.back()->send(encode(hello));
        });
        const MonoNs deadline = clock_.now() + 20 * kSecond;
        while (!answer && clock_.now() < deadline) reactor_->runOnce(20 * kMillisecond);
        return answer.value_or(AgentWelcome{"no answer", 0, 0});
    }

  private:
    SystemClock clock_;
    std::string controller_;
    std::unique_ptr<Reactor> reactor_;
    std::vector<std::unique_ptr<ControlChannel>> channels_;
};

TEST_F(AgentBeatTest, ANewConnectionReplacesOneThatDiedWithoutAWord) {
    host(0, kBeats);
    AgentByHand agent(host_->socket());
    EXPECT_EQ(agent.connect().error, "");
    AgentWelcome answer = agent.connect();
    EXPECT_THAT(answer.error, HasSubstr("connected already"));
    EXPECT_GE(answer.tryAgainMs, kBeats.silenceMs());
    while (answer.tryAgainMs > 0) answer = agent.connect();  // the first never beats
    EXPECT_EQ(answer.error, "");
    EXPECT_EQ(answer.beatMs, kBeats.intervalMs);
}

}  // namespace
}  // namespace bulkhead::runtime
