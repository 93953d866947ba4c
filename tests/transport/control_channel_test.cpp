// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <random>

#include "backend/runtime/transport/address.h"

namespace bulkhead::runtime {
namespace {

using ChannelPtr = std::unique_ptr<ControlChannel>;

std::string temporaryDir() {
    std::string path = std::filesystem::temp_directory_path() / "bulkhead-XXXXXX";
    return ::mkdtemp(path.data());
}

/// Two joined ends and what came out of each, over the transport named by the parameter.
class ControlChannelTest : public testing::TestWithParam<std::string> {
  protected:
    ControlChannelTest() : reactor_(std::move(*Reactor::create(clock_))), faults_(clock_) {}
    ~ControlChannelTest() override { std::filesystem::remove_all(dir_); }

    void SetUp() override { join({}, {}); }

    void join(ChannelOptions leftOptions, ChannelOptions rightOptions) {
        leftOptions.faults = &faults_;
        if (GetParam() == "tls") {
            leftOptions.credential = {"left", Secret::ofText("key")};
            rightOptions.keyOf = [](std::string_view) { return Secret::ofText("key"); };
        }
        if (GetParam() == "memory") {
            std::tie(left_, right_) =
                memoryChannels(*reactor_, *reactor_, leftOptions, rightOptions);
        } else {
            const std::string at = GetParam() == "unix" ? "unix:" + dir_ + "/s" : "127.0.0.1:0";
            auto listener = listenControl(*reactor_, at, rightOptions,
                                          [this](ChannelPtr c) { right_ = std::move(c); });
            ASSERT_TRUE(listener.ok()) << listener.status();
            auto connector = connectControl(*reactor_, (*listener)->address(), leftOptions,
                                            [this](absl::StatusOr<ChannelPtr> c) {
                                                ASSERT_TRUE(c.ok()) << c.status();
                                                left_ = std::move(*c);
                                            });
            until([this] { return left_ && right_; });
        }
        listen(left_, atLeft_, leftClosed_);
        listen(right_, atRight_, rightClosed_);
        if (GetParam() != "tls") return;
        // A message sent before the end of the handshake may be lost with a close.
        ASSERT_TRUE(left_->send("first").ok());
        until([this] { return atRight_.size() == 1; });
        EXPECT_EQ(right_->identity(), "left");
        atRight_.clear();
    }

    static void listen(ChannelPtr& channel, std::vector<std::string>& into,
                       std::optional<absl::Status>& closed) {
        channel->start([&into](std::string m) { into.push_back(std::move(m)); },
                       [&closed](const absl::Status& why) { closed = why; });
    }

    template <class Condition>
    void until(Condition done) {
        const MonoNs deadline = clock_.now() + 20 * kSecond;
        while (!done() && clock_.now() < deadline) reactor_->runOnce(10 * kMillisecond);
        ASSERT_TRUE(done());
    }

    std::string dir_ = temporaryDir();
    SystemClock clock_;
    std::unique_ptr<Reactor> reactor_;
    NetworkFaults faults_;
    ChannelPtr left_, right_;
    std::vector<std::string> atLeft_, atRight_;
    std::optional<absl::Status> leftClosed_, rightClosed_;
};

TEST_P(ControlChannelTest, CarriesMessagesBothWaysInOrder) {
    const std::string big(3 << 20, 'b');
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(left_->send(std::to_string(i)).ok());
    ASSERT_TRUE(left_->send(big).ok());
    ASSERT_TRUE(right_->send("answer").ok());
    until([&] { return atRight_.size() == 101 && atLeft_.size() == 1; });
    for (int i = 0; i < 100; ++i) EXPECT_EQ(atRight_[static_cast<size_t>(i)], std::to_string(i));
    EXPECT_EQ(atRight_.back(), big);
    EXPECT_EQ(left_->queuedBytes(), 0u);
}

TEST_P(ControlChannelTest, TellsTheOtherEndOfAClose) {
    ASSERT_TRUE(left_->send("last words").ok());
    left_->close();
    until([&] { return rightClosed_.has_value(); });
    EXPECT_EQ(atRight_, std::vector<std::string>{"last words"});
    EXPECT_EQ(rightClosed_->code(), absl::StatusCode::kUnavailable);
    if (GetParam() == "unix") {
        EXPECT_THAT(std::string(rightClosed_->message()), testing::HasSubstr(dir_ + "/s: "));
    }
    EXPECT_FALSE(leftClosed_.has_value());
    EXPECT_EQ(left_->send("x").code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(right_->send("x").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ControlChannelTest, ACutHoldsEverythingAndClosesNothing) {
    faults_.cut(3600 * kSecond);
    ASSERT_TRUE(left_->send("from behind the cut").ok());
    ASSERT_TRUE(right_->send("to behind the cut").ok());
    for (int i = 0; i < 20; ++i) reactor_->runOnce(5 * kMillisecond);
    EXPECT_TRUE(atLeft_.empty());
    EXPECT_TRUE(atRight_.empty());
    EXPECT_TRUE(left_->isOpen() && right_->isOpen());
    faults_.clear();
    until([&] { return atRight_.size() == 1 && atLeft_.size() == 1; });
}

TEST_P(ControlChannelTest, ACutEndsByItself) {
    faults_.cut(50 * kMillisecond);
    ASSERT_TRUE(left_->send("late").ok());
    ASSERT_TRUE(right_->send("late too").ok());
    until([&] { return atRight_.size() == 1 && atLeft_.size() == 1; });
}

TEST_P(ControlChannelTest, ADelayKeepsTheOrder) {
    const MonoNs start = clock_.now();
    faults_.delay(80 * kMillisecond, 10 * kSecond);
    ASSERT_TRUE(left_->send("1").ok());
    faults_.delay(1 * kMillisecond, 10 * kSecond);
    ASSERT_TRUE(left_->send("2").ok());
    until([&] { return atRight_.size() == 2; });
    EXPECT_EQ(atRight_, (std::vector<std::string>{"1", "2"}));
    EXPECT_GE(clock_.now() - start, 80 * kMillisecond);
}

TEST_P(ControlChannelTest, AResetIsSeenByBothEnds) {
    faults_.reset();
    until([&] { return leftClosed_ && rightClosed_; });
    EXPECT_EQ(leftClosed_->code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(rightClosed_->code(), absl::StatusCode::kUnavailable);
}

TEST_P(ControlChannelTest, AQueueThatNobodyReadsIsBounded) {
    ChannelOptions small;
    small.maxQueuedBytes = 1 << 20;
    left_.reset();
    right_.reset();
    join(small, small);
    faults_.cut(3600 * kSecond);
    absl::Status status;
    int sent = 0;
    while ((status = left_->send(std::string(60'000, 'x'))).ok() && sent < 1000) ++sent;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_LE(left_->queuedBytes(), small.maxQueuedBytes);
    EXPECT_TRUE(left_->isOpen());
    faults_.clear();
    until([&] { return atRight_.size() == static_cast<size_t>(sent); });
    EXPECT_TRUE(left_->send("again").ok());
}

TEST_P(ControlChannelTest, ACallbackMayDestroyItsChannel) {
    left_.reset();
    right_.reset();
    join({}, {});
    ChannelPtr a, b;
    std::tie(a, b) = std::make_pair(std::move(left_), std::move(right_));
    left_.reset();
    atRight_.clear();
    // Both ends came with callbacks from join(); a close of one lets the other's callback destroy
    // it.
    ASSERT_TRUE(a->send("x").ok());
    ASSERT_TRUE(a->send("y").ok());
    until([&] { return atRight_.size() == 2; });
    a.reset();
    until([&] { return rightClosed_.has_value(); });
    b.reset();
}

INSTANTIATE_TEST_SUITE_P(Forms, ControlChannelTest, testing::Values("memory", "unix", "tcp", "tls"),
                         [](const auto& info) { return info.param; });

class ControlSocketTest : public testing::Test {
  protected:
    ControlSocketTest() : reactor_(std::move(*Reactor::create(clock_))) {}
    ~ControlSocketTest() override { std::filesystem::remove_all(dir_); }

    template <class Condition>
    void until(Condition done) {
        const MonoNs deadline = clock_.now() + 20 * kSecond;
        while (!done() && clock_.now() < deadline) reactor_->runOnce(10 * kMillisecond);
        ASSERT_TRUE(done());
    }

    std::string dir_ = temporaryDir();
    SystemClock clock_;
    std::unique_ptr<Reactor> reactor_;
};

TEST_F(ControlSocketTest, ReceivingMayDestroyTheReceiver) {
    auto [a, b] = memoryChannels(*reactor_, *reactor_);
    ChannelPtr channel = std::move(b);
    int calls = 0;
    channel->start(
        [&](std::string) {
            ++calls;
            channel.reset();
        },
        [](const absl::Status&) {});
    ASSERT_TRUE(a->send("1").ok());
    ASSERT_TRUE(a->send("2").ok());
    until([&] { return channel == nullptr; });
    reactor_->runOnce(0);
    EXPECT_EQ(calls, 1);
}

TEST_F(ControlSocketTest, LoopbackAddressesStandForNodes) {
    ChannelPtr accepted;
    auto listener =
        listenControl(*reactor_, "127.0.0.2:0", {}, [&](ChannelPtr c) { accepted = std::move(c); });
    ASSERT_TRUE(listener.ok()) << listener.status();
    ChannelOptions options;
    options.localIp = "127.0.0.3";
    ChannelPtr mine;
    auto connector = connectControl(*reactor_, (*listener)->address(), options,
                                    [&](auto c) { mine = std::move(c).value(); });
    until([&] { return accepted && mine; });
    EXPECT_TRUE(accepted->peer().starts_with("127.0.0.3:")) << accepted->peer();
    EXPECT_TRUE(mine->peer().starts_with("127.0.0.2:")) << mine->peer();
}

TEST_F(ControlSocketTest, SaysWhyItCannotConnectOrListen) {
    std::optional<absl::Status> why;
    auto refused = connectControl(*reactor_, "127.0.0.1:1", {}, [&](auto c) { why = c.status(); });
    until([&] { return why.has_value(); });
    EXPECT_EQ(why->code(), absl::StatusCode::kUnavailable);
    why.reset();
    auto bad = connectControl(*reactor_, "localhost", {}, [&](auto c) { why = c.status(); });
    until([&] { return why.has_value(); });
    EXPECT_EQ(why->code(), absl::StatusCode::kInvalidArgument);

    auto first = listenControl(*reactor_, "127.0.0.1:0", {}, [](ChannelPtr) {});
    ASSERT_TRUE(first.ok());
    auto second = listenControl(*reactor_, (*first)->address(), {}, [](ChannelPtr) {});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ControlSocketTest, AUnixSocketIsPrivateAndALeftoverIsReplaced) {
    const std::string path = dir_ + "/control";
    const pid_t child = ::fork();
    if (child == 0) {
        const auto fd = listenOn("unix:" + path);
        ::_exit(fd.ok() ? 0 : 1);  // leaves the file behind, as a killed process does
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    ASSERT_TRUE(std::filesystem::exists(path));
    auto listener = listenControl(*reactor_, "unix:" + path, {}, [](ChannelPtr) {});
    ASSERT_TRUE(listener.ok()) << listener.status();
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    auto second = listenControl(*reactor_, "unix:" + path, {}, [](ChannelPtr) {});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    listener->reset();
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ControlSocketTest, HostileBytesCloseOnlyTheirOwnConnection) {
    std::vector<ChannelPtr> channels;
    std::vector<absl::Status> closed;
    auto listener = listenControl(*reactor_, "127.0.0.1:0", {}, [&](ChannelPtr c) {
        c->start([](std::string) {}, [&](const absl::Status& why) { closed.push_back(why); });
        channels.push_back(std::move(c));
    });
    ASSERT_TRUE(listener.ok());
    std::mt19937_64 random(11);
    std::vector<UniqueFd> attackers;
    for (int i = 0; i < 50; ++i) {
        auto fd = beginConnect((*listener)->address(), "");
        ASSERT_TRUE(fd.ok());
        attackers.push_back(std::move(*fd));
    }
    until([&] { return channels.size() == 50; });
    for (UniqueFd& fd : attackers) {
        std::string bytes(20 + random() % 200, '\0');
        for (char& c : bytes) c = static_cast<char>(random());
        ASSERT_GT(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    }
    until([&] { return closed.size() == 50; });
    for (const absl::Status& why : closed) EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
    ChannelPtr honest;
    auto connector = connectControl(*reactor_, (*listener)->address(), {}, [&](auto c) {
        honest = std::move(c).value();
        ASSERT_TRUE(honest->send("hello").ok());
    });
    until([&] { return channels.size() == 51 && honest; });
    EXPECT_TRUE(channels.back()->isOpen());
}

TEST_F(ControlSocketTest, AKilledProcessIsNoticedAtOnce) {
    ChannelPtr channel;
    std::optional<absl::Status> why;
    bool heard = false;
    auto listener = listenControl(*reactor_, "unix:" + dir_ + "/s", {}, [&](ChannelPtr c) {
        channel = std::move(c);
        channel->start([&](std::string) { heard = true; }, [&](const absl::Status& s) { why = s; });
    });
    ASSERT_TRUE(listener.ok());
    const std::string address = (*listener)->address();
    const pid_t child = ::fork();
    if (child == 0) {
        SystemClock clock;
        auto reactor = std::move(*Reactor::create(clock));
        ChannelPtr mine;
        auto connector = connectControl(*reactor, address, {}, [&](auto c) {
            mine = std::move(c).value();
            mine->send("alive").IgnoreError();
        });
        reactor->run();
        ::_exit(0);
    }
    until([&] { return heard; });
    ::kill(child, SIGKILL);
    until([&] { return why.has_value(); });
    EXPECT_EQ(why->code(), absl::StatusCode::kUnavailable);
    int status = 0;
    ::waitpid(child, &status, 0);
}

}  // namespace
}  // namespace bulkhead::runtime
