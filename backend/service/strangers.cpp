// SPDX-License-Identifier: Apache-2.0
#include "backend/service/strangers.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "backend/model/names.h"

namespace bulkhead::service {
namespace {

/// For what whoever has signed in has on its way.
constexpr int kRoom = 1 << 20;
/// A fast network brings some 100 KB meanwhile, of which takeNoMoreThan() lets the limit through.
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

/// The sequence number of the first byte that the other end sends, from the packet that opened the
/// connection; nothing when the kernel did not keep it, as under a flood of such packets.
std::optional<uint32_t> firstSequence(int fd) {
    std::array<uint8_t, 256> packet{};
    socklen_t size = packet.size();
    if (::getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, packet.data(), &size) != 0 || size < 40)
        return {};
    const bool v6 = packet[0] >> 4 == 6;
    if (v6 && packet[6] != IPPROTO_TCP) return {};  // other headers lie between
    const size_t header = v6 ? 40 : size_t{4} * (packet[0] & 15);
    if (header + 8 > size) return {};
    uint32_t opened = 0;
    std::memcpy(&opened, packet.data() + header + 4, sizeof opened);
    return ntohl(opened) + 1;
}

/// The kernel takes no byte of this connection after the first `most`: it cuts segments there and
/// drops those beyond, as if they had been lost, until takeAll(). Less than 2 GiB may have come by
/// then: sequence numbers are compared modulo 2^32.
void takeNoMoreThan(int fd, uint32_t most) {
    const auto first = firstSequence(fd);
    if (!first) return;
    // How much of a segment is kept: its header and what lies before the end.
    std::array<sock_filter, 13> program = {{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),  // its sequence number
        BPF_STMT(BPF_MISC | BPF_TAX, 0),
        BPF_STMT(BPF_LD | BPF_IMM, *first + most),
        BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x8000'0000, 7, 0),  // it begins beyond the end
        BPF_STMT(BPF_ST, 0),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12),  // the header's length in words, times 16
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf0),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 2),
        BPF_STMT(BPF_LDX | BPF_MEM, 0),
        BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
        BPF_STMT(BPF_RET | BPF_A, 0),
        BPF_STMT(BPF_RET | BPF_K, 0),
    }};
    const sock_fprog filter{program.size(), program.data()};
    ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

void takeAll(int fd) {
    const int unused = 0;
    ::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
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
    takeNoMoreThan(fd, kMostBytes + 1);  // look() sees by the last one that there was more
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
    takeAll(known->fd.get());
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
    takeAll(stranger.fd.get());  // what still comes is answered with a reset, and read by nobody
    closed_(stranger.peer, why);
    if (!trimAt_) trimAt_ = std::chrono::steady_clock::now() + kTrimAfter;
}

int Strangers::waitMs() const {
    const MutexLock<LeafMutex> lock(mutex_);
    if (!all_.empty()) return kLookMs;
    return trimAt_ ? static_cast<int>(kTrimAfter.count()) : -1;
}

}  // namespace bulkhead::service
