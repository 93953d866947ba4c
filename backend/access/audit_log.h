// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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
    /// NotFound when there is none; add() is then an error.
    static absl::StatusOr<std::unique_ptr<AuditLog>> openForReading(const std::string& file);
    ~AuditLog();

    /// Keeps `entry` under the next number, whatever its `seq` says; it survives a power cut when
    /// this returns.
    absl::Status add(model::AuditEntry entry);
    absl::StatusOr<model::AuditPage> read(const model::AuditQuery& query);

  private:
    class Impl;
    explicit AuditLog(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::access
