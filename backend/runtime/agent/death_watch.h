// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "backend/runtime/transport/life_lock.h"

namespace bulkhead::runtime {

/// Waits for a process to let go of its life lock, on a thread of its own that sleeps meanwhile.
/// The page only says when to look: a release counts as death only if the kernel says that a signal
/// ends the process (a thread that ended alone, an exec or garbage in the page do not). It is no
/// substitute for the pidfd: a process may exit by itself, never take its lock, or spoil the page.
class DeathWatch {
  public:
    /// Called at most once, on the watch's thread: the signal that ends the process. nullopt: the
    /// lock is free although the process lives; the watch has ended.
    using Released = std::function<void(std::optional<int32_t> signal)>;

    DeathWatch(LifeLock lock, int32_t pid, Released released);
    /// Waits for its thread; `released` is not called afterwards.
    ~DeathWatch();

  private:
    void run();

    const LifeLock lock_;
    const int32_t pid_;
    const Released released_;
    std::atomic<uint32_t> stop_{0};
    std::thread thread_;
};

}  // namespace bulkhead::runtime
