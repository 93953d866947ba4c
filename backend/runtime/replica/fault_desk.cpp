// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/fault_desk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <limits>
#include <thread>
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
    {
        const std::lock_guard<std::mutex> lock(mutex_);
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
        const std::lock_guard<std::mutex> lock(mutex_);
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
    if (fault.kind == "slow") {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            factor_ = std::max(1.0, fault.factor);
            slowFault_ = fault.fault;
        }
        note(fault, false, step);
        if (fault.durationMs > 0)
            hooks_.later(static_cast<MonoNs>(fault.durationMs) * kMillisecond, [this, fault] {
                {
                    const std::lock_guard<std::mutex> lock(mutex_);
                    if (slowFault_ == fault.fault) factor_ = 1;
                }
                note(fault, true, 0);
            });
    } else if (fault.kind == "cut_network" || fault.kind == "delay_network") {
        fireNetwork(fault, step);
    } else if (fault.kind == "kill_rank" || fault.kind == "kill_replica" || fault.kind == "hang") {
        signalLater(fault, step, fault.phase.empty() ? 0 : phaseLength);
    } else {
        spdlog::warn("fault {} of kind {} is not one a rank can commit", fault.fault, fault.kind);
    }
}

void FaultDesk::fireNetwork(const CommitFault& fault, uint64_t step) {
    note(fault, false, step);
    const MonoNs duration =
        fault.durationMs == 0 ? kForGood : static_cast<MonoNs>(fault.durationMs) * kMillisecond;
    const bool cut = fault.kind == "cut_network";
    hooks_.later(kReportFirst, [this, fault, duration, cut] {
        if (cut) {
            hooks_.cutState(true);
            network_->cut(duration);
        } else {
            network_->delay(static_cast<MonoNs>(fault.delayMs) * kMillisecond, duration);
        }
        spdlog::warn("fault {}: {} begins", fault.fault, fault.kind);
    });
    if (fault.durationMs == 0) return;
    hooks_.later(kReportFirst + duration, [this, fault, cut] {
        if (cut) hooks_.cutState(false);
        note(fault, true, 0);
    });
}

void FaultDesk::signalLater(const CommitFault& fault, uint64_t step, MonoNs within) {
    MonoNs wait = 0;
    if (within > 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        wait = static_cast<MonoNs>(random_() % static_cast<uint64_t>(within));
    }
    note(fault, false, step);
    const int signal = fault.kind == "hang" ? SIGSTOP : SIGKILL;
    // A thread of its own: phases last milliseconds and the control thread has other work.
    std::thread([signal, wait, hook = hooks_.signalSelf] {
        std::this_thread::sleep_for(std::chrono::nanoseconds(wait));
        hook(signal);
    }).detach();
}

void FaultDesk::note(const CommitFault& fault, bool ended, uint64_t step) {
    hooks_.noted({fault.fault, self_, ended, clock_.unixNs(), step});
}

double FaultDesk::slowFactor() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return factor_;
}

std::optional<CommitFault> FaultDesk::take(uint64_t step, std::string_view kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = std::find_if(armed_.begin(), armed_.end(), [&](const CommitFault& f) {
        return f.kind == kind && step >= f.step;
    });
    if (it == armed_.end()) return std::nullopt;
    CommitFault fault = *it;
    armed_.erase(it);
    return fault;
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
            const std::lock_guard<std::mutex> lock(mutex_);
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
    const std::lock_guard<std::mutex> lock(mutex_);
    return random_();
}

}  // namespace bulkhead::runtime
