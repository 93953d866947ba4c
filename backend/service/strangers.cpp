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

/// Of whoever has signed in.
constexpr uint64_t kWindow = 4 << 20;
/// What a fast network brings meanwhile is a few MB.
constexpr int kLookMs = 5;

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

/// Most that the other end may have on its way.
void setWindow(int fd, uint64_t bytes) {
    const int most = static_cast<int>(bytes);
    ::setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &most, sizeof most);
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
    setWindow(fd, kMostBytes);
    std::vector<Stranger> out;
    {
        const MutexLock<LeafMutex> lock(mutex_);
        all_.push_back(std::move(one));
        if (all_.size() > kMost) {
            const auto gives = leastWelcome();
            out.push_back(std::move(*gives));
            all_.erase(gives);
        }
    }
    for (Stranger& gone : out) putOut(std::move(gone), "Others came, and nobody had signed in.");
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
    setWindow(known->fd.get(), kWindow);
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
                out.emplace_back(std::move(one), model::concat("Nobody had signed in when it had "
                                                               "sent more than ",
                                                               kMostBytes, " bytes."));
            else if (now >= one.until)
                out.emplace_back(std::move(one), model::concat("Nobody had signed in after ",
                                                               time_.count(), " ms."));
            else if (!hungUp(one.fd.get()))
                left.push_back(std::move(one));
        }
        all_ = std::move(left);
    }
    if (out.empty()) return;
    for (auto& [stranger, why] : out) putOut(std::move(stranger), why);
    ::malloc_trim(0);  // what gRPC held for them lies between what it holds for others
}

void Strangers::putOut(Stranger stranger, const std::string& why) {
    ::shutdown(stranger.fd.get(), SHUT_RDWR);
    closed_(stranger.peer, why);
}

int Strangers::waitMs() const {
    const MutexLock<LeafMutex> lock(mutex_);
    return all_.empty() ? -1 : kLookMs;
}

}  // namespace bulkhead::service
