// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/types.h"
#include "backend/model/command.h"
#include "backend/model/event.h"
#include "backend/model/run_state.h"
#include "backend/runtime/coordinator/fault_file.h"
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::runtime {

/// The faults of one job, from the wish to the end: waits for the step, hands each to whoever can
/// commit it (the agent from outside, the rank itself from inside), tells when it took effect and
/// when it ended, and which of them a new incident answers to. Thread: one.
class FaultRunner {
  public:
    /// Operations that carry out faults; each returns the reason when it cannot.
    struct Hands {
        std::function<absl::Status(RankId, const protocol::CommitFault&)> commit;
        std::function<absl::Status(RankId, int signal, uint64_t fault, uint64_t durationMs)> signal;
        std::function<absl::Status(const std::string& node, uint64_t fault, uint64_t durationMs)>
            fillDisk;
        std::function<absl::Status(const std::string& node, uint64_t fault)> killNode;
        /// Ends what the agents hold for this fault, and through them what lasts in these ranks.
        std::function<void(uint64_t fault, const std::set<RankId>& ranks)> end;
        /// Replicas with a rank on the node.
        std::function<std::vector<int32_t>(const std::string& node)> replicasOn;
        std::function<void(model::EventBody, model::Severity)> emit;
        std::function<int64_t()> unixNs;
        /// Incarnation of the rank's process; nullopt when it has none.
        std::function<std::optional<uint32_t>(RankId)> incarnationOf;
        /// Durable when it returns OK.
        std::function<absl::Status(const SavedFaults&)> save;
    };

    FaultRunner(uint32_t shards, Hands hands) : shards_(shards), hands_(std::move(hands)) {}

    /// Takes the fault on, durably, and commits it if it is due. Ids count from 1 within a run.
    absl::StatusOr<uint64_t> inject(const model::FaultSpec& spec, const std::string& by,
                                    uint64_t committedStep, const std::string& requestId = "");
    /// The same for the job file's own, once in a run's life.
    absl::Status plan(const std::vector<model::FaultSpec>& specs, uint64_t committedStep);
    bool planned() const { return planned_; }

    /// Before anything else: what an earlier coordinator had taken on, and what came of it by the
    /// run's history.
    void restore(const SavedFaults& saved, const model::RunState& past);
    /// A process of before the restore is heard of: what it may have missed is told again. A fault
    /// has an id, and nobody commits the same twice.
    void rankBack(RankId rank, uint32_t incarnation);
    /// After a restore: whoever was not heard of by now is gone.
    void inventoryDone();
    /// Request ids of the faults that are not over; a request is answered once.
    std::set<std::string> requests() const;
    /// The faults that are not over, and who injected each.
    std::map<uint64_t, std::string> owners() const;

    /// A step is durable: what waits for the next one is due.
    void stepCommitted(uint64_t step);

    /// A rank or an agent says that it took effect, ended, or could not be committed (`error`).
    void noted(uint64_t fault, bool ended, const std::string& error, int64_t unixNs, uint64_t step);

    /// A rank ended: what it was to do to itself has happened, what lasted in it is over.
    void rankExited(RankId rank, int signal, int64_t unixNs);

    /// Ends it early, or takes it back before its step; FaultEnded tells when it is over. NotFound
    /// when it is over already; FailedPrecondition when nothing of it lasts.
    absl::Status end(uint64_t fault);

    struct Cause {
        uint64_t fault = 0;
        int64_t effectNs = 0;
    };
    /// The fault that a loss (or disturbance) of `replica` at `unixNs` answers to: the latest that
    /// took effect on it, or may have without anybody having heard of it yet, within a minute after
    /// its end. Each explains one incident per replica.
    std::optional<Cause> explain(int32_t replica, int64_t unixNs);

    /// The fault of this kind that is acting now, the latest; 0 when there is none.
    uint64_t acting(model::FaultKind kind) const;

  private:
    enum class State { kWaiting, kSent, kActive };
    struct Fault {
        model::FaultSpec spec;
        std::string by;
        State state = State::kWaiting;
        std::set<RankId> ranks;  ///< that commit it themselves or are signalled
        bool self = false;       ///< the ranks commit it themselves
        bool ending = false;     ///< end() was asked for
        std::string requestId;
        std::map<RankId, uint32_t> targets;  ///< by incarnation, when it was sent
        std::map<RankId, uint32_t> untold;   ///< after a restore: may not have heard of it
        std::set<int32_t> unexplained;       ///< replicas hit, no incident yet
        int64_t effectNs = 0;
    };

    bool isSelfCommitted(const model::FaultSpec& spec) const;
    bool isDue(const model::FaultSpec& spec, uint64_t committedStep) const;
    bool mayHaveStruck(const Fault& fault) const;
    void commit(uint64_t id, Fault& fault, uint64_t committedStep);
    absl::Status carryOut(uint64_t id, Fault& fault);
    absl::Status carryOutOnRank(uint64_t id, const Fault& fault, RankId rank);
    void tookEffect(uint64_t id, Fault& fault, int64_t unixNs, uint64_t step);
    void exited(uint64_t id, RankId rank, int signal, int64_t unixNs);
    void finish(uint64_t id, const std::string& outcome, bool failed);
    Fault restored(const SavedFault& saved, const model::FaultView* seen,
                   const model::RunState& past) const;
    uint64_t add(const model::FaultSpec& spec, const std::string& by, const std::string& requestId);
    std::vector<RankId> ranksOf(const model::FaultSpec& spec) const;
    SavedFaults saved() const;

    uint32_t shards_;
    Hands hands_;
    uint64_t nextId_ = 1;
    bool planned_ = false;
    uint64_t step_ = 0;
    std::map<uint64_t, Fault> open_;
    struct Past {
        uint64_t id = 0;
        int64_t effectNs = 0;
        int64_t untilNs = 0;
        std::set<int32_t> unexplained;
    };
    std::vector<Past> past_;
};

}  // namespace bulkhead::runtime
