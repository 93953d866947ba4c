// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/agent/process.h"

namespace bulkhead::runtime {

/// All the free room of a file system, taken by a file without a name: it is given back when this
/// object goes, or when the process dies. Only ever of a file system that serves nothing but its
/// purpose: filling the machine's root would hurt everybody. Thread: one.
class DiskBallast {
  public:
    /// FailedPrecondition, with the reason, when `directory` is on one of the machine's shared
    /// mounts (root, /dev/shm, /tmp, ...) or its file system is larger than 16 GiB.
    static absl::StatusOr<DiskBallast> fill(const std::string& directory);

  private:
    explicit DiskBallast(UniqueFd file) : file_(std::move(file)) {}
    UniqueFd file_;
};

}  // namespace bulkhead::runtime
