// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint64_t kWakeTag = 0;

absl::Status systemError(const char* what) {
    return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reactor>> Reactor::create(const Clock& clock) {
    std::unique_ptr<Reactor> reactor(new Reactor(clock));
    if (threadHost != nullptr) return reactor;
    reactor->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    if (!reactor->epoll_.valid()) return systemError("epoll_create1");
    reactor->wakeFd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!reactor->wakeFd_.valid()) return systemError("eventfd");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kWakeTag;
    if (epoll_ctl(reactor->epoll_.get(), EPOLL_CTL_ADD, reactor->wakeFd_.get(), &event) != 0)
        return systemError("epoll_ctl");
    return reactor;
}

Reactor::~Reactor() {
    // Tasks may own objects that unwatch and cancel as they go; let them find a whole reactor.
    std::vector<Task> posted;
    {
        const MutexLock lock(mutex_);
        posted.swap(posted_);
    }
    posted.clear();
    auto timers = std::move(timers_);
    timers_.clear();
    timers.clear();
    auto watches = std::move(watches_);
    watches_.clear();
    watches.clear();
}

void Reactor::run() {
    while (!stopped_.load(std::memory_order_acquire)) runOnce(60 * kSecond);
    runPosted();
}

void Reactor::stop() {
    stopped_.store(true, std::memory_order_release);
    wake();
}

void Reactor::wake() {
    if (host_ != nullptr) return host_->wake(this, true);
    const uint64_t one = 1;
    // A full counter (EAGAIN) already means "wake up".
    [[maybe_unused]] const ssize_t n = ::write(wakeFd_.get(), &one, sizeof one);
}

void Reactor::post(Task task) {
    bool first = false;
    {
        const MutexLock lock(mutex_);
        first = posted_.empty();
        posted_.push_back(std::move(task));
    }
    if (first) wake();
}

Reactor::TimerId Reactor::arm(MonoNs at, MonoNs period, Task task) {
    const TimerId id = nextTimer_++;
    timers_.emplace(at, Timer{id, period, std::move(task)});
    return id;
}

Reactor::TimerId Reactor::after(MonoNs delay, Task task) {
    return arm(now() + std::max<MonoNs>(delay, 0), 0, std::move(task));
}

Reactor::TimerId Reactor::every(MonoNs period, Task task) {
    period = std::max<MonoNs>(period, 1);
    return arm(now() + period, period, std::move(task));
}

void Reactor::cancel(TimerId id) {
    if (id == running_) {
        runningCancelled_ = true;
        return;
    }
    const auto it = std::find_if(timers_.begin(), timers_.end(),
                                 [id](const auto& entry) { return entry.second.id == id; });
    if (it == timers_.end()) return;
    // The task may own things whose destructors come back here.
    const Timer keep = std::move(it->second);
    timers_.erase(it);
}

absl::Status Reactor::watch(int fd, uint32_t events, FdTask task) {
    if (watches_.contains(fd))
        return absl::AlreadyExistsError(absl::StrCat("descriptor ", fd, " is watched already"));
    auto watch = std::make_shared<Watch>();
    watch->generation = nextGeneration_++;
    watch->task = std::move(task);
    epoll_event event{};
    event.events = events;
    event.data.u64 = (static_cast<uint64_t>(fd) << 32) | (watch->generation & 0xffffffffu);
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return systemError("epoll_ctl");
    watches_.emplace(fd, std::move(watch));
    return absl::OkStatus();
}

void Reactor::rewatch(int fd, uint32_t events) {
    const auto it = watches_.find(fd);
    if (it == watches_.end()) return;
    epoll_event event{};
    event.events = events;
    event.data.u64 = (static_cast<uint64_t>(fd) << 32) | (it->second->generation & 0xffffffffu);
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::unwatch(int fd) {
    const auto it = watches_.find(fd);
    if (it == watches_.end()) return;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    const auto keep = std::move(it->second);
    watches_.erase(it);
}

MonoNs Reactor::waitNs(MonoNs maxWait) const {
    if (!timers_.empty()) maxWait = std::min(maxWait, timers_.begin()->first - now());
    return std::clamp<MonoNs>(maxWait, 0, 60 * kSecond);
}

void Reactor::runOnce(MonoNs maxWait) {
    host_ != nullptr ? waitHosted(maxWait) : waitForEvents(maxWait);
    runDue();
}

void Reactor::waitHosted(MonoNs maxWait) {
    const MonoNs wait = waitNs(maxWait);
    {
        const MutexLock lock(mutex_);
        if (!posted_.empty() || stopped_) return;
    }
    if (wait > 0) host_->park(this, wait);
}

void Reactor::waitForEvents(MonoNs maxWait) {
    std::array<epoll_event, 64> events;
    const auto waitMs = static_cast<int>((waitNs(maxWait) + kMillisecond - 1) / kMillisecond);
    const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), waitMs);
    for (int i = 0; i < n; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        if (event.data.u64 == kWakeTag) {
            uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(wakeFd_.get(), &count, sizeof count);
            continue;
        }
        const int fd = static_cast<int>(event.data.u64 >> 32);
        const auto it = watches_.find(fd);
        // An earlier callback of this batch may have unwatched it, or reused the number.
        if (it == watches_.end() ||
            (it->second->generation & 0xffffffffu) != (event.data.u64 & 0xffffffffu))
            continue;
        const std::shared_ptr<Watch> keep = it->second;
        keep->task(event.events);
    }
}

void Reactor::runDue() {
    runTimers();
    runPosted();
}

std::optional<MonoNs> Reactor::nextDue() {
    {
        const MutexLock lock(mutex_);
        if (!posted_.empty()) return now();
    }
    if (timers_.empty()) return std::nullopt;
    return timers_.begin()->first;
}

void Reactor::runTimers() {
    const MonoNs due = now();
    while (!timers_.empty() && timers_.begin()->first <= due) {
        auto node = timers_.extract(timers_.begin());
        Timer timer = std::move(node.mapped());
        running_ = timer.id;
        runningCancelled_ = false;
        timer.task();
        running_ = 0;
        if (timer.period > 0 && !runningCancelled_) {
            const MonoNs next = std::max(node.key() + timer.period, due + 1);
            timers_.emplace(next, std::move(timer));
        }
    }
}

void Reactor::runPosted() {
    std::vector<Task> tasks;
    {
        const MutexLock lock(mutex_);
        tasks.swap(posted_);
    }
    for (Task& task : tasks) {
        task();
        task = nullptr;
    }
}

}  // namespace bulkhead::runtime
