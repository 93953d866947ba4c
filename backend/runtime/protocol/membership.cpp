// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/membership.h"

#include <algorithm>

namespace bulkhead::protocol {
namespace {

/// Share of the newest observation in the running mean.
constexpr double kNewest = 0.2;

void average(double& mean, double value) {
    mean = mean == 0 ? value : (1 - kNewest) * mean + kNewest * value;
}

}  // namespace

void RankPulse::beat(MonoNs now, const Beat& b) {
    if (b.phase != phase || b.step != step || b.progress != progress || lastProgress == 0)
        lastProgress = now;
    lastBeat = now;
    phase = b.phase;
    step = b.step;
    progress = b.progress;
    keepMs = b.keepMs;
    hashMs = b.hashMs;
    gradStep = b.gradStep;
}

void AdaptiveLimits::observe(double stepMs, double exchangeMs) {
    if (stepMs > 0) average(stepMs_, disturbed(stepMs) ? kVary * stepMs_ : stepMs);
    if (exchangeMs > 0) average(exchangeMs_, exchangeMs);
}

MonoNs AdaptiveLimits::progress() const {
    const double ms =
        std::max<double>(timeouts_.progressFloorMs, stepMs_ * timeouts_.progressMultiple);
    return static_cast<MonoNs>(ms * kMillisecond);
}

uint32_t AdaptiveLimits::chunkTimeoutMs() const {
    // An exchange is at least a dozen chunks deep; its mean over ten bounds a chunk from above.
    const double ms =
        std::max<double>(timeouts_.chunkFloorMs, exchangeMs_ / 10 * timeouts_.chunkMultiple);
    return static_cast<uint32_t>(std::min(ms, 600000.0));
}

MonoNs AdaptiveLimits::accusedSilence() const {
    return std::max<MonoNs>(3 * timeouts_.beatMs, 50) * kMillisecond;
}

std::optional<EvidenceKind> missed(MonoNs now, const RankPulse& pulse, const AdaptiveLimits& limits,
                                   const Timeouts& timeouts) {
    if (!pulse.hello) return std::nullopt;
    if (now - pulse.lastBeat > limits.heartbeat()) return EvidenceKind::kMissedHeartbeat;
    const MonoNs still = now - pulse.lastProgress;
    switch (pulse.phase) {
        case Phase::kCompute:
        case Phase::kApply:
            if (still > limits.progress()) return EvidenceKind::kMissedProgress;
            break;
        case Phase::kFetch:
        case Phase::kReplay:
            if (still > timeouts.fetchMs * kMillisecond) return EvidenceKind::kMissedProgress;
            break;
        case Phase::kStarting:
            if (still > timeouts.startMs * kMillisecond) return EvidenceKind::kMissedProgress;
            break;
        case Phase::kIdle:
        case Phase::kExchange:
        case Phase::kVote:
            break;
    }
    return std::nullopt;
}

bool SuspicionGate::allow(MonoNs now, int32_t replica, size_t contributors) {
    while (!expelled_.empty() && now - expelled_.front().first > window_) expelled_.pop_front();
    suspects_.try_emplace(replica, now);
    const size_t accused = suspects_.size() + expelled_.size();
    if (accused >= 2 && 2 * accused >= contributors + expelled_.size()) return false;
    suspects_.erase(replica);
    expelled_.emplace_back(now, replica);
    return true;
}

void SuspicionGate::confirm(int32_t replica) {
    suspects_.erase(replica);
    std::erase_if(expelled_, [&](const auto& e) { return e.second == replica; });
}

void SuspicionGate::clear(int32_t replica) {
    suspects_.erase(replica);
}

std::optional<MonoNs> RestartSchedule::next(MonoNs now, const Timeouts& timeouts, uint32_t limit) {
    while (!restarts_.empty() && now - restarts_.front() > timeouts.restartWindowMs * kMillisecond)
        restarts_.pop_front();
    if (limit > 0 && restarts_.size() >= limit) return std::nullopt;
    const size_t earlier = std::min<size_t>(restarts_.size(), 20);
    restarts_.push_back(now);
    if (earlier == 0) return now;
    const uint64_t ms = std::min<uint64_t>(uint64_t{timeouts.backoffFirstMs} << (earlier - 1),
                                           timeouts.backoffMaxMs);
    return now + static_cast<MonoNs>(ms) * kMillisecond;
}

}  // namespace bulkhead::protocol
