// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace bulkhead::support {

/// As std::barrier, but who waits sleeps at once: the threads of many blocks share few cores. It
/// orders what was before one meeting before what is after it and nothing else, so that
/// ThreadSanitizer sees races of threads that happen to run one after the other; a mutex would
/// order a late waker behind all that the others have done since.
class Barrier {
  public:
    explicit Barrier(uint64_t threads) : threads_(threads) {}
    void meet() {
        const uint32_t turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            futex(FUTEX_WAKE_PRIVATE, INT_MAX);
        } else {
            while (turn_.load(std::memory_order_acquire) == turn) futex(FUTEX_WAIT_PRIVATE, turn);
        }
    }

  private:
    void futex(int operation, uint32_t value) {
        ::syscall(SYS_futex, &turn_, operation, value, nullptr, nullptr, 0);
    }

    const uint64_t threads_;
    std::atomic<uint64_t> arrived_{0};
    std::atomic<uint32_t> turn_{0};
};

}  // namespace bulkhead::support
