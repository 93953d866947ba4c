// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::runtime {

/// A term of the coordinator of one run: no two coordinators ever hold the same number, and no two
/// hold one at the same time. The number is durable before mint() returns; the lock goes with the
/// object or the process. Thread: one.
class Term {
  public:
    /// Takes the next number of `dir` (files `term` and `term.lock`). FailedPrecondition when
    /// another coordinator lives there; DataLoss when the file does not hold a number;
    /// Unavailable, with the system's reason, when it cannot be made durable.
    static absl::StatusOr<Term> mint(const std::string& dir);

    Term(Term&& other) noexcept;
    Term& operator=(Term&& other) noexcept;
    ~Term();

    uint64_t number() const { return number_; }

  private:
    Term(uint64_t number, int lock) : number_(number), lock_(lock) {}
    uint64_t number_ = 0;
    int lock_ = -1;
};

}  // namespace bulkhead::runtime
