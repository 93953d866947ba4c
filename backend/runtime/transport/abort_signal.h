// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::runtime {

/// Ends waits of another thread at once: both a descriptor to poll and a word to futex-wait on.
/// Threads: all functions from any.
class AbortSignal {
  public:
    /// ok() is false when the kernel gave no eventfd.
    AbortSignal();
    bool ok() const { return fd_.valid(); }

    /// The first reason since clear() wins; later ones are dropped.
    void raise(absl::Status why);
    void clear();

    bool raised() const { return word_.load(std::memory_order_acquire) != 0; }
    /// Ok while not raised.
    absl::Status why() const;

    /// Readable while raised.
    int fd() const { return fd_.get(); }
    /// Zero while not raised.
    const std::atomic<uint32_t>& word() const { return word_; }

  private:
    UniqueFd fd_;
    std::atomic<uint32_t> word_{0};
    mutable Mutex mutex_;
    absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::runtime
