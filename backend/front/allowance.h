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
        Rate others;
        double open = 0;      ///< calls that gRPC has
        int connections = 0;  ///< with those that are gone and have open calls
    };
    /// Some calls never begin: those of a method that does not exist. They are forgotten so fast.
    static constexpr double kForgottenASecond = 20;

    explicit Allowance(const Limits& limits, Time now = std::chrono::steady_clock::now())
        : calls_(limits.calls),
          ofCalls_(limits.ofCalls),
          others_(limits.others),
          mostOpen_(limits.open),
          mostConnections_(limits.connections),
          at_(now) {}

    /// May such a frame go to gRPC now? If so, it is counted. `first`: the connection has no open
    /// call; it may have one whatever the others of its principal do.
    bool take(Kind kind, bool first, Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        refill(now);
        if (kind == Kind::kOfCall) return ofCalls_.take();
        if (kind == Kind::kOther) return others_.take();
        if (!first && (open_ >= mostOpen_ || !calls_.has())) return false;
        calls_.take();
        open_ += 1;
        return true;
    }
    /// False: there are as many connections as may be.
    bool addConnection() {
        const MutexLock<LeafMutex> lock(mutex_);
        if (connections_ == mostConnections_) return false;
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
        refill(now);
        return calls_.isWhole() && ofCalls_.isWhole() && others_.isWhole() && open_ == 0 &&
               connections_ == 0;
    }

  private:
    class Bucket {
      public:
        explicit Bucket(const Rate& rate) : rate_(rate), left_(rate.atOnce) {}
        void refill(double seconds) {
            left_ = std::min(left_ + seconds * rate_.aSecond, rate_.atOnce);
        }
        bool has() const { return left_ >= 1; }
        bool take() {
            if (!has()) return false;
            left_ -= 1;
            return true;
        }
        bool isWhole() const { return left_ == rate_.atOnce; }

      private:
        Rate rate_;
        double left_;
    };

    void refill(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const double seconds = std::max(std::chrono::duration<double>(now - at_).count(), 0.0);
        at_ = std::max(at_, now);
        for (Bucket* bucket : {&calls_, &ofCalls_, &others_}) bucket->refill(seconds);
        open_ = std::max(open_ - seconds * kForgottenASecond, 0.0);
    }

    LeafMutex mutex_;
    Bucket calls_ ABSL_GUARDED_BY(mutex_);
    Bucket ofCalls_ ABSL_GUARDED_BY(mutex_);
    Bucket others_ ABSL_GUARDED_BY(mutex_);
    const double mostOpen_;
    const int mostConnections_;
    double open_ ABSL_GUARDED_BY(mutex_) = 0;
    int connections_ ABSL_GUARDED_BY(mutex_) = 0;
    Time at_ ABSL_GUARDED_BY(mutex_);
};

/// One connection's part of an allowance. It lives as long as the connection and each of its calls.
/// Thread: any.
class Share : public std::enable_shared_from_this<Share> {
  public:
    /// `allowance`: nobody else's.
    explicit Share(std::shared_ptr<Allowance> allowance) : allowance_(std::move(allowance)) {
        allowance_->addConnection();
    }
    ~Share() {
        allowance_->add(-passed_ - begun_);
        allowance_->removeConnection();
    }
    Share(const Share&) = delete;

    bool take(Allowance::Kind kind, Allowance::Time now) {
        const MutexLock<LeafMutex> lock(mutex_);
        if (!allowance_->take(kind, passed_ + begun_ == 0, now)) return false;
        if (kind == Allowance::Kind::kCall) ++passed_;
        return true;
    }
    /// From now on it is a part of this one, with the calls that are open. False: that has as many
    /// connections as may be, and nothing changes.
    bool moveTo(std::shared_ptr<Allowance> allowance) {
        const MutexLock<LeafMutex> lock(mutex_);
        if (!allowance->addConnection()) return false;
        allowance_->add(-passed_ - begun_);
        allowance_->removeConnection();
        allowance_ = std::move(allowance);
        allowance_->add(passed_ + begun_);
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
    int passed_ ABSL_GUARDED_BY(mutex_) = 0;  ///< calls that gRPC has not begun
    int begun_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bulkhead::front
