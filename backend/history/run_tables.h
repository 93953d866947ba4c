// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "backend/history/event_row.h"
#include "backend/history/run_store.h"

/// Rows of a batch of events, and rows derived from them. The same code fills the tables while a
/// run is written and, in memory, when a run is verified.
namespace bulkhead::history {

/// Events folded into a state, with what the tables need to know of that fold.
struct Batch {
    std::vector<model::Event> events;
    std::vector<EventRow> rows;    ///< of `events`, once they are made
    std::set<uint64_t> incidents;  ///< touched
    std::set<uint64_t> faults;     ///< touched
    std::set<uint64_t> rollbacks;  ///< seq of LineageOpened events that went back
    std::string keyframe;          ///< of the state after the batch; empty: none
    size_t bytes = 0;              ///< of the rows

    /// Folds `event` into `state` and notes what it touched.
    void fold(model::RunState& state, model::Event event);
    /// RunTables::write() needs them, writeDerived() does not, and they cost more than the fold.
    void makeRows();
};

struct Gap {
    uint64_t first = 0;
    uint64_t last = 0;
    std::string why;
};

/// The event that stands for lost ones, at `gap.last`; and back, if `event` is one.
[[nodiscard]] model::Event gapEvent(const Gap& gap, int64_t timeNs);
[[nodiscard]] std::optional<Gap> gapOf(const model::Event& event);

/// Statements of one connection for one run. All methods throw SQLite::Exception; the caller holds
/// the transaction.
class RunTables {
  public:
    RunTables(SQLite::Database& db, int64_t run);

    /// Everything of the batch; `state` is the fold up to its end.
    void write(const Batch& batch, const model::RunState& state);

    /// Only the derived tables, for verification.
    void writeDerived(const Batch& batch, const model::RunState& state);

  private:
    /// Takes out what another writer has put where the batch goes, and returns how many events
    /// that were: one that leads no more, and wrote on until it knew. They are told again.
    int64_t makeRoom(const Batch& batch);
    void writeEvent(const model::Event& event, const EventRow& row);
    void writeStep(const model::Event& event, const model::StepCommitted& step);
    void writeParity(const model::Event& event, const ParityDispute& told);
    void writeCheckpoint(const model::Event& event, const model::CheckpointWritten& checkpoint);
    void writeIncident(const model::IncidentView& incident);
    void writeFault(const model::FaultView& fault);
    void writeGap(const Gap& gap);
    void writeRun(const Batch& batch, const model::RunState& state, int64_t replaced);

    SQLite::Database& db_;
    int64_t run_;
    SQLite::Statement others_;
    SQLite::Statement event_;
    SQLite::Statement step_;
    SQLite::Statement parity_;
    SQLite::Statement supersede_;
    SQLite::Statement suspect_;
    SQLite::Statement incident_;
    SQLite::Statement fault_;
    SQLite::Statement checkpoint_;
    SQLite::Statement gap_;
    SQLite::Statement keyframe_;
    SQLite::Statement runRow_;
};

}  // namespace bulkhead::history
