// SPDX-License-Identifier: Apache-2.0
#include "backend/front/server_sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

namespace bulkhead::front {
namespace {

constexpr int kBacklog = 128;
constexpr int kRetryMs = 100;
constexpr int kRoom = 64 << 10;
constexpr std::chrono::minutes kBetweenWarnings{1};

/// Kept free for run files, logs, agents and ranks; of a small limit at most a quarter.
constexpr int kReserve = 64;

/// Descriptors are given out lowest first: the number of a new one is about how many are used.
int ceilingFor(bool local) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
    const int reserve = std::min(kReserve, most / 4);
    return most - (local ? reserve : 2 * reserve);
}

absl::Status cannotListen(const std::string& address, int error) {
    if (error == EADDRINUSE)
        return absl::AlreadyExistsError("address " + address +
                                        " is in use; stop who uses it or listen on another port");
    return absl::InvalidArgumentError("cannot listen on " + address + ": " + std::strerror(error) +
                                      "; use an address of this machine and a port above 1023");
}

/// The place of a Unix socket, locked while it is served: two daemons must not unlink each other's
/// socket. The kernel lets go of it when the process dies.
absl::StatusOr<UniqueFd> lockPlace(const std::string& socket) {
    UniqueFd lock(::open((socket + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock.get() < 0)
        return absl::PermissionDeniedError("socket " + socket +
                                           " cannot be made: " + std::strerror(errno) +
                                           "; choose another place with --socket");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
        return absl::AlreadyExistsError("another daemon serves unix:" + socket +
                                        "; use that one, stop it, or choose another --socket");
    return lock;
}

}  // namespace

absl::StatusOr<std::pair<std::string, std::string>> tcpAddress(const std::string& text) {
    const size_t colon = text.rfind(':');
    std::string host =
        colon == std::string::npos || colon == 0 ? "127.0.0.1" : text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
        std::stoi(port) > 65535)
        return absl::InvalidArgumentError("\"" + text +
                                          "\" is no address to listen on; write host:port or port");
    return std::pair(std::move(host), std::move(port));
}

ServerSockets::ServerSockets(Front& front, std::chrono::milliseconds silence)
    : front_(front), silence_(silence), wake_(::eventfd(0, EFD_CLOEXEC)) {}

ServerSockets::~ServerSockets() {
    if (thread_.joinable()) {
        const uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
        thread_.join();
    }
    for (const std::string& path : paths_) ::unlink(path.c_str());
}

absl::StatusOr<std::string> ServerSockets::listenUnix(const std::string& path) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    if (path.size() >= sizeof at.sun_path)
        return absl::InvalidArgumentError("the socket's path has " + std::to_string(path.size()) +
                                          " bytes, " + std::to_string(sizeof at.sun_path - 1) +
                                          " are possible; choose a shorter --socket");
    path.copy(at.sun_path, path.size());
    auto lock = lockPlace(path);
    if (!lock.ok()) return lock.status();
    ::unlink(path.c_str());
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // The socket must never exist with another mode, not for a moment.
    const mode_t before = ::umask(0177);
    const bool bound =
        fd.get() >= 0 && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    const int error = errno;
    ::umask(before);
    if (!bound || ::listen(fd.get(), kBacklog) != 0)
        return cannotListen("unix:" + path, bound ? errno : error);
    sockets_.push_back({std::move(fd), true});
    locks_.push_back(*std::move(lock));
    paths_.push_back(path);
    return "unix:" + path;
}

absl::StatusOr<std::string> ServerSockets::listenTcp(const std::string& text) {
    const auto address = tcpAddress(text);
    if (!address.ok()) return address.status();
    const auto& [host, port] = *address;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
        return absl::InvalidArgumentError("the host of " + text +
                                          " is not known; use an address of this machine");
    UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    // Its connections have it too: the kernel keeps no more of what nobody has read.
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &kRoom, sizeof kRoom);
    const bool listens = fd.get() >= 0 &&
                         ::bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                         ::listen(fd.get(), kBacklog) == 0;
    const int error = errno;
    ::freeaddrinfo(found);
    if (!listens) return cannotListen(host + ":" + port, error);
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    const bool v6 = bound.ss_family == AF_INET6;
    const uint16_t realPort = ntohs(v6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
    const bool loopback =
        v6 ? IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(&bound)->sin6_addr) != 0
           : reinterpret_cast<uint8_t*>(&reinterpret_cast<sockaddr_in*>(&bound)->sin_addr)[0] ==
                 127;
    reachedFromElsewhere_ = reachedFromElsewhere_ || !loopback;
    sockets_.push_back({std::move(fd), false});
    return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(realPort);
}

void ServerSockets::start(Local local) {
    local_ = std::move(local);
    thread_ = std::thread([this] { run(); });
}

void ServerSockets::run() {
    std::vector<pollfd> ready;
    uint64_t told = 0;
    auto quietUntil = std::chrono::steady_clock::now();
    for (;;) {
        ready.assign({{wake_.get(), POLLIN, 0}});
        for (const Waiting& one : waiting_)
            ready.push_back(
                {one.fd.get(), static_cast<short>(one.spoke ? POLLRDHUP : POLLIN | POLLRDHUP), 0});
        // Without a free descriptor the sockets stay readable and are not waited for.
        if (!exhausted_)
            for (const Socket& socket : sockets_) ready.push_back({socket.fd.get(), POLLIN, 0});
        front_.addTo(ready);
        ::poll(ready.data(), ready.size(), waitMs());
        if (ready.front().revents != 0) return;
        front_.look();
        hear(ready.data() + 1);
        front_.look();  // something may have come before they were let in
        exhausted_ = false;
        for (const Socket& socket : sockets_) acceptAll(socket);
        if (refused_ == told || std::chrono::steady_clock::now() < quietUntil) continue;
        spdlog::warn(
            "{} connections were closed at once: the limit of open files leaves no room "
            "for them; see who holds connections open, or raise it (ulimit -n)",
            refused_ - told);
        told = refused_;
        quietUntil = std::chrono::steady_clock::now() + kBetweenWarnings;
    }
}

int ServerSockets::waitMs() const {
    if (exhausted_) return kRetryMs;
    int wait = front_.waitMs();
    const auto notLaterThan = [&](std::chrono::steady_clock::time_point at) {
        wait = wait < 0 ? msUntil(at) : std::min(wait, msUntil(at));
    };
    if (!waiting_.empty()) notLaterThan(waiting_.front().until);
    for (const Waiting& one : waiting_)
        if (one.spoke) notLaterThan(front_.turnOf(one.peer.host));
    return wait;
}

/// Hands over those that said something and may come, closes those that hung up or have waited for
/// too long. `ready`: one for each.
void ServerSockets::hear(const pollfd* ready) {
    const auto now = std::chrono::steady_clock::now();
    std::deque<Waiting> left;
    for (Waiting& one : waiting_) {
        const short heard = (ready++)->revents;
        if ((heard & ~POLLIN) != 0) continue;
        one.spoke = one.spoke || heard != 0;
        if (one.spoke && front_.letIn(one.fd, one.peer)) continue;
        if (now < one.until) left.push_back(std::move(one));
    }
    waiting_ = std::move(left);
}

void ServerSockets::acceptAll(const Socket& from) {
    const int ceiling = ceilingFor(from.local);
    for (;;) {
        const int fd = ::accept4(from.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) {
            exhausted_ = exhausted_ || (errno != EAGAIN && errno != EWOULDBLOCK);
            return;
        }
        if (fd >= ceiling) {
            ::close(fd);
            ++refused_;
            continue;
        }
        if (from.local) {
            local_(UniqueFd(fd));
            continue;
        }
        await(fd);
    }
}

void ServerSockets::await(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (waiting_.size() == kMostWaiting) {
        std::map<Host, size_t> ofHost;
        for (const Waiting& one : waiting_) ++ofHost[one.peer.host];
        waiting_.erase(std::ranges::max_element(
            waiting_, {}, [&](const Waiting& one) { return ofHost[one.peer.host]; }));
    }
    waiting_.push_back({UniqueFd(fd), peerOf(fd), std::chrono::steady_clock::now() + silence_});
}

}  // namespace bulkhead::front
