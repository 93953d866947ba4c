// SPDX-License-Identifier: Apache-2.0
// Connections over the network before gRPC has them: who is let in, how much of what is sent goes
// on.
#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#include <atomic>
#include <filesystem>

#include "backend/access/certificates.h"
#include "backend/common/unique_fd.h"
#include "backend/front/front.h"
#include "backend/front/server_sockets.h"
#include "tests/front/silent_callers.h"

namespace bulkhead::testing {
namespace {

using front::Allowance;
using front::Front;
using std::chrono::milliseconds;

/// Longer than anything takes on a busy machine; a test that waits so long has failed.
constexpr std::chrono::seconds kForever{30};
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum Type : char { kData, kHeaders, kReset = 3, kPing = 6 };

std::string frame(Type type, const std::string& payload) {
    std::string out;
    for (const int shift : {16, 8, 0}) out += static_cast<char>(payload.size() >> shift);
    out += static_cast<char>(type);
    return out + std::string(5, '\0') + payload;
}
std::string frames(Type type, const std::string& payload, int number) {
    std::string out;
    for (int i = 0; i < number; ++i) out += frame(type, payload);
    return out;
}

/// Waits until `reached` holds; false when it does not in time.
template <class Reached>
bool comesTrue(Reached reached, milliseconds atMost = kForever) {
    const auto until = std::chrono::steady_clock::now() + atMost;
    while (!reached() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(milliseconds(1));
    return reached();
}

/// A front on a port of this machine, and what gRPC would have: ends of connections, which it reads
/// on demand and lets go of when they are closed, if it `letsGo`.
struct Door {
    explicit Door(milliseconds time, bool letsGo = true)
        : front(
              nullptr,
              [this](auto&, const std::string& why) {
                  const MutexLock lock(mutex_);
                  said_.push_back(why);
              },
              [this, letsGo](UniqueFd fd) {
                  const MutexLock lock(mutex_);
                  open_.push_back(fd.get());
                  names_.push_back(nameOf(fd.get()));
                  if (letsGo)
                      readers_.emplace_back([end = std::move(fd)] {
                          pollfd ended{end.get(), POLLRDHUP, 0};
                          ::poll(&ended, 1, -1);
                      });
                  else
                      kept_.push_back(std::move(fd));
                  ++accepted;
              },
              time),
          sockets(front, kForever) {
        const auto listens = sockets.listenTcp("127.0.0.1:0");
        EXPECT_TRUE(listens.ok()) << listens.status();
        address = *listens;
        sockets.start([](UniqueFd) { ADD_FAILURE() << "nobody is local"; });
    }
    static std::string nameOf(int fd) {
        sockaddr_un at{};
        socklen_t size = sizeof at;
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size);
        return "unix-abstract:" +
               std::string(at.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
    }
    bool awaitAccepted(int number, milliseconds atMost = kForever) const {
        return comesTrue([&] { return accepted >= number; }, atMost);
    }
    bool awaitSaid(size_t number) const {
        return comesTrue([&] { return said().size() >= number; });
    }
    /// Tells why those were that were put out.
    std::vector<std::string> said() const {
        const MutexLock lock(mutex_);
        return said_;
    }
    std::string name(size_t i) const {
        const MutexLock lock(mutex_);
        return names_.at(i);
    }
    int end(size_t i) const {
        const MutexLock lock(mutex_);
        return open_.at(i);
    }
    /// Bytes that come to gRPC on a connection until nothing has come for a second, or until that
    /// many have come.
    size_t bytesOf(size_t i, size_t most = SIZE_MAX) const {
        std::array<char, 65536> piece;
        pollfd ready{end(i), POLLIN, 0};
        size_t all = 0;
        while (all < most && ::poll(&ready, 1, 1000) == 1) {
            const ssize_t n = ::recv(ready.fd, piece.data(), piece.size(), 0);
            if (n <= 0) break;
            all += static_cast<size_t>(n);
        }
        return all;
    }
    void letGoOf(size_t i) {
        const MutexLock lock(mutex_);
        kept_.at(i).reset();
    }
    void letGo() {
        const MutexLock lock(mutex_);
        kept_.clear();
    }

    std::atomic<int> accepted = 0;
    std::string address;
    mutable Mutex mutex_;
    std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
    std::vector<int> open_ ABSL_GUARDED_BY(mutex_);
    std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
    std::vector<UniqueFd> kept_ ABSL_GUARDED_BY(mutex_);
    std::vector<std::jthread> readers_ ABSL_GUARDED_BY(mutex_);
    Front front;
    front::ServerSockets sockets;  ///< declared last: its thread calls the others
};

using Kind = Allowance::Kind;

TEST(AllowanceTest, CallsComeBackWithTimeAndThoseThatAreOpenCount) {
    const Allowance::Time from{};
    Allowance allowance(
        {.calls = {3, 10}, .ofCalls = {1, 0}, .others = {}, .open = 2, .connections = 1}, from);
    const auto call = [&](milliseconds at) { return allowance.takeCall(false, from + at); };
    EXPECT_TRUE(call(milliseconds(0)));
    EXPECT_TRUE(call(milliseconds(0)));
    EXPECT_FALSE(call(milliseconds(0))) << "two are open";
    allowance.add(-1);
    EXPECT_TRUE(call(milliseconds(0)));
    allowance.add(-2);
    EXPECT_FALSE(call(milliseconds(0))) << "three a burst";
    EXPECT_TRUE(allowance.takeCall(true, from)) << "one of its own";
    EXPECT_FALSE(allowance.isWhole(from));
    EXPECT_TRUE(call(milliseconds(100)));
    EXPECT_FALSE(call(milliseconds(199)));
    EXPECT_TRUE(allowance.takeOfCall(from));
    EXPECT_FALSE(allowance.takeOfCall(from + std::chrono::seconds(9)));
}

TEST(AllowanceTest, CallsThatNeverBeginAreForgotten) {
    const Allowance::Time from{};
    Allowance allowance(
        {.calls = {100, 0}, .ofCalls = {}, .others = {}, .open = 1, .connections = 1}, from);
    EXPECT_TRUE(allowance.takeCall(false, from));
    EXPECT_FALSE(allowance.takeCall(false, from));
    EXPECT_TRUE(allowance.takeCall(false, from + milliseconds(100)));
}

TEST(AllowanceTest, EachConnectionHasFramesThatBelongToNoCallOfItsOwn) {
    const Allowance::Time now{};
    const Allowance::Limits some{{}, {}, {2, 0}, 0, 2};
    const auto allowance = std::make_shared<Allowance>(some, now);
    front::Share one(allowance, now);
    front::Share other(allowance, now);
    EXPECT_TRUE(one.take(Kind::kOther, now));
    EXPECT_TRUE(one.take(Kind::kOther, now));
    EXPECT_FALSE(one.take(Kind::kOther, now));
    EXPECT_TRUE(other.take(Kind::kOther, now));
}

TEST(AllowanceTest, CallsOfAConnectionThatIsGoneCountUntilTheyEnd) {
    const Allowance::Time now{};
    const Allowance::Limits two{{100, 0}, {0, 0}, {0, 0}, 2, 1};
    const auto allowance = std::make_shared<Allowance>(two, now);
    auto share = std::make_shared<front::Share>(std::make_shared<Allowance>(two, now));
    EXPECT_TRUE(share->take(Kind::kCall, now));
    EXPECT_TRUE(share->take(Kind::kCall, now));
    EXPECT_TRUE(share->moveTo(allowance));
    EXPECT_FALSE(allowance->addConnection()) << "one may be";
    EXPECT_FALSE(allowance->takeCall(false, now));
    auto begun = share->callBegins();
    share.reset();
    EXPECT_FALSE(allowance->takeCall(false, now));
    begun.reset();
    EXPECT_TRUE(allowance->takeCall(false, now)) << "the other one never began";
    EXPECT_TRUE(allowance->takeCall(false, now));
    EXPECT_FALSE(allowance->takeCall(false, now));
}

TEST(ConnectionTest, FramesOfNoCallThatWaitTooLongEndIt) {
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
    const UniqueFd client(pair[0]);
    UniqueFd grpc;
    const Allowance::Time from{std::chrono::hours(1)};
    const auto share =
        std::make_shared<front::Share>(std::make_shared<Allowance>(Front::kPrincipal, from), from);
    front::Connection connection(UniqueFd(pair[1]), nullptr, share,
                                 [&](auto&, UniqueFd theirs) { grpc = std::move(theirs); });
    const std::string pings = kPreface + frames(kPing, "12345678", 3000);
    ASSERT_EQ(::send(client.get(), pings.data(), pings.size(), 0),
              static_cast<ssize_t>(pings.size()));
    auto at = from;
    const auto pumpUntil = [&](Allowance::Time end) {
        for (; at < end && connection.fault().empty(); at += milliseconds(500)) connection.pump(at);
    };
    pumpUntil(from + front::Connection::kBacklog);
    EXPECT_EQ(connection.fault(), "");
    EXPECT_TRUE(connection.frameWaits());
    pumpUntil(from + 2 * front::Connection::kBacklog);
    EXPECT_THAT(connection.fault(), HasSubstr("more frames that belong to no call"));
    EXPECT_FALSE(connection.isOver());
    grpc.reset();
    connection.pump(at);
    EXPECT_TRUE(connection.isOver()) << "nothing keeps it";
}

TEST(FrontTest, OfOneWhoSignedInGrpcHasNoMoreCallsThanItCarriesOut) {
    Door door(kForever, false);
    SilentCallers hasty(door.address, 1);
    hasty.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    EXPECT_TRUE(door.front.signedIn(door.name(0), "eve").ok());
    const std::string call = frame(kHeaders, "four") + frame(kReset, "why?");
    std::string calls;
    for (int i = 0; i < 400; ++i) calls += call;
    hasty.say(calls);
    // Those that are forgotten come one by one.
    const auto atOnce = static_cast<size_t>(Front::kPrincipal.open);
    const size_t first = door.bytesOf(0, kPreface.size() + atOnce * call.size());
    EXPECT_LT(first, kPreface.size() + 2 * atOnce * call.size());
    const auto from = std::chrono::steady_clock::now();
    for (size_t i = 0; i < atOnce; ++i) door.front.callBegins(door.name(0)).reset();
    EXPECT_GE(door.bytesOf(0, atOnce * call.size()), atOnce * call.size());
    EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(4)) << "forgotten";
    EXPECT_EQ(hasty.ended(), 0u);
}

TEST(FrontTest, ConnectionsOfOnePrincipalShareWhatItMayDo) {
    Door door(kForever, false);
    SilentCallers hasty(door.address, 4);
    hasty.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(4));
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(door.front.signedIn(door.name(i), "eve").ok());
    SilentCallers other(door.address, 1);
    other.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(5));
    EXPECT_TRUE(door.front.signedIn(door.name(4), "adam").ok());
    const std::string call = frame(kHeaders, "four");
    const auto from = std::chrono::steady_clock::now();
    hasty.say(frames(kHeaders, "four", 400));
    other.say(call);
    EXPECT_EQ(door.bytesOf(4), kPreface.size() + call.size());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - from;
    size_t bytes = 0;
    for (size_t i = 0; i < 4; ++i) {
        int came = 0;
        ::ioctl(door.end(i), FIONREAD, &came);
        bytes += static_cast<size_t>(came) - kPreface.size();
    }
    EXPECT_LE(static_cast<double>(bytes) / static_cast<double>(call.size()),
              Front::kPrincipal.open + 4 + Allowance::kForgottenASecond * (seconds.count() + 1));
}

TEST(FrontTest, APrincipalHasSoManyConnectionsAndNoMore) {
    Door door(kForever);
    std::vector<std::unique_ptr<SilentCallers>> many;
    const auto next = [&] {
        many.push_back(std::make_unique<SilentCallers>(door.address, 1));
        many.back()->say(kPreface);
        const auto number = static_cast<int>(many.size());
        EXPECT_TRUE(door.awaitAccepted(number));
        return door.front.signedIn(door.name(many.size() - 1), "eve");
    };
    for (int i = 0; i < Front::kPrincipal.connections; ++i) EXPECT_TRUE(next().ok()) << i;
    const absl::Status refused = next();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("eve has 64 connections open"));
    EXPECT_TRUE(door.front.signedIn(door.name(many.size() - 1), "adam").ok());
    many.front().reset();
    bool in = false;
    EXPECT_TRUE(comesTrue([&] { return in || (in = next().ok()); }));
}

TEST(FrontTest, OfAStrangerGrpcHasAFewCallsHoweverManyCome) {
    Door door(kForever, false);
    SilentCallers loud(door.address, 1);
    loud.say(kPreface + frames(kHeaders, "four", 400));
    ASSERT_TRUE(door.awaitAccepted(1));
    EXPECT_EQ(door.bytesOf(0), kPreface.size() + 8 * frame(kHeaders, "four").size());
    EXPECT_EQ(loud.ended(), 0u) << "it may sign in yet";
    EXPECT_TRUE(door.front.signedIn(door.name(0), "eve").ok());
    const size_t fifty = 50 * frame(kHeaders, "four").size();
    EXPECT_GE(door.bytesOf(0, fifty), fifty);
}

TEST(FrontTest, WhoseCallsAreAllRefusedIsPutOutWithTheNext) {
    Door door(kForever);
    SilentCallers wrong(door.address, 1);
    wrong.say(kPreface + frames(kHeaders, "four", 8));
    ASSERT_TRUE(door.awaitAccepted(1));
    for (int i = 0; i < 8; ++i) door.front.refused(door.name(0));
    EXPECT_EQ(wrong.ended(), 0u);
    wrong.say(frame(kHeaders, "five"));
    EXPECT_TRUE(wrong.closed(1));
    EXPECT_THAT(door.said(), ElementsAre("All its calls were refused."));
}

TEST(FrontTest, WhoeverSendsMuchAndDoesNotSignInIsPutOut) {
    Door door(kForever);
    SilentCallers quiet(door.address, 1);
    SilentCallers loud(door.address, 1);
    quiet.say(kPreface);
    loud.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(2));
    loud.say(frames(kHeaders, "four", 8) + frames(kPing, "12345678", 20));
    EXPECT_TRUE(loud.closed(1));
    EXPECT_EQ(quiet.ended(), 0u);
    EXPECT_THAT(door.said(), ElementsAre(HasSubstr("Nobody had signed in when it had sent")));
}

TEST(FrontTest, OneStrangerAtATimeHasMoreThanTheFirstBytes) {
    Door door(kForever, false);
    SilentCallers first(door.address, 1);
    SilentCallers second(door.address, 1);
    first.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    second.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(2));
    const std::string large = frame(kData, std::string(4 * Front::kFirstBytes, 'x'));
    first.say(large);
    EXPECT_EQ(door.bytesOf(0), kPreface.size() + large.size());
    second.say(large);
    const size_t atFirst = door.bytesOf(1);
    EXPECT_GE(atFirst, Front::kFirstBytes);
    EXPECT_LT(atFirst, 2 * Front::kFirstBytes);
    EXPECT_TRUE(first.closed(1)) << "it gives way";
    door.letGoOf(0);
    EXPECT_EQ(atFirst + door.bytesOf(1), kPreface.size() + large.size());
}

TEST(FrontTest, WhoDoesNotSpeakHttp2NeverComesToGrpc) {
    Door door(kForever);
    SilentCallers other(door.address, 1);
    other.say("GET / HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(other.closed(1));
    EXPECT_EQ(door.accepted, 0);
    EXPECT_THAT(door.said(), ElementsAre("It does not speak HTTP/2."));
}

TEST(FrontTest, WhatGrpcSaysComesWholeAlsoWhenItCloses) {
    Door door(kForever, false);
    SilentCallers caller(door.address, 1);
    caller.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    EXPECT_TRUE(door.front.signedIn(door.name(0), "eve").ok());
    std::string said(3 << 20, '\0');
    for (size_t i = 0; i < said.size(); ++i) said[i] = static_cast<char>(i * 31 >> 3);
    std::jthread grpc([&] {
        for (size_t sent = 0; sent < said.size();) {
            pollfd room{door.end(0), POLLOUT, 0};
            ::poll(&room, 1, -1);
            const ssize_t n = ::send(door.end(0), said.data() + sent, said.size() - sent, 0);
            if (n > 0) sent += static_cast<size_t>(n);
        }
        door.letGo();
    });
    EXPECT_TRUE(caller.hears() == said);
    EXPECT_TRUE(caller.closed(1));
}

TEST(FrontTest, WhoeverTakesNothingIsNotReadForMemory) {
    Door door(kForever, false);
    auto caller = std::make_unique<SilentCallers>(door.address, 1);
    caller->say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    EXPECT_TRUE(door.front.signedIn(door.name(0), "eve").ok());
    const std::string piece(1 << 16, 'x');
    size_t taken = 0;
    for (pollfd room{door.end(0), POLLOUT, 0}; ::poll(&room, 1, 1000) == 1;)
        taken += static_cast<size_t>(
            std::max<ssize_t>(::send(door.end(0), piece.data(), piece.size(), MSG_DONTWAIT), 0));
    // Three buffers of the kernel, and one here.
    EXPECT_LT(taken, size_t{16} << 20);
    EXPECT_EQ(caller->ended(), 0u);
    // Nothing that was not sent keeps a connection.
    caller.reset();
    door.letGo();
    const auto from = std::chrono::steady_clock::now();
    EXPECT_TRUE(comesTrue([&] { return door.front.find(door.name(0)) == nullptr; }));
    EXPECT_LT(std::chrono::steady_clock::now() - from, front::Connection::kLeaves / 2);
}

TEST(FrontTest, OneThatIsOverHasItsPlaceUntilGrpcLetsGoOfIt) {
    Door door(kForever, false);
    constexpr int kMost = static_cast<int>(Front::kMost);
    {
        SilentCallers many(door.address, kMost);
        many.say(kPreface);
        ASSERT_TRUE(door.awaitAccepted(kMost));
    }
    SilentCallers next(door.address, 1);
    next.say(kPreface);
    EXPECT_FALSE(door.awaitAccepted(kMost + 1, 2 * Front::kTurn));
    door.letGo();
    EXPECT_TRUE(door.awaitAccepted(kMost + 1));
}

TEST(FrontTest, AHostWaitsWhenOneOfItIsPutOutForWhatItSent) {
    Door door(kForever);
    SilentCallers loud(door.address, 1);
    loud.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    SilentCallers same(door.address, 2);
    SilentCallers other(door.address, 1, "127.0.0.2");
    const auto from = std::chrono::steady_clock::now();
    loud.say(frames(kPing, "12345678", 20));
    ASSERT_TRUE(door.awaitSaid(1));
    other.say(kPreface);
    same.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(4));
    EXPECT_GE(std::chrono::steady_clock::now() - from, 2 * front::HostTurns::kShortest);
}

TEST(FrontTest, OfWhoeverSignedInTheRestComesToo) {
    Door door(kForever, false);
    SilentCallers known(door.address, 1);
    known.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    EXPECT_TRUE(door.front.signedIn(door.name(0), "eve").ok());
    const std::string much = frame(kData, std::string(1 << 20, 'x'));
    std::jthread rest([&] { known.say(much); });
    EXPECT_EQ(door.bytesOf(0), kPreface.size() + much.size());
}

TEST(FrontTest, WhoeverSignedInStaysAndOthersAreOutInTime) {
    Door door(std::chrono::seconds(2));
    SilentCallers known(door.address, 1);
    known.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    EXPECT_TRUE(door.front.signedIn(door.name(0), "eve").ok());
    known.say(frame(kData, std::string(Front::kFirstBytes + 1, 'x')));
    SilentCallers slow(door.address, 3);
    slow.say(kPreface);
    EXPECT_TRUE(slow.closed(3));
    EXPECT_EQ(known.ended(), 0u);
    EXPECT_THAT(door.said(), ::testing::Each("Nobody had signed in after 2000 ms."));
}

TEST(FrontTest, ManyOfOneHostGiveWayToEachOtherAndTheirTurnIsNotCutShort) {
    Door door(kForever);
    SilentCallers other(door.address, 1, "127.0.0.2");
    other.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(1));
    constexpr int kMost = static_cast<int>(Front::kMost);
    const auto from = std::chrono::steady_clock::now();
    SilentCallers many(door.address, kMost + 9);
    many.say(kPreface);
    ASSERT_TRUE(door.awaitAccepted(kMost));
    EXPECT_TRUE(many.closed(10));
    EXPECT_GE(std::chrono::steady_clock::now() - from, Front::kTurn);
    EXPECT_EQ(other.ended(), 0u);
    ASSERT_TRUE(door.awaitAccepted(kMost + 10));
    EXPECT_EQ(many.ended(), 10u);
}

/// Two ends of TLS without sockets.
class SessionTest : public ::testing::Test {
  protected:
    SessionTest() : dir_(::testing::TempDir() + "bulkhead-tls-XXXXXX") {
        ::mkdtemp(dir_.data());
        const int64_t now = clock_.unixNs() / kSecond;
        const auto authority = access::Authority::init(dir_ + "/ca", "ours", now);
        EXPECT_TRUE(authority.ok()) << authority.status();
        const auto issued = authority->issue("daemon", {"localhost"}, 1, now, dir_ + "/daemon");
        EXPECT_TRUE(issued.ok()) << issued.status();
        tls_ = *front::ServerTls::open(dir_ + "/daemon", clock_);
        context_.reset(::SSL_CTX_new(::TLS_client_method()));
        ::SSL_CTX_set_alpn_protos(context_.get(), reinterpret_cast<const uint8_t*>("\x02h2"), 3);
        client_.reset(::SSL_new(context_.get()));
        ::SSL_set_bio(client_.get(), ::BIO_new(::BIO_s_mem()), ::BIO_new(::BIO_s_mem()));
        ::SSL_set_connect_state(client_.get());
        server_ = std::make_unique<front::ServerTlsSession>(tls_->now());
    }
    ~SessionTest() override { std::filesystem::remove_all(dir_); }

    std::string ofClient() const {
        BIO* out = ::SSL_get_wbio(client_.get());
        std::string bytes(BIO_ctrl_pending(out), '\0');
        if (!bytes.empty()) ::BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
        return bytes;
    }
    /// Passes the client's pending bytes to the server, and the server's answer back.
    absl::Status serverHears(std::string& plain) {
        const absl::Status status = server_->receive(ofClient(), plain);
        const std::string back = server_->takeOutput();
        ::BIO_write(::SSL_get_rbio(client_.get()), back.data(), static_cast<int>(back.size()));
        return status;
    }
    void shakeHands() {
        std::string plain;
        for (int i = 0; i < 4 && !server_->established(); ++i) {
            ::SSL_do_handshake(client_.get());
            const absl::Status status = serverHears(plain);
            ASSERT_TRUE(status.ok()) << status;
        }
        ASSERT_TRUE(server_->established());
    }

    SystemClock clock_;
    std::string dir_;
    std::unique_ptr<front::ServerTls> tls_;
    std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, &::SSL_CTX_free};
    std::unique_ptr<SSL, void (*)(SSL*)> client_{nullptr, &::SSL_free};
    std::unique_ptr<front::ServerTlsSession> server_;
};

TEST_F(SessionTest, WhatIsSentComesAndAnEndIsSaid) {
    shakeHands();
    std::string plain;
    ::SSL_write(client_.get(), "hello", 5);
    EXPECT_TRUE(serverHears(plain).ok());
    EXPECT_EQ(plain, "hello");
    EXPECT_EQ(server_->certificate(), "");
    ::SSL_shutdown(client_.get());
    EXPECT_TRUE(absl::IsUnavailable(serverHears(plain)));
}

TEST_F(SessionTest, WhoAsksForNewKeysWithoutEndIsPutOut) {
    shakeHands();
    std::string plain;
    absl::Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) {
        ASSERT_EQ(::SSL_key_update(client_.get(), SSL_KEY_UPDATE_REQUESTED), 1);
        ::SSL_write(client_.get(), "x", 1);
        status = serverHears(plain);
        char byte = 0;
        ::SSL_read(client_.get(), &byte, 1);
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("asked for new keys"));
    EXPECT_GT(plain.size(), 10u) << "some are granted";
}

TEST_F(SessionTest, BytesThatWereChangedOnTheWayEndIt) {
    shakeHands();
    std::string plain;
    ::SSL_write(client_.get(), "hello", 5);
    std::string wire = ofClient();
    wire.back() = static_cast<char>(wire.back() ^ 1);
    EXPECT_TRUE(absl::IsInvalidArgument(server_->receive(wire, plain)));
    EXPECT_EQ(plain, "");
}

using Turns = front::HostTurns;

front::Host hostAt(const char* text) {
    sockaddr_storage at{};
    auto& v4 = reinterpret_cast<sockaddr_in&>(at);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(at);
    const bool isV6 = ::inet_pton(AF_INET6, text, &v6.sin6_addr) == 1;
    at.ss_family = isV6 ? AF_INET6 : AF_INET;
    if (!isV6) ::inet_pton(AF_INET, text, &v4.sin_addr);
    return front::hostOf(at);
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
    for (front::Host host = 0; host <= Turns::kMost; ++host)
        turns.offended(host, now + std::chrono::microseconds(host));
    EXPECT_LE(turns.next(0), now);
    EXPECT_GT(turns.next(1), now);
    EXPECT_GT(turns.next(Turns::kMost), now);
}

TEST(HostTurnsTest, WhereSomebodySignedInIsRememberedLongerThanOffences) {
    Turns turns;
    const Turns::Time now{std::chrono::hours(1)};
    turns.signedIn(7, now);
    for (front::Host host = 1000; host < 1000 + 2 * Turns::kMost; ++host)
        turns.offended(host, now + std::chrono::microseconds(host));
    for (const int time : {1, 2}) {
        turns.offended(7, now + std::chrono::seconds(time));
        turns.came(7, now + std::chrono::seconds(time));
    }
    EXPECT_EQ(turns.next(7), now + std::chrono::seconds(2) + Turns::kShortest);
}

TEST(ServerSocketsTest, AConnectionComesInWithItsFirstByte) {
    std::atomic<int> accepted = 0;
    Front front(
        nullptr, [](auto&, auto&) {}, [&](UniqueFd) { ++accepted; }, kForever);
    front::ServerSockets sockets(front, kForever);
    const auto address = sockets.listenTcp("127.0.0.1:0");
    ASSERT_TRUE(address.ok()) << address.status();
    sockets.start([](UniqueFd) {});
    SilentCallers silent(*address, front::ServerSockets::kMostWaiting + 10);
    EXPECT_TRUE(silent.closed(10)) << "those that came first give way";
    EXPECT_EQ(accepted, 0);
    silent.say(kPreface);
    EXPECT_TRUE(silent.closed(front::ServerSockets::kMostWaiting + 10));
    EXPECT_EQ(accepted, static_cast<int>(front::ServerSockets::kMostWaiting));
}

TEST(ServerSocketsTest, AConnectionThatSaysNothingIsClosed) {
    std::atomic<int> accepted = 0;
    Front front(
        nullptr, [](auto&, auto&) {}, [&](UniqueFd) { ++accepted; }, kForever);
    front::ServerSockets sockets(front, milliseconds(50));
    const auto address = sockets.listenTcp("127.0.0.1:0");
    ASSERT_TRUE(address.ok()) << address.status();
    sockets.start([](UniqueFd) {});
    SilentCallers silent(*address, 3);
    EXPECT_TRUE(silent.closed(3));
    EXPECT_EQ(accepted, 0);
}

TEST(ServerSocketsTest, APortAloneMeansLoopback) {
    using Address = std::pair<std::string, std::string>;
    EXPECT_EQ(*front::tcpAddress("7400"), Address("127.0.0.1", "7400"));
    EXPECT_EQ(*front::tcpAddress("0.0.0.0:7400"), Address("0.0.0.0", "7400"));
    EXPECT_EQ(*front::tcpAddress("[::1]:7400"), Address("::1", "7400"));
    EXPECT_FALSE(front::tcpAddress("nonsense").ok());
    EXPECT_FALSE(front::tcpAddress("host:70000").ok());
}

}  // namespace
}  // namespace bulkhead::testing
