// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/death_watch.h"

#include <utility>

#include "backend/runtime/agent/process.h"
#include "backend/runtime/transport/futex.h"

namespace bulkhead::runtime {
namespace {

constexpr MonoNs kSleep = 3600 * kSecond;
/// One of the process's threads may let go a moment before its main thread shows that it ends, and
/// kernels before 5.17 tell the signal only when that thread has run.
constexpr MonoNs kLookAgain = kMillisecond;
constexpr int kLooks = 100;

}  // namespace

DeathWatch::DeathWatch(LifeLock lock, int32_t pid, Released released)
    : lock_(std::move(lock)), pid_(pid), released_(std::move(released)) {
    thread_ = std::thread([this] { run(); });
}

DeathWatch::~DeathWatch() {
    stop_.store(1);
    futexWakeAll(stop_);
    thread_.join();
}

void DeathWatch::run() {
    const std::atomic<uint32_t>& word = lock_.word();
    uint32_t seen = word.load();
    while (!LifeLock::released(seen)) {
        futexWaitEither(word, seen, stop_, 0, kSleep);
        if (stop_.load() != 0) return;
        // Once taken it only changes when it is released, or by whoever spoils the page.
        const uint32_t now = word.load();
        if (seen != 0 && now != seen) break;
        seen = now;
    }
    std::optional<int32_t> signal;
    for (int look = 0; look < kLooks; ++look) {
        signal = endingSignal(pid_);
        if (signal.value_or(0) != 0) return released_(signal);
        futexWaitEither(stop_, 0, stop_, 0, kLookAgain);
        if (stop_.load() != 0) return;
    }
    if (!signal) released_(std::nullopt);
}

}  // namespace bulkhead::runtime
