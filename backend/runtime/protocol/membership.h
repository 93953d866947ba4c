// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "backend/common/clock.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/protocol/options.h"

namespace bulkhead::protocol {

/// Latest state of one rank, from its beats.
struct RankPulse {
    bool hello = false;
    MonoNs lastBeat = 0;      ///< or its Hello
    MonoNs lastProgress = 0;  ///< when phase, step or progress last changed
    Phase phase = Phase::kStarting;
    uint64_t step = 0;
    uint64_t progress = 0;
    double keepMs = 0;
    double hashMs = 0;
    uint64_t gradStep = 0;

    void beat(MonoNs now, const Beat& b);
};

/// Detection bounds that follow the job: a multiple of what a step takes, with a floor.
class AdaptiveLimits {
  public:
    explicit AdaptiveLimits(Timeouts timeouts) : timeouts_(timeouts) {}
    /// A step that was done once, in milliseconds; exchange likewise. One in which something stood
    /// still moves the mean as little as the longest undisturbed one would.
    void observe(double stepMs, double exchangeMs);
    MonoNs heartbeat() const { return timeouts_.heartbeatMs * kMillisecond; }
    MonoNs progress() const;
    uint32_t chunkTimeoutMs() const;
    /// A peer accuses it: silent for so long is enough.
    MonoNs accusedSilence() const;
    double stepMs() const { return stepMs_; }
    /// Longer than steps vary by themselves: something stood still.
    bool disturbed(double stepMs) const { return stepMs_ > 0 && stepMs > kVary * stepMs_; }

  private:
    static constexpr double kVary = 2;

    Timeouts timeouts_;
    double stepMs_ = 0;
    double exchangeMs_ = 0;
};

/// Missed heartbeats, or missed progress in a phase where nobody else can be waited for (computing,
/// applying). Starting, fetching and replaying have bounds of their own.
std::optional<EvidenceKind> missed(MonoNs now, const RankPulse& pulse, const AdaptiveLimits& limits,
                                   const Timeouts& timeouts);

/// Keeps unconfirmed evidence from expelling half of the job. Two replicas or more, and half of the
/// contributors or more, within one heartbeat timeout: that looks like a fault of the observer.
class SuspicionGate {
  public:
    explicit SuspicionGate(MonoNs window) : window_(window) {}
    /// May `replica` be expelled on this unconfirmed evidence? `contributors`: alive and not yet
    /// expelled, the suspect among them. A yes is remembered. A no makes it a suspect.
    bool allow(MonoNs now, int32_t replica, size_t contributors);
    /// Several at once: none of them may go before the whole number is known.
    void suspect(MonoNs now, int32_t replica) { suspects_.try_emplace(replica, now); }
    /// An agent saw it end: its expulsion no longer counts as unconfirmed.
    void confirm(int32_t replica);
    /// It beats again: no longer a suspect.
    void clear(int32_t replica);
    const std::map<int32_t, MonoNs>& suspects() const { return suspects_; }  ///< since when
    void forget() { suspects_.clear(); }
    /// So much time does not count against anybody.
    void delay(MonoNs time) {
        for (auto& [replica, since] : suspects_) since += time;
    }

  private:
    MonoNs window_;
    std::deque<std::pair<MonoNs, int32_t>> expelled_;
    std::map<int32_t, MonoNs> suspects_;
};

/// When a replica may start again: the back-off doubles with each restart inside the window.
class RestartSchedule {
  public:
    /// nullopt: the limit is reached, it is given up. Counts this restart.
    std::optional<MonoNs> next(MonoNs now, const Timeouts& timeouts, uint32_t limit);
    void reset() { restarts_.clear(); }

  private:
    std::deque<MonoNs> restarts_;
};

}  // namespace bulkhead::protocol
