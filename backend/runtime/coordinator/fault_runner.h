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
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::runtime {

/// The faults of one job, from the wish to the end: waits for the step, hands each to whoever can
/// commit it (the agent from outside, the rank itself from inside), tells when it took effect and
/// when it ended, and which of them a new incident answers to. Thread: one.
class FaultRunner {
  public:
    /// What it acts through; every function returns why it cannot.
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
    };

    FaultRunner(uint32_t shards, Hands hands) : shards_(shards), hands_(std::move(hands)) {}

    /// Takes the fault on and commits it if it is due. Ids count from `firstId` within a run.
    uint64_t inject(const model::FaultSpec& spec, const std::string& by, uint64_t committedStep);
    void startIdsAt(uint64_t firstId) { nextId_ = firstId; }

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
    /// took effect on it, within a minute after its end. Each explains one incident per replica.
    std::optional<Cause> explain(int32_t replica, int64_t unixNs);

    /// The fault of this kind that is acting now, the latest; 0 when there is none.
    uint64_t acting(model::FaultKind kind) const;

  private:
    enum class State { kWaiting, kSent, kActive };
    struct Fault {
        model::FaultSpec spec;
        std::string by;
        State state = State::kWaiting;
        std::set<RankId> ranks;         ///< that commit it themselves or are signalled
        bool self = false;              ///< the ranks commit it themselves
        bool ending = false;            ///< end() was asked for
        std::set<int32_t> unexplained;  ///< replicas hit, no incident yet
        int64_t effectNs = 0;
    };

    bool isSelfCommitted(const model::FaultSpec& spec) const;
    bool isDue(const model::FaultSpec& spec, uint64_t committedStep) const;
    void commit(uint64_t id, Fault& fault, uint64_t committedStep);
    absl::Status carryOut(uint64_t id, Fault& fault);
    absl::Status carryOutOnRank(uint64_t id, const Fault& fault, RankId rank);
    void tookEffect(uint64_t id, Fault& fault, int64_t unixNs, uint64_t step);
    void finish(uint64_t id, const std::string& outcome, bool failed);

    uint32_t shards_;
    Hands hands_;
    uint64_t nextId_ = 1;
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
