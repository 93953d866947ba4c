// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bulkhead::runtime {
namespace {

constexpr std::string_view kUnix = "unix:";

absl::Status malformed(const std::string& text, const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", text, "\": ", why, "; use ip:port, [ipv6]:port or unix:/path"));
}

absl::Status refused(const std::string& address, const char* what, int error) {
    return absl::UnavailableError(absl::StrCat(what, " ", address, ": ", std::strerror(error)));
}

absl::StatusOr<SocketAddress> parseIp(const std::string& text, std::string ip, uint32_t port) {
    SocketAddress out;
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
    if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(static_cast<uint16_t>(port));
        out.length = sizeof *v4;
        return out;
    }
    if (ip.size() > 2 && ip.front() == '[' && ip.back() == ']') ip = ip.substr(1, ip.size() - 2);
    if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(static_cast<uint16_t>(port));
        out.length = sizeof *v6;
        return out;
    }
    return malformed(text, absl::StrCat("\"", ip, "\" is not an IP address"));
}

absl::StatusOr<UniqueFd> openStream(const SocketAddress& to, const std::string& address) {
    UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return refused(address, "cannot open a socket for", errno);
    return fd;
}

/// A socket file left by a dead process would refuse the bind; one that answers is somebody's.
absl::Status clearLeftover(const SocketAddress& at, const std::string& address) {
    struct stat info {};
    const char* path = reinterpret_cast<const sockaddr_un*>(at.raw())->sun_path;
    if (::stat(path, &info) != 0) return absl::OkStatus();
    if (!S_ISSOCK(info.st_mode))
        return absl::AlreadyExistsError(
            absl::StrCat(address, ": a file that is no socket is there"));
    UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (::connect(probe.get(), at.raw(), at.length) == 0 || errno == EAGAIN)
        return absl::AlreadyExistsError(
            absl::StrCat(address, ": a living process listens there; stop it or use another path"));
    ::unlink(path);
    return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SocketAddress> parseAddress(const std::string& text) {
    if (text.starts_with(kUnix)) {
        const std::string path = text.substr(kUnix.size());
        SocketAddress out;
        auto* local = reinterpret_cast<sockaddr_un*>(&out.storage);
        if (path.empty() || path.size() >= sizeof local->sun_path)
            return malformed(text, absl::StrCat("a socket path has 1 to ",
                                                sizeof local->sun_path - 1, " bytes"));
        local->sun_family = AF_UNIX;
        std::memcpy(local->sun_path, path.data(), path.size());
        out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
        return out;
    }
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos) return malformed(text, "it has no port");
    uint32_t port = 0;
    if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535)
        return malformed(text, "the port is not a number from 0 to 65535");
    return parseIp(text, text.substr(0, colon), port);
}

absl::StatusOr<std::string> resolveHost(const std::string& address) {
    if (address.starts_with(kUnix) || address.starts_with("[")) return address;
    in6_addr v6{};
    if (inet_pton(AF_INET6, address.c_str(), &v6) == 1) return address;
    const size_t colon = address.find(':');
    const std::string host = address.substr(0, colon);
    const std::string port = colon == std::string::npos ? "" : address.substr(colon);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0)
        return absl::UnavailableError(
            absl::StrCat("the host name \"", host, "\" cannot be resolved: ", gai_strerror(error)));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(list, &::freeaddrinfo);
    const addrinfo* best = list;
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next)
        if (at->ai_family == AF_INET) {
            best = at;
            break;
        }
    char ip[NI_MAXHOST] = {};
    ::getnameinfo(best->ai_addr, best->ai_addrlen, ip, sizeof ip, nullptr, 0, NI_NUMERICHOST);
    const bool bracket = best->ai_family == AF_INET6 && !port.empty();
    return bracket ? absl::StrCat("[", ip, "]", port) : absl::StrCat(ip, port);
}

absl::StatusOr<UniqueFd> listenOn(const std::string& address, int backlog) {
    const absl::StatusOr<SocketAddress> at = parseAddress(address);
    if (!at.ok()) return at.status();
    absl::StatusOr<UniqueFd> fd = openStream(*at, address);
    if (!fd.ok()) return fd;
    const int one = 1;
    if (at->family() == AF_UNIX) {
        if (absl::Status s = clearLeftover(*at, address); !s.ok()) return s;
    } else {
        ::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    }
    // For a Unix socket fchmod before bind decides the mode of the file, without a moment of 0777.
    if (at->family() == AF_UNIX) ::fchmod(fd->get(), 0600);
    if (::bind(fd->get(), at->raw(), at->length) != 0) {
        if (errno == EADDRINUSE)
            return absl::AlreadyExistsError(
                absl::StrCat("cannot listen on ", address,
                             ": the address is in use; stop who uses it or choose another port"));
        return refused(address, "cannot listen on", errno);
    }
    if (::listen(fd->get(), backlog) != 0) return refused(address, "cannot listen on", errno);
    return fd;
}

namespace {

std::string addressText(const sockaddr_storage& storage, socklen_t length) {
    char ip[INET6_ADDRSTRLEN] = {};
    if (storage.ss_family == AF_INET) {
        const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
        inet_ntop(AF_INET, &v4->sin_addr, ip, sizeof ip);
        return absl::StrCat(ip, ":", ntohs(v4->sin_port));
    }
    if (storage.ss_family == AF_INET6) {
        const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
        inet_ntop(AF_INET6, &v6->sin6_addr, ip, sizeof ip);
        return absl::StrCat("[", ip, "]:", ntohs(v6->sin6_port));
    }
    const auto* local = reinterpret_cast<const sockaddr_un*>(&storage);
    if (length <= offsetof(sockaddr_un, sun_path)) return "unix:";
    return absl::StrCat("unix:", local->sun_path);
}

}  // namespace

std::string localAddress(int fd) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return "?";
    return addressText(storage, length);
}

std::string remoteAddress(int fd) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return "?";
    const std::string text = addressText(storage, length);
    return text == "unix:" ? localAddress(fd) : text;
}

absl::StatusOr<UniqueFd> beginConnect(const std::string& address, const std::string& localIp) {
    const absl::StatusOr<SocketAddress> to = parseAddress(address);
    if (!to.ok()) return to.status();
    absl::StatusOr<UniqueFd> fd = openStream(*to, address);
    if (!fd.ok()) return fd;
    if (!localIp.empty() && to->family() != AF_UNIX) {
        const absl::StatusOr<SocketAddress> from = parseAddress(absl::StrCat(localIp, ":0"));
        if (!from.ok()) return from.status();
        const int one = 1;
        ::setsockopt(fd->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (::bind(fd->get(), from->raw(), from->length) != 0)
            return refused(localIp, "cannot bind to", errno);
    }
    tuneStream(fd->get());
    if (::connect(fd->get(), to->raw(), to->length) != 0 && errno != EINPROGRESS)
        return refused(address, "cannot connect to", errno);
    return fd;
}

int socketError(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    return error;
}

void tuneStream(int fd) {
    const int one = 1;
    const int idle = 20;
    const int interval = 10;
    const int count = 4;
    if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) return;
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

void breakUnanswered(int fd, MonoNs after) {
    const int ms = static_cast<int>(after / kMillisecond);
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

void resetOnClose(int fd) {
    const linger hard{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
}

}  // namespace bulkhead::runtime
