// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostMessage = 4096;
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kHello = std::chrono::milliseconds(1000);  // a stranger that connects and is silent
constexpr char kWelcome = 'w', kTogether = 'g', kRefused = 'r', kTaken = 't';

struct Hello {
    char magic[8] = {'b', 'h', 'n', 'c', 'c', 'l', '0', '1'};
    uint64_t token = 0;
    uint64_t group = 0;
    uint64_t place = 0;
    int32_t rank = 0;
    uint32_t length = 0;  ///< of the message it expects
};

/// FNV-1a: names of other groups only have to be told apart, the token is what protects.
uint64_t hashOf(const std::string& name) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return hash;
}

class Socket {
  public:
    explicit Socket(int fd = -1) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    int fd() const { return fd_; }

  private:
    int fd_;
};

absl::StatusOr<sockaddr_in> parse(const std::string& text) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    const size_t colon = text.rfind(':');
    int port = 0;
    if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
        port < 1 || port > 65535 ||
        ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1)
        return absl::InvalidArgumentError(
            absl::StrCat("\"", text, "\" is no address; expected \"ip:port\""));
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
}

/// By rank; empty: it has not come.
using Places = std::vector<std::optional<uint64_t>>;

class Meeting {
  public:
    explicit Meeting(const Rendezvous& with)
        : with_(with), end_(Clock::now() + std::chrono::milliseconds(with.timeoutMs)) {}

    absl::StatusOr<Seating> give(const std::string& message) {
        Socket own;
        int listener = with_.listenFd;
        if (listener < 0) {
            if (absl::Status s = bindOwn(own); !s.ok()) return s;
            listener = own.fd();
        }
        Places came(with_.data.size());
        came[0] = with_.place;
        absl::Status status;
        while (status.ok() && std::find(came.begin(), came.end(), std::nullopt) != came.end()) {
            if (!ready(listener, POLLIN, end_)) return missing(came);
            Socket guest(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (guest.fd() >= 0) status = serve(guest, message, came);
        }
        if (!status.ok()) return status;
        return seating_.value_or(Seating::kApart);
    }

    absl::StatusOr<Seating> take(std::string& message) {
        const absl::StatusOr<sockaddr_in> address = parse(with_.data[0]);
        if (!address.ok()) return address.status();
        while (Clock::now() < end_) {
            Socket host(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            char answer = 0;
            if (reach(host, *address) && moveAll<true>(host, &hello_, sizeof hello_, end_) &&
                moveAll<false>(host, &answer, 1, end_)) {
                if (answer == kRefused)
                    return absl::PermissionDeniedError(
                        absl::StrCat("group ", with_.group, ": rank 0 at ", with_.data[0],
                                     " turned rank ", with_.rank, " away"));
                if (answer == kTaken) return shared(with_.rank);
                if ((answer == kWelcome || answer == kTogether) &&
                    moveAll<false>(host, message.data(), message.size(), end_))
                    return answer == kWelcome ? Seating::kApart : Seating::kTogether;
            }
            pause();  // not there yet, or somebody else's listener for the moment
        }
        return absl::DeadlineExceededError(absl::StrCat("group ", with_.group, ": rank 0 at ",
                                                        with_.data[0], " did not answer in ",
                                                        with_.timeoutMs, " ms"));
    }

    void introduce(size_t length) {
        hello_.place = with_.place;
        hello_.token = with_.token;
        hello_.group = hashOf(with_.group);
        hello_.rank = with_.rank;
        hello_.length = static_cast<uint32_t>(length);
    }

  private:
    absl::Status bindOwn(Socket& own) {
        const absl::StatusOr<sockaddr_in> address = parse(with_.data[0]);
        if (!address.ok()) return address.status();
        own = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int on = 1;
        (void)::setsockopt(own.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (::bind(own.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
            ::listen(own.fd(), 64) != 0)
            return absl::UnavailableError(absl::StrCat("cannot listen on ", with_.data[0], ": ",
                                                       std::strerror(errno), "; is it taken?"));
        return absl::OkStatus();
    }

    absl::Status serve(const Socket& guest, const std::string& message, Places& came) {
        Hello hello{};
        const Clock::time_point until = std::min(end_, Clock::now() + kHello);
        if (!moveAll<false>(guest, &hello, sizeof hello, until)) return absl::OkStatus();
        const bool known = std::memcmp(hello.magic, hello_.magic, sizeof hello.magic) == 0 &&
                           hello.token == hello_.token && hello.group == hello_.group &&
                           hello.length == hello_.length && hello.rank > 0 &&
                           static_cast<size_t>(hello.rank) < came.size();
        // The first to come says how it is, the others must be alike.
        if (known && !seating_)
            seating_ =
                with_.mayShare && hello.place == with_.place ? Seating::kTogether : Seating::kApart;
        const bool together = seating_ == Seating::kTogether;
        const bool taken = known && (together ? hello.place != with_.place : isTaken(came, hello));
        const char answer = taken ? kTaken : !known ? kRefused : together ? kTogether : kWelcome;
        const bool told = moveAll<true>(guest, &answer, 1, until);
        if (taken) return shared(hello.rank);
        if (told && known && moveAll<true>(guest, message.data(), message.size(), until))
            came[static_cast<size_t>(hello.rank)] = hello.place;
        return absl::OkStatus();
    }

    /// Some other rank than `hello`'s is at its place.
    static bool isTaken(const Places& came, const Hello& hello) {
        for (size_t r = 0; r < came.size(); ++r)
            if (came[r] == hello.place && r != static_cast<size_t>(hello.rank)) return true;
        return false;
    }

    absl::Status shared(int32_t rank) const {
        return absl::InvalidArgumentError(absl::StrCat(
            "group ", with_.group, ": rank ", rank,
            " computes on the GPU of another rank, or the others share one; give each rank of a "
            "replica a GPU of its own, or all of them one"));
    }

    bool reach(const Socket& host, const sockaddr_in& address) {
        if (host.fd() < 0) return false;
        if (::connect(host.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
                0 &&
            errno != EINPROGRESS)
            return false;
        int error = 0;
        socklen_t size = sizeof error;
        return ready(host.fd(), POLLOUT, end_) &&
               ::getsockopt(host.fd(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    }

    /// False when it does not come before `until`.
    bool ready(int fd, short what, Clock::time_point until) {
        for (;;) {
            if (with_.progress) with_.progress();
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
            if (left.count() <= 0) return false;
            pollfd one{fd, what, 0};
            if (::poll(&one, 1, static_cast<int>(std::min(left, kTick).count())) > 0) return true;
        }
    }

    template <bool kOut, class Bytes>
    bool moveAll(const Socket& socket, Bytes* bytes, size_t length, Clock::time_point until) {
        for (size_t at = 0; at < length;) {
            ssize_t n = 0;
            if constexpr (kOut)
                n = ::send(socket.fd(), reinterpret_cast<const char*>(bytes) + at, length - at,
                           MSG_NOSIGNAL);
            else
                n = ::recv(socket.fd(), reinterpret_cast<char*>(bytes) + at, length - at, 0);
            if (n > 0) {
                at += static_cast<size_t>(n);
            } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
                return false;
            } else if (!ready(socket.fd(), kOut ? POLLOUT : POLLIN, until)) {
                return false;
            }
        }
        return true;
    }

    void pause() {
        if (with_.progress) with_.progress();
        (void)::poll(nullptr, 0, 10);
    }

    absl::Status missing(const Places& came) const {
        std::string who;
        for (size_t r = 0; r < came.size(); ++r)
            if (!came[r]) absl::StrAppend(&who, who.empty() ? "" : ", ", r);
        return absl::DeadlineExceededError(absl::StrCat(
            "group ", with_.group, ": rank ", who, " did not come in ", with_.timeoutMs, " ms"));
    }

    const Rendezvous& with_;
    const Clock::time_point end_;
    Hello hello_;
    std::optional<Seating> seating_;  ///< of rank 0: as the first to come had it
};

}  // namespace

absl::StatusOr<Seating> shareFromRankZero(const Rendezvous& with, std::string& message) {
    if (message.empty() || message.size() > kMostMessage || with.rank < 0 ||
        static_cast<size_t>(with.rank) >= with.data.size())
        return absl::InvalidArgumentError(absl::StrCat("group ", with.group, ": rank ", with.rank,
                                                       " of ", with.data.size(), ", a message of ",
                                                       message.size(), " bytes"));
    if (with.data.size() == 1) return Seating::kApart;
    Meeting meeting(with);
    meeting.introduce(message.size());
    return with.rank == 0 ? meeting.give(message) : meeting.take(message);
}

}  // namespace bulkhead::cuda
