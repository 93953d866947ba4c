// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::service {

/// How much work one principal, or one connection on which nobody has signed in, may give to gRPC.
/// gRPC 1.51 reads calls faster than it begins them, with no bound on those between, and takes any
/// number of other frames. Thread: any.
class Allowance {
  public:
    using Time = std::chrono::steady_clock::time_point;
    struct Rate {
        double atOnce = 0;
        double aSecond = 0;
    };
    struct Limits {
        Rate calls;
        Rate frames;        ///< of any kind but those that carry data
        double queued = 0;  ///< calls that gRPC has read and not begun
    };
    /// Some calls never begin: those of a method that does not exist. They are forgotten so fast.
    static constexpr double kForgottenASecond = 20;

    explicit Allowance(const Limits& limits, Time now = std::chrono::steady_clock::now())
        : limits_(limits), calls_(limits.calls.atOnce), frames_(limits.frames.atOnce), at_(now) {}

    /// May a frame that begins a call, or another one, go to gRPC now? If so, it is counted.
    bool takeCall(Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        refill(now);
        if (calls_ < 1 || frames_ < 1 || queued_ >= limits_.queued) return false;
        calls_ -= 1;
        frames_ -= 1;
        queued_ += 1;
        return true;
    }
    bool takeFrame(Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        refill(now);
        if (frames_ < 1) return false;
        frames_ -= 1;
        return true;
    }
    /// As if it were new.
    bool isWhole(Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        refill(now);
        return calls_ == limits_.calls.atOnce && frames_ == limits_.frames.atOnce && queued_ == 0;
    }
    /// gRPC begins one of the calls.
    void callBegins() {
        const MutexLock<LeafMutex> lock(mutex_);
        queued_ = std::max(queued_ - 1, 0.0);
    }

  private:
    void refill(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const double seconds = std::max(std::chrono::duration<double>(now - at_).count(), 0.0);
        at_ = std::max(at_, now);
        calls_ = std::min(calls_ + seconds * limits_.calls.aSecond, limits_.calls.atOnce);
        frames_ = std::min(frames_ + seconds * limits_.frames.aSecond, limits_.frames.atOnce);
        queued_ = std::max(queued_ - seconds * kForgottenASecond, 0.0);
    }

    const Limits limits_;
    LeafMutex mutex_;
    double calls_ ABSL_GUARDED_BY(mutex_);
    double frames_ ABSL_GUARDED_BY(mutex_);
    double queued_ ABSL_GUARDED_BY(mutex_) = 0;
    Time at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::service
