// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kMostAtATime = 8;

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
    SocketListener(UniqueFd listener, std::string address, KeyOf keyOf)
        : listener_(std::move(listener)), address_(std::move(address)), keyOf_(std::move(keyOf)) {}
    std::string address() const override { return address_; }
    absl::StatusOr<std::unique_ptr<StateStream>> accept() override {
        for (;;) {
            UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (!fd.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
            if (!fd.valid()) return failed("accept", errno);
            tune(fd.get());
            return std::make_unique<StateSocket>(std::move(fd), keyOf_);
        }
    }
    void shutdown() override { ::shutdown(listener_.get(), SHUT_RDWR); }

  private:
    const UniqueFd listener_;
    const std::string address_;
    const KeyOf keyOf_;
};

class StateSockets final : public StateNetwork {
  public:
    /// A quarter of the processors, since others have work for them: training on the same node.
    uint32_t connections() const override {
        return std::clamp(std::thread::hardware_concurrency() / 4, 1u, kMostAtATime);
    }
    absl::StatusOr<std::unique_ptr<StateStream>> connect(const std::string& address,
                                                         const Credential& credential,
                                                         uint32_t timeoutMs) override {
        absl::StatusOr<sockaddr_in> to = parse(address);
        if (!to.ok()) return to.status();
        UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int fd = socket.get();
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
        auto stream = std::make_unique<StateSocket>(std::move(socket), credential);
        stream->setTimeout(timeoutMs);
        return stream;
    }

    absl::StatusOr<std::unique_ptr<StateListener>> listen(const std::string& host,
                                                          KeyOf keyOf) override {
        sockaddr_in at{};
        at.sin_family = AF_INET;
        if (inet_pton(AF_INET, host.c_str(), &at.sin_addr) != 1)
            return absl::InvalidArgumentError(absl::StrCat("\"", host, "\" is no IPv4 address"));
        UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        socklen_t size = sizeof(at);
        if (!listener.valid() ||
            ::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0 ||
            ::listen(listener.get(), 64) != 0 ||
            ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
            return absl::UnavailableError(
                absl::StrCat("cannot serve state on ", host, ": ", std::strerror(errno)));
        std::string address = absl::StrCat(host, ":", ntohs(at.sin_port));
        return std::make_unique<SocketListener>(std::move(listener), std::move(address),
                                                std::move(keyOf));
    }
};

}  // namespace

StateNetwork& stateSockets() {
    static StateSockets sockets;
    return sockets;
}

void StateSocket::setTimeout(uint32_t timeoutMs) {
    timeval limit{};
    limit.tv_sec = timeoutMs / 1000;
    limit.tv_usec = static_cast<suseconds_t>(timeoutMs % 1000) * 1000;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void StateSocket::shutdown() {
    ::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace bulkhead::runtime
