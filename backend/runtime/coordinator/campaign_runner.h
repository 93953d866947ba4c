// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/campaign/judge.h"
#include "backend/model/command.h"
#include "backend/model/run_state.h"

namespace bulkhead::runtime {

/// The campaign of one job, from its begin to its verdict: puts each planned fault when its time
/// has come and the job can bear it, ends what lasts, waits until all are back, judges. What it has
/// done stands in the run's events, so that the next coordinator goes on where this one ended.
/// Thread: one.
class CampaignRunner {
  public:
    struct Hands {
        /// The fault's id; a request id that was used is AlreadyExists.
        std::function<absl::StatusOr<uint64_t>(const model::FaultSpec&, const std::string& by,
                                               const std::string& requestId)>
            inject;
        std::function<absl::Status(uint64_t fault)> endFault;
        std::function<model::Preflight(const model::FaultSpec&)> preflight;
        /// Checks whether the commit log on disk covers the data exactly once.
        std::function<campaign::LedgerFinding()> ledger;
        std::function<void(model::EventBody, model::Severity)> emit;
        std::function<int64_t()> unixNs;
        /// The fold of all events so far, the newest included.
        std::function<const model::RunState&()> state;
    };

    explicit CampaignRunner(Hands hands) : hands_(std::move(hands)) {}

    /// Takes up the campaign that the run's history has open, if any; `owners` are the faults not
    /// over, by id, and who injected them.
    void restore(const std::map<uint64_t, std::string>& owners);

    /// Returns its id. AlreadyExists (naming it) while one goes on.
    absl::StatusOr<uint64_t> start(model::CampaignStarted plan);
    /// Ends what lasts and the campaign, at once. NotFound unless this one goes on.
    absl::Status abort(uint64_t campaign, const std::string& by);
    /// The job is about to end.
    void jobEnds(const std::string& why);

    /// A few times a second while one goes on.
    void tick();
    /// Every event of the run, after it was folded.
    void observe(const model::Event& event);

    bool active() const { return active_ != 0; }

  private:
    struct Waiting {
        model::PlannedFault fault;
        std::string why;  ///< held back, the last time it was tried
    };

    const model::CampaignView& view() const;
    void take(const model::CampaignStarted& plan);
    /// Empty when it can be put now, else what it waits for.
    std::string heldBackBy(const model::FaultSpec& fault) const;
    /// Replicas that train still, but have been hit by what will take them out.
    uint32_t doomed() const;
    void putDue(double elapsedMs);
    void put(uint64_t planned, const Waiting& waiting);
    void skip(uint64_t planned, const std::string& why);
    void endLasting();
    void finish(model::CampaignOutcome outcome, const std::string& why, bool isJudged);

    Hands hands_;
    uint64_t active_ = 0;                  ///< the campaign; 0: none
    std::map<uint64_t, Waiting> waiting_;  ///< by place in the plan
    std::map<uint64_t, uint64_t> open_;    ///< fault id, place in the plan
    /// Fault id, outcome: over before its id was known; since the last injection.
    std::map<uint64_t, std::string> early_;
    std::map<int32_t, uint32_t> hit_;  ///< replica, incarnation: was dealt a loss
    bool ended_ = false;               ///< the end of lasting faults was requested
    double awayMs_ = 0;                ///< no controller was there
};

}  // namespace bulkhead::runtime
