// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/newcomers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <sstream>

#include "backend/common/codec.h"
#include "backend/runtime/protocol/channels.h"

namespace bulkhead::runtime {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Somebody who connects, says one thing and keeps what is answered.
class NewcomersTest : public testing::Test {
  protected:
    NewcomersTest()
        : reactor_(*Reactor::create(clock_)),
          newcomers_(
              *reactor_, [this](std::unique_ptr<ControlChannel>, const AgentHello&) { ++agents_; },
              [this](std::unique_ptr<ControlChannel>&, const protocol::Hello&) {
                  ++ranks_;
                  return absl::OkStatus();
              }) {}

    /// `as`: who it has proved to be.
    void say(std::string_view bytes, const std::string& as = agentIdentity("")) {
        ChannelOptions options;
        options.credential = {as, {}};
        auto [here, there] = memoryChannels(*reactor_, *reactor_, {}, options);
        there_ = std::move(there);
        there_->start([this](std::string answer) { answers_.push_back(std::move(answer)); },
                      [this](const absl::Status&) { closed_ = true; });
        newcomers_.add(std::move(here));
        (void)there_->send(bytes);
        for (int i = 0; i < 10; ++i) reactor_->runDue();
    }
    /// First bytes from a build with other messages.
    static std::string ofAnotherBuild(uint32_t kind, uint64_t version) {
        Encoder encoder;
        encoder.put(kind);
        encoder.put(version);
        return std::move(encoder).take() + "a field that this build does not know";
    }

    const SystemClock clock_;
    std::unique_ptr<Reactor> reactor_;
    int agents_ = 0, ranks_ = 0;
    Newcomers newcomers_;
    std::unique_ptr<ControlChannel> there_;
    std::vector<std::string> answers_;
    bool closed_ = false;
};

TEST_F(NewcomersTest, ARankAndAnAgentOfThisBuildAreTaken) {
    protocol::Hello rank;
    rank.version = protocol::protocolVersion();
    rank.job = "run";
    rank.endpoint.incarnation = 2;
    say(encode(protocol::ToCoordinator(rank)), rankIdentity("run", {}, 2));
    EXPECT_EQ(ranks_, 1);
    AgentHello agent;
    agent.version = agentVersion();
    agent.node = "node0";
    say(encode(agent), agentIdentity("node0"));
    EXPECT_EQ(agents_, 1);
}

TEST_F(NewcomersTest, ARankOfAnotherBuildIsToldSoAlthoughItsHelloCannotBeRead) {
    say(ofAnotherBuild(0, protocol::protocolVersion() + 1));
    ASSERT_EQ(answers_.size(), 1u);
    const auto answer = *decode<protocol::ToReplica>(answers_.front());
    EXPECT_TRUE(std::get<protocol::Expelled>(answer).hopeless);
    EXPECT_THAT(std::get<protocol::Expelled>(answer).why, HasSubstr("install the same release"));
    EXPECT_TRUE(closed_);
    EXPECT_EQ(ranks_, 0);
}

TEST_F(NewcomersTest, AnAgentOfAnotherBuildIsToldSoAlthoughItsHelloCannotBeRead) {
    say(ofAnotherBuild(kAgentMagic, agentVersion() + 1));
    ASSERT_EQ(answers_.size(), 1u);
    const auto answer = *decode<AgentCommand>(answers_.front());
    EXPECT_THAT(std::get<AgentWelcome>(answer).error, HasSubstr("install the same release"));
    EXPECT_TRUE(closed_);
    EXPECT_EQ(agents_, 0);
}

TEST_F(NewcomersTest, WhoShowsNoIntroductionIsPutOutWithoutAWord) {
    for (const std::string bytes : {"", "GET", "GET / HTTP/1.1\r\n\r\n"}) {
        closed_ = false;
        say(bytes);
        EXPECT_TRUE(closed_) << bytes;
    }
    EXPECT_THAT(answers_, IsEmpty());
}

TEST_F(NewcomersTest, WhyTheyWereSentAwayIsSaidOnce) {
    std::ostringstream log;
    const auto before = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
    AgentHello hello;
    hello.version = agentVersion();
    const std::string whole = encode(hello);
    for (int i = 0; i < 3; ++i) say(whole.substr(0, whole.size() - 1));
    EXPECT_EQ(std::count(log.view().begin(), log.view().end(), '\n'), 1) << log.view();
    EXPECT_THAT(log.str(), HasSubstr("was sent away: "));
    for (int i = 0; i < 3; ++i) say("GET / HTTP/1.1\r\n\r\n");
    EXPECT_EQ(std::count(log.view().begin(), log.view().end(), '\n'), 2) << log.view();
    say(whole);
    EXPECT_EQ(agents_, 1);
    say("GET / HTTP/1.1\r\n\r\n");
    EXPECT_EQ(std::count(log.view().begin(), log.view().end(), '\n'), 3) << "it began anew";
    spdlog::set_default_logger(before);
}

TEST_F(NewcomersTest, WhoComesWithANewReasonEachTimeDoesNotFillTheLog) {
    std::ostringstream log;
    const auto before = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
    AgentHello hello;
    hello.version = agentVersion();
    for (uint64_t i = 1; i <= 100; ++i) {
        say(ofAnotherBuild(kAgentMagic, agentVersion() + i));
        say("GET / HTTP/1.1\r\n\r\n");
        say(encode(hello));
    }
    spdlog::set_default_logger(before);
    EXPECT_EQ(agents_, 100);
    EXPECT_EQ(std::count(log.view().begin(), log.view().end(), '\n'), 20) << log.view();
}

TEST_F(NewcomersTest, WhoSaysToBeAnotherThanItHasProvedIsRefused) {
    protocol::Hello rank;
    rank.version = protocol::protocolVersion();
    rank.job = "run";
    rank.endpoint.rank = {1, 0};
    rank.endpoint.incarnation = 4;
    const auto hello = encode(protocol::ToCoordinator(rank));
    for (const std::string& as :
         {std::string(), agentIdentity("node0"), rankIdentity("another", {1, 0}, 4),
          rankIdentity("run", {0, 0}, 4), rankIdentity("run", {1, 1}, 4),
          rankIdentity("run", {1, 0}, 3)}) {
        answers_.clear();
        say(hello, as);
        ASSERT_EQ(answers_.size(), 1u) << as;
        const auto answer = *decode<protocol::ToReplica>(answers_.front());
        EXPECT_FALSE(std::get<protocol::Expelled>(answer).hopeless);
        EXPECT_EQ(std::get<protocol::Expelled>(answer).incarnation, 4u);
        EXPECT_THAT(std::get<protocol::Expelled>(answer).why, HasSubstr("says to be"));
    }
    EXPECT_EQ(ranks_, 0);
    AgentHello agent;
    agent.version = agentVersion();
    agent.node = "node1";
    answers_.clear();
    say(encode(agent), agentIdentity("node0"));
    ASSERT_EQ(answers_.size(), 1u);
    EXPECT_THAT(std::get<AgentWelcome>(*decode<AgentCommand>(answers_.front())).error,
                HasSubstr("agent node0"));
    EXPECT_EQ(agents_, 0);
}

}  // namespace
}  // namespace bulkhead::runtime
