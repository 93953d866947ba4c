// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/model/event.h"
#include "backend/model/ring.h"
#include "backend/model/run_views.h"

/// Everything a view shows of a run, as the fold of its events: the live console, a replayed run
/// and the CLI's summary hold one of these and call apply() for each event, in order.
///
///     RunState state;
///     for (const Event& e : events) apply(state, e);
///
/// Memory is bounded however long the run (Limits). apply() costs a few map look-ups, except that a
/// rollback touches the steps it supersedes. It is total: no event, in any order, from any file,
/// makes it crash; what names an impossible replica, shard or size is counted in
/// `counters.malformed` and otherwise ignored. It is deterministic, and reads no clock: ages are
/// what the events say, and "now" for a view is `lastEventNs` or its own clock.
/// Thread: a RunState is a value with one owner; share copies, or const references under a lock.
namespace bulkhead::model {

struct RunState {
    // ---- the run ------------------------------------------------------------------------------
    uint64_t seq = 0;         ///< of the last event folded in
    int64_t startedNs = 0;    ///< time of RunStarted, else of the first event
    int64_t lastEventNs = 0;  ///< of the latest event; a clock that is set back takes it back
    JobSpec spec;
    std::string version;
    std::string host;
    std::string resumedFrom;
    ModelInfo model;

    JobPhase phase = JobPhase::kStarting;
    int64_t phaseSinceNs = 0;
    Lane<JobInterval, 512> phases;  ///< the last one is the present
    std::string explanation;  ///< reason for the phase; the quorum's words while anything waits

    uint64_t lineage = 0;
    std::string link;  ///< last of the ledger's chain; empty: the run has none yet
    uint64_t term = 0;
    uint64_t epoch = 0;
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;   ///< [moeLayer][expert]; empty: the workload's default
    std::vector<uint32_t> domainShare;  ///< as in Action; empty: samples go to any shard
    /// The two as they were before the last move that counted, to go back to.
    std::vector<int32_t> shardBefore;
    std::vector<uint32_t> shareBefore;
    Ring<LayoutView, 64> layouts;
    Ring<ProposalView, 8> proposals;
    std::vector<ExpertRule> expertRules;  ///< that plans keep to
    uint64_t captureLeft = 0;  ///< tokens that ActionKind::kCaptureRouting still waits for

    Policies policies;
    int64_t policiesSinceNs = 0;
    std::string policiesWhy;
    std::optional<ParityPaced> parityPace;  ///< the coordinator's last choice, if it made one

    // ---- who is there -------------------------------------------------------------------------
    std::vector<NodeView> nodes;        ///< by name
    std::vector<ReplicaView> replicas;  ///< by replica
    std::vector<RankView> ranks;        ///< by (replica, shard)

    // ---- steps --------------------------------------------------------------------------------
    std::optional<QuorumDecided> quorum;  ///< the latest
    int64_t quorumNs = 0;
    std::optional<StepCommitted> lastCommit;  ///< the whole ledger line
    int64_t lastCommitNs = 0;
    double effectiveTime = 1;  ///< running, 0..1, as the last commit says
    Ring<StepPoint, 20000> steps;
    Thinned<StepStretch, 2048> earlierSteps;  ///< those before `steps`, from the first
    Ring<StepSpan, 256> suspect;
    Ring<StepSpan, 256> superseded;
    Ring<QuarantineView, 256> quarantined;
    Ring<RedoView, 512> redos;
    /// Survivors' stall that no commit has absorbed yet.
    double pendingStallMs = 0;
    /// Mean over steps in which nobody was lost, the later ones counting more; 0: none yet.
    double typicalStepMs = 0;

    // ---- what went wrong, what was done ---------------------------------------------------------
    Ring<IncidentView, 2000> incidents;
    Ring<StallInterval, 4096> stalls;
    Ring<FaultView, 2000> faults;
    Ring<ActionView, 1000> actions;
    Ring<CheckpointView, 256> checkpoints;
    Ring<InvariantView, 256> broken;
    Ring<EvidenceView, 64> recentEvidence;
    Ring<CampaignView, 32> campaigns;
    Ring<GpuTroubleView, 64> gpuTroubles;
    Ring<ProgramSeen, 256> programs;

    ExpertView experts;
    Counters counters;
    std::optional<RunFinished> finished;

    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("seq", self.seq);
        visit("started_ns", self.startedNs);
        visit("last_event_ns", self.lastEventNs);
        visit("spec", self.spec);
        visit("version", self.version);
        visit("host", self.host);
        visit("resumed_from", self.resumedFrom);
        visit("model", self.model);
        visit("phase", self.phase);
        visit("phase_since_ns", self.phaseSinceNs);
        visit("phases", self.phases);
        visit("explanation", self.explanation);
        visit("lineage", self.lineage);
        visit("link", self.link);
        visit("term", self.term);
        visit("epoch", self.epoch);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
        visit("shard_before", self.shardBefore);
        visit("share_before", self.shareBefore);
        visit("layouts", self.layouts);
        visit("proposals", self.proposals);
        visit("expert_rules", self.expertRules);
        visit("capture_left", self.captureLeft);
        visit("policies", self.policies);
        visit("policies_since_ns", self.policiesSinceNs);
        visit("policies_why", self.policiesWhy);
        visit("parity_pace", self.parityPace);
        visit("nodes", self.nodes);
        visit("replicas", self.replicas);
        visit("ranks", self.ranks);
        visit("quorum", self.quorum);
        visit("quorum_ns", self.quorumNs);
        visit("last_commit", self.lastCommit);
        visit("last_commit_ns", self.lastCommitNs);
        visit("effective_time", self.effectiveTime);
        visit("steps", self.steps);
        visit("earlier_steps", self.earlierSteps);
        visit("suspect", self.suspect);
        visit("superseded", self.superseded);
        visit("quarantined", self.quarantined);
        visit("redos", self.redos);
        visit("pending_stall_ms", self.pendingStallMs);
        visit("typical_step_ms", self.typicalStepMs);
        visit("incidents", self.incidents);
        visit("stalls", self.stalls);
        visit("faults", self.faults);
        visit("actions", self.actions);
        visit("checkpoints", self.checkpoints);
        visit("broken", self.broken);
        visit("recent_evidence", self.recentEvidence);
        visit("campaigns", self.campaigns);
        visit("gpu_troubles", self.gpuTroubles);
        visit("programs", self.programs);
        visit("experts", self.experts);
        visit("counters", self.counters);
        visit("finished", self.finished);
    }
};

/// Folds one event in. See above for what it promises.
void apply(RunState& state, const Event& event);

/// Pointers into `state`, null when there is none; valid until the next apply().
const ReplicaView* findReplica(const RunState& state, int32_t replica);
const RankView* findRank(const RunState& state, RankId rank);
/// Nodes of the replica's ranks in their order, each once; where it was put, when none of its
/// incarnation has begun.
std::vector<std::string> nodesOf(const RunState& state, const ReplicaView& replica);
const NodeView* findNode(const RunState& state, std::string_view name);
const IncidentView* findIncident(const RunState& state, uint64_t incident);
const FaultView* findFault(const RunState& state, uint64_t fault);
const CampaignView* findCampaign(const RunState& state, uint64_t campaign);

/// The proposal that waits for an operator: the last one, for the layout in use, not dismissed.
const ProposalView* openProposal(const RunState& state);

/// Forecast of remote copies by the plan behind `layout`; -1: none.
double predictedRemote(const RunState& state, uint64_t layout);

/// Of the layout in use, its last steps, at most LayoutView::kWindow.
TrafficSum latestTraffic(const RunState& state);

/// Contributors of the current quorum; 0 before the first.
uint32_t contributors(const RunState& state);

/// While the job should train and has not committed a step for at least 3 s and eight typical
/// steps: from when the step was due to the last event.
std::optional<StallInterval> frozenStretch(const RunState& state);

/// Hash of the names and types of everything in a RunState and an Event. Programs with equal
/// fingerprints can read each other's keyframes and binary events.
[[nodiscard]] uint64_t modelFingerprint();

/// A keyframe: the state as bytes (binary codec behind modelFingerprint()). fold(events) equals
/// decodeKeyframe(keyframe at k) with the events after k folded in.
[[nodiscard]] std::string encodeKeyframe(const RunState& state);

/// InvalidArgument for bytes that are no keyframe; FailedPrecondition for one of another
/// fingerprint, which is not an error of the file: fold from an older keyframe or from the start
/// instead.
[[nodiscard]] absl::StatusOr<RunState> decodeKeyframe(std::string_view bytes);

/// Puts hostile or foreign values back within their limits. For a RunState that was decoded by
/// other means than decodeKeyframe (JSON, protobuf).
void repair(RunState& state);

}  // namespace bulkhead::model
