// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/common/codec.h"

namespace bulkhead::runtime {
namespace {

using testing::HasSubstr;

class HandClock final : public Clock {
  public:
    MonoNs now() const override { return at; }
    int64_t unixNs() const override { return at; }
    MonoNs at = kSecond;
};

/// A coordinator that is always there and gives every new connection the same answer.
class AnsweringNetwork final : public Network {
  public:
    explicit AnsweringNetwork(HandClock& clock) : clock_(clock) {}
    absl::StatusOr<std::unique_ptr<ControlListener>> listen(Reactor&, const std::string&,
                                                            ChannelOptions,
                                                            AcceptChannel accept) override {
        class Listener final : public ControlListener {
            std::string address() const override { return "leader:1"; }
        };
        accepted = std::move(accept);
        return std::make_unique<Listener>();
    }
    std::unique_ptr<ControlConnector> connect(Reactor& reactor, const std::string& to,
                                              ChannelOptions, ConnectedChannel done) override {
        attempts.push_back(clock_.at);
        dialled = to;
        if (to == silent) return std::make_unique<ControlConnector>();
        if (away) {
            reactor.post([done] { done(absl::UnavailableError("nobody listens")); });
            return std::make_unique<ControlConnector>();
        }
        auto [here, there] = memoryChannels(reactor, reactor);
        (void)there->send(answer);
        ends.push_back(std::move(there));
        reactor.post([done, end = std::make_shared<std::unique_ptr<ControlChannel>>(
                                std::move(here))] { done(std::move(*end)); });
        return std::make_unique<ControlConnector>();
    }
    AcceptChannel accepted;  ///< of who listens
    std::string answer;
    bool away = false;
    std::string silent;   ///< nobody answers there
    std::string dialled;  ///< last
    std::vector<MonoNs> attempts;
    std::vector<std::unique_ptr<ControlChannel>> ends;

  private:
    HandClock& clock_;
};

class CoordinatorLinkTest : public testing::Test {
  protected:
    CoordinatorLinkTest() : reactor_(*Reactor::create(clock_)), network_(clock_) {}
    void begin(std::string answer) {
        network_.answer = std::move(answer);
        link_.emplace(
            *reactor_, network_, [this] { return where_; }, ChannelOptions{}, protocol::Hello{},
            CoordinatorLink::Hooks{
                [] {}, [this] { ++disconnected_; },
                [this](const protocol::ToReplica&) { ++received_; },
                [this](const absl::Status& why) { refused_ = std::string(why.message()); }});
    }
    void pass(MonoNs time) {
        for (const MonoNs end = clock_.at + time; clock_.at < end; clock_.at += 10 * kMillisecond)
            for (int i = 0; i < 5; ++i) reactor_->runDue();
    }
    size_t attemptsOf(MonoNs time) {
        const size_t before = network_.attempts.size();
        pass(time);
        return network_.attempts.size() - before;
    }

    HandClock clock_;
    std::unique_ptr<Reactor> reactor_;
    AnsweringNetwork network_;
    std::optional<CoordinatorLink> link_;
    int disconnected_ = 0, received_ = 0;
    std::string refused_;
    std::string where_ = "here:1";
};

TEST_F(CoordinatorLinkTest, AnAnswerThatCannotBeReadBreaksItOffAndAttemptsBecomeRare) {
    begin("\xff\xff\xff\xff of another build");
    pass(20 * kSecond);
    EXPECT_THAT(refused_, HasSubstr("the controller at here:1 is of another version"));
    EXPECT_EQ(received_, 0);
    EXPECT_EQ(disconnected_, static_cast<int>(network_.attempts.size()));
    EXPECT_LE(attemptsOf(60 * kSecond), 13u);

    network_.answer = encode(protocol::ToReplica(protocol::Welcome{}));
    pass(6 * kSecond);
    EXPECT_EQ(received_, 1);
    EXPECT_TRUE(link_->connected());
    network_.ends.back()->close();
    EXPECT_EQ(attemptsOf(100 * kMillisecond), 1u) << "what was understood is reached for at once";
}

TEST_F(CoordinatorLinkTest, WhoIsAwayIsTriedLessAndLessOftenButSeveralTimesASecond) {
    network_.away = true;
    begin("");
    pass(5 * kSecond);
    std::vector<MonoNs> gaps;
    for (size_t i = 1; i < network_.attempts.size(); ++i)
        gaps.push_back(network_.attempts[i] - network_.attempts[i - 1]);
    ASSERT_GT(gaps.size(), 15u);
    EXPECT_TRUE(std::is_sorted(gaps.begin(), gaps.end()));
    EXPECT_GE(gaps[1], 2 * gaps[0]);
    EXPECT_GE(gaps.back(), 8 * gaps[0]);
    EXPECT_LT(gaps.back(), 300 * kMillisecond);

    network_.away = false;
    network_.answer = encode(protocol::ToReplica(protocol::Welcome{}));
    pass(kSecond);
    EXPECT_TRUE(link_->connected());
    EXPECT_EQ(received_, 1);
}

TEST_F(CoordinatorLinkTest, ARefusalForGoodIsNoMessageOfTheJob) {
    begin(encode(protocol::ToReplica(protocol::Expelled{0, 0, "another version", true})));
    pass(kSecond);
    EXPECT_THAT(refused_, HasSubstr("refused this rank: another version"));
    EXPECT_EQ(received_, 0);
}

TEST_F(CoordinatorLinkTest, ItFollowsTheCoordinatorFromAConnectionThatDoesNotBreak) {
    begin(encode(protocol::ToReplica(protocol::Welcome{})));
    pass(kSecond);
    ASSERT_TRUE(link_->connected());
    link_->follow();
    EXPECT_EQ(attemptsOf(kSecond), 0u) << "it is where it was";
    where_ = "there:2";
    link_->follow();
    EXPECT_EQ(disconnected_, 1);
    pass(kSecond);
    EXPECT_TRUE(link_->connected());
    EXPECT_EQ(network_.dialled, "there:2");
    EXPECT_EQ(received_, 2);
}

TEST_F(CoordinatorLinkTest, ItFollowsTheCoordinatorFromAnAttemptThatGetsNoAnswer) {
    network_.silent = "here:1";
    begin(encode(protocol::ToReplica(protocol::Welcome{})));
    pass(kSecond);
    EXPECT_FALSE(link_->connected());
    where_ = "there:2";
    link_->follow();
    pass(100 * kMillisecond);
    EXPECT_TRUE(link_->connected());
    EXPECT_EQ(disconnected_, 0);
}

TEST_F(CoordinatorLinkTest, ABrokenConnectionToTheLeaderIsMadeAgainAndSaysSo) {
    int again = 0;
    const auto link = LeaderLink::follow(
        *reactor_, network_, "leader:1", Secret{}, [](const protocol::ToLeader&) {},
        [&again] { ++again; });
    pass(kSecond);
    EXPECT_EQ(network_.attempts.size(), 1u);
    EXPECT_EQ(again, 0) << "the first connection is nothing new";
    network_.ends.back()->close();
    pass(5 * kSecond);
    EXPECT_EQ(network_.attempts.size(), 2u);
    EXPECT_EQ(again, 1);
}

TEST_F(CoordinatorLinkTest, WhoeverShowsNoTokenInTimeIsPutOut) {
    const auto link = LeaderLink::lead(*reactor_, network_, "leader:1", Secret{},
                                       [](const protocol::ToLeader&) {});
    ASSERT_TRUE(link.ok());
    std::vector<std::unique_ptr<ControlChannel>> strangers;
    const auto dial = [&] {
        auto [here, there] = memoryChannels(*reactor_, *reactor_);
        here->start([](std::string) {}, [](const absl::Status&) {});
        strangers.push_back(std::move(here));
        network_.accepted(std::move(there));
    };
    dial();
    EXPECT_TRUE(strangers[0]->send("here").ok());
    pass(kSecond);
    for (int i = 0; i < 256; ++i) dial();
    pass(kSecond);
    EXPECT_FALSE(strangers[1]->isOpen()) << "the first of too many gave way";
    EXPECT_TRUE(strangers[2]->isOpen());
    pass(5 * kSecond);
    EXPECT_TRUE(strangers[0]->isOpen()) << "a sibling stays";
    for (size_t i = 1; i < strangers.size(); ++i) EXPECT_FALSE(strangers[i]->isOpen());
}

}  // namespace
}  // namespace bulkhead::runtime
