// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/network_faults.h"

#include <utility>

namespace bulkhead::runtime {

void NetworkFaults::cut(MonoNs duration) {
    cutUntil_.store(clock_.now() + duration, std::memory_order_release);
    notify();
}

void NetworkFaults::delay(MonoNs each, MonoNs duration) {
    delay_.store(each, std::memory_order_release);
    delayUntil_.store(clock_.now() + duration, std::memory_order_release);
    notify();
}

void NetworkFaults::reset() {
    resets_.fetch_add(1, std::memory_order_acq_rel);
    notify();
}

void NetworkFaults::clear() {
    cutUntil_.store(0, std::memory_order_release);
    delayUntil_.store(0, std::memory_order_release);
    notify();
}

uint64_t NetworkFaults::subscribe(std::function<void()> changed) {
    const MutexLock lock(mutex_);
    subscribers_.emplace(next_, std::move(changed));
    return next_++;
}

void NetworkFaults::unsubscribe(uint64_t id) {
    const MutexLock lock(mutex_);
    subscribers_.erase(id);
}

void NetworkFaults::notify() {
    const MutexLock lock(mutex_);
    for (const auto& [id, changed] : subscribers_) changed();
}

}  // namespace bulkhead::runtime
