// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// The tables of a run file, their version (PRAGMA user_version) and the way from older ones.
namespace bulkhead::history {

constexpr int kSchemaVersion = 4;
/// PRAGMA application_id, "BULK": tells a run file from any other SQLite file.
constexpr int kApplicationId = 0x42554C4B;

/// Opens for writing; creates the file (mode 0600) or migrates it in one transaction when needed.
/// Several processes may do so at once.
[[nodiscard]] absl::StatusOr<std::unique_ptr<SQLite::Database>> openForWriting(
    const std::filesystem::path& file);

/// Opens for reading; a file that cannot be locked (read-only medium) is taken as it is. An older
/// schema is migrated first, or refused where the file may not be written.
[[nodiscard]] absl::StatusOr<std::unique_ptr<SQLite::Database>> openForReading(
    const std::filesystem::path& file);

/// All tables but `runs`. Each has a column `run`.
std::vector<const char*> tablesOfRuns();

/// The tables in an empty database, for verification in memory and for tests of migration: as of
/// `version`. Throws SQLite::Exception.
void createSchema(SQLite::Database& db, int version = kSchemaVersion);

}  // namespace bulkhead::history
