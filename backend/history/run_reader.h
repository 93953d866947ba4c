// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <functional>

#include "backend/history/run_store.h"

/// Inside this room: the RunReader over SQLite. Spread over run_reader.cpp (queries),
/// run_export.cpp and run_verify.cpp.
namespace bulkhead::history {

class SqliteRunReader final : public RunReader {
  public:
    SqliteRunReader(std::filesystem::path file, std::unique_ptr<SQLite::Database> db);

    absl::StatusOr<std::vector<StoredRun>> runs(const RunFilter& filter) override;
    absl::StatusOr<StoredRun> run(int64_t runId) override;
    absl::StatusOr<StoredRun> findRun(std::string_view idOrName) override;
    absl::StatusOr<std::vector<model::Event>> events(int64_t runId,
                                                     const EventFilter& filter) override;
    absl::StatusOr<model::RunState> stateAtSeq(int64_t runId, uint64_t seq,
                                               const LoadProgress& progress) override;
    absl::StatusOr<model::RunState> stateAtTime(int64_t runId, int64_t timeNs) override;
    absl::StatusOr<uint64_t> seqAtTime(int64_t runId, int64_t timeNs) override;
    absl::StatusOr<uint64_t> seqOfStep(int64_t runId, uint64_t step) override;
    absl::StatusOr<std::vector<LedgerRow>> ledger(int64_t runId,
                                                  const LedgerFilter& filter) override;
    absl::StatusOr<std::vector<model::IncidentView>> incidents(int64_t runId) override;
    absl::StatusOr<std::vector<model::FaultView>> faults(int64_t runId) override;
    absl::StatusOr<std::vector<model::CheckpointView>> checkpoints(int64_t runId) override;
    absl::Status exportLedger(int64_t runId, ExportFormat format, std::ostream& out,
                              const LedgerFilter& filter) override;
    absl::Status exportEvents(int64_t runId, std::ostream& out, const EventFilter& filter) override;
    absl::Status verify(int64_t runId) override;
    absl::StatusOr<model::LedgerReport> audit(int64_t runId, const LogSource& log) override;

  private:
    StoredRun rowToRun(SQLite::Statement& row);
    /// Events that match, one by one, until `take` fails; its status then.
    absl::Status scan(int64_t runId, const EventFilter& filter,
                      const std::function<absl::Status(model::Event)>& take);
    bool exists(int64_t runId);
    absl::Status noRun(int64_t runId) const;
    bool growsBeyond(int64_t runId, uint64_t seq);
    std::vector<model::LedgerFinding> examine(int64_t runId,
                                              const std::function<void(const model::Event&)>& take);

    std::filesystem::path file_;
    std::unique_ptr<SQLite::Database> db_;
};

}  // namespace bulkhead::history
