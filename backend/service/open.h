// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace bulkhead::service {

/// Counts the streams that are open, so that what they use outlives them. Thread: any.
class Open {
  public:
    void enter() {
        const std::lock_guard lock(mutex_);
        ++count_;
    }
    void leave() {
        const std::lock_guard lock(mutex_);
        --count_;
        none_.notify_all();
    }
    void awaitNone() {
        std::unique_lock lock(mutex_);
        none_.wait(lock, [this] { return count_ == 0; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable none_;
    size_t count_ = 0;
};

}  // namespace bulkhead::service
