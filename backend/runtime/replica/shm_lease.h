// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::runtime {

/// A process that is killed leaves its shared memory behind. So every rank holds a locked file
/// beside its segments for as long as it lives, and whoever starts later removes the segments of
/// those whose lock is free. A lock, unlike a process id, means the same in every container that
/// shares the memory.
/// Thread: one.
class ShmLease {
  public:
    /// Takes `prefix` (names "<prefix>.<anything>" in `folder` belong to it). AlreadyExists when
    /// a living process holds it; Unavailable naming the file otherwise.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<ShmLease>> take(
        const std::string& prefix, const std::string& folder = "/dev/shm");
    /// Removes the prefix's segments and the lease.
    ~ShmLease();
    ShmLease(const ShmLease&) = delete;
    ShmLease& operator=(const ShmLease&) = delete;

    /// Removes what the dead left under prefixes that begin with `family`; returns how many files.
    static int sweep(const std::string& family, const std::string& folder = "/dev/shm");

  private:
    ShmLease(std::string prefix, std::string folder, int fd);
    std::string prefix_;
    std::string folder_;
    int fd_;
};

}  // namespace bulkhead::runtime
