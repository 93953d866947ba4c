// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::service {

/// A few threads for what may block (the controller's answer, SQLite), so that gRPC's own threads
/// never do. Callers take turns, however many calls each has, and where there are several threads
/// one of them is always left to the others. Thread: post() and waiting() from any.
class Workers {
  public:
    using Task = std::function<void()>;

    /// `lower`: the threads let others go first on a busy machine, by so many steps of nice(1).
    explicit Workers(size_t threads, int lower = 0) : most_(std::max<size_t>(threads, 2) - 1) {
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

    /// `caller`: the principal whose turn `task` takes.
    void post(const std::string& caller, Task task) {
        {
            const MutexLock lock(mutex_);
            Calls& calls = callers_[caller];
            if (calls.waiting.empty()) turns_.push_back(caller);
            calls.waiting.push_back(std::move(task));
        }
        wake_.notify_one();
    }

    /// Calls of `caller` that have no thread yet.
    size_t waiting(const std::string& caller) {
        const MutexLock lock(mutex_);
        const auto it = callers_.find(caller);
        return it == callers_.end() ? 0 : it->second.waiting.size();
    }

  private:
    struct Calls {
        std::deque<Task> waiting;
        size_t running = 0;
    };

    void work() {
        MutexLock lock(mutex_);
        for (;;) {
            auto turn = turns_.end();
            wake_.wait(lock, [this, &turn]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                turn = std::ranges::find_if(turns_, [this](const std::string& caller) {
                    mutex_.assertHeld();
                    return callers_[caller].running < most_;
                });
                return turn != turns_.end() || (ending_ && turns_.empty());
            });
            if (turn == turns_.end()) return;
            const std::string caller = *turn;
            turns_.erase(turn);
            Calls& calls = callers_[caller];
            const Task task = std::move(calls.waiting.front());
            calls.waiting.pop_front();
            ++calls.running;
            if (!calls.waiting.empty()) turns_.push_back(caller);
            lock.unlock();
            task();
            lock.lock();
            if (--calls.running == 0 && calls.waiting.empty()) callers_.erase(caller);
            wake_.notify_all();  // another call of this caller may run, or all have ended
        }
    }

    const size_t most_;  ///< calls of one caller at a time
    Mutex mutex_;
    ConditionVariable wake_;
    std::map<std::string, Calls> callers_ ABSL_GUARDED_BY(mutex_);  ///< all with calls here
    std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);         ///< callers with waiting calls
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    std::vector<std::thread> threads_;
};

}  // namespace bulkhead::service
