// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/common/types.h"
#include "backend/runtime/protocol/data_ledger.h"

namespace bulkhead::protocol {

/// An invariant of docs/protocol.md that does not hold.
struct Violation {
    std::string invariant;  ///< "I1"
    std::string detail;
};

/// Watches a job from outside: told what is committed and applied, it answers with what is broken.
/// The live ledger and the simulator use the same one. Memory: the last `window` steps. Old
/// lineages are kept as long as their steps are in the window. Thread: none of its own; externally
/// serialised.
class InvariantChecker {
  public:
    explicit InvariantChecker(size_t window = 256) : window_(window) {}

    /// A record became durable. I1: one record per (lineage, step); I2: no sample twice within a
    /// lineage's line of descent; I6: steps without gap and none twice.
    std::optional<Violation> committed(const CommitRecord& record);
    /// A lineage begins after `fromStep` of the one before it: what was committed beyond is undone.
    std::optional<Violation> lineage(uint64_t lineage, const LedgerState& ledger,
                                     uint64_t fromStep);
    /// Replica `replica` applied `record`; hashes by shard afterwards (empty: not known yet).
    /// I1: as committed. I3: equal to everybody else's. I5: applied in order, never before durable.
    std::optional<Violation> applied(int32_t replica, uint32_t incarnation,
                                     const CommitRecord& record,
                                     const std::vector<uint64_t>& hashes);
    /// I3 alone, for hashes that come with votes.
    std::optional<Violation> hashes(uint64_t lineage, uint64_t step, int32_t replica,
                                    const std::vector<uint64_t>& hashes);
    /// I2: the ledger's own partition.
    static std::optional<Violation> ledger(const DataLedger& ledger);

  private:
    struct Step {
        std::optional<CommitRecord> record;
        std::vector<uint64_t> hashes;
        int32_t hashedBy = -1;
    };
    void trim();

    size_t window_;
    uint64_t lineage_ = 0;
    uint64_t lastStep_ = 0;
    std::map<std::pair<uint64_t, uint64_t>, Step> steps_;
    std::map<uint32_t, IntervalSet> consumed_;
    std::map<std::pair<int32_t, uint32_t>, std::pair<uint64_t, uint64_t>> appliedBy_;
};

}  // namespace bulkhead::protocol
