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

#include "absl/base/thread_annotations.h"
#include "backend/common/clock.h"

/// Threads, mutexes and condition variables: the kernel's, unless a ThreadHost runs the caller.
/// Then they are the host's, so that a simulation decides which thread of a program goes on and
/// when.
///
/// All code of the backend, the console and the tests locks by the types of this file, because
/// libstdc++ annotates neither std::mutex nor its guards, and a simulation cannot schedule
/// absl::Mutex. Each mutex names what it guards (ABSL_GUARDED_BY), each function that expects a
/// held mutex says so (ABSL_EXCLUSIVE_LOCKS_REQUIRED), and `./dev lint` lets clang check both.
/// Plugins see only C headers of ours and use absl::Mutex.
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
class ABSL_LOCKABLE Mutex {
  public:
    void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
        if (threadHost == nullptr) return native_.lock();
        threadHost->pass();
        while (held_ && !threadHost->ending()) {
            ++waiting_;
            threadHost->park(this, ThreadHost::kForEver, false);
            --waiting_;
        }
        held_ = true;
    }
    void unlock() ABSL_UNLOCK_FUNCTION() {
        if (threadHost == nullptr) return native_.unlock();
        held_ = false;
        if (waiting_ > 0) threadHost->wake(this, true);
    }
    /// Tells the compiler that the caller holds it, where it cannot see that: in a lambda that a
    /// function with the mutex held passes down. Does nothing when run.
    void assertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

  private:
    friend class ConditionVariable;
    std::mutex native_;
    bool held_ = false;  ///< with a host, likewise below
    uint32_t waiting_ = 0;
};

/// A mutex that is held for a few instructions, which never wait: a host does not switch threads
/// there. It has no condition variable.
class ABSL_LOCKABLE LeafMutex {
  public:
    void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { native_.lock(); }
    void unlock() ABSL_UNLOCK_FUNCTION() { native_.unlock(); }

  private:
    std::mutex native_;
};

/// Holds a mutex while it lives, except between unlock() and lock(). Thread: the one that made it.
template <class Lockable = Mutex>
class ABSL_SCOPED_LOCKABLE MutexLock {
  public:
    explicit MutexLock(Lockable& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
        mutex_.lock();
    }
    ~MutexLock() ABSL_UNLOCK_FUNCTION() {
        if (held_) mutex_.unlock();
    }
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;

    void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
        mutex_.lock();
        held_ = true;
    }
    void unlock() ABSL_UNLOCK_FUNCTION() {
        held_ = false;
        mutex_.unlock();
    }

  private:
    friend class ConditionVariable;
    Lockable& mutex_;
    bool held_ = true;
};

/// Contract of std::condition_variable. `lock` holds its mutex before and after a wait; `ready` is
/// called with it held and is annotated with it.
class ConditionVariable {
  public:
    void notify_one() {
        threadHost == nullptr ? native_.notify_one() : threadHost->wake(this, false);
    }
    void notify_all() {
        threadHost == nullptr ? native_.notify_all() : threadHost->wake(this, true);
    }
    void wait(MutexLock<>& lock) {
        if (threadHost != nullptr) return parkFor(lock, ThreadHost::kForEver);
        std::unique_lock<std::mutex> native(lock.mutex_.native_, std::adopt_lock);
        native_.wait(native);
        native.release();
    }
    /// When its host is ending and does not unwind the thread, `ready` may be false afterwards.
    template <class Ready>
    void wait(MutexLock<>& lock, Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        while (!ready()) {
            const bool over = threadHost != nullptr && threadHost->ending();
            wait(lock);
            if (over) return;
        }
    }
    template <class Ready>
    bool wait_for(MutexLock<>& lock, std::chrono::nanoseconds atMost,
                  Ready ready) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        if (threadHost != nullptr) {
            const MonoNs end = threadHost->now() + atMost.count();
            while (!ready() && threadHost->now() < end) {
                const bool over = threadHost->ending();
                parkFor(lock, end - threadHost->now());
                if (over) break;
            }
            return ready();
        }
        std::unique_lock<std::mutex> native(lock.mutex_.native_, std::adopt_lock);
        const bool done = native_.wait_for(native, atMost, ready);
        native.release();
        return done;
    }

  private:
    void parkFor(MutexLock<>& lock, MonoNs atMost) ABSL_NO_THREAD_SAFETY_ANALYSIS {
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
