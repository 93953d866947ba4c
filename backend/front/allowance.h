// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::front {

/// Bounds the work that one principal, or one connection on which nobody has signed in, gives gRPC:
/// gRPC 1.51 reads calls faster than it carries them out, with no bound on those between, and takes
/// any number of other frames. Thread: any.
class Allowance {
  public:
    using Time = std::chrono::steady_clock::time_point;
    struct Rate {
        double atOnce = 0;
        double aSecond = 0;
    };
    /// A frame begins a call, or belongs to one, or to the connection as PING and SETTINGS do.
    enum class Kind { kCall, kOfCall, kOther };
    struct Limits {
        Rate calls;
        Rate ofCalls;
        Rate others;          ///< of each connection
        double open = 0;      ///< calls that gRPC has
        int connections = 0;  ///< with those that are gone and have open calls
    };
    /// Some calls never begin: those of a method that does not exist. They are forgotten so fast.
    static constexpr double kForgottenASecond = 20;

    /// Empties at once and fills with time.
    class Bucket {
      public:
        Bucket(const Rate& rate, Time now) : rate_(rate), left_(rate.atOnce), at_(now) {}
        bool has(Time now) {
            const double seconds = std::max(std::chrono::duration<double>(now - at_).count(), 0.0);
            at_ = std::max(at_, now);
            left_ = std::min(left_ + seconds * rate_.aSecond, rate_.atOnce);
            return left_ >= 1;
        }
        bool take(Time now) {
            if (!has(now)) return false;
            left_ -= 1;
            return true;
        }
        bool isWhole(Time now) { return !has(now) ? rate_.atOnce < 1 : left_ == rate_.atOnce; }

      private:
        Rate rate_;
        double left_;
        Time at_;
    };

    explicit Allowance(const Limits& limits, Time now = std::chrono::steady_clock::now())
        : limits_(limits), calls_(limits.calls, now), ofCalls_(limits.ofCalls, now), at_(now) {}

    /// May a frame that begins a call, or belongs to one, go to gRPC now? If so, it is counted.
    /// `first`: the connection has no open call; it may have one whatever the others of its
    /// principal do.
    bool takeCall(bool first, Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        forget(now);
        if (!first && (open_ >= limits_.open || !calls_.has(now))) return false;
        calls_.take(now);
        open_ += 1;
        return true;
    }
    bool takeOfCall(Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        return ofCalls_.take(now);
    }
    const Limits& limits() const { return limits_; }
    /// False: there are as many connections as may be.
    bool addConnection() {
        const MutexLock<LeafMutex> lock(mutex_);
        if (connections_ == limits_.connections) return false;
        ++connections_;
        return true;
    }
    void removeConnection() {
        const MutexLock<LeafMutex> lock(mutex_);
        --connections_;
    }
    void add(int openCalls) {
        const MutexLock<LeafMutex> lock(mutex_);
        open_ = std::max(open_ + openCalls, 0.0);
    }
    /// It is as if it were new.
    bool isWhole(Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        forget(now);
        return calls_.isWhole(now) && ofCalls_.isWhole(now) && open_ == 0 && connections_ == 0;
    }

  private:
    void forget(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const double seconds = std::max(std::chrono::duration<double>(now - at_).count(), 0.0);
        at_ = std::max(at_, now);
        open_ = std::max(open_ - seconds * kForgottenASecond, 0.0);
    }

    const Limits limits_;
    LeafMutex mutex_;
    Bucket calls_ ABSL_GUARDED_BY(mutex_);
    Bucket ofCalls_ ABSL_GUARDED_BY(mutex_);
    double open_ ABSL_GUARDED_BY(mutex_) = 0;
    int connections_ ABSL_GUARDED_BY(mutex_) = 0;
    Time at_ ABSL_GUARDED_BY(mutex_);
};

/// One connection's part of an allowance. It lives as long as the connection and each of its calls.
/// Thread: any.
class Share : public std::enable_shared_from_this<Share> {
  public:
    /// `allowance`: nobody else's.
    explicit Share(std::shared_ptr<Allowance> allowance,
                   Allowance::Time now = std::chrono::steady_clock::now())
        : allowance_(std::move(allowance)), others_(allowance_->limits().others, now) {
        allowance_->addConnection();
    }
    ~Share() {
        allowance_->add(-passed_ - begun_);
        allowance_->removeConnection();
    }
    Share(const Share&) = delete;

    bool take(Allowance::Kind kind, Allowance::Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        if (kind == Allowance::Kind::kOther) return others_.take(now);
        if (kind == Allowance::Kind::kOfCall) return allowance_->takeOfCall(now);
        if (!allowance_->takeCall(passed_ + begun_ == 0, now)) return false;
        ++passed_;
        return true;
    }
    /// From now on it is a part of this one, with the calls that are open. False: that has as many
    /// connections as may be, and nothing changes.
    bool moveTo(std::shared_ptr<Allowance> allowance,
                Allowance::Time now = std::chrono::steady_clock::now()) {
        const MutexLock<LeafMutex> lock(mutex_);
        if (!allowance->addConnection()) return false;
        allowance_->add(-passed_ - begun_);
        allowance_->removeConnection();
        allowance_ = std::move(allowance);
        allowance_->add(passed_ + begun_);
        others_ = Allowance::Bucket(allowance_->limits().others, now);
        return true;
    }
    /// gRPC begins a call, which ends when the result is destroyed.
    std::shared_ptr<void> callBegins() {
        const MutexLock<LeafMutex> lock(mutex_);
        passed_ = std::max(passed_ - 1, 0);
        ++begun_;
        return {this, [self = shared_from_this()](void*) { self->callEnds(); }};
    }

  private:
    void callEnds() {
        const MutexLock<LeafMutex> lock(mutex_);
        --begun_;
        allowance_->add(-1);
    }

    LeafMutex mutex_;
    std::shared_ptr<Allowance> allowance_ ABSL_GUARDED_BY(mutex_);
    Allowance::Bucket others_ ABSL_GUARDED_BY(mutex_);
    int passed_ ABSL_GUARDED_BY(mutex_) = 0;  ///< calls that gRPC has not begun
    int begun_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bulkhead::front
