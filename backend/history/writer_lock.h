// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"

/// Lock of the writer of a run, valid across processes and released by the kernel when the writer
/// dies: byte `runId` of the file "<run file>-writers" is locked. (Not in the run file itself:
/// closing any descriptor of it would drop SQLite's own locks.)
namespace bulkhead::history {

class WriterLock {
  public:
    /// Unavailable when another writer holds it.
    static absl::StatusOr<std::unique_ptr<WriterLock>> take(const std::filesystem::path& file,
                                                            int64_t runId);
    /// False also when that cannot be found out (a copied file, a read-only medium).
    static bool isHeld(const std::filesystem::path& file, int64_t runId);

    ~WriterLock();
    WriterLock(const WriterLock&) = delete;
    WriterLock& operator=(const WriterLock&) = delete;

  private:
    explicit WriterLock(int fd) : fd_(fd) {}
    int fd_;
};

}  // namespace bulkhead::history
