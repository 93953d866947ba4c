// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

/// A stream that is one: what is put on it is done later, in order, by a thread of its own.
struct bulkhead_stream {
  public:
    bulkhead_stream() : thread_([this] { run(); }) {}
    ~bulkhead_stream() {
        put([this] { ended_ = true; });
        thread_.join();
    }

    void put(std::function<void()> work) {
        {
            const bulkhead::MutexLock lock(mutex_);
            work_.push_back(std::move(work));
            ++put_;
        }
        changed_.notify_all();
    }
    void synchronize() {
        bulkhead::MutexLock lock(mutex_);
        changed_.wait(lock, [this, all = put_]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= all; });
    }

    /// While it is true no stream works.
    static std::atomic<bool>& held() {
        static std::atomic<bool> held{false};
        return held;
    }

  private:
    void run() {
        while (!ended_) {
            bulkhead::MutexLock lock(mutex_);
            changed_.wait(
                lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !work_.empty(); });
            const std::function<void()> work = std::move(work_.front());
            work_.pop_front();
            lock.unlock();
            // A slow bus: whoever does not wait for a stream is found out.
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            held().wait(true);
            work();
            lock.lock();
            ++done_;
            lock.unlock();
            changed_.notify_all();
        }
    }
    bulkhead::Mutex mutex_;
    bulkhead::ConditionVariable changed_;
    std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
    uint64_t put_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
    bool ended_ = false;  // the thread's
    std::thread thread_;
};
