// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace bulkhead::support {

/// As std::barrier, but who waits sleeps at once: the threads of many blocks share few cores.
class Barrier {
  public:
    explicit Barrier(uint64_t threads) : threads_(threads) {}
    void meet() {
        std::unique_lock lock(mutex_);
        const uint64_t turn = turn_;
        if (++waiting_ == threads_) {
            waiting_ = 0;
            ++turn_;
            all_.notify_all();
        } else {
            all_.wait(lock, [&] { return turn_ != turn; });
        }
    }

  private:
    const uint64_t threads_;
    std::mutex mutex_;
    std::condition_variable all_;
    uint64_t waiting_ = 0, turn_ = 0;
};

}  // namespace bulkhead::support
