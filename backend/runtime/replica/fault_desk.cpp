// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/fault_desk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <limits>
#include <utility>

namespace bulkhead::runtime {
namespace {

using protocol::CommitFault;
using protocol::Phase;

constexpr MonoNs kForGood = std::numeric_limits<MonoNs>::max() / 4;
// A cut would hold back the very message that reports it.
constexpr MonoNs kReportFirst = 2 * kMillisecond;

bool isGradientKind(std::string_view kind) {
    return kind == "flip_gradient" || kind == "nan_gradient";
}

bool lasts(std::string_view kind) {
    return kind == "slow" || kind == "cut_network" || kind == "delay_network";
}

bool waitsForItsPlace(std::string_view kind) {
    return isGradientKind(kind) || kind == "flip_parameter";
}

}  // namespace

FaultDesk::FaultDesk(RankId self, uint64_t seed, const Clock& clock, NetworkFaults* network,
                     Hooks hooks)
    : self_(self), clock_(clock), network_(network), hooks_(std::move(hooks)), random_(seed) {}

bool FaultDesk::mine(const CommitFault& fault) const {
    if (fault.shard >= 0) return fault.shard == self_.shard;
    return !waitsForItsPlace(fault.kind) || self_.shard == 0;
}

bool FaultDesk::due(const CommitFault& fault, uint64_t step, Phase phase) const {
    return step >= fault.step && (fault.phase.empty() || fault.phase == enumName(phase));
}

void FaultDesk::inject(const CommitFault& fault) {
    if (!mine(fault)) return;
    MonoNs length = 0;
    uint64_t step = 0;
    std::optional<std::vector<protocol::FaultNoted>> told;
    {
        const MutexLock lock(mutex_);
        const auto [known, isNew] = told_.try_emplace(fault.fault);
        if (!isNew) told = known->second;
    }
    if (told) {
        for (const protocol::FaultNoted& noted : *told) hooks_.noted(noted);
        return;
    }
    {
        const MutexLock lock(mutex_);
        // Aimed at a phase: the next entry, so that the moment is random within the whole phase.
        if (waitsForItsPlace(fault.kind) || !fault.phase.empty() || step_ < fault.step) {
            armed_.push_back(fault);
            return;
        }
        step = step_;
        length = 0;
    }
    fire(fault, step, length);
}

void FaultDesk::enter(uint64_t step, Phase phase) {
    std::vector<CommitFault> now;
    MonoNs length = 0;
    {
        const MutexLock lock(mutex_);
        const MonoNs at = clock_.now();
        lengths_[phase_] = at - entered_;
        step_ = step;
        phase_ = phase;
        entered_ = at;
        length = lengths_[phase];
        std::erase_if(armed_, [&](const CommitFault& f) {
            if (waitsForItsPlace(f.kind) || !due(f, step, phase)) return false;
            now.push_back(f);
            return true;
        });
    }
    for (const CommitFault& fault : now) fire(fault, step, length);
}

void FaultDesk::fire(const CommitFault& fault, uint64_t step, MonoNs phaseLength) {
    if (lasts(fault.kind))
        last(fault, step);
    else if (fault.kind == "kill_rank" || fault.kind == "kill_replica" || fault.kind == "hang")
        signalLater(fault, step, fault.phase.empty() ? 0 : phaseLength);
    else
        spdlog::warn("fault {} of kind {} is not one a rank can commit", fault.fault, fault.kind);
}

void FaultDesk::last(const CommitFault& fault, uint64_t step) {
    {
        const MutexLock lock(mutex_);
        lasting_[fault.fault] = fault;
    }
    note(fault, false, step);
    spdlog::warn("fault {}: {} begins", fault.fault, fault.kind);
    hooks_.later(kReportFirst, [this] { settle(); });
    if (fault.durationMs > 0)
        hooks_.later(kReportFirst + static_cast<MonoNs>(fault.durationMs) * kMillisecond,
                     [this, id = fault.fault] { end(id); });
}

/// Makes the network what the lasting faults say it is.
void FaultDesk::settle() {
    const MutexLock lock(mutex_);
    bool cut = false;
    MonoNs delay = 0;
    for (const auto& [id, fault] : lasting_) {
        cut = cut || fault.kind == "cut_network";
        if (fault.kind == "delay_network")
            delay = std::max(delay, static_cast<MonoNs>(fault.delayMs) * kMillisecond);
    }
    hooks_.cutState(cut);
    network_->cut(cut ? kForGood : 0);
    network_->delay(delay, delay > 0 ? kForGood : 0);
}

void FaultDesk::end(uint64_t id) {
    CommitFault over;
    {
        const MutexLock lock(mutex_);
        const auto armed = std::find_if(armed_.begin(), armed_.end(),
                                        [id](const CommitFault& f) { return f.fault == id; });
        const auto lasting = lasting_.find(id);
        if (armed != armed_.end()) {
            over = *armed;
            armed_.erase(armed);
        } else if (lasting != lasting_.end()) {
            over = lasting->second;
            lasting_.erase(lasting);
        } else {
            return;
        }
    }
    settle();
    spdlog::warn("fault {}: {} ends", over.fault, over.kind);
    note(over, true, 0);
}

void FaultDesk::signalLater(const CommitFault& fault, uint64_t step, MonoNs within) {
    const int signal = fault.kind == "hang" ? SIGSTOP : SIGKILL;
    // A kill is told by the agent that reaps; nobody but this rank tells that it stops itself.
    MonoNs wait = signal == SIGSTOP ? kReportFirst : 0;
    if (within > 0) {
        const MutexLock lock(mutex_);
        wait = std::max(wait, static_cast<MonoNs>(random_() % static_cast<uint64_t>(within)));
    }
    note(fault, false, step, wait);  // now: the dead tell nothing
    // A thread of its own: phases last milliseconds and the control thread has other work.
    Thread([signal, wait, hook = hooks_.signalSelf] {
        sleepFor(wait);
        hook(signal);
    }).detach();
}

void FaultDesk::note(const CommitFault& fault, bool ended, uint64_t step, MonoNs in) {
    const protocol::FaultNoted noted{fault.fault, self_, ended, clock_.unixNs() + in, step};
    {
        const MutexLock lock(mutex_);
        told_[fault.fault].push_back(noted);
    }
    hooks_.noted(noted);
}

double FaultDesk::slowFactor() const {
    const MutexLock lock(mutex_);
    double factor = 1;
    for (const auto& [id, fault] : lasting_)
        if (fault.kind == "slow") factor = std::max(factor, fault.factor);
    return factor;
}

std::optional<CommitFault> FaultDesk::take(uint64_t step, std::string_view kind) {
    const MutexLock lock(mutex_);
    const auto it = std::find_if(armed_.begin(), armed_.end(), [&](const CommitFault& f) {
        return f.kind == kind && step >= f.step;
    });
    if (it == armed_.end()) return std::nullopt;
    CommitFault fault = *it;
    armed_.erase(it);
    return fault;
}

bool FaultDesk::touchesGradient(uint64_t step) const {
    const MutexLock lock(mutex_);
    return std::any_of(armed_.begin(), armed_.end(), [&](const CommitFault& f) {
        return (f.kind == "nan_gradient" || f.kind == "flip_gradient") && step >= f.step;
    });
}

void FaultDesk::touchGradient(uint64_t step, std::span<float> part) {
    if (part.empty()) return;
    if (const auto fault = take(step, "nan_gradient")) {
        part[part.size() / 2] = std::numeric_limits<float>::quiet_NaN();
        note(*fault, false, step);
    }
    if (const auto fault = take(step, "flip_gradient")) {
        uint64_t where = 0;
        {
            const MutexLock lock(mutex_);
            where = random_();
        }
        // A mantissa or low exponent bit: wrong, yet finite.
        float& value = part[where % part.size()];
        value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (1u << (where >> 32) % 26));
        note(*fault, false, step);
    }
}

std::optional<uint64_t> FaultDesk::takeParameterFlip(uint64_t step) {
    const auto fault = take(step, "flip_parameter");
    if (!fault) return std::nullopt;
    note(*fault, false, step);
    const MutexLock lock(mutex_);
    return random_();
}

}  // namespace bulkhead::runtime
