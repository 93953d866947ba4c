// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"

namespace bulkhead::runtime {

/// The injected state of one process's network. Channels, exchanges and collectives that were given
/// it obey it, whatever they run over, shared memory included: while it is cut their bytes stop
/// flowing both ways and no socket closes, just as behind a pulled cable; when the cut ends, what
/// was queued flows on. Threads: all functions from any thread. It outlives whoever uses it.
class NetworkFaults {
  public:
    explicit NetworkFaults(const Clock& clock) : clock_(clock) {}
    NetworkFaults(const NetworkFaults&) = delete;
    NetworkFaults& operator=(const NetworkFaults&) = delete;

    /// Nothing flows for `duration` nanoseconds from now; 0 heals at once.
    void cut(MonoNs duration);
    /// Everything sent and everything received is held back by `each` nanoseconds, during
    /// `duration`; 0 ends it at once.
    void delay(MonoNs each, MonoNs duration);
    /// Every connection open now is reset (the peer sees ECONNRESET, we see Unavailable).
    void reset();
    /// No fault from now on.
    void clear();

    bool isCut() const { return clock_.now() < cutUntil_.load(std::memory_order_acquire); }
    MonoNs cutUntil() const { return cutUntil_.load(std::memory_order_acquire); }
    /// Nanoseconds to hold a message back, 0: none.
    MonoNs currentDelay() const {
        return clock_.now() < delayUntil_.load(std::memory_order_acquire)
                   ? delay_.load(std::memory_order_acquire)
                   : 0;
    }
    /// Grows with every reset().
    uint64_t resets() const { return resets_.load(std::memory_order_acquire); }

    /// `changed` is called, on the thread that switches, after every switch, and must only post a
    /// note. After unsubscribe returns it is not called any more.
    uint64_t subscribe(std::function<void()> changed);
    void unsubscribe(uint64_t id);

  private:
    void notify();

    const Clock& clock_;
    std::atomic<MonoNs> cutUntil_{0};
    std::atomic<MonoNs> delayUntil_{0};
    std::atomic<MonoNs> delay_{0};
    std::atomic<uint64_t> resets_{0};
    LeafMutex mutex_;
    uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
    std::map<uint64_t, std::function<void()>> subscribers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::runtime
