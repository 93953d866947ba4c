// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/protocol/commit_log.h"

/// Decides on the checkpoints that a job can go back to, and those that may be removed. Only the
/// coordinator decides that, and its log says so before a file is touched: ranks write checkpoints,
/// nothing else.
namespace bulkhead::protocol {

/// The checkpoints of the present line of descent that are whole as far as is known, in ascending
/// order of their steps. Pure; externally serialised.
class CheckpointBook {
  public:
    CheckpointBook() = default;
    explicit CheckpointBook(std::vector<LogCheckpoint> known);

    /// The first one added is preferred among several of one step. A path that is there already
    /// changes nothing. One of a later lineage takes the place of earlier ones from its step on.
    void add(LogCheckpoint checkpoint);
    void remove(const std::string& path);

    bool empty() const { return known_.empty(); }
    /// nullptr: it is not there. Valid until the book changes.
    const LogCheckpoint* find(const std::string& path) const;
    /// The one to go back to; nullptr: there is none.
    const LogCheckpoint* newest() const { return known_.empty() ? nullptr : &known_.back(); }

    /// Step of the oldest; 0: there is none.
    uint64_t oldest() const { return known_.empty() ? 0 : known_.front().step; }

    /// Paths of those that are older than the newest `steps` steps (0 counts as 1). Never what
    /// another run wrote.
    std::vector<std::string> surplus(uint32_t steps) const;

  private:
    std::vector<LogCheckpoint> known_;
};

/// A checkpoint on disk as its manifest describes it; all of its files are there.
struct StoredCheckpoint {
    std::string path;
    CommitRecord last;  ///< the record that led to the state
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    std::vector<uint64_t> hashes;  ///< of the state, by shard
    /// Settled, after `last`, as the coordinator told its writer. A rank that writes because no
    /// coordinator is left does not know it.
    std::optional<LedgerState> ledger{};
    std::vector<CommitRecord> records{};  ///< that led to the state, up to `last`; may be empty
    std::string run{};                    ///< identity of the run that wrote it; empty: not known
};

/// The log entry for it by its manifest alone: samples are dealt in equal shares. nullopt
/// without a ledger.
std::optional<LogCheckpoint> byManifest(const StoredCheckpoint& stored);

/// Those of `stored` whose record is the one that the log has of that step in its present line of
/// descent, ascending by step; of one step first those whose hashes most of them share. Then those
/// of the last lineage that lie behind the log's end, by their manifests, or by their
/// records where these go on from what is known: whoever wrote
/// them had been told that their steps were committed, so the log's disk has lost its end. A
/// checkpoint does not count if the log has a vote for other hashes of its state, however old and
/// even if one contributor voted alone. DataLoss as recoverState().
absl::StatusOr<std::vector<LogCheckpoint>> judgeStored(const std::vector<LogEntry>& log,
                                                       uint32_t replicas, uint32_t domains,
                                                       std::vector<StoredCheckpoint> stored);

/// As judgeStored(), of what is whole of a log that is damaged in its middle: what follows the last
/// entry that says everything anew, a lineage or a checkpoint, as far as nothing of the chain is
/// missing; and what says so by its own records, which go on from a known ledger in one lineage, or
/// from the beginning of the job.
/// Behind a move of experts their samples are dealt in equal shares, and what was quarantined is
/// taken once more.
std::vector<LogCheckpoint> judgeBehindDamage(const std::vector<LogEntry>& whole, uint32_t replicas,
                                             uint32_t domains,
                                             const std::vector<StoredCheckpoint>& stored);

}  // namespace bulkhead::protocol
