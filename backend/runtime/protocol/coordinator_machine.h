// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/common/clock.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/coordinator_io.h"
#include "backend/runtime/protocol/data_ledger.h"
#include "backend/runtime/protocol/options.h"

namespace bulkhead::protocol {

/// Status of a replica, for status pages and pre-flights.
struct ReplicaView {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    ReplicaState state = ReplicaState::kAbsent;
    uint64_t step = 0;
    bool contributor = false;  ///< of the step in flight; not who only enters it
    MonoNs oldestBeat = 0;     ///< of its ranks; 0: none came yet
    bool releasable = false;   ///< held, drained or given up: it stays out until it is released
    bool alone = false;        ///< nobody else holds the last commit, and no checkpoint has it
};

/// The coordinator of one job as a state machine: everything that is decided is decided here
/// (docs/protocol.md). Pure: time comes in as `now`, randomness is derived from Options::secret.
/// Equal inputs give equal actions. Thread: none of its own; externally serialised.
class CoordinatorMachine {
  public:
    /// A fresh or a recovered job. `term` is minted, durable and higher than recovered.term.
    /// An empty `recovered` (lineage 0) begins a job; `resume` then may name a checkpoint of
    /// another run to begin from (its ledger, step and path count). Call begin() once before
    /// step().
    CoordinatorMachine(Options options, uint64_t term, RecoveredState recovered);
    CoordinatorMachine(Options options, uint64_t term, const LogCheckpoint& resume);
    ~CoordinatorMachine();
    CoordinatorMachine(CoordinatorMachine&&) noexcept;

    Actions begin(MonoNs now);
    Actions step(MonoNs now, const Input& input);

    // Accessors for status pages, the ledger and the simulator.
    uint64_t term() const;
    uint64_t lineage() const;
    uint64_t committedStep() const;   ///< last durable
    uint64_t openStep() const;        ///< in flight, 0 when none
    uint64_t checkpointStep() const;  ///< of the newest checkpoint in the log, 0 when none
    uint64_t epoch() const;
    uint64_t revision() const;  ///< grows with membership, policy and phase
    JobPhase phase() const;
    bool pauseOrdered() const;  ///< and not resumed; the phase follows once no step is open
    const std::string& explanation() const;  ///< of the last quorum decision or wait
    const DataLedger& ledger() const;
    const Policies& policies() const;
    double effectiveTime() const;
    /// Where experts lie, [moeLayer][expert]; empty: where the workload puts them by itself.
    const std::vector<int32_t>& expertShard() const;
    /// Parts of each domain's samples by shard, as in Quorum.
    const std::vector<uint32_t>& domainShare() const;
    std::vector<ReplicaView> replicas() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::protocol
