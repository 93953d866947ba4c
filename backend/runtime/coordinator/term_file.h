// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"

namespace bulkhead::runtime {

/// A term of the coordinator of one run: no two coordinators ever hold the same number, and no two
/// hold one at the same time. The number is durable before mint() returns; the lock goes with the
/// object or the process. Thread: one.
class Term {
  public:
    /// Takes the next number of `dir` (files `term` and `term.lock`). FailedPrecondition when
    /// another coordinator lives there; DataLoss when the file does not hold a number;
    /// Unavailable, with the system's reason, when it cannot be made durable.
    static absl::StatusOr<Term> mint(FileSystem& files, const std::string& dir);

    uint64_t number() const { return number_; }

  private:
    Term(uint64_t number, std::unique_ptr<FileLock> lock)
        : number_(number), lock_(std::move(lock)) {}
    uint64_t number_;
    std::unique_ptr<FileLock> lock_;
};

}  // namespace bulkhead::runtime
