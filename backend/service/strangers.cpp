// SPDX-License-Identifier: Apache-2.0
#include "backend/service/strangers.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <utility>

#include "backend/model/names.h"

namespace bulkhead::service {
namespace {

/// For what whoever has signed in has on its way.
constexpr int kRoom = 1 << 20;
/// What a fast network brings meanwhile is some 100 KB.
constexpr int kLookMs = 1;
/// When gRPC has let go of what it held for those that were put out, which lies between what it
/// holds for others.
constexpr std::chrono::milliseconds kTrimAfter{500};

/// That the kernel has received on a connection; all, if it does not say.
uint64_t bytesReceived(int fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return UINT64_MAX;
    return info.tcpi_bytes_received;
}

bool hungUp(int fd) {
    pollfd end{fd, POLLRDHUP, 0};
    return ::poll(&end, 1, 0) > 0;
}

/// "ipv4:10.0.0.7:51234" -> "ipv4:10.0.0.7"
std::string_view hostOf(std::string_view peer) {
    return peer.substr(0, peer.rfind(':'));
}

}  // namespace

Strangers::Strangers(Closed closed, std::chrono::milliseconds time)
    : closed_(std::move(closed)), time_(time) {}

void Strangers::add(int fd, const std::string& peer) {
    Stranger one{UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), peer,
                 std::chrono::steady_clock::now() + time_};
    // Without a descriptor for it nobody can be watched, and nobody is heard.
    if (!one.fd.valid()) {
        ::shutdown(fd, SHUT_RDWR);
        return;
    }
    Stranger out;
    {
        const MutexLock<LeafMutex> lock(mutex_);
        if (all_.size() >= kMost) {
            const auto gives = leastWelcome();
            out = std::move(*gives);
            all_.erase(gives);
        }
        all_.push_back(std::move(one));
    }
    if (out.fd.valid()) putOut(std::move(out), "Others waited, and nobody had signed in.");
}

bool Strangers::hasRoom() {
    const MutexLock<LeafMutex> lock(mutex_);
    return all_.size() < kMost ||
           std::chrono::steady_clock::now() >= leastWelcome()->until - time_ + kTurn;
}

Strangers::All::iterator Strangers::leastWelcome() {
    std::map<std::string_view, size_t> ofHost;
    for (const Stranger& one : all_) ++ofHost[hostOf(one.peer)];
    return std::ranges::max_element(all_, {}, [&](const Stranger& one) {
        return ofHost[hostOf(one.peer)];  // the first of equals is the oldest
    });
}

void Strangers::signedIn(const std::string& peer) {
    const MutexLock<LeafMutex> lock(mutex_);
    const auto known = std::ranges::find(all_, peer, &Stranger::peer);
    if (known == all_.end()) return;
    const int most = kRoom;
    ::setsockopt(known->fd.get(), SOL_SOCKET, SO_RCVBUF, &most, sizeof most);
    all_.erase(known);
}

void Strangers::look() {
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::pair<Stranger, std::string>> out;
    {
        const MutexLock<LeafMutex> lock(mutex_);
        All left;
        for (Stranger& one : all_) {
            const uint64_t bytes = bytesReceived(one.fd.get());
            if (bytes > kMostBytes)
                out.emplace_back(
                    std::move(one),
                    model::concat("Nobody had signed in when it had sent ", bytes, " bytes."));
            else if (now >= one.until)
                out.emplace_back(std::move(one), model::concat("Nobody had signed in after ",
                                                               time_.count(), " ms."));
            else if (!hungUp(one.fd.get()))
                left.push_back(std::move(one));
        }
        all_ = std::move(left);
    }
    for (auto& [stranger, why] : out) putOut(std::move(stranger), why);
    if (!trimAt_ || now < *trimAt_) return;
    trimAt_.reset();
    ::malloc_trim(0);
}

void Strangers::putOut(Stranger stranger, const std::string& why) {
    ::shutdown(stranger.fd.get(), SHUT_RDWR);
    closed_(stranger.peer, why);
    if (!trimAt_) trimAt_ = std::chrono::steady_clock::now() + kTrimAfter;
}

int Strangers::waitMs() const {
    const MutexLock<LeafMutex> lock(mutex_);
    if (!all_.empty()) return kLookMs;
    return trimAt_ ? static_cast<int>(kTrimAfter.count()) : -1;
}

}  // namespace bulkhead::service
