// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"

namespace bulkhead::testing {
namespace {

constexpr size_t kLargestPacket = 65536;
constexpr int kMtu = 9000;  // the switch is one thread, and has the cores with the ranks
constexpr size_t kMostUnderWay = 20000;  // packets; more are lost, as in a real queue

absl::Status refused(const char* what) {
    return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

/// The first process of a host tells its number and waits to be killed.
[[noreturn]] void beHost(int tell) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto say = [&](int32_t value) { (void)!::write(tell, &value, sizeof value); };
    if (::unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID) != 0) {
        say(-errno);
        ::_exit(1);
    }
    const pid_t first = ::fork();
    if (first == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        const bool made =
            ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
            ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0 &&
            ::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, nullptr) == 0;
        say(made ? 0 : -errno);
        ::close(tell);
        ::signal(SIGCHLD, SIG_IGN);  // it inherits whatever lost its parent
        while (true) ::pause();
    }
    say(first);
    ::close(tell);
    ::waitpid(first, nullptr, 0);
    ::_exit(0);
}

/// Sets one thing of the interface `name`.
template <class Set>
bool configure(int socket, unsigned long request, const char* name, Set set) {
    ifreq about{};
    std::strncpy(about.ifr_name, name, IFNAMSIZ - 1);
    set(about);
    return ::ioctl(socket, request, &about) == 0;
}

void setAddress(ifreq& about, const std::string& text) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    ::inet_pton(AF_INET, text.c_str(), &at.sin_addr);
    std::memcpy(&about.ifr_addr, &at, sizeof at);
}

/// In the network that the calling thread is in.
absl::StatusOr<UniqueFd> makeInterface(const std::string& address) {
    UniqueFd packets(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (packets.get() < 0) return refused("/dev/net/tun");
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto up = [](ifreq& about) { about.ifr_flags = IFF_UP | IFF_RUNNING; };
    const bool made =
        configure(packets.get(), TUNSETIFF, "net0",
                  [](ifreq& about) { about.ifr_flags = IFF_TUN | IFF_NO_PI; }) &&
        configure(socket.get(), SIOCSIFADDR, "net0",
                  [&](ifreq& about) { setAddress(about, address); }) &&
        configure(socket.get(), SIOCSIFNETMASK, "net0",
                  [](ifreq& about) { setAddress(about, "255.255.255.0"); }) &&
        configure(socket.get(), SIOCSIFMTU, "net0", [](ifreq& about) { about.ifr_mtu = kMtu; }) &&
        configure(socket.get(), SIOCSIFFLAGS, "net0", up) &&
        configure(socket.get(), SIOCSIFFLAGS, "lo", up);
    if (!made) return refused("a network interface of its own");
    return packets;
}

}  // namespace

std::string Hosts::addressOf(size_t host) {
    return absl::StrCat("10.77.0.", host + 1);
}

absl::StatusOr<Hosts::Host> Hosts::start(size_t index) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return refused("pipe");
    Host host;
    host.parent = ::fork();
    if (host.parent == 0) {
        ::close(ends[0]);
        beHost(ends[1]);
    }
    ::close(ends[1]);
    const UniqueFd heard(ends[0]);
    // The number of its first process and whether that has its mounts, in whatever order.
    for (int i = 0; i < 2; ++i) {
        int32_t said = -EPIPE;
        (void)!::read(heard.get(), &said, sizeof said);
        if (said < 0) {
            ::kill(host.parent, SIGKILL);
            ::waitpid(host.parent, nullptr, 0);
            errno = -said;
            return refused("namespaces of its own");
        }
        if (said > 0) host.pid = said;
    }
    absl::StatusOr<UniqueFd> packets;
    std::thread([&] {
        const UniqueFd network(
            ::open(absl::StrCat("/proc/", host.pid, "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
        packets = ::setns(network.get(), CLONE_NEWNET) == 0 ? makeInterface(addressOf(index))
                                                            : refused("setns");
    }).join();
    if (!packets.ok()) {
        ::kill(host.pid, SIGKILL);
        ::waitpid(host.parent, nullptr, 0);
        return packets.status();
    }
    host.packets = *std::move(packets);
    return host;
}

absl::StatusOr<std::unique_ptr<Hosts>> Hosts::make(size_t count, uint64_t seed) {
    std::unique_ptr<Hosts> hosts(new Hosts(seed));
    for (size_t i = 0; i < count; ++i) {
        auto host = start(i);
        if (!host.ok()) return host.status();
        hosts->hosts_.push_back(*std::move(host));
    }
    hosts->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    hosts->switch_ = std::thread([raw = hosts.get()] { raw->pass(); });
    return hosts;
}

Hosts::~Hosts() {
    if (switch_.joinable()) {
        const uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
        switch_.join();
    }
    for (const Host& host : hosts_) {
        ::kill(host.pid, SIGKILL);  // and with it everything that runs there
        ::waitpid(host.parent, nullptr, 0);
    }
}

std::vector<std::string> Hosts::inside(size_t host) const {
    return {"/usr/bin/nsenter",
            "--target",
            std::to_string(hosts_[host].pid),
            "--net",
            "--mount",
            "--pid",
            "--"};
}

void Hosts::link(size_t from, size_t to, Link link) {
    const MutexLock lock(mutex_);
    links_[{from, to}] = link;
}

void Hosts::linkAll(size_t host, Link one) {
    for (size_t other = 0; other < count(); ++other) {
        if (other == host) continue;
        link(host, other, one);
        link(other, host, one);
    }
}

void Hosts::everywhere(Link link) {
    for (size_t host = 0; host < count(); ++host) linkAll(host, link);
}

uint64_t Hosts::passed() const {
    const MutexLock lock(mutex_);
    return passed_;
}

void Hosts::take(size_t from) {
    std::array<char, kLargestPacket> packet;
    for (ssize_t n; (n = ::read(hosts_[from].packets.get(), packet.data(), packet.size())) > 0;) {
        // An IPv4 packet has its destination's address in bytes 16 to 19.
        if (n < 20 || (packet[0] >> 4) != 4) continue;
        const size_t to = static_cast<size_t>(static_cast<unsigned char>(packet[19])) - 1;
        if (to >= hosts_.size() || to == from) continue;
        Link link;
        {
            const MutexLock lock(mutex_);
            link = links_[{from, to}];
            if (link.cut || std::bernoulli_distribution(link.loss)(random_)) continue;
            ++passed_;
        }
        const std::string_view bytes(packet.data(), static_cast<size_t>(n));
        if (link.delay.count() == 0)
            (void)!::write(hosts_[to].packets.get(), bytes.data(), bytes.size());
        else if (underWay_.size() < kMostUnderWay)
            underWay_.emplace(std::chrono::steady_clock::now() + link.delay,
                              std::pair(to, std::string(bytes)));
    }
}

void Hosts::pass() {
    std::vector<pollfd> waits;
    for (const Host& host : hosts_) waits.push_back({host.packets.get(), POLLIN, 0});
    waits.push_back({wake_.get(), POLLIN, 0});
    while (true) {
        timespec least{};
        const timespec* patience = nullptr;
        if (!underWay_.empty()) {
            const auto left = std::max<std::chrono::nanoseconds>(
                std::chrono::nanoseconds(0),
                underWay_.begin()->first - std::chrono::steady_clock::now());
            least = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
            patience = &least;
        }
        ::ppoll(waits.data(), waits.size(), patience, nullptr);
        if (waits.back().revents != 0) return;
        for (size_t i = 0; i < hosts_.size(); ++i)
            if (waits[i].revents != 0) take(i);
        const Time now = std::chrono::steady_clock::now();
        while (!underWay_.empty() && underWay_.begin()->first <= now) {
            const auto& [to, bytes] = underWay_.begin()->second;
            (void)!::write(hosts_[to].packets.get(), bytes.data(), bytes.size());
            underWay_.erase(underWay_.begin());
        }
    }
}

}  // namespace bulkhead::testing
