// SPDX-License-Identifier: Apache-2.0
#include "tests/attack/tap.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace bulkhead::attack {
namespace {

constexpr size_t kPiece = 16;
constexpr size_t kFewestValues = 6;
constexpr size_t kMostAnswer = size_t{1} << 20;
constexpr uint64_t kMostOfAStream = uint64_t{1} << 31;
constexpr int kTapBuffer = 64 << 20;

absl::Status unavailable(const std::string& what) {
    return absl::UnavailableError(what + ": " + std::strerror(errno));
}

absl::Status raiseLoopback() {
    const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (!fd.valid() || ::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0)
        return unavailable("the loopback cannot be raised");
    return absl::OkStatus();
}

uint64_t startOf(std::string_view bytes) {
    uint64_t start = 0;
    std::memcpy(&start, bytes.data(), sizeof start);
    return start;
}

bool saysSomething(std::string_view piece) {
    return std::set<char>(piece.begin(), piece.end()).size() >= kFewestValues;
}

}  // namespace

absl::Status ownLoopback() {
    if (::unshare(CLONE_NEWNET) == 0) return raiseLoopback();
    const auto user = std::to_string(::getuid());
    const auto group = std::to_string(::getgid());
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return unavailable("no network of one's own can be had");
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
    std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
    return raiseLoopback();
}

std::set<uint16_t> listeningPorts() {
    std::set<uint16_t> ports;
    std::ifstream table("/proc/self/net/tcp");
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
        // "  0: 0100007F:1CE9 00000000:0000 0A ..."
        std::istringstream words(line);
        std::string slot, local, remote, state;
        words >> slot >> local >> remote >> state;
        if (state == "0A")
            ports.insert(
                static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
    }
    return ports;
}

absl::StatusOr<std::unique_ptr<Tap>> Tap::begin() {
    UniqueFd fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_IP)));
    if (!fd.valid()) return unavailable("the loopback cannot be tapped");
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kTapBuffer, sizeof kTapBuffer);
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(ETH_P_IP);
    at.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0)
        return unavailable("the loopback cannot be tapped");
    return std::unique_ptr<Tap>(new Tap(std::move(fd)));
}

Tap::~Tap() {
    stop_ = true;
    thread_.join();
}

uint64_t Tap::missed() const {
    tpacket_stats stats{};
    socklen_t size = sizeof stats;
    (void)::getsockopt(fd_.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &size);
    return stats.tp_drops;
}

void Tap::read() {
    std::string packet(1 << 17, '\0');
    while (!stop_) {
        pollfd ready{fd_.get(), POLLIN, 0};
        ::poll(&ready, 1, 50);
        sockaddr_ll from{};
        socklen_t size = sizeof from;
        ssize_t n = 0;
        while ((n = ::recvfrom(fd_.get(), packet.data(), packet.size(), MSG_DONTWAIT,
                               reinterpret_cast<sockaddr*>(&from), &size)) > 0)
            // The loopback shows each packet twice: as it leaves and as it arrives.
            if (from.sll_pkttype != PACKET_OUTGOING)
                take(std::string_view(packet).substr(0, static_cast<size_t>(n)));
    }
}

void Tap::take(std::string_view packet) {
    iphdr ip;
    if (packet.size() < sizeof ip) return;
    std::memcpy(&ip, packet.data(), sizeof ip);
    if (ip.version != 4 || ip.protocol != IPPROTO_TCP) return;
    packet = packet.substr(0, std::min<size_t>(packet.size(), ntohs(ip.tot_len)));
    const size_t ipBytes = ip.ihl * 4u;
    tcphdr tcp;
    if (packet.size() < ipBytes + sizeof tcp) return;
    std::memcpy(&tcp, packet.data() + ipBytes, sizeof tcp);
    const size_t header = ipBytes + tcp.doff * 4u;
    if (packet.size() < header) return;
    const Key key{ip.saddr, ip.daddr, ntohs(tcp.source), ntohs(tcp.dest)};
    const uint32_t sequence = ntohl(tcp.seq);
    const MutexLock lock(mutex_);
    auto [begin, end] = heard_.equal_range(key);
    const bool known = begin != end;
    if (tcp.syn || !known) {
        Heard heard;
        heard.called = tcp.syn && !tcp.ack;
        heard.first = tcp.syn ? sequence + 1 : sequence;
        heard_.insert({key, std::move(heard)});
        end = heard_.upper_bound(key);
    }
    Heard& heard = std::prev(end)->second;
    const uint64_t offset = sequence - heard.first;
    // A probe of a connection that rests repeats the byte before those to come.
    if (packet.size() > header && offset < kMostOfAStream)
        heard.parts.emplace(offset, std::string(packet.substr(header)));
}

std::vector<Stream> Tap::streams() const {
    const MutexLock lock(mutex_);
    std::vector<Stream> streams;
    for (const auto& [key, heard] : heard_) {
        Stream stream{key.from, key.to, heard.called, ""};
        uint64_t end = 0;
        for (const auto& [offset, part] : heard.parts) {
            if (offset + part.size() <= end) continue;  // repeated
            const size_t again = end > offset ? end - offset : 0;
            stream.bytes.append(part, again);
            end = offset + part.size();
        }
        if (!stream.bytes.empty()) streams.push_back(std::move(stream));
    }
    return streams;
}

void Pieces::add(const std::string& name, std::string_view secret, size_t stride) {
    for (size_t at = 0; at + kPiece <= secret.size(); at += stride) {
        const std::string_view piece = secret.substr(at, kPiece);
        if (!saysSomething(piece)) continue;
        byStart_.insert({startOf(piece), {std::string(piece), name}});
        uint16_t two = 0;
        std::memcpy(&two, piece.data(), sizeof two);
        mayStart_[two] = true;
        ++count_;
    }
}

std::map<std::string, size_t> Pieces::in(std::string_view heard) const {
    std::map<std::string, size_t> found;
    for (size_t at = 0; at + kPiece <= heard.size(); ++at) {
        uint16_t two = 0;
        std::memcpy(&two, heard.data() + at, sizeof two);
        if (!mayStart_[two]) continue;
        const std::string_view here = heard.substr(at, kPiece);
        const auto [begin, end] = byStart_.equal_range(startOf(here));
        for (auto it = begin; it != end; ++it)
            if (it->second.bytes == here) {
                ++found[it->second.name];
                break;
            }
    }
    return found;
}

void Callers::call(uint16_t port, std::string bytes, uint32_t from) {
    Line line;
    line.fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(from);
    ::bind(line.fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to);
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(line.fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 &&
        errno != EINPROGRESS)
        line.fd = UniqueFd();
    line.bytes = std::move(bytes);
    lines_.push_back(std::move(line));
    pump(0);
}

size_t Callers::open() const {
    size_t count = 0;
    for (const Line& line : lines_) count += line.fd.valid();
    return count;
}

void Callers::pump(int ms) {
    std::vector<pollfd> waits;
    for (const Line& line : lines_)
        if (line.fd.valid())
            waits.push_back(
                {line.fd.get(),
                 static_cast<short>(line.at < line.bytes.size() ? POLLIN | POLLOUT : POLLIN), 0});
    ::poll(waits.data(), waits.size(), ms);
    std::string piece(1 << 16, '\0');
    for (Line& line : lines_) {
        if (!line.fd.valid()) continue;
        const ssize_t sent = ::send(line.fd.get(), line.bytes.data() + line.at,
                                    line.bytes.size() - line.at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            line.at += static_cast<size_t>(sent);
            sent_ += static_cast<uint64_t>(sent);
        }
        const ssize_t came = ::recv(line.fd.get(), piece.data(), piece.size(), MSG_DONTWAIT);
        if (came > 0 && line.answer.size() < kMostAnswer)
            line.answer.append(piece, 0, static_cast<size_t>(came));
        if (came == 0 || (came < 0 && errno != EAGAIN && errno != EINTR)) line.fd = UniqueFd();
    }
}

}  // namespace bulkhead::attack
