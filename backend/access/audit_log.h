// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/listing.h"

namespace bulkhead::access {

/// The audit of a daemon, in an SQLite file of its own (mode 0600) that it alone writes: entries
/// are added, never changed. Each has the SHA-256 of the hash before it and of its own fields in
/// the binary form of backend/common/codec.h, so that a changed, missing or inserted entry shows;
/// a cut end shows to whoever noted a later hash. Errors are SQLite's in plain words, with the
/// file. Thread: any.
class AuditLog {
  public:
    static constexpr uint32_t kMostEntries = 10000;

    /// Makes the file when it is not there.
    static absl::StatusOr<std::unique_ptr<AuditLog>> open(const std::string& file);
    /// NotFound when there is none; add() is then FailedPrecondition.
    static absl::StatusOr<std::unique_ptr<AuditLog>> openForReading(const std::string& file);
    ~AuditLog();

    /// Keeps `entries` under the next numbers, whatever their `seq` says, all or none; they survive
    /// a power cut when this returns. Waits for the disk once, and for no reader. When the file was
    /// removed or replaced since, another one is made, whose first entry says so.
    absl::Status add(std::vector<model::AuditEntry> entries);
    absl::StatusOr<model::AuditPage> read(const model::AuditQuery& query);

  private:
    class Impl;
    explicit AuditLog(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::access
