// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/agent_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/common/codec.h"
#include "backend/common/file_system.h"

namespace bulkhead::runtime {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SetClock final : public Clock {
  public:
    MonoNs now() const override { return at; }
    int64_t unixNs() const override { return at; }
    MonoNs at = kSecond;
};

/// One agent on a connection in memory, beats of 100 ms, three of them the limit.
class AgentPoolTest : public ::testing::Test {
  protected:
    AgentPoolTest()
        : reactor_(*Reactor::create(clock_)),
          pool_(*reactor_, diskFiles(), {100, 3}, "/nonexistent/cordoned", listener()) {
        agent_ = join("node0");
    }
    std::unique_ptr<ControlChannel> join(const std::string& node, const std::string& home = "",
                                         std::vector<RunningRank> running = {}, uint32_t gpus = 0) {
        auto [here, there] = memoryChannels(*reactor_, *reactor_);
        AgentHello hello;
        hello.node = node;
        hello.slots = 4;
        for (uint32_t i = 0; i < gpus; ++i) hello.gpus.push_back(node + std::to_string(i));
        hello.home = home;
        hello.running = std::move(running);
        pool_.accept(std::move(here), hello);
        return std::move(there);
    }
    AgentPool::Listener listener() {
        AgentPool::Listener l;
        l.nodeChanged = [this](const NodeStatus&, const std::string& why) { why_ = why; };
        l.rankUp = [](const std::string&, const RankUp&) {};
        l.rankUnknown = [this](const std::string&, const RunningRank& rank,
                               const std::string& why) {
            unknown_ = why + " " + std::to_string(rank.pid);
        };
        l.rankGone = [this](const std::string&, const RankGone&) { return ++told_, acts_; };
        l.other = [this](const std::string&, const AgentMessage&) { return ++told_, true; };
        return l;
    }
    /// In steps, as a program that is run.
    void pass(MonoNs time) {
        for (const MonoNs end = clock_.at + time; clock_.at < end;) {
            clock_.at += 20 * kMillisecond;
            reactor_->runDue();
        }
    }

    SetClock clock_;
    std::unique_ptr<Reactor> reactor_;
    std::string why_;
    std::string unknown_;
    int told_ = 0;
    bool acts_ = true;
    AgentPool pool_;
    std::unique_ptr<ControlChannel> agent_;
};

TEST_F(AgentPoolTest, AnAgentThatIsSilentLosesItsConnection) {
    pass(500 * kMillisecond);
    EXPECT_FALSE(pool_.isConnected("node0"));
    pass(3 * kSecond);
    EXPECT_THAT(why_, ::testing::HasSubstr("does not respond"));
}

TEST_F(AgentPoolTest, AControllerThatWasStoppedBlamesNoAgentForIt) {
    pass(60 * kMillisecond);
    clock_.at += 5 * kSecond;
    reactor_->runDue();
    pass(100 * kMillisecond);
    EXPECT_TRUE(pool_.isConnected("node0"));
    pass(500 * kMillisecond);
    EXPECT_FALSE(pool_.isConnected("node0")) << "its silence counts from then on";
}

TEST_F(AgentPoolTest, ACommandToANodeThatIsNotThereOrIsAwayIsRefused) {
    EXPECT_TRUE(absl::IsNotFound(pool_.send("nobody", SignalRank{})));
    EXPECT_TRUE(pool_.send("node0", SignalRank{}).ok());
    pass(500 * kMillisecond);
    EXPECT_TRUE(absl::IsUnavailable(pool_.send("node0", SignalRank{})));
}

TEST_F(AgentPoolTest, ANodeThatMissesBeatsOrFailedLatelyIsTheLastChoice) {
    pass(200 * kMillisecond);
    const auto other = join("node1");
    EXPECT_THAT(pool_.choose({1}, ""), Each("node1")) << "node0 has not been heard for two beats";
    EXPECT_THAT(pool_.choose({1}, "node0"), Each("node1"));
    EXPECT_THAT(pool_.choose({9}, ""), IsEmpty()) << "both together have not so many slots";
    pool_.doubt("node1");
    const auto third = join("node2");
    EXPECT_THAT(pool_.choose({1}, ""), Each("node2"));
    EXPECT_THAT(pool_.choose({1}, "node1"), Each("node1"))
        << "who was there before is asked for by name";
}

TEST_F(AgentPoolTest, AReplicaThatIsLargerThanAnyNodeSpansFew) {
    EXPECT_THAT(pool_.choose({6}, ""), IsEmpty()) << "one node has four";
    const auto second = join("node1", "", {{{"job", {0, 0}, 1}, 77, {}}});
    const auto third = join("node2");
    EXPECT_THAT(pool_.choose({6}, ""),
                ElementsAre("node0", "node0", "node0", "node0", "node2", "node2"));
    EXPECT_THAT(pool_.choose({5}, "node1"),
                ElementsAre("node1", "node1", "node1", "node0", "node0"));
    EXPECT_THAT(pool_.choose({11}, ""), ::testing::SizeIs(11));
    EXPECT_THAT(pool_.choose({12}, ""), IsEmpty()) << "one slot is taken";
    EXPECT_THAT(pool_.choose({4}, "node1"), Each(::testing::Ne("node1")))
        << "a node is large enough, so none is spanned";
}

TEST_F(AgentPoolTest, OneThatSpansNodesDoesSoWhereALargeOneIsFull) {
    std::vector<RunningRank> two{{{"job", {0, 0}, 1}, 77, {}}, {{"job", {0, 1}, 1}, 78, {}}};
    const auto second = join("node1", "", two);
    two[0].process.rank.replica = two[1].process.rank.replica = 1;
    pool_.doubt("node0");
    const auto third = join("node2", "", two);
    EXPECT_THAT(pool_.choose({3, false, false, true}, ""), Each("node0")) << "it has that free";
    agent_ = nullptr;
    pass(20 * kMillisecond);
    EXPECT_THAT(pool_.choose({3}, ""), IsEmpty()) << "node1 is large enough, and full";
    EXPECT_THAT(pool_.choose({3, false, false, true}, ""), ElementsAre("node1", "node1", "node2"));
}

TEST_F(AgentPoolTest, ANodeWhoseAgentWentIsLostWhenItDoesNotComeBack) {
    const auto lost = [this] { return pool_.nodes().front().state == model::NodeState::kLost; };
    agent_ = nullptr;
    pass(4900 * kMillisecond);
    EXPECT_FALSE(lost()) << "it may be started again";
    EXPECT_THAT(pool_.nodes().front().why, ::testing::HasSubstr("its agent is gone"));
    agent_ = join("node0");
    pass(300 * kMillisecond);
    EXPECT_FALSE(lost());
    EXPECT_EQ(pool_.nodes().front().why, "");
    agent_ = nullptr;
    pass(5100 * kMillisecond);
    EXPECT_TRUE(lost());
}

TEST_F(AgentPoolTest, ARankKeepsItsGpuWhenItsAgentHasOthers) {
    const RunningRank rank{{"job", {0, 0}, 1}, 77, {0, "node20"}};
    const auto node1 = join("node1", "", {rank}, 1);
    const auto node2 = join("node2", "", {}, 2);
    EXPECT_THAT(pool_.choose({1, true}, "node2"), Each("node2"));
    EXPECT_THAT(pool_.choose({2, true}, ""), IsEmpty()) << "the rank has one of these";
}

TEST_F(AgentPoolTest, OneAgentGivesAGpuToRanksAndNoOther) {
    const auto first = join("node1", "", {}, 2);
    auto [here, there] = memoryChannels(*reactor_, *reactor_);
    std::string heard;
    there->start(
        [&](const std::string& bytes) {
            if (const auto command = decode<AgentCommand>(bytes); command.ok())
                if (const auto* welcome = std::get_if<AgentWelcome>(&*command))
                    heard = welcome->error;
        },
        [](const absl::Status&) {});
    AgentHello hello;
    hello.node = "node2";
    hello.slots = 4;
    hello.gpus = {"another", "node11"};
    pool_.accept(std::move(here), hello);
    pass(40 * kMillisecond);
    EXPECT_THAT(heard, ::testing::HasSubstr("node11 is given to ranks by the agent of node node1"));
    EXPECT_FALSE(pool_.isConnected("node2"));
}

TEST_F(AgentPoolTest, AGpuThatIsLostIsCountedNoMore) {
    const auto agent = join("node1", "", {}, 2);
    EXPECT_THAT(pool_.choose({2, true}, ""), Each("node1"));
    GpuTroubleSeen seen;
    seen.gpusLeft = {"node11"};
    ASSERT_TRUE(agent->send(encode(AgentMessage(seen))).ok());
    pass(40 * kMillisecond);
    EXPECT_THAT(pool_.choose({2, true}, ""), IsEmpty());
    EXPECT_THAT(pool_.choose({1, true}, ""), Each("node1"));
}

TEST_F(AgentPoolTest, AReplicaThatMayUseGpusNeedsOneForEachOfItsSlots) {
    EXPECT_THAT(pool_.choose({4, true}, ""), Each("node0")) << "none has any: the CPU will do";
    const auto other = join("node1", "", {{{"job", {0, 0}, 1}, 77, {1, "node11"}}}, 3);
    EXPECT_THAT(pool_.choose({2, true}, ""), Each("node1"));
    EXPECT_THAT(pool_.choose({2, true}, "node0"), Each("node1"))
        << "all of a job are on GPUs, or none";
    EXPECT_THAT(pool_.choose({3, true}, ""), IsEmpty()) << "one of the three is taken";
    EXPECT_THAT(pool_.choose({3, false}, ""), Each("node0"));
    StartRank start;
    start.process = {"job", {1, 0}, 1};
    start.onGpu = true;
    ASSERT_TRUE(pool_.start("node1", start).ok());
    EXPECT_THAT(pool_.choose({2, true}, ""), IsEmpty()) << "one is promised";
    EXPECT_THAT(pool_.choose({1, true}, ""), Each("node1"));
    EXPECT_EQ(pool_.nodes().back().gpusUsed, 2u);
}

TEST_F(AgentPoolTest, AJobThatSharesIsNotPutOnGpusThatOthersHaveForThemselves) {
    const auto gpu = [](int i) { return "node1" + std::to_string(i); };
    const RunningRank alone{{"job", {0, 0}, 1}, 77, {0, gpu(0)}};
    RunningRank sharing{{"other", {0, 0}, 1}, 78, {1, gpu(1), true}};
    const auto node1 = join("node1", "", {alone, sharing}, 2);
    EXPECT_THAT(pool_.choose({1, true}, ""), IsEmpty()) << "neither is free";
    EXPECT_THAT(pool_.choose({2, true, true}, ""), Each("node1"))
        << "two on the one that is shared";
    const RunningRank both{{"job", {1, 0}, 1}, 79, {0, "node20"}};
    const auto node2 = join("node2", "", {both}, 1);
    EXPECT_THAT(pool_.choose({3, true, true}, ""), IsEmpty())
        << "node1 has two slots, and the GPU of node2 is taken";
    EXPECT_EQ(pool_.nodes().at(1).gpusUsed, 2u);
}

TEST_F(AgentPoolTest, ACordonIsToldAndANodeThatIsLostStaysThat) {
    const std::string file = testing::TempDir() + "cordoned";
    ::unlink(file.c_str());
    AgentPool pool(*reactor_, diskFiles(), {100, 3}, file, listener());
    const auto state = [&] { return pool.nodes().front().state; };
    auto [here, there] = memoryChannels(*reactor_, *reactor_);
    AgentHello hello;
    hello.node = "west";
    hello.slots = 4;
    pool.accept(std::move(here), hello);
    ASSERT_TRUE(pool.cordon("west", true, "ann").ok());
    EXPECT_EQ(why_, "cordoned by ann");
    EXPECT_EQ(state(), model::NodeState::kCordoned);
    ASSERT_TRUE(pool.cordon("west", false, "ann").ok());
    EXPECT_EQ(why_, "uncordoned by ann");
    EXPECT_EQ(state(), model::NodeState::kUp);
    pass(4 * kSecond);
    ASSERT_EQ(state(), model::NodeState::kLost);
    why_.clear();
    ASSERT_TRUE(pool.cordon("west", true, "ann").ok());
    EXPECT_EQ(state(), model::NodeState::kLost);
    EXPECT_EQ(why_, "") << "nothing has changed for its jobs";
    EXPECT_TRUE(absl::IsNotFound(pool.cordon("nobody", true, "ann")));
}

TEST_F(AgentPoolTest, ANodeIsForgottenOnceItIsLostAndItsRanksHaveEnded) {
    const std::string file = testing::TempDir() + "forgotten";
    ::unlink(file.c_str());
    AgentPool pool(*reactor_, diskFiles(), {100, 3}, file, listener());
    auto [here, there] = memoryChannels(*reactor_, *reactor_);
    AgentHello hello;
    hello.node = "west";
    hello.slots = 4;
    hello.running = {{{"job", {0, 0}, 1}, 77}};
    pool.accept(std::move(here), hello);
    ASSERT_TRUE(pool.cordon("west", true, "ann").ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(pool.forget("west", true, "ann"))) << "it is there";
    pass(4 * kSecond);
    const absl::Status mayRun = pool.forget("west", false, "ann");
    EXPECT_THAT(mayRun.message(), ::testing::HasSubstr("1 rank may still run on node west"));
    EXPECT_EQ(pool.nodes().size(), 1u);
    ASSERT_TRUE(pool.forget("west", true, "ann").ok());
    EXPECT_EQ(unknown_, "its machine is off, says ann 77");
    EXPECT_EQ(why_, "forgotten by ann");
    EXPECT_THAT(pool.nodes(), IsEmpty());
    EXPECT_TRUE(absl::IsNotFound(pool.forget("west", true, "ann")));
    pass(kSecond);
    EXPECT_THAT(pool.nodes(), IsEmpty());
    auto [again, back] = memoryChannels(*reactor_, *reactor_);
    pool.accept(std::move(again), hello);
    ASSERT_EQ(pool.nodes().size(), 1u);
    EXPECT_EQ(pool.nodes().front().state, model::NodeState::kUp) << "also that it was cordoned";
    EXPECT_EQ(pool.nodes().front().used, 1u) << "it was not off";
}

TEST_F(AgentPoolTest, ANodeThatAnEarlierControllerKnewIsLostUntilItsAgentConnects) {
    const RunningRank left = {{"job", {0, 0}, 1}, 77};
    pool_.miss({"node0", "", 4}, {left});
    EXPECT_EQ(pool_.nodes().front().state, model::NodeState::kUp) << "its agent is here";
    EXPECT_EQ(pool_.nodes().front().used, 0u);

    pool_.miss({"west", "10.0.0.7", 4}, {left});
    ASSERT_EQ(pool_.nodes().size(), 2u);
    EXPECT_EQ(pool_.nodes().back().state, model::NodeState::kLost);
    EXPECT_EQ(pool_.nodes().back().address, "10.0.0.7");
    EXPECT_EQ(why_, "its agent has not connected since the controller began");
    EXPECT_TRUE(absl::IsFailedPrecondition(pool_.forget("west", false, "ann"))) << "it may train";
    const auto back = join("west");
    EXPECT_EQ(pool_.nodes().back().state, model::NodeState::kUp);
    pass(400 * kMillisecond);
    EXPECT_EQ(unknown_, "the agent of west is back and does not know of it 77");
    EXPECT_EQ(pool_.nodes().back().used, 0u);
}

TEST_F(AgentPoolTest, AnAgentThatWentHasItsNameKeptForItWhileItMayReturn) {
    const std::vector<RunningRank> ranks = {{{"job", {0, 0}, 1}, 77}};
    auto first = join("node1", "a:/notes", ranks);
    EXPECT_TRUE(pool_.isConnected("node1"));
    first.reset();
    pass(40 * kMillisecond);
    ASSERT_FALSE(pool_.isConnected("node1"));
    auto other = join("node1", "b:/notes");
    EXPECT_FALSE(pool_.isConnected("node1")) << "the first may come back to its ranks";
    first = join("node1", "a:/notes", ranks);
    EXPECT_TRUE(pool_.isConnected("node1")) << "it is the same agent";
    first.reset();
    pass(400 * kMillisecond);
    other = join("node1", "b:/notes");
    EXPECT_TRUE(pool_.isConnected("node1"));
    EXPECT_EQ(unknown_, "");
    pass(300 * kMillisecond);
    EXPECT_EQ(unknown_,
              "the agent of node1 was replaced: the one at a:/notes had started it, the one at "
              "b:/notes does not know of it 77");
}

/// The job that it is of may be about to be taken up again.
TEST_F(AgentPoolTest, WhatNobodyCouldActOnIsToldAgainAndOnlyThenAcknowledged) {
    std::vector<uint64_t> heard;
    agent_->start(
        [&](std::string bytes) {
            const auto command = decode<AgentCommand>(bytes);
            ASSERT_TRUE(command.ok());
            if (const auto* h = std::get_if<AgentHeard>(&*command)) heard.push_back(h->receipt);
        },
        [](const absl::Status&) {});
    const auto say = [&](const AgentMessage& message) {
        ASSERT_TRUE(agent_->send(encode(message)).ok());
        pass(40 * kMillisecond);
    };
    say(AgentBeat{});
    EXPECT_EQ(told_, 0) << "a beat is nobody's news";
    EXPECT_THAT(heard, ::testing::ElementsAre(0u)) << "its agent hears that this end lives";
    heard.clear();
    acts_ = false;
    RankGone gone;
    gone.receipt = 7;
    say(gone);
    EXPECT_EQ(told_, 1);
    pool_.tellHeld();
    EXPECT_EQ(told_, 2);
    pass(40 * kMillisecond);
    EXPECT_THAT(heard, ::testing::IsEmpty());
    acts_ = true;
    pool_.tellHeld();
    pool_.tellHeld();
    pass(40 * kMillisecond);
    EXPECT_EQ(told_, 3);
    EXPECT_THAT(heard, ::testing::ElementsAre(7u));
    // An agent that connects anew tells it anew.
    acts_ = false;
    say(gone);
    pass(400 * kMillisecond);
    agent_ = join("node0");
    acts_ = true;
    pool_.tellHeld();
    EXPECT_EQ(told_, 4);
    gone.receipt = 0;
    const size_t before = heard.size();
    say(gone);
    EXPECT_EQ(heard.size(), before) << "it asks for no receipt";
}

TEST_F(AgentPoolTest, AnAgentWithoutAUsableNameIsSentAwayAndWhoIsNotUnderstoodLosesItsConnection) {
    std::string error;
    const auto unnamed = join("a/b");
    unnamed->start(
        [&](std::string bytes) {
            const auto command = decode<AgentCommand>(bytes);
            if (command.ok()) error = std::get<AgentWelcome>(*command).error;
        },
        [](const absl::Status&) {});
    pass(40 * kMillisecond);
    EXPECT_THAT(error, ::testing::HasSubstr("its name is none"));
    EXPECT_FALSE(pool_.knows("a/b"));
    ASSERT_TRUE(agent_->send("\xff\xff\xff\xff nonsense").ok());
    pass(40 * kMillisecond);
    EXPECT_FALSE(pool_.isConnected("node0"));
    EXPECT_EQ(told_, 0);
}

TEST_F(AgentPoolTest, WhoWaitsForAPredecessorIsToldOfThoseOnThatNodeAlone) {
    const std::vector<RunningRank> ranks = {{{"job", {1, 0}, 2}, 77}};
    const auto other = join("node1", "", ranks);
    EXPECT_EQ(pool_.predecessor("node1", "job", 1, 3)->pid, 77);
    EXPECT_FALSE(pool_.predecessor("node1", "job", 1, 2)) << "itself";
    EXPECT_FALSE(pool_.predecessor("node1", "another", 1, 3));
    EXPECT_FALSE(pool_.predecessor("node1", "job", 0, 3));
    EXPECT_FALSE(pool_.predecessor("node0", "job", 1, 3));
    EXPECT_FALSE(pool_.predecessor("nobody", "job", 1, 3));
}

}  // namespace
}  // namespace bulkhead::runtime
