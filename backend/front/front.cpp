// SPDX-License-Identifier: Apache-2.0
#include "backend/front/front.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::front {
namespace {

constexpr const char* kOthersWaited = "Others waited, and nobody had signed in.";
/// When the server ends, the last words of calls are sent for so long.
constexpr std::chrono::milliseconds kLastWords{300};

void wake(const UniqueFd& event) {
    const uint64_t one = 1;
    (void)!::write(event.get(), &one, sizeof one);
}
void calm(const UniqueFd& event) {
    uint64_t times = 0;
    (void)!::read(event.get(), &times, sizeof times);
}

/// The shorter of two times for poll(), for which -1 is none.
int sooner(int a, int b) {
    if (a < 0 || b < 0) return std::max(a, b);
    return std::min(a, b);
}

}  // namespace

int msUntil(std::chrono::steady_clock::time_point at) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(at - std::chrono::steady_clock::now());
    return static_cast<int>(std::max<int64_t>(left.count(), 1));
}

/// Serves the connections on which somebody has signed in.
class Front::Hall {
  public:
    explicit Hall(std::function<void(const Connection&)> gone)
        : gone_(std::move(gone)),
          epoll_(::epoll_create1(EPOLL_CLOEXEC)),
          wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
        thread_ = std::thread([this] { run(); });
    }
    ~Hall() {
        {
            const MutexLock<LeafMutex> lock(mutex_);
            ending_ = true;
        }
        wake(wake_);
        thread_.join();
    }
    void add(std::unique_ptr<Connection> connection) {
        {
            const MutexLock<LeafMutex> lock(mutex_);
            coming_.push_back(std::move(connection));
        }
        wake(wake_);
    }

  private:
    /// One side as epoll has it; fd -1: it has not.
    struct Side {
        int fd = -1;
        short events = 0;
    };
    struct Guest {
        std::unique_ptr<Connection> connection;
        Side socket;
        Side grpc;
    };
    using Time = std::chrono::steady_clock::time_point;

    void run() {
        std::optional<Time> ends;
        while (!ends || (!guests_.empty() && std::chrono::steady_clock::now() < *ends)) {
            int wait = ends ? 10 : -1;
            for (const Guest* guest : timed_) wait = sooner(wait, guest->connection->waitMs());
            std::array<epoll_event, 64> events;
            const int n =
                ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait);
            std::set<Guest*> due(timed_);
            for (int i = 0; i < n; ++i)
                if (auto* guest = static_cast<Guest*>(events[static_cast<size_t>(i)].data.ptr))
                    due.insert(guest);
                else
                    calm(wake_);
            for (Guest* guest : due) serve(*guest);
            if (takeComing() && !ends) ends = std::chrono::steady_clock::now() + kLastWords;
        }
    }

    /// True: the hall ends.
    bool takeComing() {
        std::vector<std::unique_ptr<Connection>> coming;
        bool ending = false;
        {
            const MutexLock<LeafMutex> lock(mutex_);
            coming.swap(coming_);
            ending = ending_;
        }
        for (auto& connection : coming) {
            auto guest = std::make_unique<Guest>();
            guest->connection = std::move(connection);
            Guest& at = *guest;
            guests_.emplace(&at, std::move(guest));
            serve(at);
        }
        return ending;
    }

    void serve(Guest& guest) {
        guest.connection->pump(std::chrono::steady_clock::now());
        if (guest.connection->isOver()) {
            gone_(*guest.connection);
            timed_.erase(&guest);
            guests_.erase(&guest);
            return;
        }
        const Connection::Waits waits = guest.connection->waits();
        follow(guest, guest.socket, {waits.socket, waits.socketFor});
        follow(guest, guest.grpc, {waits.grpc, waits.grpcFor});
        if (guest.connection->waitMs() < 0)
            timed_.erase(&guest);
        else
            timed_.insert(&guest);
    }

    /// One that was closed has left epoll by itself.
    void follow(Guest& guest, Side& has, Side wants) const {
        if (has.fd == wants.fd && has.events == wants.events) return;
        epoll_event event{.events = static_cast<uint32_t>(wants.events), .data = {.ptr = &guest}};
        if (has.fd != wants.fd && has.fd >= 0)
            ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, has.fd, nullptr);
        if (wants.fd >= 0)
            ::epoll_ctl(epoll_.get(), has.fd == wants.fd ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, wants.fd,
                        &event);
        has = wants;
    }

    const std::function<void(const Connection&)> gone_;
    const UniqueFd epoll_;
    const UniqueFd wake_;
    std::map<Guest*, std::unique_ptr<Guest>> guests_;
    std::set<Guest*> timed_;  ///< of them, those that wait for a time
    LeafMutex mutex_;
    std::vector<std::unique_ptr<Connection>> coming_ ABSL_GUARDED_BY(mutex_);
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

Front::Front(std::unique_ptr<ServerTls> tls, Closed closed, ToGrpc toGrpc,
             std::chrono::milliseconds time)
    : tls_(std::move(tls)),
      closed_(std::move(closed)),
      toGrpc_(std::move(toGrpc)),
      time_(time),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      hall_(std::make_unique<Hall>([this](const Connection& gone) {
          const auto known = find(gone.grpcName());
          if (known != nullptr && !gone.fault().empty()) closed_(known->peer.name, gone.fault());
          forget(gone);
      })) {}

Front::~Front() = default;

bool Front::letIn(UniqueFd& fd, const Peer& peer) {
    const Time now = std::chrono::steady_clock::now();
    if (turns_.next(peer.host) > now || !makeRoom(now)) return false;
    auto share = std::make_shared<Share>(std::make_shared<Allowance>(kStranger, now));
    auto connection =
        std::make_unique<Connection>(std::move(fd), tls_ == nullptr ? nullptr : tls_->now(), share,
                                     [this, peer, share](Connection& from, UniqueFd theirs) {
                                         introduce(from, peer, share, std::move(theirs));
                                     });
    connection->readAtMost(kFirstBytes);
    turns_.came(peer.host, now);
    strangers_.push_back({std::move(connection), peer, now + time_, now + kTurn});
    return true;
}

/// False: as many as may be are there, and have come just now or still leave.
bool Front::makeRoom(Time now) {
    if (strangers_.size() < kMost) return true;
    if (std::ranges::any_of(strangers_, &Stranger::isOut)) return false;
    std::map<Host, size_t> ofHost;
    for (const Stranger& one : strangers_) ++ofHost[one.peer.host];
    // The first of equals is the oldest.
    const auto gives = std::ranges::max_element(
        strangers_, {}, [&](const Stranger& one) { return ofHost[one.peer.host]; });
    if (now < gives->turnEnds) return false;
    putOut(*gives, kOthersWaited, now);
    if (!gives->connection->isOver()) return false;
    forget(*gives->connection);
    strangers_.erase(gives);
    return true;
}

void Front::putOut(Stranger& one, const std::string& why, Time now) {
    one.connection->cut(now);
    one.isOut = true;
    closed_(one.peer.name, why);
}

void Front::look() {
    const Time now = std::chrono::steady_clock::now();
    calm(wake_);
    std::erase_if(strangers_, [&](Stranger& one) { return !serve(one, now); });
    giveMore(now);
}

/// The first of those that need it gets the second limit, if nobody has it or who has it gives way.
void Front::giveMore(Time now) {
    const auto waits = std::ranges::find_if(strangers_, [](const Stranger& one) {
        return !one.isOut && !one.isLarge && one.connection->wantsMore();
    });
    if (waits == strangers_.end()) return;
    const auto has = std::ranges::find_if(strangers_, &Stranger::isLarge);
    if (has != strangers_.end()) {
        if (has->isOut || now < has->turnEnds) return;
        turns_.offended(has->peer.host, now);
        return putOut(*has, kOthersWaited, now);
    }
    waits->isLarge = true;
    waits->turnEnds = now + kLargeTurn;
    waits->connection->readAtMost(kMostBytes);
}

/// False: it is no stranger any more.
bool Front::serve(Stranger& one, Time now) {
    Connection& connection = *one.connection;
    connection.pump(now);
    if (hasSignedIn(connection.grpcName())) {
        turns_.signedIn(one.peer.host, now);
        connection.readAtMost(UINT64_MAX);
        hall_->add(std::move(one.connection));
        return false;
    }
    if (connection.isOver()) {
        if (!connection.fault().empty()) closed_(one.peer.name, connection.fault());
        // A handshake that is broken off was work for this end.
        if (connection.grpcName().empty()) turns_.offended(one.peer.host, now);
        forget(connection);
        return false;
    }
    if (one.isOut) return true;
    // A first call has a few frames; calls beyond kStranger wait for the first one's answer.
    if (connection.received() >= kMostBytes || connection.frameWaits()) {
        turns_.offended(one.peer.host, now);
        putOut(one,
               absl::StrCat("Nobody had signed in when it had sent ", connection.received(),
                            " bytes."),
               now);
    } else if (connection.callWaits() && isRefused(connection.grpcName())) {
        putOut(one, "All its calls were refused.", now);
    } else if (now >= one.until) {
        putOut(one, absl::StrCat("Nobody had signed in after ", time_.count(), " ms."), now);
    }
    if (connection.isOver()) forget(connection);
    return !connection.isOver();
}

void Front::addTo(std::vector<pollfd>& waited) const {
    waited.push_back({wake_.get(), POLLIN, 0});
    for (const Stranger& one : strangers_) {
        const Connection::Waits waits = one.connection->waits();
        waited.push_back({waits.socket, waits.socketFor, 0});
        waited.push_back({waits.grpc, waits.grpcFor, 0});
    }
}

int Front::waitMs() const {
    const Time now = std::chrono::steady_clock::now();
    int wait = -1;
    for (const Stranger& one : strangers_) {
        wait = sooner(wait, one.connection->waitMs());
        if (!one.isOut) wait = sooner(wait, msUntil(one.turnEnds > now ? one.turnEnds : one.until));
    }
    return wait;
}

void Front::introduce(Connection& connection, const Peer& peer, std::shared_ptr<Share> share,
                      UniqueFd theirs) {
    auto known = std::make_shared<Known>(Known{peer, {}});
    if (!connection.certificate().empty())
        known->certificate =
            access::certificateOf(connection.certificate()).value_or(access::Certificate());
    {
        const MutexLock<LeafMutex> lock(mutex_);
        entries_[connection.grpcName()] = {std::move(known), std::move(share)};
    }
    toGrpc_(std::move(theirs));
}

std::shared_ptr<const Front::Known> Front::find(const std::string& grpcName) const {
    const MutexLock<LeafMutex> lock(mutex_);
    const auto it = entries_.find(grpcName);
    return it == entries_.end() ? nullptr : it->second.known;
}

absl::Status Front::signedIn(const std::string& grpcName, const std::string& principal) {
    const Time now = std::chrono::steady_clock::now();
    {
        const MutexLock<LeafMutex> lock(mutex_);
        const auto it = entries_.find(grpcName);
        if (it == entries_.end() || it->second.signedIn) return absl::OkStatus();
        std::erase_if(principals_, [&](const auto& one) {
            return one.second.use_count() == 1 && one.second->isWhole(now);
        });
        std::shared_ptr<Allowance>& shared = principals_[principal];
        if (shared == nullptr) shared = std::make_shared<Allowance>(kPrincipal, now);
        if (!it->second.share->moveTo(shared))
            return absl::ResourceExhaustedError(
                absl::StrCat(principal, " has ", kPrincipal.connections,
                             " connections open, and one caller may have no more; close some"));
        it->second.signedIn = true;
    }
    wake(wake_);
    return absl::OkStatus();
}

void Front::refused(const std::string& grpcName) {
    const MutexLock<LeafMutex> lock(mutex_);
    if (const auto it = entries_.find(grpcName); it != entries_.end()) ++it->second.refused;
}

bool Front::isRefused(const std::string& grpcName) const {
    const MutexLock<LeafMutex> lock(mutex_);
    const auto it = entries_.find(grpcName);
    return it != entries_.end() && it->second.refused >= kStranger.calls.atOnce;
}

bool Front::hasSignedIn(const std::string& grpcName) const {
    const MutexLock<LeafMutex> lock(mutex_);
    const auto it = entries_.find(grpcName);
    return it != entries_.end() && it->second.signedIn;
}

std::shared_ptr<void> Front::callBegins(const std::string& grpcName) {
    const MutexLock<LeafMutex> lock(mutex_);
    const auto it = entries_.find(grpcName);
    return it == entries_.end() ? nullptr : it->second.share->callBegins();
}

void Front::forget(const Connection& connection) {
    const MutexLock<LeafMutex> lock(mutex_);
    entries_.erase(connection.grpcName());
}

}  // namespace bulkhead::front
