// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::service {

/// A few threads for what may block (the controller's answer, SQLite), so that gRPC's own threads
/// never do. Thread: post() from any.
class Workers {
  public:
    /// `lower`: the threads let others go first on a busy machine, by so many steps of nice(1).
    explicit Workers(size_t threads, int lower = 0) {
        for (size_t i = 0; i < threads; ++i)
            threads_.emplace_back([this, lower] {
                if (lower > 0) lowerThreadPriority(lower);
                work();
            });
    }
    /// Runs what was posted, then ends.
    ~Workers() {
        {
            const MutexLock lock(mutex_);
            ending_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    void post(std::function<void()> task) {
        {
            const MutexLock lock(mutex_);
            tasks_.push_back(std::move(task));
        }
        wake_.notify_one();
    }

  private:
    void work() {
        MutexLock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return ending_ || !tasks_.empty();
            });
            if (tasks_.empty()) return;
            const std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            lock.lock();
        }
    }

    Mutex mutex_;
    ConditionVariable wake_;
    std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    std::vector<std::thread> threads_;
};

}  // namespace bulkhead::service
