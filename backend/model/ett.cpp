// SPDX-License-Identifier: Apache-2.0
#include "backend/model/ett.h"

#include <algorithm>
#include <cmath>

namespace bulkhead::model {
namespace {

double usefulPart(double stepMs, double stallMs, uint32_t contributors, uint32_t replicas) {
    const double share =
        replicas == 0
            ? 0
            : std::min(1.0, static_cast<double>(contributors) / static_cast<double>(replicas));
    return std::max(0.0, stepMs - std::max(0.0, stallMs)) * share;
}

double clamped(double part) {
    return std::isfinite(part) ? std::clamp(part, 0.0, 1.0) : 0.0;
}

}  // namespace

void EffectiveTime::addStep(double stepMs, double stallMs, uint32_t contributors,
                            uint32_t replicas) {
    if (!(stepMs > 0) || !std::isfinite(stepMs)) return;
    wallMs_ += stepMs;
    usefulMs_ += usefulPart(stepMs, stallMs, contributors, replicas);
}

void EffectiveTime::addIdle(double ms) {
    if (ms > 0 && std::isfinite(ms)) wallMs_ += ms;
}

void EffectiveTime::takeBack(double stepMs, double stallMs, uint32_t contributors,
                             uint32_t replicas) {
    usefulMs_ = std::max(0.0, usefulMs_ - usefulPart(stepMs, stallMs, contributors, replicas));
}

double EffectiveTime::value() const {
    return wallMs_ > 0 ? clamped(usefulMs_ / wallMs_) : 1.0;
}

double predictFaultTolerant(const FailureModel& m) {
    if (!(m.interval > 0) || m.replicas == 0) return 0;
    const double share = static_cast<double>(m.replicas - 1) / static_cast<double>(m.replicas);
    const double stopped = std::min(m.interval, m.stall + m.rejoinStall);
    const double degraded = std::min(m.degraded, m.interval - stopped);
    return clamped((m.interval - stopped - degraded + degraded * share) / m.interval);
}

double predictRestartAll(double interval, double stall) {
    return interval > 0 ? clamped((interval - stall) / interval) : 0.0;
}

std::optional<double> predictForRun(const RunState& s) {
    const uint64_t closed =
        s.counters.incidents - std::min(s.counters.incidents, s.counters.incidentsOpen);
    if (closed == 0 || s.spec.replicas == 0) return std::nullopt;
    const auto count = static_cast<double>(closed);
    FailureModel m;
    m.interval = durationMs(s.startedNs, s.lastEventNs) / count;
    m.stall = s.counters.survivorStallMs / count;
    m.degraded = std::max(0.0, s.counters.rejoinMs / count - m.stall);
    m.replicas = s.spec.replicas;
    return predictFaultTolerant(m);
}

}  // namespace bulkhead::model
