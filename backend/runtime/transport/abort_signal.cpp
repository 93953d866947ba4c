// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/abort_signal.h"

#include <sys/eventfd.h>

#include <utility>

#include "backend/runtime/transport/futex.h"

namespace bulkhead::runtime {

AbortSignal::AbortSignal() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void AbortSignal::raise(absl::Status why) {
    const MutexLock lock(mutex_);
    if (word_.load(std::memory_order_acquire) != 0) return;
    why_ = std::move(why);
    word_.store(1, std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof one);
    futexWakeAll(word_);
}

void AbortSignal::clear() {
    const MutexLock lock(mutex_);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &count, sizeof count);
    why_ = absl::OkStatus();
    word_.store(0, std::memory_order_release);
}

absl::Status AbortSignal::why() const {
    const MutexLock lock(mutex_);
    return why_;
}

}  // namespace bulkhead::runtime
