// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/model/command.h"
#include "backend/model/event.h"
#include "backend/model/job_spec.h"

namespace bulkhead::runtime {

struct ReplicaStatus {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    model::ReplicaState state = model::ReplicaState::kAbsent;
    std::vector<std::string> nodes;  ///< of its ranks, by shard
    bool releasable = false;         ///< held, drained or given up
    bool alone = false;  ///< nobody else holds the last commit, and no checkpoint has it
};

struct NodeStatus {
    std::string node;
    std::string address;
    uint32_t slots = 0;
    uint32_t used = 0;
    model::NodeState state = model::NodeState::kUp;
    uint32_t gpus = 0;      ///< that its agent gives to ranks
    uint32_t gpusUsed = 0;  ///< by ranks that have one, or are to get one
    std::string why = {};   ///< it is not up, or its agent is away; empty: neither
};

/// A job at one moment, as much as actions and their pre-flight need. `revision` grows with every
/// change of membership, policy or phase, not with steps; an action names the one it was meant for.
struct JobStatus {
    std::string run;
    model::JobSpec spec;
    model::Policies policies;
    model::JobPhase phase = model::JobPhase::kStarting;
    bool pauseOrdered = false;  ///< the phase may not say so yet
    std::string why;            ///< reason why it waits, or why it ended
    uint64_t revision = 0;
    uint64_t lineage = 0;
    uint64_t term = 0;
    uint64_t step = 0;        ///< last committed
    uint64_t checkpoint = 0;  ///< step of the newest checkpoint, 0 when there is none
    bool folderAway = false;  ///< the run's folder is not there, or has nothing of it
    int64_t startedNs = 0;
    std::vector<ReplicaStatus> replicas;
    std::vector<NodeStatus> nodes;
    model::ModelInfo model;                      ///< as described by the workload; no name: not yet
    std::vector<int32_t> expertShard;            ///< where its experts lie, [moeLayer][expert]
    std::vector<uint32_t> domainShare;           ///< parts of a domain by shard, as in Action
    std::vector<model::ExpertRule> expertRules;  ///< that a layout has to keep
    std::optional<uint64_t> proposedAt;          ///< step of the plan that waits for an operator
};

/// The figures of now, before and after alike; setContributors() changes those after.
model::Preflight beginPreflight(const JobStatus& status);
void setContributors(model::Preflight& p, const JobStatus& status, uint32_t after);

/// Predicts the effect of an action or a fault on a job in `status`. Pure. Refusals name a remedy.
model::Preflight preflight(const JobStatus& status, const model::Action& action);
model::Preflight preflight(const JobStatus& status, const model::FaultSpec& fault);
/// The refusal of a fault or a campaign by a job that does not take them.
inline constexpr std::string_view kFaultsAreOff =
    "this job takes no faults; start one with faults = \"on\" in its job file, or with "
    "--set allow_faults=true";

}  // namespace bulkhead::runtime
