// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/command.h"
#include "backend/model/event.h"
#include "backend/model/job_spec.h"
#include "backend/model/listing.h"
#include "backend/model/run_state.h"

namespace bulkhead::service {

/// Parameters that accompany a call which changes something.
struct Call {
    std::string requestId;
    uint64_t expectedRevision = 0;  ///< 0: any
    std::string by;
    bool mayInject = true;  ///< faults
    /// True when nobody waits for the answer any more. Empty: somebody does.
    std::function<bool()> gaveUp{};
};

/// Observer of one job. Called by one thread at a time; must not block and must not call the
/// backend back.
class Subscriber {
  public:
    virtual ~Subscriber() = default;
    /// First, once: everything so far, folded. Events with seq > state.seq follow without gaps.
    virtual void onSnapshot(const model::RunState& state) = 0;
    virtual void onEvent(const model::Event& event) = 0;
};

/// The running jobs that the services expose. Decisions are made behind it, none in front of it.
/// Errors: NotFound for an unknown job, InvalidArgument for a request that can never work, Aborted
/// for a stale revision (the message says what changed), FailedPrecondition for a refusal.
/// A message may end in "; what to do instead", which becomes the remedy shown to the operator.
/// Thread: any function from any thread except from inside a Subscriber; they may block briefly.
class Backend {
  public:
    virtual ~Backend() = default;
    /// PermissionDenied when no job may take its model from this file.
    virtual absl::Status mayReadModel(const std::string& path) const = 0;
    /// Returns the id of the new job. `resumeFrom`: a checkpoint manifest or an earlier run; empty:
    /// a fresh start. Reads the job's text, which may take long; Cancelled, and nothing started,
    /// when the caller gave up meanwhile.
    virtual absl::StatusOr<std::string> start(const model::JobSpec& spec,
                                              const std::string& resumeFrom, const Call& call) = 0;
    virtual std::vector<model::JobInfo> jobs() = 0;
    virtual std::vector<model::NodeInfo> nodes() = 0;
    /// `machineIsOff`, for kForget: ranks of which nothing is known have ended.
    virtual absl::Status changeNode(const std::string& node, model::NodeChange change,
                                    bool machineIsOff, const Call& call) = 0;
    virtual absl::StatusOr<model::JobInfo> job(const std::string& id) = 0;
    virtual absl::StatusOr<model::Preflight> preflight(const std::string& job,
                                                       const model::Action& action) = 0;
    virtual absl::StatusOr<model::Preflight> preflight(const std::string& job,
                                                       const model::FaultSpec& fault) = 0;
    virtual absl::Status act(const std::string& job, const model::Action& action,
                             const Call& call) = 0;
    /// The fault's id.
    virtual absl::StatusOr<uint64_t> inject(const std::string& job, const model::FaultSpec& fault,
                                            const Call& call) = 0;
    virtual absl::Status endFault(const std::string& job, uint64_t fault, const Call& call) = 0;
    virtual absl::StatusOr<model::CampaignPreflight> preflight(
        const std::string& job, const model::CampaignText& campaign) = 0;
    /// The campaign's id.
    virtual absl::StatusOr<uint64_t> startCampaign(const std::string& job,
                                                   const model::CampaignText& campaign,
                                                   const Call& call) = 0;
    virtual absl::Status stopCampaign(const std::string& job, uint64_t campaign,
                                      const Call& call) = 0;
    virtual absl::Status stop(const std::string& job, bool checkpoint, const Call& call) = 0;
    /// `subscriber` must live until unsubscribe() has returned.
    virtual absl::Status subscribe(const std::string& job, Subscriber* subscriber) = 0;
    virtual void unsubscribe(const std::string& job, Subscriber* subscriber) = 0;
};

}  // namespace bulkhead::service
