// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "backend/common/clock.h"

namespace bulkhead::runtime {

/// Wakes all waiters of all processes that map the word.
void futexWakeAll(std::atomic<uint32_t>& word);

/// Sleeps until `a` is no longer `seenA` or `b` no longer `seenB` and somebody woke it, at most
/// `atMost` nanoseconds; may return early for no reason. The words may lie in read-only shared
/// mappings. On kernels before 5.16, which cannot wait for two words, it looks again every 4 ms.
void futexWaitEither(const std::atomic<uint32_t>& a, uint32_t seenA, const std::atomic<uint32_t>& b,
                     uint32_t seenB, MonoNs atMost);

}  // namespace bulkhead::runtime
