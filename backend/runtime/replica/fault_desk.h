// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/transport/network_faults.h"

namespace bulkhead::runtime {

/// Commits the faults that only the process itself can commit, at the step and phase they name.
/// Threads: inject() on the control thread; end() on any; enter() and the gradient hooks from the
/// thread that does the work; all are safe together.
class FaultDesk {
  public:
    struct Hooks {
        /// A fault took effect, or ended. Any thread.
        std::function<void(const protocol::FaultNoted&)> noted;
        /// Runs a task on the control thread after so many nanoseconds.
        std::function<void(MonoNs, std::function<void()>)> later;
        /// The state server obeys a cut as well.
        std::function<void(bool)> cutState;
        /// Signals this process: SIGKILL or SIGSTOP.
        std::function<void(int)> signalSelf;
    };

    FaultDesk(RankId self, uint64_t seed, const Clock& clock, NetworkFaults* network, Hooks hooks);

    /// One that is known already is not committed again: what was told of it is told again.
    void inject(const protocol::CommitFault& fault);

    /// Ends a lasting fault and cancels one that waits for its step; reported by `noted`. Unknown
    /// ids are ignored: it may be over already.
    void end(uint64_t fault);

    /// The rank is in `phase` of `step` from now on.
    void enter(uint64_t step, protocol::Phase phase);

    /// 1 when not slowed.
    double slowFactor() const;

    /// touchGradient() would.
    bool touchesGradient(uint64_t step) const;
    /// Damages `part`, a piece of the local gradient that nobody has seen yet, if such a fault
    /// waits.
    void touchGradient(uint64_t step, std::span<float> part);

    /// A random number to choose a parameter bit by, when such a fault waits; at most once each.
    std::optional<uint64_t> takeParameterFlip(uint64_t step);

  private:
    bool mine(const protocol::CommitFault& fault) const;
    bool due(const protocol::CommitFault& fault, uint64_t step, protocol::Phase phase) const;
    void fire(const protocol::CommitFault& fault, uint64_t step, MonoNs phaseLength);
    void last(const protocol::CommitFault& fault, uint64_t step);
    void settle();
    void signalLater(const protocol::CommitFault& fault, uint64_t step, MonoNs within);
    void note(const protocol::CommitFault& fault, bool ended, uint64_t step, MonoNs in = 0);
    std::optional<protocol::CommitFault> take(uint64_t step, std::string_view kind);

    const RankId self_;
    const Clock& clock_;
    NetworkFaults* network_;
    Hooks hooks_;

    mutable Mutex mutex_;
    std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
    std::vector<protocol::CommitFault> armed_ ABSL_GUARDED_BY(mutex_);
    std::map<uint64_t, std::vector<protocol::FaultNoted>> told_
        ABSL_GUARDED_BY(mutex_);  ///< by fault
    uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
    protocol::Phase phase_ ABSL_GUARDED_BY(mutex_) = protocol::Phase::kStarting;
    MonoNs entered_ ABSL_GUARDED_BY(mutex_) = 0;
    std::map<protocol::Phase, MonoNs> lengths_
        ABSL_GUARDED_BY(mutex_);  ///< of each phase, last time
    std::map<uint64_t, protocol::CommitFault> lasting_ ABSL_GUARDED_BY(mutex_);  ///< by id
};

}  // namespace bulkhead::runtime
