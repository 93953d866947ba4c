// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::runtime {

/// One epoll loop: descriptors, timers and posted functions, all called one after another on the
/// thread that runs it. A driver owns one and runs it on its control thread.
/// Threads: `post` and `stop` may be called from any thread; everything else belongs to the thread
/// that runs the loop (or to the one that sets things up before it runs). Callbacks must not block.
/// Callbacks may watch, unwatch, arm and cancel anything, including themselves.
/// Made on a thread of a ThreadHost, it waits by that host and takes no descriptors.
class Reactor {
  public:
    using Task = std::function<void()>;
    /// Receives the epoll events (EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP) that occurred.
    using FdTask = std::function<void(uint32_t events)>;
    using TimerId = uint64_t;

    /// Fails with Internal when the kernel gives no epoll instance or eventfd. `clock` outlives it.
    static absl::StatusOr<std::unique_ptr<Reactor>> create(const Clock& clock);
    ~Reactor();
    Reactor(const Reactor&) = delete;
    Reactor& operator=(const Reactor&) = delete;

    /// Until stop(). Tasks posted before stop() still run.
    void run();
    /// Waits at most `maxWait` nanoseconds (0: does not wait), then calls what is due. For tests
    /// and for programs with a loop of their own.
    void runOnce(MonoNs maxWait);
    /// Calls what is due by the clock and looks at no descriptor: for virtual time.
    void runDue();
    /// When runDue() has something to call next; nullopt: nothing is armed or posted.
    std::optional<MonoNs> nextDue();
    /// Any thread. A run() that starts later returns at once as well.
    void stop();

    /// Any thread. Calls `task` on the loop, in the order of posting. Tasks not yet called when the
    /// reactor is destroyed are destroyed uncalled.
    void post(Task task);

    /// Once, `delay` nanoseconds from now. An id is never used again.
    TimerId after(MonoNs delay, Task task);
    /// Every `period` nanoseconds until cancelled; ticks missed by a busy loop are skipped.
    TimerId every(MonoNs period, Task task);
    /// Unknown or spent ids are ignored.
    void cancel(TimerId id);

    /// Calls `task` when `events` (EPOLLIN | EPOLLOUT, level triggered) occur on `fd`, which stays
    /// the caller's and must be unwatched before it is closed. AlreadyExists, Internal.
    [[nodiscard]] absl::Status watch(int fd, uint32_t events, FdTask task);
    /// Changes what is waited for; 0 leaves only errors and hang-ups. Unwatched fds are ignored.
    void rewatch(int fd, uint32_t events);
    void unwatch(int fd);

    const Clock& clock() const { return clock_; }
    MonoNs now() const { return clock_.now(); }

  private:
    struct Timer {
        TimerId id = 0;
        MonoNs period = 0;
        Task task;
    };
    struct Watch {
        uint64_t generation = 0;
        FdTask task;
    };

    explicit Reactor(const Clock& clock) : clock_(clock), host_(threadHost) {}
    TimerId arm(MonoNs at, MonoNs period, Task task);
    MonoNs waitNs(MonoNs maxWait) const;
    void waitHosted(MonoNs maxWait);
    void waitForEvents(MonoNs maxWait);
    void runTimers();
    void runPosted();
    void wake();

    const Clock& clock_;
    ThreadHost* const host_;
    UniqueFd epoll_;
    UniqueFd wakeFd_;
    std::atomic<bool> stopped_{false};
    LeafMutex mutex_;
    std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
    std::multimap<MonoNs, Timer> timers_;
    TimerId nextTimer_ = 1;
    TimerId running_ = 0;
    bool runningCancelled_ = false;
    std::unordered_map<int, std::shared_ptr<Watch>> watches_;
    uint64_t nextGeneration_ = 1;
};

}  // namespace bulkhead::runtime
