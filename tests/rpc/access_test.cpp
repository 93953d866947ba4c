// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/sync_stream.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include "backend/service/gate.h"
#include "backend/service/server_sockets.h"
#include "bulkhead/v1/service.grpc.pb.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

using client::FailureCode;
using ::testing::HasSubstr;

class AccessTest : public RpcTest {
  protected:
    client::Result<model::ServerInfo> greet(const std::string& tokenFile) {
        const auto client = connect(tokenFile);
        return await<model::ServerInfo>([&](auto reply) { client->handshake(reply); });
    }
    std::string write(const std::string& name, const std::string& text, mode_t mode) {
        const std::string path = dir_ + "/" + name;
        std::ofstream(path) << text;
        ::chmod(path.c_str(), mode);
        return path;
    }
};

TEST_F(AccessTest, TheSocketIsForItsOwnerOnly) {
    serve(unixOptions());
    struct stat info {};
    ASSERT_EQ(::stat(socket().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AccessTest, TcpWithTheTokenWorksAndTheTokenFileIsPrivate) {
    serve(tcpOptions());
    struct stat info {};
    ASSERT_EQ(::stat(tokenFile().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    const auto greeted = greet(tokenFile());
    EXPECT_TRUE(greeted.ok()) << greeted.failure().cause;
}

TEST_F(AccessTest, TcpWithoutATokenIsRefused) {
    serve(tcpOptions());
    const auto greeted = greet("");
    ASSERT_FALSE(greeted.ok());
    EXPECT_EQ(greeted.failure().code, FailureCode::kToken);
    EXPECT_THAT(greeted.failure().cause, HasSubstr("none was sent"));
    EXPECT_THAT(greeted.failure().remedy, HasSubstr("--token-file"));
}

TEST_F(AccessTest, TcpWithAWrongTokenIsRefusedOnStreamsToo) {
    serve(tcpOptions());
    const std::string wrong = write("wrong", "0123456789abcdef0123456789abcdef\n", 0600);
    EXPECT_EQ(greet(wrong).failure().code, FailureCode::kToken);
    auto stub = v1::Watch::NewStub(
        grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_job("demo");
    auto reader = stub->Watch(&context, request);
    v1::WatchUpdate update;
    EXPECT_FALSE(reader->Read(&update));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

/// Calls a method by its wire form, with an empty request.
grpc::Status callRaw(grpc::Channel& channel, const char* name, const std::string& token,
                     bool streaming) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kForever);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    const grpc::internal::RpcMethod method(name, streaming
                                                     ? grpc::internal::RpcMethod::BIDI_STREAMING
                                                     : grpc::internal::RpcMethod::NORMAL_RPC);
    v1::GetInfoRequest request;
    v1::GetInfoRequest response;
    if (!streaming)
        return grpc::internal::BlockingUnaryCall(&channel, method, &context, request, &response);
    using Stream = grpc::ClientReaderWriter<v1::GetInfoRequest, v1::GetInfoRequest>;
    const std::unique_ptr<Stream> stream(
        grpc::internal::ClientReaderWriterFactory<v1::GetInfoRequest, v1::GetInfoRequest>::Create(
            &channel, method, &context));
    if (token.empty()) {
        // The caller goes on waiting for an answer: the refusal must reach it all the same.
        EXPECT_FALSE(stream->Read(&response));
        return stream->Finish();
    }
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&response));
    stream->WritesDone();
    return stream->Finish();
}

TEST_F(AccessTest, HealthAndReflectionWantTheTokenTooAndSaySo) {
    serve(tcpOptions());
    const auto channel =
        grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials());
    const auto token = service::loadOrCreateToken(tokenFile());
    ASSERT_TRUE(token.ok());
    const std::pair<const char*, bool> methods[] = {
        {"/grpc.health.v1.Health/Check", false},
        {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", true}};
    for (const auto& [method, streaming] : methods) {
        const grpc::Status none = callRaw(*channel, method, "", streaming);
        EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED) << none.error_message();
        EXPECT_THAT(none.error_message(), HasSubstr("none was sent"));
        EXPECT_THAT(none.error_message(), HasSubstr("authorization: Bearer"));
        const grpc::Status shown = callRaw(*channel, method, *token, streaming);
        EXPECT_TRUE(shown.ok()) << method << ": " << shown.error_message();
    }
    const grpc::Status wrong =
        callRaw(*channel, "/grpc.health.v1.Health/Check", std::string(32, 'x'), false);
    EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(wrong.error_message(), HasSubstr("not this daemon's"));
}

TEST_F(AccessTest, TcpIsNeverOpenedWithoutATokenFile) {
    auto options = tcpOptions();
    options.tokenFile.clear();
    const auto server = service::Server::start(options, clock_);
    ASSERT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("--token-file"));
}

TEST_F(AccessTest, ATokenFileOthersCanReadIsRefusedAtBothEnds) {
    const std::string open = write("open", "0123456789abcdef0123456789abcdef\n", 0644);
    auto options = tcpOptions();
    options.tokenFile = open;
    const auto server = service::Server::start(options, clock_);
    ASSERT_FALSE(server.ok());
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("chmod 600"));
    client::Options clientOptions;
    clientOptions.target = "127.0.0.1:1";
    clientOptions.tokenFile = open;
    const auto client = client::Client::open(clientOptions);
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.failure().code, FailureCode::kToken);
    EXPECT_THAT(client.failure().remedy, HasSubstr("chmod 600"));
}

TEST_F(AccessTest, ATokenIsNotWaitedForAtAPipe) {
    client::Options options;
    options.target = "127.0.0.1:1";
    options.tokenFile = dir_ + "/pipe";
    ASSERT_EQ(::mkfifo(options.tokenFile.c_str(), 0600), 0);
    const auto client = client::Client::open(options);
    ASSERT_FALSE(client.ok());
    EXPECT_THAT(client.failure().cause, HasSubstr("no file that can be read"));
}

TEST_F(AccessTest, APortInUseIsNamed) {
    serve(tcpOptions());
    const auto second = service::Server::start(tcpOptions(server_->addresses().front()), clock_);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->addresses().front()));
}

TEST_F(AccessTest, ASecondDaemonOnOneSocketIsRefusedAndTheFirstGoesOn) {
    serve(unixOptions());
    const auto second = service::Server::start(unixOptions(), clock_);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(socket()));
    EXPECT_TRUE(greet("").ok());
}

TEST_F(AccessTest, ASocketLeftByAKilledDaemonIsTakenOver) {
    std::ofstream(socket()) << "";
    serve(unixOptions());
    EXPECT_TRUE(greet("").ok());
}

TEST_F(AccessTest, ACallerOfAnotherApiVersionIsRefused) {
    serve(unixOptions());
    auto stub = v1::Server::NewStub(
        grpc::CreateChannel("unix:" + socket(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.AddMetadata("bulkhead-api", "2");
    v1::ServerInfo info;
    const grpc::Status status = stub->GetInfo(&context, {}, &info);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("API version 1"));
    grpc::ClientContext silent;
    EXPECT_TRUE(stub->GetInfo(&silent, {}, &info).ok());
}

/// Answers GetInfo as a daemon of the future would.
class FutureServer final : public v1::Server::Service {
    grpc::Status GetInfo(grpc::ServerContext*, const v1::GetInfoRequest*,
                         v1::ServerInfo* response) override {
        response->set_api_version(7);
        return grpc::Status::OK;
    }
};

TEST_F(AccessTest, AClientDoesNotWorkWithADaemonOfAnotherVersion) {
    FutureServer service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket(), grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    const auto client = connect();
    const auto info = await<model::ServerInfo>([&](auto reply) { client->handshake(reply); });
    ASSERT_FALSE(info.ok());
    EXPECT_EQ(info.failure().code, FailureCode::kVersion);
    WatchLog log;
    const auto watch = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return !l.failures.empty(); }));
    EXPECT_EQ(log.failures[0].code, FailureCode::kVersion);
    EXPECT_FALSE(log.failures[0].retryable);
}

TEST(TargetTest, WhatIsNoAddressIsSaidAtOnce) {
    for (const char* bad : {"", "unix:", "nowhere", "host:", "host:99999", "host:0", ":80"}) {
        client::Options options;
        options.target = bad;
        const auto client = client::Client::open(options);
        ASSERT_FALSE(client.ok()) << bad;
        EXPECT_EQ(client.failure().code, FailureCode::kInvalid);
    }
}

/// Opens connections that say nothing, and counts those that were closed.
class SilentCallers {
  public:
    /// `host`: an address of this machine that they call from.
    SilentCallers(const std::string& address, int number, const char* host = "127.0.0.1") {
        const size_t colon = address.rfind(':');
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
        ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr);
        for (int i = 0; i < number; ++i) {
            fds_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_in from{};
            from.sin_family = AF_INET;
            ::inet_pton(AF_INET, host, &from.sin_addr);
            EXPECT_EQ(::bind(fds_.back(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
            EXPECT_EQ(::connect(fds_.back(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
        }
    }
    ~SilentCallers() {
        for (const int fd : fds_) ::close(fd);
    }
    void say(const std::string& words) {
        for (const int fd : fds_) ::send(fd, words.data(), words.size(), MSG_NOSIGNAL);
    }
    /// Waits until the server has closed so many of them.
    bool closed(size_t number) {
        const auto until = std::chrono::steady_clock::now() + kForever;
        while (std::chrono::steady_clock::now() < until) {
            if (ended() >= number) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        return false;
    }
    size_t ended() const {
        return static_cast<size_t>(std::ranges::count_if(fds_, [](int fd) {
            pollfd end{fd, POLLRDHUP, 0};
            ::poll(&end, 1, 0);
            return (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
        }));
    }
    /// The first of them, as the server names it.
    std::string peer() const {
        sockaddr_in at{};
        socklen_t size = sizeof at;
        ::getsockname(fds_.front(), reinterpret_cast<sockaddr*>(&at), &size);
        return "ipv4:127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    }

  private:
    std::vector<int> fds_;
};

TEST_F(AccessTest, SilentConnectionsNeitherUseUpTheDescriptorsNorStay) {
    service::ServerOptions options = tcpOptions();
    options.socket = socket();
    serve(options);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit few = before;
    few.rlim_cur = 200;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    // The callers live in a process of their own: the limit is the server's alone.
    const pid_t child = ::fork();
    if (child == 0) {
        ::setrlimit(RLIMIT_NOFILE, &before);
        SilentCallers callers(server_->addresses().back(), 200);
        // More than 100 at once, for want of descriptors; the others when they have said nothing.
        ::_exit(callers.closed(100) && callers.closed(200) ? 0 : 1);
    }
    for (bool ended = false; !ended;) {
        const auto local = greet("");
        EXPECT_TRUE(local.ok()) << local.failure().cause;
        int status = 0;
        ended = ::waitpid(child, &status, WNOHANG) == child;
        if (ended) {
            EXPECT_EQ(WEXITSTATUS(status), 0) << "not all of them were put out";
        }
    }
    client::Options remote;
    remote.target = server_->addresses().back();
    remote.tokenFile = tokenFile();
    remote.deadline = kForever;
    const auto client = client::Client::open(remote);
    ASSERT_TRUE(client.ok());
    const auto info =
        await<model::ServerInfo>([&](auto reply) { client.value()->handshake(reply); });
    EXPECT_TRUE(info.ok()) << "the TCP listener lives: " << info.failure().cause;
    ::setrlimit(RLIMIT_NOFILE, &before);
}

/// Accepts on a port of this machine in gRPC's place: it reads nothing of what comes, and lets go
/// of what is closed, if it `letsGo`.
struct Door {
    explicit Door(std::chrono::milliseconds time, bool letsGo = true)
        : strangers(
              [this](auto&, const std::string& why) {
                  const MutexLock lock(mutex_);
                  said_.push_back(why);
              },
              time),
          sockets(strangers, kForever) {
        const auto listens = sockets.listenTcp("127.0.0.1:0");
        EXPECT_TRUE(listens.ok()) << listens.status();
        address = *listens;
        sockets.start([this, letsGo](int fd, bool) {
            if (letsGo)
                readers.emplace_back([fd] {
                    pollfd end{fd, POLLRDHUP, 0};
                    ::poll(&end, 1, -1);
                    ::close(fd);
                });
            else
                open.emplace_back(fd);
            ++accepted;
        });
    }
    bool awaitAccepted(int number, std::chrono::milliseconds atMost = kForever) const {
        const auto until = std::chrono::steady_clock::now() + atMost;
        while (accepted < number && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return accepted >= number;
    }
    bool awaitSaid(size_t number) const {
        const auto until = std::chrono::steady_clock::now() + kForever;
        while (said().size() < number && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return said().size() >= number;
    }
    /// Why those were that were put out.
    std::vector<std::string> said() const {
        const MutexLock lock(mutex_);
        return said_;
    }

    std::vector<UniqueFd> open;
    std::vector<std::jthread> readers;
    std::atomic<int> accepted = 0;
    std::string address;
    mutable Mutex mutex_;
    std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
    service::Strangers strangers;
    service::ServerSockets sockets;  ///< declared last: its thread calls the others
};

TEST(StrangersTest, WhoeverSignedInAndCutsOffCallsAllTheTimeIsPutOut) {
    Door door(kForever);
    SilentCallers busy(door.address, 1);
    SilentCallers hasty(door.address, 1);
    for (SilentCallers* one : {&busy, &hasty}) one->say("x");
    ASSERT_TRUE(door.awaitAccepted(2));
    for (SilentCallers* one : {&busy, &hasty}) door.strangers.signedIn(one->peer());
    for (int i = 0; i < 2 * service::Strangers::kMostCutOff; ++i) {
        door.strangers.callBegins(busy.peer());
        door.strangers.callArrives(busy.peer());
    }
    const auto end = std::chrono::steady_clock::now() + kForever;
    while (door.said().empty() && std::chrono::steady_clock::now() < end)
        door.strangers.callBegins(hasty.peer());
    EXPECT_TRUE(hasty.closed(1));
    EXPECT_EQ(busy.ended(), 0u);
    EXPECT_THAT(door.said(), ::testing::ElementsAre(::testing::HasSubstr("It cut off 300 calls")));
}

TEST(StrangersTest, WhoeverSendsMuchAndDoesNotSignInIsPutOut) {
    Door door(kForever);
    SilentCallers quiet(door.address, 1);
    SilentCallers loud(door.address, 1);
    quiet.say("x");
    loud.say(std::string(service::Strangers::kPlain.most, 'x'));
    ASSERT_TRUE(door.awaitAccepted(2));
    EXPECT_EQ(loud.ended(), 0u);
    loud.say("x");
    EXPECT_TRUE(loud.closed(1));
    EXPECT_EQ(quiet.ended(), 0u);
}

/// All that comes on a connection until nothing has come for a second or it is closed.
size_t bytesOf(int fd) {
    std::array<char, 65536> piece;
    pollfd ready{fd, POLLIN, 0};
    size_t all = 0;
    while (::poll(&ready, 1, 1000) == 1) {
        const ssize_t n = ::recv(fd, piece.data(), piece.size(), 0);
        if (n <= 0) break;
        all += static_cast<size_t>(n);
    }
    return all;
}

TEST(StrangersTest, NoByteBeyondTheLimitIsHandedOnHoweverFastItComes) {
    Door door(kForever, false);
    SilentCallers loud(door.address, 1);
    loud.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    std::thread flood([&] { loud.say(std::string(10 << 20, 'x')); });
    const size_t bytes = bytesOf(door.open.front().get());
    EXPECT_LE(bytes, service::Strangers::kPlain.most + 1);
    EXPECT_GT(bytes, service::Strangers::kPlain.first);
    flood.join();
    EXPECT_EQ(loud.ended(), 1u);
}

TEST(StrangersTest, WhatWasNotReadWhenItIsPutOutIsReadByNobody) {
    Door door(kForever, false);
    SilentCallers loud(door.address, 1);
    loud.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    loud.say(std::string(1 << 20, 'x'));
    EXPECT_TRUE(door.awaitSaid(1));
    EXPECT_EQ(bytesOf(door.open.front().get()), 0u);
}

TEST(StrangersTest, OneAtATimeHasMoreThanTheFirstBytes) {
    Door door(kForever, false);
    SilentCallers first(door.address, 1);
    SilentCallers second(door.address, 1);
    first.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    second.say("x");
    ASSERT_TRUE(door.awaitAccepted(2));
    const std::string much(4 * service::Strangers::kPlain.first, 'x');
    first.say(much);
    EXPECT_EQ(bytesOf(door.open[0].get()), much.size() + 1);
    second.say(much);
    EXPECT_EQ(bytesOf(door.open[1].get()), service::Strangers::kPlain.first + 1);
    EXPECT_TRUE(first.closed(1)) << "it gives way";
    door.open[0].reset();
    EXPECT_EQ(bytesOf(door.open[1].get()), much.size() - service::Strangers::kPlain.first);
}

TEST(StrangersTest, OneThatIsOverHasItsPlaceUntilGrpcLetsGoOfIt) {
    Door door(kForever, false);
    constexpr int kMost = static_cast<int>(service::Strangers::kMost);
    {
        SilentCallers many(door.address, kMost);
        many.say("x");
        ASSERT_TRUE(door.awaitAccepted(kMost));
    }
    SilentCallers next(door.address, 1);
    next.say("x");
    EXPECT_FALSE(door.awaitAccepted(kMost + 1, 2 * service::Strangers::kTurn));
    door.open.clear();
    EXPECT_TRUE(door.awaitAccepted(kMost + 1));
}

TEST(StrangersTest, AHostWaitsWhenOneOfItIsPutOutForWhatItSent) {
    Door door(kForever);
    SilentCallers loud(door.address, 1);
    loud.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    SilentCallers same(door.address, 2);
    SilentCallers other(door.address, 1, "127.0.0.2");
    const auto from = std::chrono::steady_clock::now();
    loud.say(std::string(1 << 20, 'x'));
    ASSERT_TRUE(door.awaitSaid(1));
    other.say("x");
    same.say("x");
    ASSERT_TRUE(door.awaitAccepted(4));
    EXPECT_GE(std::chrono::steady_clock::now() - from, 2 * service::HostTurns::kShortest);
}

TEST(StrangersTest, OfWhoeverSignedInTheRestComesToo) {
    Door door(kForever, false);
    SilentCallers known(door.address, 1);
    known.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    door.strangers.signedIn(known.peer());
    std::thread rest([&] { known.say(std::string(1 << 20, 'x')); });
    EXPECT_EQ(bytesOf(door.open.front().get()), 1 + (1 << 20));
    rest.join();
}

using Turns = service::HostTurns;

service::Host hostAt(const char* text) {
    sockaddr_storage at{};
    auto& v4 = reinterpret_cast<sockaddr_in&>(at);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(at);
    const bool isV6 = ::inet_pton(AF_INET6, text, &v6.sin6_addr) == 1;
    at.ss_family = isV6 ? AF_INET6 : AF_INET;
    if (!isV6) ::inet_pton(AF_INET, text, &v4.sin_addr);
    return service::hostOf(at);
}

TEST(HostTurnsTest, AHostIsAnAddressOfIpv4OrANetworkOfIpv6) {
    EXPECT_EQ(hostAt("2001:db8::1"), hostAt("2001:db8::2:0:0:7"));
    EXPECT_NE(hostAt("2001:db8::1"), hostAt("2001:db8:0:1::1"));
    EXPECT_EQ(hostAt("10.0.0.7"), hostAt("::ffff:10.0.0.7"));
    EXPECT_NE(hostAt("10.0.0.7"), hostAt("10.0.0.8"));
}

TEST(HostTurnsTest, TheWaitGrowsWithEachTurnThatIsAbusedAndIsForgotten) {
    Turns turns;
    Turns::Time now{std::chrono::hours(1)};
    EXPECT_LE(turns.next(7), now);
    for (auto wait = Turns::kShortest; wait <= Turns::kLongest; wait *= 2) {
        turns.offended(7, now);
        turns.offended(7, now);  // came before the first was found out
        EXPECT_EQ(turns.next(7), now + wait);
        now += wait;
        turns.came(7, now);
        EXPECT_EQ(turns.next(7), now + wait) << "one turn in such a time";
    }
    turns.offended(7, now);
    EXPECT_EQ(turns.next(7), now + Turns::kLongest);
    EXPECT_LE(turns.next(8), now) << "nobody else waits";
    now += Turns::kForgotten + Turns::kLongest;
    turns.came(7, now);
    EXPECT_LE(turns.next(7), now);
    turns.offended(7, now);
    EXPECT_EQ(turns.next(7), now + Turns::kShortest);
}

TEST(HostTurnsTest, WhereSomebodySignsInTheWaitStaysTheShortest) {
    Turns turns;
    Turns::Time now{std::chrono::hours(1)};
    for (int i = 0; i < 4; ++i) {
        turns.offended(7, now);
        turns.came(7, now);
    }
    turns.signedIn(7, now);
    EXPECT_EQ(turns.next(7), now + Turns::kShortest);
    turns.came(7, now);
    turns.offended(7, now);
    EXPECT_EQ(turns.next(7), now + Turns::kShortest);
}

TEST(HostTurnsTest, OfMoreHostsThanItKeepsTheOneHeardOfLeastRecentlyIsForgotten) {
    Turns turns;
    Turns::Time now{std::chrono::hours(1)};
    for (service::Host host = 0; host <= Turns::kMost; ++host)
        turns.offended(host, now + std::chrono::microseconds(host));
    EXPECT_LE(turns.next(0), now);
    EXPECT_GT(turns.next(1), now);
    EXPECT_GT(turns.next(Turns::kMost), now);
}

TEST(HostTurnsTest, WhereSomebodySignedInIsRememberedLongerThanOffences) {
    Turns turns;
    const Turns::Time now{std::chrono::hours(1)};
    turns.signedIn(7, now);
    for (service::Host host = 1000; host < 1000 + 2 * Turns::kMost; ++host)
        turns.offended(host, now + std::chrono::microseconds(host));
    for (const int time : {1, 2}) {
        turns.offended(7, now + std::chrono::seconds(time));
        turns.came(7, now + std::chrono::seconds(time));
    }
    EXPECT_EQ(turns.next(7), now + std::chrono::seconds(2) + Turns::kShortest);
}

TEST(StrangersTest, WhoeverSignedInStaysWhateverItSendsAndOthersAreOutInTime) {
    Door door(std::chrono::seconds(2));
    SilentCallers known(door.address, 1);
    known.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    door.strangers.signedIn(known.peer());
    known.say(std::string(service::Strangers::kPlain.most + 1, 'x'));
    SilentCallers slow(door.address, 3);
    slow.say("x");
    EXPECT_TRUE(slow.closed(3));
    EXPECT_EQ(known.ended(), 0u);
    EXPECT_THAT(door.said(), ::testing::Each("Nobody had signed in after 2000 ms."));
}

TEST(StrangersTest, ManyOfOneHostGiveWayToEachOtherAndTheirTurnIsNotCutShort) {
    Door door(kForever);
    SilentCallers other(door.address, 1, "127.0.0.2");
    other.say("x");
    ASSERT_TRUE(door.awaitAccepted(1));
    constexpr int kMost = static_cast<int>(service::Strangers::kMost);
    const auto from = std::chrono::steady_clock::now();
    SilentCallers many(door.address, kMost + 9);
    many.say("x");
    ASSERT_TRUE(door.awaitAccepted(kMost));
    EXPECT_TRUE(many.closed(10));
    EXPECT_GE(std::chrono::steady_clock::now() - from, service::Strangers::kTurn);
    EXPECT_EQ(other.ended(), 0u);
    ASSERT_TRUE(door.awaitAccepted(kMost + 10));
    EXPECT_EQ(many.ended(), 10u);
}

TEST(ServerSocketsTest, AConnectionComesToGrpcWithItsFirstByte) {
    service::Strangers strangers([](auto&, auto&) {}, kForever);
    service::ServerSockets sockets(strangers, kForever);
    const auto address = sockets.listenTcp("127.0.0.1:0");
    ASSERT_TRUE(address.ok()) << address.status();
    std::atomic<int> accepted = 0;
    sockets.start([&](int fd, bool) {
        ++accepted;
        ::close(fd);
    });
    SilentCallers silent(*address, service::ServerSockets::kMostWaiting + 10);
    EXPECT_TRUE(silent.closed(10)) << "those that came first give way";
    EXPECT_EQ(accepted, 0);
    silent.say("x");
    EXPECT_TRUE(silent.closed(service::ServerSockets::kMostWaiting + 10));
    EXPECT_EQ(accepted, static_cast<int>(service::ServerSockets::kMostWaiting));
}

TEST(ServerSocketsTest, AConnectionThatSaysNothingIsClosed) {
    service::Strangers strangers([](auto&, auto&) {}, kForever);
    service::ServerSockets sockets(strangers, std::chrono::milliseconds(50));
    const auto address = sockets.listenTcp("127.0.0.1:0");
    ASSERT_TRUE(address.ok()) << address.status();
    std::atomic<int> accepted = 0;
    sockets.start([&](int, bool) { ++accepted; });
    SilentCallers silent(*address, 3);
    EXPECT_TRUE(silent.closed(3));
    EXPECT_EQ(accepted, 0);
}

TEST(GateTest, SecretsCompareByContentAndLength) {
    EXPECT_TRUE(service::sameSecret("abc", "abc"));
    EXPECT_FALSE(service::sameSecret("abc", "abd"));
    EXPECT_FALSE(service::sameSecret("abcabc", "abc"));
    EXPECT_FALSE(service::sameSecret("", "abc"));
    EXPECT_FALSE(service::sameSecret("abc", ""));
}

TEST(GateTest, APortAloneMeansLoopback) {
    using Address = std::pair<std::string, std::string>;
    EXPECT_EQ(*service::tcpAddress("7400"), Address("127.0.0.1", "7400"));
    EXPECT_EQ(*service::tcpAddress("0.0.0.0:7400"), Address("0.0.0.0", "7400"));
    EXPECT_EQ(*service::tcpAddress("[::1]:7400"), Address("::1", "7400"));
    EXPECT_FALSE(service::tcpAddress("nonsense").ok());
    EXPECT_FALSE(service::tcpAddress("host:70000").ok());
}

}  // namespace
}  // namespace bulkhead::testing
