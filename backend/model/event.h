// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/common/fields.h"
#include "backend/common/types.h"
#include "backend/model/campaign.h"
#include "backend/model/command.h"
#include "backend/model/job_spec.h"

/// Everything that happens in a run is an Event: written to history, streamed to watchers, folded
/// into RunState, by the same definitions. Pure data. Adding a field is compatible; renaming one
/// is not. Times are Unix nanoseconds, durations milliseconds as double, unless the name says else.
namespace bulkhead::model {

enum class ReplicaState {
    kAbsent,      ///< not started, or gone and not yet scheduled
    kBackingOff,  ///< waits before its next start
    kStarting,    ///< processes run, groups are built
    kFetching,    ///< pulls state from contributors
    kReplaying,   ///< applies retained gradients
    kProven,      ///< state proven by hash; enters at the next quorum
    kTraining,    ///< contributor
    kDrained,
    kHeld,
    kFailed,  ///< gave up after the restart limit
};

enum class RankPhase {
    kStarting,
    kIdle,
    kCompute,
    kExchange,
    kVote,
    kApply,
    kFetch,
    kReplay,
    kGone
};

enum class EvidenceKind {
    kProcessExit,
    kTransportReset,
    kChunkTimeout,
    kMissedHeartbeat,
    kMissedProgress,
    kParityMismatch,
    kNonFinite,
    kCommitFailed,  ///< said "no" twice with nobody lost
    kOperator,
    kNodeLost,
    kControllerLost,  ///< of the job as a whole: nobody coordinated it
    kGradientJump,    ///< a gradient's size is far from those before it; nobody is expelled for it
};

enum class IncidentPhaseKind {
    kDetect,      ///< from the fault (or first symptom) to the first evidence
    kDecide,      ///< from evidence to the coordinator's decision
    kReform,      ///< from the decision until survivors hold the new quorum
    kReexchange,  ///< the redone exchange
    kRestart,     ///< replica's side: until its processes run again
    kInit,        ///< groups built, model created
    kFetch,
    kReplay,
    kJoin,  ///< from proven state to the first commit it contributes to
};

enum class NodeState { kUp, kCordoned, kLost, kForgotten };  ///< forgotten: of an event alone
enum class JobPhase { kStarting, kTraining, kWaiting, kPaused, kStopping, kFinished, kFailed };
enum class Severity { kInfo, kNotice, kWarning, kError };

}  // namespace bulkhead::model

namespace bulkhead {
template <>
struct EnumNames<model::ReplicaState> {
    static constexpr std::array<std::string_view, 10> kNames = {
        "absent", "backing_off", "starting", "fetching", "replaying",
        "proven", "training",    "drained",  "held",     "failed"};
};
template <>
struct EnumNames<model::RankPhase> {
    static constexpr std::array<std::string_view, 9> kNames = {
        "starting", "idle", "compute", "exchange", "vote", "apply", "fetch", "replay", "gone"};
};
template <>
struct EnumNames<model::EvidenceKind> {
    static constexpr std::array<std::string_view, 12> kNames = {
        "process_exit",    "transport_reset", "chunk_timeout",   "missed_heartbeat",
        "missed_progress", "parity_mismatch", "non_finite",      "commit_failed",
        "operator",        "node_lost",       "controller_lost", "gradient_jump"};
};
template <>
struct EnumNames<model::IncidentPhaseKind> {
    static constexpr std::array<std::string_view, 9> kNames = {
        "detect", "decide", "reform", "reexchange", "restart", "init", "fetch", "replay", "join"};
};
template <>
struct EnumNames<model::NodeState> {
    static constexpr std::array<std::string_view, 4> kNames = {"up", "cordoned", "lost",
                                                               "forgotten"};
};
template <>
struct EnumNames<model::JobPhase> {
    static constexpr std::array<std::string_view, 7> kNames = {
        "starting", "training", "waiting", "paused", "stopping", "finished", "failed"};
};
template <>
struct EnumNames<model::Severity> {
    static constexpr std::array<std::string_view, 4> kNames = {"info", "notice", "warning",
                                                               "error"};
};
}  // namespace bulkhead

namespace bulkhead::model {

/// The workload's description of its model; layers and experts shape the expert views.
struct ModelInfo {
    std::string name;
    uint64_t parameters = 0;
    uint64_t activeParameters = 0;
    uint32_t layers = 0;
    uint32_t moeLayers = 0;
    uint32_t experts = 0;
    uint32_t topK = 0;
    /// Decoder layer, from 0, of each mixture, in ascending order; empty: not told.
    std::vector<uint32_t> mixtureLayers;
    uint64_t expertBytes = 0;          ///< parameters and optimizer state of one expert
    std::vector<int32_t> expertShard;  ///< [moeLayer][expert] flattened: the shard it begins on
    /// They stay there, and counts are all that is told of routing: a program's own model.
    bool expertsFixed = false;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("parameters", self.parameters);
        visit("active_parameters", self.activeParameters);
        visit("layers", self.layers);
        visit("moe_layers", self.moeLayers);
        visit("experts", self.experts);
        visit("top_k", self.topK);
        visit("mixture_layers", self.mixtureLayers);
        visit("expert_bytes", self.expertBytes);
        visit("expert_shard", self.expertShard);
        visit("experts_fixed", self.expertsFixed);
    }
};

struct RunStarted {
    static constexpr std::string_view kType = "run_started";
    JobSpec spec;
    std::string version;
    std::string host;
    std::string resumedFrom;  ///< checkpoint path, empty for a fresh run
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("spec", self.spec);
        visit("version", self.version);
        visit("host", self.host);
        visit("resumed_from", self.resumedFrom);
    }
};

struct ModelDescribed {
    static constexpr std::string_view kType = "model_described";
    ModelInfo model;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("model", self.model);
    }
};

/// A stretch between rollbacks begins; steps after `fromStep` of older lineages are superseded.
struct LineageOpened {
    static constexpr std::string_view kType = "lineage_opened";
    uint64_t lineage = 0;
    uint64_t fromStep = 0;
    uint64_t term = 0;
    std::string why;
    std::string link = {};  ///< of the ledger's chain (ledger_chain.h); empty in older runs
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("from_step", self.fromStep);
        visit("term", self.term);
        visit("why", self.why);
        visit("link", self.link);
    }
};

struct JobPhaseChanged {
    static constexpr std::string_view kType = "job_phase_changed";
    JobPhase phase = JobPhase::kStarting;
    std::string why;  ///< the quorum's explanation when waiting: "waiting for r3, ..."
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("phase", self.phase);
        visit("why", self.why);
    }
};

struct NodeChanged {
    static constexpr std::string_view kType = "node_changed";
    std::string node;
    std::string address;
    uint32_t slots = 0;
    NodeState state = NodeState::kUp;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("address", self.address);
        visit("slot_count", self.slots);  // a field called slots would be a Qt macro
        visit("state", self.state);
        visit("why", self.why);
    }
};

struct ReplicaChanged {
    static constexpr std::string_view kType = "replica_changed";
    int32_t replica = 0;
    uint32_t incarnation = 0;
    ReplicaState state = ReplicaState::kAbsent;
    std::string node;
    uint64_t step = 0;  ///< last step whose state it holds
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("state", self.state);
        visit("node", self.node);
        visit("step", self.step);
        visit("why", self.why);
    }
};

struct RankStarted {
    static constexpr std::string_view kType = "rank_started";
    RankId rank;
    uint32_t incarnation = 0;
    int32_t pid = 0;
    std::string node;
    std::optional<uint32_t> gpu = {};  ///< of its node, that its agent gave it: GpuSample::gpu
    std::string gpuUuid = {};          ///< as the driver names it everywhere; empty: none was given
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("pid", self.pid);
        visit("node", self.node);
        visit("gpu", self.gpu);
        visit("gpu_uuid", self.gpuUuid);
    }
};

struct RankExited {
    static constexpr std::string_view kType = "rank_exited";
    RankId rank;
    uint32_t incarnation = 0;
    int32_t pid = 0;
    int32_t exitCode = 0;  ///< meaningful when signal is 0; -1: nobody saw how it ended
    int32_t signal = 0;
    bool expected = false;  ///< stopped on request
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("pid", self.pid);
        visit("exit_code", self.exitCode);
        visit("signal", self.signal);
        visit("expected", self.expected);
    }
};

/// One line a rank printed.
struct RankOutput {
    static constexpr std::string_view kType = "rank_output";
    RankId rank;
    uint32_t incarnation = 0;
    bool isStderr = false;
    std::string line;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("is_stderr", self.isStderr);
        visit("line", self.line);
    }
};

/// Twice a second: how every rank is. Absent figures are absent, never zero.
struct RankSample {
    RankId rank;
    uint32_t incarnation = 0;
    RankPhase phase = RankPhase::kStarting;
    uint64_t step = 0;
    std::optional<double> beatAgeMs;      ///< absent: it has not sent a heartbeat yet
    std::optional<double> progressAgeMs;  ///< likewise
    std::optional<double> tokensPerSecond;
    std::optional<double> cpuPercent;  ///< of one core
    std::optional<uint64_t> rssBytes;
    std::optional<double> gpuPercent;
    std::optional<uint64_t> gpuBytes;
    std::vector<uint32_t> gpus;  ///< of its node, that it computes on: GpuSample::gpu
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("phase", self.phase);
        visit("step", self.step);
        visit("beat_age_ms", self.beatAgeMs);
        visit("progress_age_ms", self.progressAgeMs);
        visit("tokens_per_second", self.tokensPerSecond);
        visit("cpu_percent", self.cpuPercent);
        visit("rss_bytes", self.rssBytes);
        visit("gpu_percent", self.gpuPercent);
        visit("gpu_bytes", self.gpuBytes);
        visit("gpus", self.gpus);
    }
};

/// One GPU of a node. What its driver does not tell is absent, never zero.
struct GpuSample {
    uint32_t gpu = 0;                   ///< the driver's index
    std::string name;                   ///< empty: not told
    std::optional<double> busyPercent;  ///< of the time, some kernel ran
    std::optional<uint64_t> memoryTotalBytes;
    std::optional<uint64_t> memoryUsedBytes;
    std::optional<double> temperatureCelsius;
    std::optional<double> powerWatts;
    std::optional<uint32_t> clockMhz;  ///< of the multiprocessors
    std::optional<uint32_t> memoryClockMhz;
    std::optional<uint64_t> eccUncorrected;  ///< memory errors since the driver was loaded
    std::optional<uint64_t> lastXid;         ///< the driver's number of its last critical error
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("gpu", self.gpu);
        visit("name", self.name);
        visit("busy_percent", self.busyPercent);
        visit("memory_total_bytes", self.memoryTotalBytes);
        visit("memory_used_bytes", self.memoryUsedBytes);
        visit("temperature_celsius", self.temperatureCelsius);
        visit("power_watts", self.powerWatts);
        visit("clock_mhz", self.clockMhz);
        visit("memory_clock_mhz", self.memoryClockMhz);
        visit("ecc_uncorrected", self.eccUncorrected);
        visit("last_xid", self.lastXid);
    }
};

/// Condition of a node, independent of jobs.
struct NodeSample {
    std::string node;
    std::optional<uint64_t> memoryTotalBytes;
    std::optional<uint64_t> memoryAvailableBytes;
    std::vector<GpuSample> gpus;  ///< by index
    std::string noGpus;           ///< reason for their absence; empty when there are some
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("memory_total_bytes", self.memoryTotalBytes);
        visit("memory_available_bytes", self.memoryAvailableBytes);
        visit("gpus", self.gpus);
        visit("no_gpus", self.noGpus);
    }
};

struct FleetSampled {
    static constexpr std::string_view kType = "fleet_sampled";
    /// All of a small job; of a large one those whose turn it is, and those that stand still. One
    /// that is not named is as before.
    std::vector<RankSample> ranks;
    std::vector<NodeSample> nodes;  ///< now and then, likewise
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("ranks", self.ranks);
        visit("nodes", self.nodes);
    }
};

/// A GPU had a critical error (an Xid, as its driver numbers them) or memory errors that it could
/// not correct. What that means and asks for: gpu_text.h.
struct GpuTroubled {
    static constexpr std::string_view kType = "gpu_troubled";
    std::string node;
    uint32_t gpu = 0;  ///< the driver's index
    std::string name;  ///< empty: not told
    std::optional<uint64_t> xid;
    std::optional<uint64_t> eccUncorrected;  ///< so many since the sample before
    int64_t seenNs = 0;                      ///< by the node's agent
    std::vector<RankId> ranks;               ///< of this run, that computed on it
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("gpu", self.gpu);
        visit("name", self.name);
        visit("xid", self.xid);
        visit("ecc_uncorrected", self.eccUncorrected);
        visit("seen_ns", self.seenNs);
        visit("ranks", self.ranks);
    }
};

/// A file that ranks of a node run, when the first is started from it, or from other contents than
/// the one before: a program, a script that its command names, a plugin.
struct ProgramSeen {
    static constexpr std::string_view kType = "program_seen";
    std::string node;
    std::string path;    ///< on the node, links followed
    std::string sha256;  ///< 64 hexadecimal digits
    std::string before;  ///< of the start before, if it was another; empty: the first
    RankId rank;         ///< that was started
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("path", self.path);
        visit("sha256", self.sha256);
        visit("before", self.before);
        visit("rank", self.rank);
    }
};

struct QuorumDecided {
    static constexpr std::string_view kType = "quorum_decided";
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;
    uint64_t layout = 0;
    std::vector<Contribution> contributors;
    std::vector<int32_t> joiners;
    double lrFactor = 1;
    std::string explanation;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("layout", self.layout);
        visit("contributors", self.contributors);
        visit("joiners", self.joiners);
        visit("lr_factor", self.lrFactor);
        visit("explanation", self.explanation);
    }
};

/// One shard's line of a step's ledger, as its contributors' votes agreed on it.
struct ShardLedger {
    int32_t shard = 0;
    /// Parameters and optimizer state *before* this step, all contributors equal; 0: not computed.
    uint64_t hash = 0;
    double gradSquares = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("shard", self.shard);
        visit("hash", self.hash);
        visit("grad_squares", self.gradSquares);
    }
};

/// One contributor's line of a step's ledger.
struct ReplicaLedger {
    int32_t replica = 0;
    double computeMs = 0;
    double exchangeMs = 0;  ///< wall time of the (last) exchange
    double exposedMs = 0;   ///< the part of it not hidden behind backward
    double voteMs = 0;      ///< from own vote to commit received
    double applyMs = 0;     ///< of the step before
    double waitedOnMs = 0;  ///< blocked for one peer's connection and frames, the longest
    int32_t waitedOn = -1;  ///< that peer
    uint64_t bytes = 0;     ///< sent in the exchange, all shards
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("compute_ms", self.computeMs);
        visit("exchange_ms", self.exchangeMs);
        visit("exposed_ms", self.exposedMs);
        visit("vote_ms", self.voteMs);
        visit("apply_ms", self.applyMs);
        visit("waited_on_ms", self.waitedOnMs);
        visit("waited_on", self.waitedOn);
        visit("bytes", self.bytes);
    }
};

struct StepCommitted {
    static constexpr std::string_view kType = "step_committed";
    CommitRecord record;
    double loss = 0;      ///< nats per token over the committed sum
    double gradNorm = 0;  ///< of the mean gradient, before clipping
    double learningRate = 0;
    double stepMs = 0;    ///< commit to commit
    double commitMs = 0;  ///< last vote to durable record
    double tokensPerSecond = 0;
    double effectiveTime = 1;        ///< running effective training time, 0..1
    std::vector<double> domainLoss;  ///< nats per token by domain; NaN-free: absent domains -1
    std::vector<ShardLedger> shards;
    std::vector<ReplicaLedger> replicas;
    ExpertTraffic traffic;        ///< inside the replicas, all contributors; empty: no experts
    double predictedRemote = -1;  ///< forecast of the layout's plan, as in Action
    /// State hashes that every voting contributor reported before this step, where the step
    /// compared it: one group, because otherwise it does not commit.
    std::vector<ParityGroup> parity;
    std::string link;  ///< as in LineageOpened
    /// The program's own figures, ascending by name: the mean over the tokens of those that told
    /// one.
    std::vector<Scalar> scalars;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("record", self.record);
        visit("loss", self.loss);
        visit("grad_norm", self.gradNorm);
        visit("learning_rate", self.learningRate);
        visit("step_ms", self.stepMs);
        visit("commit_ms", self.commitMs);
        visit("tokens_per_second", self.tokensPerSecond);
        visit("effective_time", self.effectiveTime);
        visit("domain_loss", self.domainLoss);
        visit("shards", self.shards);
        visit("replicas", self.replicas);
        visit("traffic", self.traffic);
        visit("predicted_remote", self.predictedRemote);
        visit("parity", self.parity);
        visit("link", self.link);
        visit("scalars", self.scalars);
    }
};

/// Tokens routed, [moeLayer][domain][expert] flattened, summed over the committed contributors
/// and over the steps since the event before.
struct ExpertLoads {
    static constexpr std::string_view kType = "expert_loads";
    uint64_t step = 0;
    uint32_t moeLayers = 0;
    uint32_t domains = 0;
    uint32_t experts = 0;
    std::vector<uint64_t> counts;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("moe_layers", self.moeLayers);
        visit("domains", self.domains);
        visit("experts", self.experts);
        visit("counts", self.counts);
    }
};

/// The exchange of a step did not complete and is done again, or its quorum was void.
struct StepRedone {
    static constexpr std::string_view kType = "step_redone";
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;  ///< of the exchange now starting
    std::vector<int32_t> lost;
    uint64_t samplesReturned = 0;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("lost", self.lost);
        visit("samples_returned", self.samplesReturned);
        visit("why", self.why);
    }
};

struct EvidenceSeen {
    static constexpr std::string_view kType = "evidence_seen";
    EvidenceKind kind = EvidenceKind::kProcessExit;
    int32_t replica = -1;  ///< accused
    int32_t shard = -1;
    std::string reporter;  ///< "agent node0", "r1s0", "coordinator"
    std::string detail;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("kind", self.kind);
        visit("replica", self.replica);
        visit("shard", self.shard);
        visit("reporter", self.reporter);
        visit("detail", self.detail);
    }
};

/// Incident ids count from 1 within a run.
struct IncidentOpened {
    static constexpr std::string_view kType = "incident_opened";
    uint64_t incident = 0;
    int32_t replica = -1;  ///< -1: the job as a whole
    uint32_t incarnation = 0;
    uint64_t step = 0;
    EvidenceKind cause = EvidenceKind::kProcessExit;
    uint64_t fault = 0;  ///< the injected fault it answers to, 0 if none
    std::string title;   ///< "r2 lost: r2s1 exited on signal 9"
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("incident", self.incident);
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("cause", self.cause);
        visit("fault", self.fault);
        visit("title", self.title);
    }
};

struct IncidentPhase {
    static constexpr std::string_view kType = "incident_phase";
    uint64_t incident = 0;
    IncidentPhaseKind phase = IncidentPhaseKind::kDetect;
    int64_t beginNs = 0;
    int64_t endNs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("incident", self.incident);
        visit("phase", self.phase);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
    }
};

struct IncidentClosed {
    static constexpr std::string_view kType = "incident_closed";
    uint64_t incident = 0;
    double survivorStallMs = 0;  ///< detect + decide + reform (the exchange itself apart)
    double rejoinMs = 0;  ///< from loss to the first commit with it again; 0: it did not return
    double replicaSeconds = 0;  ///< lost by the replica and by the survivors' stall
    uint64_t samplesRedone = 0;
    /// "rejoined at step 120", "lost again", "given up", "drained", "the run ended first"
    std::string outcome;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("incident", self.incident);
        visit("survivor_stall_ms", self.survivorStallMs);
        visit("rejoin_ms", self.rejoinMs);
        visit("replica_seconds", self.replicaSeconds);
        visit("samples_redone", self.samplesRedone);
        visit("outcome", self.outcome);
    }
};

struct CatchUpProgress {
    static constexpr std::string_view kType = "catch_up_progress";
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t snapshotStep = 0;
    uint64_t bytesDone = 0;
    uint64_t bytesTotal = 0;
    uint64_t step = 0;  ///< reached by replay
    std::vector<int32_t> sources;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("snapshot_step", self.snapshotStep);
        visit("bytes_done", self.bytesDone);
        visit("bytes_total", self.bytesTotal);
        visit("step", self.step);
        visit("sources", self.sources);
    }
};

struct FaultInjected {
    static constexpr std::string_view kType = "fault_injected";
    uint64_t fault = 0;  ///< counts from 1 within a run
    FaultSpec spec;
    uint64_t step = 0;  ///< during which it took effect
    std::string by;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("spec", self.spec);
        visit("step", self.step);
        visit("by", self.by);
    }
};

struct FaultEnded {
    static constexpr std::string_view kType = "fault_ended";
    uint64_t fault = 0;
    std::string outcome;  ///< "healed", "could not be injected: ...", "done"
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("outcome", self.outcome);
    }
};

struct OperatorActed {
    static constexpr std::string_view kType = "operator_acted";
    Action action;
    std::string requestId;
    std::string by;
    std::string outcome;  ///< kDone, or why it was refused
    static constexpr std::string_view kDone = "done";
    bool done() const { return outcome == kDone; }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("action", self.action);
        visit("request_id", self.requestId);
        visit("by", self.by);
        visit("outcome", self.outcome);
    }
};

struct PoliciesChanged {
    static constexpr std::string_view kType = "policies_changed";
    Policies policies;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("policies", self.policies);
        visit("why", self.why);
    }
};

struct CheckpointWritten {
    static constexpr std::string_view kType = "checkpoint_written";
    uint64_t step = 0;
    int32_t replica = 0;
    std::string path;
    uint64_t bytes = 0;
    double ms = 0;
    bool ok = true;
    std::string error;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("replica", self.replica);
        visit("path", self.path);
        visit("bytes", self.bytes);
        visit("ms", self.ms);
        visit("ok", self.ok);
        visit("error", self.error);
    }
};

/// Steps (first, last] whose result is in doubt after a parity mismatch.
struct StepsSuspect {
    static constexpr std::string_view kType = "steps_suspect";
    uint64_t first = 0;
    uint64_t last = 0;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("first", self.first);
        visit("last", self.last);
        visit("why", self.why);
    }
};

struct RangeQuarantined {
    static constexpr std::string_view kType = "range_quarantined";
    SampleRange range;
    std::string why;
    std::string link = {};  ///< as in LineageOpened
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("range", self.range);
        visit("why", self.why);
        visit("link", self.link);
    }
};

/// Contributors told different hashes of the same state.
struct ParityDisputed {
    static constexpr std::string_view kType = "parity_disputed";
    ParityDispute dispute;
    std::string link;  ///< as in LineageOpened
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("dispute", self.dispute);
        visit("link", self.link);
    }
};

/// Replicas compare states so often from here on, where the policy leaves that to the coordinator.
struct ParityPaced {
    static constexpr std::string_view kType = "parity_paced";
    uint32_t everySteps = 1;
    double hashMs = 0;  ///< the slowest rank's, of its state
    double stepMs = 0;  ///< the mean
    bool operator==(const ParityPaced&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("every_steps", self.everySteps);
        visit("hash_ms", self.hashMs);
        visit("step_ms", self.stepMs);
    }
};

struct InvariantBroken {
    static constexpr std::string_view kType = "invariant_broken";
    std::string invariant;  ///< "I2"
    std::string detail;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("invariant", self.invariant);
        visit("detail", self.detail);
    }
};

/// The layout (expert placement) changed, or a change failed and the old one stays.
struct LayoutChanged {
    static constexpr std::string_view kType = "layout_changed";
    uint64_t step = 0;
    uint64_t layout = 0;
    bool ok = true;
    uint64_t bytesMoved = 0;
    std::vector<int32_t> expertShard;  ///< [moeLayer][expert] flattened: shard that owns it
    std::string why;
    std::vector<uint32_t> domainShare;  ///< [domain][shard]: as in Action
    double predictedRemote = -1;        ///< as in Action
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("layout", self.layout);
        visit("ok", self.ok);
        visit("bytes_moved", self.bytesMoved);
        visit("expert_shard", self.expertShard);
        visit("why", self.why);
        visit("domain_share", self.domainShare);
        visit("predicted_remote", self.predictedRemote);
    }
};

/// Tokens of a committed step with the experts they chose, because somebody asked for them
/// (ActionKind::kCaptureRouting). Whole samples, some of every rank that contributed.
struct RoutingSampled {
    static constexpr std::string_view kType = "routing_sampled";
    uint64_t step = 0;
    std::vector<RoutedSample> samples;
    uint64_t tokensLeft = 0;  ///< still to come
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("samples", self.samples);
        visit("tokens_left", self.tokensLeft);
    }
};

/// The plan in use does not do any more what was predicted of it: one for what is measured now.
/// Nothing moves before an operator applies it.
struct PlanProposed {
    static constexpr std::string_view kType = "plan_proposed";
    uint64_t step = 0;
    uint64_t layout = 0;          ///< in use
    std::string why;              ///< prediction and measurement
    double measuredRemote = -1;   ///< share of routed copies that leave their shard, the last steps
    double predictedRemote = -1;  ///< ... under the plan proposed
    uint64_t expertsMoved = 0;    ///< by the plan proposed
    uint64_t bytesMoved = 0;      ///< in each replica
    std::vector<int32_t> expertShard;   ///< as in Action
    std::vector<uint32_t> domainShare;  ///< as in Action
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("layout", self.layout);
        visit("why", self.why);
        visit("measured_remote", self.measuredRemote);
        visit("predicted_remote", self.predictedRemote);
        visit("experts_moved", self.expertsMoved);
        visit("bytes_moved", self.bytesMoved);
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
    }
};

struct RunFinished {
    static constexpr std::string_view kType = "run_finished";
    bool ok = true;
    std::string why;
    uint64_t step = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("ok", self.ok);
        visit("why", self.why);
        visit("step", self.step);
    }
};

/// Order is part of the binary form and of the proto's oneof: append only.
using EventBody =
    std::variant<RunStarted, ModelDescribed, LineageOpened, JobPhaseChanged, NodeChanged,
                 ReplicaChanged, RankStarted, RankExited, RankOutput, FleetSampled, QuorumDecided,
                 StepCommitted, ExpertLoads, StepRedone, EvidenceSeen, IncidentOpened,
                 IncidentPhase, IncidentClosed, CatchUpProgress, FaultInjected, FaultEnded,
                 OperatorActed, PoliciesChanged, CheckpointWritten, StepsSuspect, RangeQuarantined,
                 InvariantBroken, LayoutChanged, RunFinished, CampaignStarted, CampaignSkipped,
                 CampaignEnded, RoutingSampled, PlanProposed, GpuTroubled, ParityDisputed,
                 ProgramSeen, ParityPaced>;

struct Event {
    uint64_t seq = 0;    ///< 1, 2, 3 ... within a run, without gaps
    int64_t timeNs = 0;  ///< Unix time at the emitter
    Severity severity = Severity::kInfo;
    EventBody body;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("seq", self.seq);
        visit("time_ns", self.timeNs);
        visit("severity", self.severity);
        visit("body", self.body);
    }
};

/// "step_committed", ...
inline std::string_view typeName(const EventBody& body) {
    return std::visit([](const auto& b) { return std::remove_cvref_t<decltype(b)>::kType; }, body);
}

/// All names there are.
inline std::vector<std::string_view> eventTypes() {
    return []<class... Bodies>(const std::variant<Bodies...>*) {
        return std::vector<std::string_view>{Bodies::kType...};
    }(static_cast<const EventBody*>(nullptr));
}

}  // namespace bulkhead::model
