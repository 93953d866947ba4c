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

}  // namespace

StateSocket::~StateSocket() {
    if (fd_ >= 0) ::close(fd_);
}

StateSocket::StateSocket(StateSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

StateSocket& StateSocket::operator=(StateSocket&& other) noexcept {
    if (this != &other) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
}

absl::StatusOr<StateSocket> StateSocket::connect(const std::string& address, uint32_t timeoutMs) {
    absl::StatusOr<sockaddr_in> to = parse(address);
    if (!to.ok()) return to.status();
    StateSocket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.open()) return failed("socket", errno);
    const auto refuse = [&](int error) {
        return absl::UnavailableError(
            absl::StrCat("state server ", address, ": ", std::strerror(error)));
    };
    if (::connect(socket.fd_, reinterpret_cast<sockaddr*>(&*to), sizeof(*to)) != 0) {
        if (errno != EINPROGRESS) return refuse(errno);
        pollfd ready{socket.fd_, POLLOUT, 0};
        if (::poll(&ready, 1, static_cast<int>(timeoutMs)) != 1) return refuse(ETIMEDOUT);
        int error = 0;
        socklen_t size = sizeof(error);
        ::getsockopt(socket.fd_, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) return refuse(error);
    }
    ::fcntl(socket.fd_, F_SETFL, ::fcntl(socket.fd_, F_GETFL) & ~O_NONBLOCK);
    const int one = 1;
    ::setsockopt(socket.fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    socket.setTimeout(timeoutMs);
    return socket;
}

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
