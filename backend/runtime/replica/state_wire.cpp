// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

absl::StatusOr<sockaddr_in> parse(const std::string& address) {
    const size_t colon = address.rfind(':');
    sockaddr_in out{};
    out.sin_family = AF_INET;
    uint32_t port = 0;
    if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
        port > 65535 || inet_pton(AF_INET, address.substr(0, colon).c_str(), &out.sin_addr) != 1)
        return absl::InvalidArgumentError(
            absl::StrCat("\"", address, "\" is no address of a state server; expected ip:port"));
    out.sin_port = htons(static_cast<uint16_t>(port));
    return out;
}

absl::Status failed(const char* what, int error) {
    if (error == EAGAIN || error == EWOULDBLOCK)
        return absl::DeadlineExceededError(absl::StrCat(what, ": no progress in time"));
    return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

/// TCP_NODELAY: requests are small and waited for.
void tune(int fd) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

class SocketListener final : public StateListener {
  public:
    SocketListener(StateSocket listener, std::string address)
        : listener_(std::move(listener)), address_(std::move(address)) {}
    std::string address() const override { return address_; }
    absl::StatusOr<std::unique_ptr<StateStream>> accept() override {
        for (;;) {
            const int fd = ::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
            if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
            if (fd < 0) return failed("accept", errno);
            auto socket = std::make_unique<StateSocket>(fd);
            tune(fd);
            return socket;
        }
    }
    void shutdown() override { listener_.shutdown(); }

  private:
    StateSocket listener_;
    const std::string address_;
};

class StateSockets final : public StateNetwork {
  public:
    absl::StatusOr<std::unique_ptr<StateStream>> connect(const std::string& address,
                                                         uint32_t timeoutMs) override {
        absl::StatusOr<sockaddr_in> to = parse(address);
        if (!to.ok()) return to.status();
        auto socket = std::make_unique<StateSocket>(
            ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int fd = socket->fd();
        if (fd < 0) return failed("socket", errno);
        const auto refuse = [&](int error) {
            return absl::UnavailableError(
                absl::StrCat("state server ", address, ": ", std::strerror(error)));
        };
        if (::connect(fd, reinterpret_cast<sockaddr*>(&*to), sizeof(*to)) != 0) {
            if (errno != EINPROGRESS) return refuse(errno);
            pollfd ready{fd, POLLOUT, 0};
            if (::poll(&ready, 1, static_cast<int>(timeoutMs)) != 1) return refuse(ETIMEDOUT);
            int error = 0;
            socklen_t size = sizeof(error);
            ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error != 0) return refuse(error);
        }
        ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        tune(fd);
        socket->setTimeout(timeoutMs);
        return socket;
    }

    absl::StatusOr<std::unique_ptr<StateListener>> listen(const std::string& host) override {
        sockaddr_in at{};
        at.sin_family = AF_INET;
        if (inet_pton(AF_INET, host.c_str(), &at.sin_addr) != 1)
            return absl::InvalidArgumentError(absl::StrCat("\"", host, "\" is no IPv4 address"));
        StateSocket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        socklen_t size = sizeof(at);
        if (!listener.open() ||
            ::bind(listener.fd(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0 ||
            ::listen(listener.fd(), 64) != 0 ||
            ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
            return absl::UnavailableError(
                absl::StrCat("cannot serve state on ", host, ": ", std::strerror(errno)));
        std::string address = absl::StrCat(host, ":", ntohs(at.sin_port));
        return std::make_unique<SocketListener>(std::move(listener), std::move(address));
    }
};

}  // namespace

StateNetwork& stateSockets() {
    static StateSockets sockets;
    return sockets;
}

StateSocket::~StateSocket() {
    if (fd_ >= 0) ::close(fd_);
}

StateSocket::StateSocket(StateSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

void StateSocket::setTimeout(uint32_t timeoutMs) {
    timeval limit{};
    limit.tv_sec = timeoutMs / 1000;
    limit.tv_usec = static_cast<suseconds_t>(timeoutMs % 1000) * 1000;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

absl::Status StateSocket::sendAll(const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t n = ::send(fd_, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return failed("send", errno);
        at += n;
        bytes -= static_cast<size_t>(n);
    }
    return absl::OkStatus();
}

absl::Status StateSocket::receiveAll(void* data, size_t bytes) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t n = ::recv(fd_, at, bytes, 0);
        if (n == 0) return absl::UnavailableError("closed by the peer");
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed("receive", errno);
        at += n;
        bytes -= static_cast<size_t>(n);
    }
    return absl::OkStatus();
}

void StateSocket::shutdown() {
    if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

}  // namespace bulkhead::runtime
