// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::service {

/// Counts the streams that are open, so that what they use outlives them. Thread: any.
class Open {
  public:
    void enter() {
        const MutexLock lock(mutex_);
        ++count_;
    }
    void leave() {
        const MutexLock lock(mutex_);
        --count_;
        none_.notify_all();
    }
    void awaitNone() {
        MutexLock lock(mutex_);
        none_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == 0; });
    }

  private:
    Mutex mutex_;
    ConditionVariable none_;
    size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bulkhead::service
