// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/model/campaign.h"
#include "backend/model/job_spec.h"

/// A campaign file for one job: every fault with its time and its target. Pure: the same text, seed
/// and job give the same plan. Thread: any.
namespace bulkhead::campaign {

/// The facts of the job that a plan depends on.
struct JobShape {
    uint32_t replicas = 1;
    uint32_t shards = 1;
    std::vector<std::string> nodes;
    model::Policies policies;
};

/// `campaign`, `requestId` and `by` are left to whoever starts it. InvalidArgument, naming file,
/// line and key, for what cannot be read or names what the job does not have, and for more than
/// model::Limits::kPlannedFaults faults. A duration that is shortened leaves out what comes later.
[[nodiscard]] absl::StatusOr<model::CampaignStarted> makePlan(const model::CampaignText& text,
                                                              const JobShape& job);

/// Effects of a plan that outlast the campaign, each with its reason: gradients that were wrong,
/// nodes whose agent is gone, replicas that would be given up. Empty: all of it can be undone.
[[nodiscard]] std::vector<std::string> lastingOf(const model::CampaignStarted& plan,
                                                 const JobShape& job);

/// In an operator's words: how many faults of which kind, for how long, and what protects the job.
[[nodiscard]] std::string effectOf(const model::CampaignStarted& plan, const JobShape& job);

/// Takes the process of a replica, or its place in the job, until it has caught up. A hang or a cut
/// of less than a second does not.
[[nodiscard]] bool losesReplica(const model::FaultSpec& fault);

}  // namespace bulkhead::campaign
