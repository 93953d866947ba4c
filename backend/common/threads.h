// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "backend/common/clock.h"

/// Threads, and what they wait by: the kernel's, unless a ThreadHost runs the caller. Then they are
/// the host's, so that a simulation decides which thread of a program goes on and when.
namespace bulkhead {

/// Runs the threads of one process in place of the kernel, one at a time: another one goes on only
/// inside pass() and park(). Its own functions are called on these threads.
class ThreadHost {
  public:
    static constexpr MonoNs kForEver = -1;

    virtual ~ThreadHost() = default;
    /// The process's monotonic clock.
    virtual MonoNs now() const = 0;
    /// Names the new thread to join().
    virtual uint64_t start(std::function<void()> body) = 0;
    /// Returns when its body has returned; when ending() it does as park().
    virtual void join(uint64_t thread) = 0;
    /// Others may go on first.
    virtual void pass() = 0;
    /// Waits for wake(on), for `atMost` nanoseconds of the process's clock if that is not kForEver.
    /// May return early. When ending() it unwinds the thread by an exception of the host's, if that
    /// is not on its way already and `unwinds` allows it, else returns at once.
    virtual void park(const void* on, MonoNs atMost, bool unwinds = true) = 0;
    /// Lets who is parked on it go on: all of them or one. Also from outside its threads.
    virtual void wake(const void* on, bool all) = 0;
    /// The process was killed: its threads only unwind.
    virtual bool ending() const = 0;
};

/// The host that runs the calling thread; null: the kernel.
inline constinit thread_local ThreadHost* threadHost = nullptr;

/// Contract of std::mutex. One object is used with or without a host, not both.
class Mutex {
  public:
    void lock() {
        if (threadHost == nullptr) return native_.lock();
        threadHost->pass();
        while (held_ && !threadHost->ending()) {
            ++waiting_;
            threadHost->park(this, ThreadHost::kForEver, false);
            --waiting_;
        }
        held_ = true;
    }
    void unlock() {
        if (threadHost == nullptr) return native_.unlock();
        held_ = false;
        if (waiting_ > 0) threadHost->wake(this, true);
    }

  private:
    friend class ConditionVariable;
    std::mutex native_;
    bool held_ = false;  ///< with a host, likewise below
    uint32_t waiting_ = 0;
};

/// Contract of std::condition_variable.
class ConditionVariable {
  public:
    void notify_one() {
        threadHost == nullptr ? native_.notify_one() : threadHost->wake(this, false);
    }
    void notify_all() {
        threadHost == nullptr ? native_.notify_all() : threadHost->wake(this, true);
    }
    void wait(std::unique_lock<Mutex>& lock) {
        if (threadHost != nullptr) return parkFor(lock, ThreadHost::kForEver);
        std::unique_lock<std::mutex> native(lock.mutex()->native_, std::adopt_lock);
        native_.wait(native);
        native.release();
    }
    /// When its host is ending and does not unwind the thread, `ready` may be false afterwards.
    template <class Ready>
    void wait(std::unique_lock<Mutex>& lock, Ready ready) {
        while (!ready()) {
            const bool over = threadHost != nullptr && threadHost->ending();
            wait(lock);
            if (over) return;
        }
    }
    template <class Ready>
    bool wait_for(std::unique_lock<Mutex>& lock, std::chrono::nanoseconds atMost, Ready ready) {
        if (threadHost != nullptr) {
            const MonoNs end = threadHost->now() + atMost.count();
            while (!ready() && threadHost->now() < end) {
                const bool over = threadHost->ending();
                parkFor(lock, end - threadHost->now());
                if (over) break;
            }
            return ready();
        }
        std::unique_lock<std::mutex> native(lock.mutex()->native_, std::adopt_lock);
        const bool done = native_.wait_for(native, atMost, ready);
        native.release();
        return done;
    }

  private:
    void parkFor(std::unique_lock<Mutex>& lock, MonoNs atMost) {
        lock.unlock();
        threadHost->park(this, atMost);
        lock.lock();
    }
    std::condition_variable native_;
};

/// Contract of std::thread. Whoever destroys or assigns to one that is neither joined nor detached
/// ends the process, unless its host is ending.
class Thread {
  public:
    Thread() = default;
    explicit Thread(std::function<void()> body) : host_(threadHost) {
        if (host_ == nullptr)
            native_ = std::thread(std::move(body));
        else
            hosted_ = host_->start(std::move(body));
    }
    Thread(Thread&& other) noexcept
        : host_(std::exchange(other.host_, nullptr)),
          hosted_(other.hosted_),
          native_(std::move(other.native_)) {}
    Thread& operator=(Thread&& other) noexcept {
        endUnlessOver();
        host_ = std::exchange(other.host_, nullptr);
        hosted_ = other.hosted_;
        native_ = std::move(other.native_);
        return *this;
    }
    ~Thread() { endUnlessOver(); }

    bool joinable() const { return host_ != nullptr || native_.joinable(); }
    void join() {
        if (host_ == nullptr) return native_.join();
        std::exchange(host_, nullptr)->join(hosted_);
    }
    void detach() {
        if (host_ == nullptr) return native_.detach();
        host_ = nullptr;
    }

  private:
    void endUnlessOver() const {
        if (host_ != nullptr && !host_->ending()) std::terminate();
    }
    ThreadHost* host_ = nullptr;  ///< of a thread that is neither joined nor detached
    uint64_t hosted_ = 0;
    std::thread native_;
};

/// The calling thread does nothing for so long.
inline void sleepFor(MonoNs time) {
    if (threadHost == nullptr) return std::this_thread::sleep_for(std::chrono::nanoseconds(time));
    const MonoNs end = threadHost->now() + time;
    while (threadHost->now() < end) {
        threadHost->park(&end, end - threadHost->now());
        if (threadHost->ending()) return;
    }
}

/// Lets others go first on a busy machine, by so many steps of nice(1).
inline void lowerThreadPriority(int steps) {
    if (threadHost == nullptr) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), steps);
}

}  // namespace bulkhead
