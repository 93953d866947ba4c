// SPDX-License-Identifier: Apache-2.0
#include "backend/service/strangers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "backend/model/names.h"

namespace bulkhead::service {
namespace {

/// Whoever has signed in has so much on its way: a request of 2 MB in some round trips, and no more
/// opened calls than gRPC is done with soon.
constexpr int kRoom = 64 << 10;
/// A fast network brings some 100 KB meanwhile, of which takeNoMoreThan() lets the limit through.
constexpr int kLookMs = 1;
/// Memory is given back when nobody has been put out for so long, or somebody has all the time.
constexpr std::chrono::milliseconds kTrimAfter{1000};
constexpr std::chrono::milliseconds kTrimAtLeast{5000};
/// After so long a connection that was put out has no place any more, whatever gRPC does.
constexpr std::chrono::seconds kLeaves{30};
constexpr uint8_t kTlsHandshake = 22;
constexpr const char* kOthersWaited = "Others waited, and nobody had signed in.";

/// The kernel's word on a connection; the worst, if it has none.
struct Heard {
    uint64_t bytes = UINT64_MAX;
    uint8_t state = BPF_TCP_CLOSE;
};
Heard heardOn(int fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
    return {info.tcpi_bytes_received, info.tcpi_state};
}

bool beginsAsTls(int fd) {
    uint8_t first = 0;
    return ::recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && first == kTlsHandshake;
}

/// The number that names a socket for as long as somebody has a descriptor of it; 0: no socket.
ino_t socketOf(int fd) {
    struct stat info {};
    return ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

/// The kernel takes no byte of this connection after the first `most`: it cuts segments there and
/// drops those beyond, as if they had been lost, until takeAll(). Less than 2 GiB may have come by
/// then: sequence numbers are compared modulo 2^32.
void takeNoMoreThan(int fd, std::optional<uint32_t> first, uint32_t most) {
    if (!first) return;
    // The program says how much of a segment is kept: its header and what lies before the end.
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

/// Nobody reads what has come and was not read.
void dropWhatCame(int fd) {
    while (::recv(fd, nullptr, 1 << 20, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    }
}

std::string sentTooMuch(uint64_t bytes) {
    return model::concat("Nobody had signed in when it had sent ", bytes, " bytes.");
}

/// This end closed first: gRPC did, for what it had read.
bool closedHere(uint8_t state) {
    return state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2 || state == BPF_TCP_CLOSING;
}

/// An IPv4 address that IPv6 carries is one of IPv4.
std::string nameOf(const sockaddr_storage& at) {
    char text[INET6_ADDRSTRLEN] = "";
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(at);
    if (at.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
        ::inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof text);
        return "ipv6:%5B" + std::string(text) + "%5D:" + std::to_string(ntohs(in6.sin6_port));
    }
    const auto& in4 = reinterpret_cast<const sockaddr_in&>(at);
    const void* v4 = at.ss_family == AF_INET6 ? static_cast<const void*>(in6.sin6_addr.s6_addr + 12)
                                              : &in4.sin_addr;
    ::inet_ntop(AF_INET, v4, text, sizeof text);
    // The port has the same place in both.
    return "ipv4:" + std::string(text) + ":" + std::to_string(ntohs(in4.sin_port));
}

}  // namespace

/// The packet that opened the connection says it; nothing when the kernel did not keep it, as under
/// a flood of such packets.
Peer peerOf(int fd) {
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    ::getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size);
    return {nameOf(at), hostOf(at), firstByteOf(fd)};
}

std::optional<uint32_t> firstByteOf(int fd) {
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

int msUntil(std::chrono::steady_clock::time_point at) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(at - std::chrono::steady_clock::now());
    return static_cast<int>(std::max<int64_t>(left.count(), 1));
}

Strangers::Strangers(Closed closed, std::chrono::milliseconds time)
    : closed_(std::move(closed)), time_(time) {}

bool Strangers::Stranger::isLetGo() const {
    return socketOf(ofGrpc) != socket;
}

void Strangers::Stranger::limitBytes() const {
    // look() sees by the last byte that there was more.
    takeNoMoreThan(fd.get(), peer.firstByte, (large ? limits.most : limits.first) + 1);
}

Strangers::Answer Strangers::letIn(int fd, const Peer& peer) {
    const auto now = std::chrono::steady_clock::now();
    std::vector<Out> out;
    Answer said = Answer::kNotYet;
    {
        const MutexLock<LeafMutex> lock(mutex_);
        said = answer(fd, peer, now, out);
    }
    tell(out);
    return said;
}

Strangers::Answer Strangers::answer(int fd, const Peer& peer, Time now, std::vector<Out>& out) {
    if (turns_.next(peer.host) > now) return Answer::kNotYet;
    if (!makeRoom(now, out)) return Answer::kNotYet;
    const Limits limits = beginsAsTls(fd) ? kTls : kPlain;
    takeNoMoreThan(fd, peer.firstByte, limits.first + 1);
    const uint64_t bytes = heardOn(fd).bytes;  // more than that may have come before
    if (bytes > limits.most) {
        turns_.came(peer.host, now);
        turns_.offended(peer.host, now);
        out.push_back({peer.name, sentTooMuch(bytes)});
        return Answer::kNever;
    }
    const bool large = bytes > limits.first;
    if (large && !makeLargeRoom(now, out)) return Answer::kNotYet;
    // Without a descriptor for it nobody can be watched, and nobody is heard.
    UniqueFd second(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!second.valid()) return Answer::kNever;
    Stranger one{.fd = std::move(second),
                 .ofGrpc = fd,
                 .socket = socketOf(fd),
                 .limits = limits,
                 .large = large,
                 .peer = peer,
                 .until = now + time_,
                 .turnEnds = now + (large ? kLargeTurn : kTurn)};
    if (large) one.limitBytes();
    turns_.came(peer.host, now);
    all_.push_back(std::move(one));
    return Answer::kIn;
}

/// False: as many as may be are there, and have come just now or still leave.
bool Strangers::makeRoom(Time now, std::vector<Out>& out) {
    if (all_.size() + leaving_.size() < kMost) return true;
    if (!leaving_.empty()) return false;
    if (const auto gives = leastWelcome(now); now >= gives->turnEnds)
        putOut(gives, kOthersWaited, now, out);
    return false;
}

/// False: somebody has the second limit, and has had it for a short time or still leaves.
bool Strangers::makeLargeRoom(Time now, std::vector<Out>& out) {
    if (std::ranges::any_of(leaving_, &Stranger::large)) return false;
    const auto large = std::ranges::find_if(all_, &Stranger::large);
    if (large == all_.end()) return true;
    if (now >= large->turnEnds) putOut(large, kOthersWaited, now, out);
    return false;
}

/// The one whose turn is longer does not keep the others.
Strangers::All::iterator Strangers::leastWelcome(Time now) {
    std::map<Host, size_t> ofHost;
    for (const Stranger& one : all_) ++ofHost[one.peer.host];
    return std::ranges::max_element(all_, {}, [&](const Stranger& one) {
        const bool longer = one.large && now < one.turnEnds;
        return longer ? 0 : ofHost[one.peer.host];  // the first of equals is the oldest
    });
}

void Strangers::signedIn(const std::string& peer) {
    const MutexLock<LeafMutex> lock(mutex_);
    const auto known = std::ranges::find(
        all_, peer, [](const Stranger& one) -> const std::string& { return one.peer.name; });
    if (known == all_.end()) return;
    takeAll(known->fd.get());
    const int most = kRoom;
    ::setsockopt(known->fd.get(), SOL_SOCKET, SO_RCVBUF, &most, sizeof most);
    turns_.signedIn(known->peer.host, std::chrono::steady_clock::now());
    if (known_.size() >= pruneAt_) {
        std::erase_if(known_, [](const auto& one) { return !isOpen(one.second); });
        pruneAt_ = std::max(kPruneAtLeast, 2 * known_.size());
    }
    known_[peer] = {known->ofGrpc, known->socket};
    all_.erase(known);
}

bool Strangers::isOpen(const Connection& one) {
    return socketOf(one.ofGrpc) == one.socket;
}

void Strangers::callBegins(const std::string& peer) {
    const auto now = std::chrono::steady_clock::now();
    {
        const MutexLock<LeafMutex> lock(mutex_);
        std::erase_if(cutOff_,
                      [&](const auto& one) { return now - one.second.since > kCutOffWithin; });
        CutOff& of = cutOff_.try_emplace(peer, CutOff{now, 0}).first->second;
        if (++of.calls < kMostCutOff) return;
        cutOff_.erase(peer);
        const auto known = known_.find(peer);
        if (known != known_.end() && isOpen(known->second))
            ::shutdown(known->second.ofGrpc, SHUT_RDWR);
    }
    closed_(peer, model::concat("It cut off ", kMostCutOff, " calls within ", kCutOffWithin.count(),
                                " ms, before they were begun."));
}

void Strangers::callArrives(const std::string& peer) {
    const MutexLock<LeafMutex> lock(mutex_);
    if (const auto of = cutOff_.find(peer); of != cutOff_.end()) --of->second.calls;
}

std::optional<std::string> Strangers::fault(Stranger& one, Time now) {
    const Heard heard = heardOn(one.fd.get());
    one.bytes = heard.bytes;
    const bool tooMuch = heard.bytes > one.limits.most;
    const bool over = heard.state != BPF_TCP_ESTABLISHED || one.isLetGo();
    if (tooMuch || (over && (one.wantsMore() || one.large || closedHere(heard.state))))
        turns_.offended(one.peer.host, now);
    if (tooMuch) return sentTooMuch(heard.bytes);
    if (over) return "";
    if (now < one.until) return {};
    return model::concat("Nobody had signed in after ", time_.count(), " ms.");
}

void Strangers::look() {
    const auto now = std::chrono::steady_clock::now();
    std::vector<Out> out;
    {
        const MutexLock<LeafMutex> lock(mutex_);
        std::erase_if(leaving_,
                      [&](const Stranger& one) { return one.isLetGo() || now >= one.until; });
        for (size_t i = 0; i < all_.size();)
            if (auto why = fault(all_[i], now))
                putOut(all_.begin() + static_cast<ptrdiff_t>(i), *std::move(why), now, out);
            else
                ++i;
        giveMore(now, out);
    }
    tell(out);
    trim(now);
}

/// The first of those that need it gets the second limit, if nobody has it.
void Strangers::giveMore(Time now, std::vector<Out>& out) {
    if (std::ranges::none_of(all_, &Stranger::wantsMore) || !makeLargeRoom(now, out)) return;
    Stranger& one = *std::ranges::find_if(all_, &Stranger::wantsMore);
    one.large = true;
    one.turnEnds = now + kLargeTurn;
    one.limitBytes();
}

void Strangers::putOut(All::iterator one, std::string why, Time now, std::vector<Out>& out) {
    ::shutdown(one->fd.get(), SHUT_RDWR);
    takeAll(one->fd.get());  // what still comes is answered with a reset
    dropWhatCame(one->fd.get());
    if (!why.empty()) out.push_back({one->peer.name, std::move(why)});
    one->until = now + kLeaves;
    leaving_.push_back(std::move(*one));
    all_.erase(one);
    firstOut_ = firstOut_.value_or(now);
    lastOut_ = now;
}

void Strangers::tell(const std::vector<Out>& out) {
    for (const Out& one : out) closed_(one.peer, one.why);
}

std::optional<Strangers::Time> Strangers::trimAt() const {
    if (!firstOut_) return {};
    return std::min(lastOut_ + kTrimAfter, *firstOut_ + kTrimAtLeast);
}

void Strangers::trim(Time now) {
    {
        const MutexLock<LeafMutex> lock(mutex_);
        if (now < trimAt().value_or(Time::max())) return;
        firstOut_.reset();
    }
    ::malloc_trim(0);
}

int Strangers::waitMs() const {
    const MutexLock<LeafMutex> lock(mutex_);
    if (!all_.empty() || !leaving_.empty()) return kLookMs;
    const auto at = trimAt();
    return at ? msUntil(*at) : -1;
}

HostTurns::Time Strangers::turnOf(Host host) const {
    const MutexLock<LeafMutex> lock(mutex_);
    return turns_.next(host);
}

}  // namespace bulkhead::service
