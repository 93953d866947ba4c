// SPDX-License-Identifier: Apache-2.0
#include "backend/front/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::front {
namespace {

/// So much is read of the network at a time: it bounds what others wait for meanwhile.
constexpr size_t kPieceIn = size_t{16} << 10;
constexpr size_t kPieceOut = size_t{64} << 10;

/// RFC 9113: what a client says first, and how a frame begins: three bytes of its length, one of
/// its type, flags, stream.
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeader = 9;
enum FrameType : uint8_t { kData, kHeaders, kReset = 3, kWindowUpdate = 8, kContinuation };

Allowance::Kind kindOf(uint8_t type) {
    if (type == kHeaders) return Allowance::Kind::kCall;
    const bool ofCall =
        type == kData || type == kReset || type == kWindowUpdate || type == kContinuation;
    return ofCall ? Allowance::Kind::kOfCall : Allowance::Kind::kOther;
}

bool wouldBlock(ssize_t result) {
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

/// An IPv4 address that IPv6 carries is one of IPv4.
std::string nameOf(const sockaddr_storage& at) {
    char text[INET6_ADDRSTRLEN] = "";
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(at);
    if (at.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
        ::inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof text);
        return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(in6.sin6_port));
    }
    const auto& in4 = reinterpret_cast<const sockaddr_in&>(at);
    const void* v4 = at.ss_family == AF_INET6 ? static_cast<const void*>(in6.sin6_addr.s6_addr + 12)
                                              : &in4.sin_addr;
    ::inet_ntop(AF_INET, v4, text, sizeof text);
    // The port has the same place in both.
    return absl::StrCat("ipv4:", text, ":", ntohs(in4.sin_port));
}

/// A name that nobody can guess and that is not used again.
std::string freshName() {
    std::array<char, 16> random{};
    if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
        return {};
    return absl::StrCat("bulkhead-", absl::BytesToHexString({random.data(), random.size()}));
}

struct AbstractAddress {
    sockaddr_un at{};
    socklen_t size = 0;
};
AbstractAddress abstractAddress(const std::string& name) {
    AbstractAddress out;
    out.at.sun_family = AF_UNIX;
    name.copy(out.at.sun_path + 1, sizeof out.at.sun_path - 1);
    out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return out;
}

}  // namespace

Peer peerOf(int fd) {
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    ::getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size);
    return {nameOf(at), hostOf(at)};
}

Connection::Connection(UniqueFd socket, const std::shared_ptr<ssl_ctx_st>& tls,
                       std::shared_ptr<Share> share, ToGrpc toGrpc)
    : socket_(std::move(socket)), share_(std::move(share)), toGrpc_(std::move(toGrpc)) {
    if (tls != nullptr) tls_ = std::make_unique<ServerTlsSession>(tls);
}

/// Nothing comes of the network while there is something to write to either side.
bool Connection::mayRead() const {
    if (!socket_.valid()) return false;
    if (closing_) return !grpc_.valid();  // for its end
    return !paused_ && !grpcIsFull_ && out_.empty() && !wantsMore();
}

Connection::Waits Connection::waits() const {
    const auto events = [](bool in, bool out) {
        return static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0));
    };
    Waits all;
    all.socket = socket_.get();
    all.socketFor = events(mayRead(), !out_.empty());
    // Its end is told again and again, and has to wait until what it said before was sent.
    all.grpc = grpcEnds_ && !out_.empty() ? -1 : grpc_.get();
    all.grpcFor = events(out_.empty() || !socket_.valid(), grpcIsFull_);
    return all;
}

void Connection::pump(Time now) {
    const Waits at = waits();
    std::array<pollfd, 2> ready = {{{at.socket, at.socketFor, 0}, {at.grpc, at.grpcFor, 0}}};
    ::poll(ready.data(), ready.size(), 0);
    const auto happened = [&](size_t i, int what) { return (ready[i].revents & what) != 0; };
    if (happened(0, POLLERR | POLLHUP | POLLNVAL)) return cut(now);
    if (happened(1, POLLHUP | POLLERR)) {
        grpcEnds_ = true;
        if (!closing_) closing_ = now + kLinger;
    }
    if (happened(0, POLLIN)) readSocket(now);
    writeGrpc(now);
    if (frameWaits()) {
        if (now - waited_ > kPause) backlogSince_ = now;
        waited_ = now;
        if (now - backlogSince_ > kBacklog)
            return fail("It sends more frames that belong to no call than it may.", now);
    }
    if (happened(1, POLLIN | POLLHUP | POLLERR)) readGrpc(now);
    writeSocket(now);
    if (!closing_ || now < *closing_) return;
    socket_.reset();
    grpc_.reset();
}

void Connection::readSocket(Time now) {
    std::array<char, kPieceIn> wire;
    const ssize_t n = ::recv(socket_.get(), wire.data(), wire.size(), MSG_DONTWAIT);
    if (wouldBlock(n)) return;
    if (n <= 0) return cut(now);
    if (closing_) return;
    received_ += static_cast<uint64_t>(n);
    const std::string_view came(wire.data(), static_cast<size_t>(n));
    if (tls_ == nullptr) {
        in_ += came;
    } else {
        const absl::Status status = tls_->receive(came, in_);
        out_ += tls_->takeOutput();
        if (absl::IsUnavailable(status)) return cut(now);
        if (!status.ok()) return fail(std::string(status.message()), now);
    }
    if (toGrpc_ != nullptr) beginHttp2(now);
}

void Connection::beginHttp2(Time now) {
    const size_t known = std::min(in_.size(), kPreface.size());
    if (in_.compare(0, known, kPreface, 0, known) != 0)
        return fail("It does not speak HTTP/2.", now);
    if (known < kPreface.size()) return;
    passed_ = known;
    if (tls_ != nullptr) certificate_ = tls_->certificate();
    if (!makePair()) fail("This process has no descriptors left for it.", now);
}

/// gRPC tells its connections apart by the name of the other end, and over a Unix socket nobody but
/// its owner has none: without the name there is no connection.
bool Connection::makePair() {
    std::array<int, 2> pair{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0)
        return false;
    UniqueFd ours(pair[0]);
    UniqueFd theirs(pair[1]);
    const std::string name = freshName();
    const AbstractAddress address = abstractAddress(name);
    AbstractAddress seen{.at = {}, .size = sizeof(sockaddr_un)};
    const bool named =
        !name.empty() &&
        ::bind(ours.get(), reinterpret_cast<const sockaddr*>(&address.at), address.size) == 0 &&
        ::getpeername(theirs.get(), reinterpret_cast<sockaddr*>(&seen.at), &seen.size) == 0 &&
        seen.size == address.size && std::memcmp(&seen.at, &address.at, seen.size) == 0;
    if (!named) return false;
    grpcName_ = "unix-abstract:" + name;
    grpc_ = std::move(ours);
    std::exchange(toGrpc_, nullptr)(*this, std::move(theirs));
    return true;
}

/// Lets pass the frames of `in_` that have come so far and are allowed, whole or in part.
void Connection::passFrames(Time now) {
    paused_ = false;
    while (true) {
        const size_t more = std::min(ofFrame_, in_.size() - passed_);
        passed_ += more;
        ofFrame_ -= more;
        if (ofFrame_ > 0 || in_.size() - passed_ < kFrameHeader) return;
        const auto byte = [&](size_t i) { return static_cast<uint8_t>(in_[passed_ + i]); };
        const Allowance::Kind kind = kindOf(byte(3));
        paused_ = !share_->take(kind, now);
        callWaits_ = kind == Allowance::Kind::kCall;
        if (paused_) return;
        ofFrame_ = kFrameHeader + (size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2));
    }
}

void Connection::writeGrpc(Time now) {
    if (!grpc_.valid() || grpcEnds_ || !socket_.valid()) return;
    passFrames(now);
    if (passed_ == 0) return;
    const ssize_t n = ::send(grpc_.get(), in_.data(), passed_, MSG_NOSIGNAL | MSG_DONTWAIT);
    grpcIsFull_ = wouldBlock(n);
    if (n <= 0) return;  // it has closed, which poll() tells
    in_.erase(0, static_cast<size_t>(n));
    passed_ -= static_cast<size_t>(n);
    grpcIsFull_ = passed_ > 0;
}

void Connection::readGrpc(Time now) {
    if (!grpc_.valid() || (socket_.valid() && !out_.empty())) return;
    std::array<char, kPieceOut> said;
    const ssize_t n = ::recv(grpc_.get(), said.data(), said.size(), MSG_DONTWAIT);
    if (wouldBlock(n)) return;
    if (n <= 0) return grpcIsGone(now);
    if (!socket_.valid()) return;
    const std::string_view piece(said.data(), static_cast<size_t>(n));
    if (tls_ == nullptr) {
        out_ = piece;
    } else if (tls_->send(piece).ok()) {
        out_ = tls_->takeOutput();
    } else {
        cut(now);
    }
}

void Connection::writeSocket(Time now) {
    if (!socket_.valid() || out_.empty()) return;
    const ssize_t n = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wouldBlock(n)) return;
    if (n < 0) return cut(now);
    out_.erase(0, static_cast<size_t>(n));
    if (!closing_) return;
    closing_ = now + kLinger;
    if (out_.empty() && !grpc_.valid()) ::shutdown(socket_.get(), SHUT_WR);
}

void Connection::grpcIsGone(Time now) {
    grpc_.reset();
    if (!socket_.valid()) return;
    closing_ = now + kLinger;
    if (tls_ != nullptr) {
        tls_->end();
        out_ += tls_->takeOutput();
    }
    if (out_.empty()) ::shutdown(socket_.get(), SHUT_WR);
}

/// The other end hears why, if it takes that at once.
void Connection::fail(std::string why, Time now) {
    fault_ = std::move(why);
    ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    cut(now);
}

void Connection::cut(Time now) {
    socket_.reset();
    out_.clear();
    paused_ = false;
    if (!grpc_.valid()) return;
    ::shutdown(grpc_.get(), SHUT_WR);
    closing_ = now + kLeaves;
}

}  // namespace bulkhead::front
