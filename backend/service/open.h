// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

/// Counts the streams of a kind that each principal has open, waiting ones included. Thread: any.
class Shares {
  public:
    /// `what`: in the plural, for messages. `each`: so many at a time.
    Shares(std::string what, size_t each) : what_(std::move(what)), each_(each) {}

    /// Counts one until the result is destroyed, which the object outlives. ResourceExhausted: the
    /// principal has all of its share.
    absl::StatusOr<std::shared_ptr<void>> take(const std::string& principal) {
        const MutexLock lock(mutex_);
        size_t& open = open_[principal];
        if (open == each_)
            return absl::ResourceExhaustedError(
                absl::StrCat(principal, " has ", each_, " ", what_,
                             " open, and one caller may have no more at a time; end one of them"));
        ++open;
        return std::shared_ptr<void>(this, [this, principal](void*) { giveBack(principal); });
    }

  private:
    void giveBack(const std::string& principal) {
        const MutexLock lock(mutex_);
        const auto it = open_.find(principal);
        if (--it->second == 0) open_.erase(it);
    }
    const std::string what_;
    const size_t each_;
    Mutex mutex_;
    std::map<std::string, size_t> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::service
