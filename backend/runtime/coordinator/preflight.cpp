// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/model/command_text.h"
#include "backend/model/expert_rules.h"
#include "backend/runtime/coordinator/job_status.h"
#include "backend/runtime/protocol/sample_deal.h"

namespace bulkhead::runtime {
namespace {

using model::ActionKind;
using model::FaultKind;
using model::Preflight;
using model::ReplicaState;

uint32_t contributorsOf(const JobStatus& status) {
    return static_cast<uint32_t>(
        std::count_if(status.replicas.begin(), status.replicas.end(),
                      [](const ReplicaStatus& r) { return r.state == ReplicaState::kTraining; }));
}

double lrFactor(const JobStatus& status, uint32_t contributors) {
    if (contributors == 0 || status.policies.batch == model::BatchPolicy::kConstant) return 1;
    const double share = static_cast<double>(contributors) / status.spec.replicas;
    switch (status.policies.lr) {
        case model::LrPolicy::kNone:
            return 1;
        case model::LrPolicy::kLinear:
            return share;
        case model::LrPolicy::kSqrt:
            return std::sqrt(share);
    }
    return 1;
}

uint64_t samples(const JobStatus& status, uint32_t contributors) {
    if (contributors == 0) return 0;
    const uint32_t sharers = status.policies.batch == model::BatchPolicy::kConstant
                                 ? status.spec.replicas
                                 : contributors;
    return uint64_t{sharers} * status.spec.samplesPerReplica;
}

const ReplicaStatus* find(const JobStatus& status, int32_t replica) {
    for (const ReplicaStatus& r : status.replicas)
        if (r.replica == replica) return &r;
    return nullptr;
}

const NodeStatus* findNode(const JobStatus& status, const std::string& node) {
    for (const NodeStatus& n : status.nodes)
        if (n.node == node) return &n;
    return nullptr;
}

std::string nodeNames(const JobStatus& status) {
    std::string names;
    for (const NodeStatus& n : status.nodes)
        absl::StrAppend(&names, names.empty() ? "" : ", ", n.node);
    return names.empty() ? "none has connected yet" : names;
}

bool ended(const JobStatus& status) {
    return status.phase == model::JobPhase::kFinished || status.phase == model::JobPhase::kFailed;
}

}  // namespace

Preflight beginPreflight(const JobStatus& status) {
    Preflight p;
    p.revision = status.revision;
    p.contributorsBefore = p.contributorsAfter = contributorsOf(status);
    p.samplesBefore = p.samplesAfter = samples(status, p.contributorsBefore);
    p.lrFactorBefore = p.lrFactorAfter = lrFactor(status, p.contributorsBefore);
    return p;
}

void setContributors(Preflight& p, const JobStatus& status, uint32_t after) {
    p.contributorsAfter = after;
    p.samplesAfter = samples(status, after);
    p.lrFactorAfter = lrFactor(status, after);
    p.pauses = after < std::max<uint32_t>(1, status.policies.minReplicas);
}

namespace {

Preflight& refuse(Preflight& p, std::string why) {
    p.allowed = false;
    p.refusal = std::move(why);
    return p;
}

std::string remaining(const Preflight& p, const JobStatus& status) {
    if (p.pauses)
        return absl::StrCat(p.contributorsAfter, " of ", status.spec.replicas,
                            " replicas would remain, fewer than min_replicas ",
                            status.policies.minReplicas, ": training waits until one returns");
    return absl::StrCat(p.contributorsAfter, " of ", status.spec.replicas,
                        " replicas train on with ", p.samplesAfter,
                        " samples a step and an LR factor of ",
                        absl::StrFormat("%.3g", p.lrFactorAfter));
}

std::string remainingAfterLoss(const Preflight& p, const JobStatus& status) {
    if (p.contributorsAfter == 0 && status.step > status.checkpoint)
        return absl::StrCat(
            "nobody is left who trained: unless a replica that does not holds step ", status.step,
            ", the job goes back to ",
            status.checkpoint == 0 ? "its beginning"
                                   : absl::StrCat("the checkpoint of step ", status.checkpoint));
    return remaining(p, status);
}

/// The replica of an action or a fault; refuses when there is none such.
const ReplicaStatus* target(Preflight& p, const JobStatus& status, int32_t replica) {
    const ReplicaStatus* r = find(status, replica);
    if (r == nullptr)
        refuse(p, absl::StrCat("the job has no replica ", replica, "; name one of 0 to ",
                               status.replicas.empty() ? 0 : status.replicas.size() - 1));
    return r;
}

void loseReplica(Preflight& p, const JobStatus& status, const ReplicaStatus& r) {
    const bool trains = r.state == ReplicaState::kTraining;
    setContributors(p, status, p.contributorsBefore - (trains ? 1 : 0));
}

void drain(Preflight& p, const JobStatus& status, const model::Action& action) {
    p.title = absl::StrCat("Drain replica ", action.replica);
    const ReplicaStatus* r = target(p, status, action.replica);
    if (r == nullptr) return;
    if (r->state == ReplicaState::kDrained) {
        refuse(p,
               absl::StrCat("replica ", r->replica, " is drained already; release it to return"));
        return;
    }
    loseReplica(p, status, *r);
    p.effect =
        absl::StrCat("Replica ", r->replica, " leaves after its current commit and stays out; ",
                     remaining(p, status), ".");
}

void restart(Preflight& p, const JobStatus& status, const model::Action& action) {
    p.title = absl::StrCat("Restart replica ", action.replica);
    const ReplicaStatus* r = target(p, status, action.replica);
    if (r == nullptr) return;
    if (r->alone)
        return (void)refuse(p,
                            absl::StrCat("replica ", r->replica, " alone holds step ", status.step,
                                         ", which is in no checkpoint; pause the "
                                         "job, write a checkpoint, restart then"));
    loseReplica(p, status, *r);
    p.effect = absl::StrCat("Replica ", r->replica, " stops and returns as incarnation ",
                            r->incarnation + 1, "; until then ", remaining(p, status), ".");
}

/// A stop without a checkpoint ends what was committed since the newest one.
std::string lostByStopNow(const JobStatus& status) {
    if (status.folderAway)
        return "The run's folder is not there: its history ends, and what lies in the folder is "
               "not touched.";
    if (status.checkpoint == 0)
        return absl::StrCat("There is no checkpoint: all ", status.step, " steps are lost.");
    if (status.checkpoint >= status.step)
        return absl::StrCat("The checkpoint of step ", status.checkpoint,
                            " is the newest; steps after it are lost.");
    const uint64_t lost = status.step - status.checkpoint;
    return absl::StrCat(lost, lost == 1 ? " step is" : " steps are",
                        " lost: the newest checkpoint is of step ", status.checkpoint,
                        ", the job is at step ", status.step, ".");
}

void rejoin(Preflight& p, const JobStatus& status, const model::Action& action) {
    const bool hold = action.kind == ActionKind::kHoldRejoin;
    p.title = absl::StrCat(hold ? "Hold replica " : "Release replica ", action.replica);
    const ReplicaStatus* r = target(p, status, action.replica);
    if (r == nullptr) return;
    if (!hold && !r->releasable)
        return (void)refuse(
            p, absl::StrCat("replica ", r->replica, " is neither held nor drained nor given up"));
    p.effect =
        hold ? absl::StrCat("When replica ", r->replica,
                            " is lost it stays out until it is released; now nothing changes.")
             : absl::StrCat("Replica ", r->replica,
                            " may start and join again; nobody waits for it.");
}

void cordon(Preflight& p, const JobStatus& status, const model::Action& action) {
    const bool out = action.kind == ActionKind::kCordon;
    p.title = absl::StrCat(out ? "Cordon node " : "Uncordon node ", action.node);
    if (findNode(status, action.node) == nullptr) {
        refuse(p,
               absl::StrCat("no node is named \"", action.node, "\"; known: ", nodeNames(status)));
        return;
    }
    p.effect =
        out ? absl::StrCat("Node ", action.node, " takes no new ranks; those that run there go on.")
            : absl::StrCat("Node ", action.node, " takes new ranks again.");
}

void policy(Preflight& p, const JobStatus& status, const model::Action& action) {
    p.title = absl::StrCat("Set ", action.policy, " to ", action.value);
    JobStatus after = status;
    auto changed = model::withPolicy(status.policies, action.policy, action.value);
    if (!changed.ok()) {
        refuse(p, std::string(changed.status().message()));
        return;
    }
    after.policies = *std::move(changed);
    if (after.policies.minReplicas > status.spec.replicas) {
        refuse(p,
               absl::StrCat("min_replicas ", after.policies.minReplicas, " is more than the job's ",
                            status.spec.replicas, " replicas; it could never train"));
        return;
    }
    setContributors(p, after, p.contributorsBefore);
    p.effect = absl::StrCat("From the next quorum on ", action.policy, " is ", action.value, "; ",
                            remaining(p, after), ".");
}

/// Returns why `placement` is invalid for this job; empty when it is valid.
std::string unfit(const JobStatus& status, const std::vector<int32_t>& placement) {
    const model::ModelInfo& m = status.model;
    if (status.expertShard.empty())
        return m.name.empty() ? "the model has not been built yet; try again after the first step"
                              : absl::StrCat("the workload ", m.name, " has no experts");
    const size_t wanted = size_t{m.moeLayers} * m.experts;
    if (placement.size() != wanted)
        return absl::StrCat("a placement of this model has ", wanted, " entries (", m.moeLayers,
                            " mixture layers of ", m.experts, " experts), not ", placement.size());
    for (size_t i = 0; i < wanted; ++i)
        if (placement[i] < 0 || placement[i] >= static_cast<int32_t>(status.spec.shards))
            return absl::StrCat("expert ", i % m.experts, " of mixture layer ", i / m.experts,
                                " must be on a shard from 0 to ", status.spec.shards - 1, ", not ",
                                placement[i]);
    return "";
}

/// Returns why this job's experts cannot be moved nor tokens be traced; empty when they can.
std::string fixedExperts(const JobStatus& status) {
    if (!status.model.expertsFixed) return "";
    return absl::StrCat("the job's own program places the experts of ", status.model.name,
                        ", and tells how often each is chosen");
}

/// Names the pin or ban that the layout violates; empty when it violates none.
std::string unkept(const JobStatus& status, const model::Action& action) {
    const uint32_t experts = status.model.experts;
    const auto* brought = model::rulesOf(action);
    if (brought != nullptr)
        if (const absl::Status s =
                model::checkRules(*brought, action.expertShard, experts, status.spec.shards,
                                  status.model.mixtureLayers);
            !s.ok())
            return std::string(s.message());
    const auto* broken = model::brokenRule(brought != nullptr ? *brought : status.expertRules,
                                           action.expertShard, experts);
    if (broken == nullptr) return "";
    // The command line expects the model's own number of the layer, where it is known.
    const std::vector<uint32_t>& numbers = status.model.mixtureLayers;
    const uint32_t layer = broken->layer < numbers.size() ? numbers[broken->layer] : broken->layer;
    return absl::StrCat(
        model::ruleText(*broken, status.model.mixtureLayers), ", and this layout has it on shard ",
        action.expertShard[size_t{broken->layer} * experts + broken->expert],
        "; plan anew, or free it with bulkheadctl plan rules --free ", layer, ":", broken->expert);
}

void layout(Preflight& p, const JobStatus& status, const model::Action& action) {
    p.title = "Move experts between shards";
    if (std::string why = unfit(status, action.expertShard); !why.empty()) {
        refuse(p, std::move(why));
        return;
    }
    if (const std::string why = fixedExperts(status); !why.empty())
        return (void)refuse(
            p, absl::StrCat(why,
                            ": give it this placement when it is started again (shard= of "
                            "bulkhead.Experts)"));
    const auto domains = static_cast<uint32_t>(status.spec.domains.size());
    if (const absl::Status s =
            protocol::checkDomainShare(action.domainShare, domains, status.spec.shards);
        !s.ok())
        return (void)refuse(p, std::string(s.message()));
    const bool regroups = action.domainShare != status.domainShare;
    if (action.expertShard == status.expertShard && !regroups)
        return (void)refuse(p, "that is where the experts lie already");
    if (std::string why = unkept(status, action); !why.empty())
        return (void)refuse(p, std::move(why));
    for (size_t i = 0; i < action.expertShard.size(); ++i)
        p.expertsMoved += action.expertShard[i] != status.expertShard[i];
    p.bytesMoved = p.expertsMoved * status.model.expertBytes;
    p.effect = absl::StrCat("After its current step every replica moves ", p.expertsMoved, " of ",
                            action.expertShard.size(), " experts between its shards, ",
                            absl::StrFormat("%.1f", static_cast<double>(p.bytesMoved) / 1e6),
                            " MB of weights and optimizer state each; unless all of them succeed "
                            "the old placement stays.");
    if (regroups)
        absl::StrAppend(&p.effect, action.domainShare.empty()
                                       ? " Samples go to any shard again."
                                       : " Samples go to the shards of their domain.");
}

void ruleExperts(Preflight& p, const JobStatus& status, const model::Action& action) {
    p.title = "Pin and forbid experts";
    if (std::string why = unfit(status, status.expertShard); !why.empty())
        return (void)refuse(p, std::move(why));
    if (const absl::Status s =
            model::checkRules(action.rules, status.expertShard, status.model.experts,
                              status.spec.shards, status.model.mixtureLayers);
        !s.ok())
        return (void)refuse(p, std::string(s.message()));
    p.effect = action.rules.empty()
                   ? "Every expert may be on any shard again; nothing moves by itself."
                   : absl::StrCat("From now on plans keep to ", action.rules.size(),
                                  action.rules.size() == 1 ? " rule" : " rules",
                                  "; nothing moves by itself.");
}

void dismiss(Preflight& p, const JobStatus& status, const model::Action& action) {
    p.title = "Dismiss the plan that was proposed";
    if (status.proposedAt != action.step)
        return (void)refuse(p, status.proposedAt
                                   ? absl::StrCat("the plan ready for review is of step ",
                                                  *status.proposedAt, ", not ", action.step)
                                   : "no plan is ready for review");
    p.effect = absl::StrCat("Nothing moves. While routing stays drifted, another plan is proposed ",
                            status.spec.plan.cooldownSteps, " steps after this one.");
}

void capture(Preflight& p, const JobStatus& status, const model::Action& action) {
    constexpr uint64_t kMost = 1 << 20;
    p.title = absl::StrCat("Tell how ", action.tokens, " tokens are routed");
    if (status.expertShard.empty())
        return (void)refuse(
            p, status.model.name.empty()
                   ? "the model has not been built yet; try again after the first "
                     "step"
                   : absl::StrCat("the workload ", status.model.name, " has no experts"));
    if (const std::string why = fixedExperts(status); !why.empty())
        return (void)refuse(p, absl::StrCat(why, ", not which token chose which"));
    if (action.tokens == 0 || action.tokens > kMost)
        return (void)refuse(
            p, absl::StrCat("expected 1 to ", kMost, " tokens, found ", action.tokens));
    p.effect =
        "Votes of the next steps bring the experts that some of their tokens chose; events "
        "tell them, and the run file keeps them.";
}

}  // namespace

Preflight preflight(const JobStatus& status, const model::Action& action) {
    Preflight p = beginPreflight(status);
    switch (action.kind) {
        case ActionKind::kDrain:
            drain(p, status, action);
            break;
        case ActionKind::kRestartReplica:
            restart(p, status, action);
            break;
        case ActionKind::kHoldRejoin:
        case ActionKind::kReleaseRejoin:
            rejoin(p, status, action);
            break;
        case ActionKind::kCordon:
        case ActionKind::kUncordon:
            cordon(p, status, action);
            break;
        case ActionKind::kChangeLayout:
            layout(p, status, action);
            break;
        case ActionKind::kCaptureRouting:
            capture(p, status, action);
            break;
        case ActionKind::kRuleExperts:
            ruleExperts(p, status, action);
            break;
        case ActionKind::kDismissPlan:
            dismiss(p, status, action);
            break;
        case ActionKind::kSetPolicy:
            policy(p, status, action);
            break;
        case ActionKind::kPause:
            p.title = "Pause the job";
            p.effect = absl::StrCat("No step is started after step ", status.step + 1,
                                    "; every replica keeps its state and waits.");
            if (status.pauseOrdered) refuse(p, "the job is paused already");
            break;
        case ActionKind::kResume:
            p.title = "Resume the job";
            p.effect = "Training goes on with the next step.";
            if (!status.pauseOrdered)
                refuse(p, "the job is not paused; there is nothing to resume");
            break;
        case ActionKind::kCheckpoint:
            p.title = "Write a checkpoint";
            p.effect = "One replica writes the state of the next committed step; nobody waits.";
            break;
        case ActionKind::kStop:
            p.title = "Stop the job";
            p.contributorsAfter = 0;
            p.samplesAfter = 0;
            p.effect = absl::StrCat("A checkpoint of the next commit is written, then all ",
                                    status.spec.replicas * status.spec.shards, " ranks leave.");
            break;
        case ActionKind::kStopNow:
            p.title = "Stop the job without a checkpoint";
            p.contributorsAfter = 0;
            p.samplesAfter = 0;
            p.effect = absl::StrCat("All ", status.spec.replicas * status.spec.shards,
                                    " ranks leave. ", lostByStopNow(status));
            break;
    }
    if (ended(status))
        return refuse(p, absl::StrCat("the job has ended (", std::string(enumName(status.phase)),
                                      "); start it again from its last checkpoint"));
    if (status.phase == model::JobPhase::kStopping && action.kind == ActionKind::kStop)
        return refuse(p, absl::StrCat("the job is stopping: ", status.why,
                                      "; bulkheadctl stop --without-checkpoint ends it at once, "
                                      "without the steps since its last checkpoint"));
    return p;
}

Preflight preflight(const JobStatus& status, const model::FaultSpec& fault) {
    Preflight p = beginPreflight(status);
    p.title = model::describe(fault);
    if (ended(status)) return refuse(p, "the job has ended; a fault needs a running one");
    if (!status.spec.takesFaults()) return refuse(p, std::string(kFaultsAreOff));
    if (!fault.atPhase.empty() && fault.atPhase != "compute" && fault.atPhase != "exchange" &&
        fault.atPhase != "vote" && fault.atPhase != "apply")
        return refuse(p, absl::StrCat("\"", fault.atPhase,
                                      "\" is no phase; use compute, exchange, vote or apply"));
    if (fault.kind == FaultKind::kKillNode || fault.kind == FaultKind::kFillDisk) {
        if (fault.kind == FaultKind::kFillDisk) {
            p.effect = "Checkpoints fail until the space returns; training goes on.";
            return p;
        }
        if (findNode(status, fault.node) == nullptr)
            return refuse(p, absl::StrCat("no node is named \"", fault.node,
                                          "\"; known: ", nodeNames(status)));
        uint32_t lost = 0;
        for (const ReplicaStatus& r : status.replicas)
            lost += r.state == ReplicaState::kTraining &&
                    std::ranges::find(r.nodes, fault.node) != r.nodes.end();
        setContributors(p, status, p.contributorsBefore - lost);
        p.effect = absl::StrCat("The node's agent and every rank on it die; ",
                                remainingAfterLoss(p, status), ".");
        return p;
    }
    const ReplicaStatus* r = target(p, status, fault.replica);
    if (r == nullptr) return p;
    if (fault.shard >= static_cast<int32_t>(status.spec.shards))
        return refuse(p, absl::StrCat("replica ", fault.replica, " has shards 0 to ",
                                      status.spec.shards - 1, ", not ", fault.shard));
    if (fault.kind == FaultKind::kKillRank && fault.shard < 0)
        return refuse(p, "kill_rank needs a shard; use kill_replica for all of them");
    if (fault.kind == FaultKind::kSlow && fault.factor < 1)
        return refuse(p, "slow needs a factor of at least 1, for example 3");
    if (fault.kind == FaultKind::kDelayNetwork && fault.delayMs == 0)
        return refuse(p, "delay_network needs delay_ms above 0");
    switch (fault.kind) {
        case FaultKind::kSlow:
        case FaultKind::kDelayNetwork:
            p.effect =
                "Every step becomes as slow as this replica; nobody is expelled for it unless "
                "its exchange stops.";
            break;
        case FaultKind::kFlipGradient:
            p.effect =
                "The wrong gradient is summed by all alike: parity stays equal and nobody is "
                "expelled.";
            break;
        case FaultKind::kNanGradient:
            p.effect =
                "The replica says so before the exchange and its samples are computed again.";
            break;
        default:
            loseReplica(p, status, *r);
            p.effect = absl::StrCat("Replica ", r->replica, " is lost until it has caught up; ",
                                    remainingAfterLoss(p, status), ".");
    }
    return p;
}

}  // namespace bulkhead::runtime
