// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace bulkhead::runtime {
namespace {

constexpr MonoNs kBlindWait = 4 * kMillisecond;

/// One word at a time, so the other is noticed only when the sleep is over.
void waitBlindly(const std::atomic<uint32_t>& a, uint32_t seenA, MonoNs atMost) {
    const MonoNs wait = std::min(atMost, kBlindWait);
    const timespec relative{static_cast<time_t>(wait / kSecond), static_cast<long>(wait % kSecond)};
    ::syscall(SYS_futex, &a, FUTEX_WAIT, seenA, &relative, nullptr, 0);
}

}  // namespace

void futexWakeAll(std::atomic<uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void futexWaitEither(const std::atomic<uint32_t>& a, uint32_t seenA, const std::atomic<uint32_t>& b,
                     uint32_t seenB, MonoNs atMost) {
    static std::atomic<bool> supported{true};
    if (!supported.load(std::memory_order_relaxed)) return waitBlindly(a, seenA, atMost);
    futex_waitv words[2] = {};
    words[0].val = seenA;
    words[0].uaddr = reinterpret_cast<uintptr_t>(&a);
    words[0].flags = FUTEX_32;
    words[1].val = seenB;
    words[1].uaddr = reinterpret_cast<uintptr_t>(&b);
    words[1].flags = FUTEX_32;
    timespec until{};
    ::clock_gettime(CLOCK_MONOTONIC, &until);
    const MonoNs at = until.tv_nsec + std::max<MonoNs>(atMost, 0);
    until.tv_sec += static_cast<time_t>(at / kSecond);
    until.tv_nsec = static_cast<long>(at % kSecond);
    if (::syscall(SYS_futex_waitv, words, 2u, 0u, &until, CLOCK_MONOTONIC) < 0 &&
        (errno == ENOSYS || errno == EPERM)) {
        supported.store(false, std::memory_order_relaxed);
        waitBlindly(a, seenA, atMost);
    }
}

}  // namespace bulkhead::runtime
