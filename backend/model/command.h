// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/common/fields.h"

/// Requests of an operator to a running job: faults and actions, and their previews.
namespace bulkhead::model {

enum class FaultKind {
    kKillRank,       ///< SIGKILL one process
    kKillReplica,    ///< SIGKILL all processes of a replica
    kHang,           ///< SIGSTOP; SIGCONT after `durationMs`, never if 0
    kSlow,           ///< compute takes `factor` times as long
    kCutNetwork,     ///< every link that leaves the replica drops, for `durationMs` (0: for good)
    kDelayNetwork,   ///< every link that leaves the replica is late by `delayMs`
    kFlipGradient,   ///< one bit of the local gradient before contribution
    kNanGradient,    ///< NaN in the local gradient before contribution
    kFlipParameter,  ///< one bit of a parameter after a step; parity must find it
    kFillDisk,       ///< the checkpoint file system has no room, for `durationMs`
    kKillNode,       ///< SIGKILL the agent of a node and every rank on it
};

/// `target.shard` -1 stands for every rank of the replica (kFlip*, kNan*: shard 0).
struct FaultSpec {
    FaultKind kind = FaultKind::kKillReplica;
    int32_t replica = -1;
    int32_t shard = -1;
    std::string node;     ///< kKillNode, kFillDisk
    uint64_t atStep = 0;  ///< inject when this step begins; 0: at once
    std::string atPhase;  ///< "", or compute | exchange | vote | apply: wait for it within the step
    uint64_t durationMs = 0;
    double factor = 0;     ///< kSlow
    uint64_t delayMs = 0;  ///< kDelayNetwork
    bool operator==(const FaultSpec&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("kind", self.kind);
        visit("replica", self.replica);
        visit("shard", self.shard);
        visit("node", self.node);
        visit("at_step", self.atStep);
        visit("at_phase", self.atPhase);
        visit("duration_ms", self.durationMs);
        visit("factor", self.factor);
        visit("delay_ms", self.delayMs);
    }
};

enum class ActionKind {
    kDrain,   ///< replica leaves after its current commit; its processes stop; it stays out
    kCordon,  ///< node takes no new ranks
    kUncordon,
    kHoldRejoin,      ///< a replica that is lost stays out until released
    kReleaseRejoin,   ///< ends a hold or a drain: the replica may come back
    kRestartReplica,  ///< stop and start again as a new incarnation
    kPause,           ///< no quorum is issued after the current step
    kResume,
    kCheckpoint,      ///< now, of the next commit
    kStop,            ///< with a checkpoint, however long that takes to write, then end the job
    kSetPolicy,       ///< `policy` = `value`, names as in the job file's [policies]
    kChangeLayout,    ///< at the next step boundary every replica moves its experts
    kCaptureRouting,  ///< the next steps tell how `tokens` of their tokens were routed
    kRuleExperts,     ///< from now on plans keep to `rules`; nothing moves by itself
    kDismissPlan,     ///< the plan that was proposed after `step` is not wanted
    kStopNow,         ///< without a checkpoint, also when a kStop waits for one
};

/// An operator's word on one expert of a running job, which every later layout keeps.
struct ExpertRule {
    uint32_t layer = 0;  ///< of its mixtures, from 0
    uint32_t expert = 0;
    uint32_t shard = 0;
    bool pins = true;  ///< the expert is on that shard; else it is on any other
    bool operator==(const ExpertRule&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("layer", self.layer);
        visit("expert", self.expert);
        visit("shard", self.shard);
        visit("pins", self.pins);
    }
};

enum class NodeChange { kCordon, kUncordon, kForget };

struct Action {
    ActionKind kind = ActionKind::kPause;
    int32_t replica = -1;
    std::string node;
    std::string policy;
    std::string value;
    std::vector<int32_t> expertShard;  ///< kChangeLayout: [moeLayer][expert] flattened, the shard
    /// kChangeLayout: [domain][shard] flattened, the parts of a domain's samples that each shard of
    /// a replica computes, in any unit; empty: dealt round robin, whatever their domain.
    std::vector<uint32_t> domainShare;
    /// kChangeLayout: the share of routed copies, 0..1, that a plan says will leave their shard;
    /// -1: nobody said. Measured against it afterwards.
    double predictedRemote = -1;
    uint64_t tokens = 0;            ///< kCaptureRouting
    std::vector<ExpertRule> rules;  ///< kRuleExperts, kChangeLayout: checkRules(), those before go
    uint64_t step = 0;              ///< kDismissPlan: PlanProposed::step
    bool operator==(const Action&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("kind", self.kind);
        visit("replica", self.replica);
        visit("node", self.node);
        visit("policy", self.policy);
        visit("value", self.value);
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
        visit("predicted_remote", self.predictedRemote);
        visit("tokens", self.tokens);
        visit("rules", self.rules);
        visit("step", self.step);
    }
};

/// The preview of an action or fault.
struct Preflight {
    bool allowed = true;
    std::string title;    ///< "Drain replica 2"
    std::string effect;   ///< one sentence in the operator's words
    std::string refusal;  ///< reason and remedy; empty when allowed
    uint32_t contributorsBefore = 0;
    uint32_t contributorsAfter = 0;
    uint64_t samplesBefore = 0;  ///< per step
    uint64_t samplesAfter = 0;
    double lrFactorBefore = 1;
    double lrFactorAfter = 1;
    bool pauses = false;        ///< fewer than min_replicas would remain
    uint32_t expertsMoved = 0;  ///< kChangeLayout
    uint64_t bytesMoved = 0;    ///< kChangeLayout: in each replica, between its shards
    uint64_t revision = 0;      ///< of the job this was computed on; send it back with the action
    bool operator==(const Preflight&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("allowed", self.allowed);
        visit("title", self.title);
        visit("effect", self.effect);
        visit("refusal", self.refusal);
        visit("contributors_before", self.contributorsBefore);
        visit("contributors_after", self.contributorsAfter);
        visit("samples_before", self.samplesBefore);
        visit("samples_after", self.samplesAfter);
        visit("lr_factor_before", self.lrFactorBefore);
        visit("lr_factor_after", self.lrFactorAfter);
        visit("pauses", self.pauses);
        visit("experts_moved", self.expertsMoved);
        visit("bytes_moved", self.bytesMoved);
        visit("revision", self.revision);
    }
};

}  // namespace bulkhead::model

namespace bulkhead {
template <>
struct EnumNames<model::FaultKind> {
    static constexpr std::array<std::string_view, 11> kNames = {
        "kill_rank",      "kill_replica",  "hang",          "slow",
        "cut_network",    "delay_network", "flip_gradient", "nan_gradient",
        "flip_parameter", "fill_disk",     "kill_node"};
};
template <>
struct EnumNames<model::NodeChange> {
    static constexpr std::array<std::string_view, 3> kNames = {"cordon", "uncordon", "forget"};
};
template <>
struct EnumNames<model::ActionKind> {
    static constexpr std::array<std::string_view, 16> kNames = {
        "drain",           "cordon",        "uncordon",        "hold_rejoin",  "release_rejoin",
        "restart_replica", "pause",         "resume",          "checkpoint",   "stop",
        "set_policy",      "change_layout", "capture_routing", "rule_experts", "dismiss_plan",
        "stop_now"};
};
}  // namespace bulkhead
