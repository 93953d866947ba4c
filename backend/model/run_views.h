// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/model/event.h"
#include "backend/model/ring.h"
#include "backend/model/thinned.h"

/// The parts of a RunState. Plain values; run_state.h holds them together and says how they come
/// about. Times are Unix nanoseconds, 0 where a thing has not happened.
namespace bulkhead::model {

/// Limits on hostile input.
struct Limits {
    static constexpr int32_t kReplicas = 4096;
    static constexpr int32_t kShards = 16384;
    static constexpr size_t kRanks = 1 << 17;  ///< in all
    static constexpr size_t kNodes = 16384;
    static constexpr size_t kGpusPerNode = 64;
    static constexpr size_t kText = 1024;            ///< bytes of any text an event brings
    static constexpr size_t kLineText = 512;         ///< bytes of one line of rank output
    static constexpr size_t kExpertCells = 1 << 20;  ///< moeLayers x domains x experts
    static constexpr size_t kOutputLines = 1 << 17;  ///< of all ranks together
    static constexpr size_t kPlannedFaults = 2000;   ///< of one campaign
    static constexpr size_t kExpertRules = 4096;
};

/// Time from begin to end in milliseconds; 0 when the end is not after the begin.
inline double durationMs(int64_t beginNs, int64_t endNs) {
    if (endNs <= beginNs) return 0;
    return static_cast<double>(static_cast<uint64_t>(endNs) - static_cast<uint64_t>(beginNs)) / 1e6;
}

struct NodeView {
    std::string node;
    std::string address;
    uint32_t slots = 0;
    NodeState state = NodeState::kUp;
    int64_t sinceNs = 0;
    std::string why;
    std::optional<NodeSample> sample;  ///< absent: none yet, or the node is lost
    int64_t sampledNs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("address", self.address);
        visit("slots", self.slots);
        visit("state", self.state);
        visit("since_ns", self.sinceNs);
        visit("why", self.why);
        visit("sample", self.sample);
        visit("sampled_ns", self.sampledNs);
    }
};

/// A stretch of one replica's lane on the timeline.
struct LaneInterval {
    ReplicaState state = ReplicaState::kAbsent;
    int64_t beginNs = 0;
    int64_t endNs = 0;  ///< 0: it lasts
    uint32_t incarnation = 0;
    uint64_t step = 0;  ///< at its begin
    /// More than 1: so many stretches, kept as one (Lane); `state` is then what most of it was.
    uint32_t stretches = 1;
    double trainingMs = 0;  ///< of one kept for several: time in kTraining

    /// Time in kTraining, whether it stands for several or not.
    double trained() const {
        if (stretches > 1) return trainingMs;
        return state == ReplicaState::kTraining ? durationMs(beginNs, endNs) : 0;
    }
    void absorb(const LaneInterval& next) {
        trainingMs = trained() + next.trained();
        if (durationMs(next.beginNs, next.endNs) > durationMs(beginNs, endNs)) state = next.state;
        endNs = next.endNs;
        stretches += next.stretches;
    }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("state", self.state);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("stretches", self.stretches);
        visit("training_ms", self.trainingMs);
    }
};

/// A stretch of the job as a whole.
struct JobInterval {
    JobPhase phase = JobPhase::kStarting;
    int64_t beginNs = 0;
    int64_t endNs = 0;       ///< 0: it lasts
    uint32_t stretches = 1;  ///< as in LaneInterval

    void absorb(const JobInterval& next) {
        if (durationMs(next.beginNs, next.endNs) > durationMs(beginNs, endNs)) phase = next.phase;
        endNs = next.endNs;
        stretches += next.stretches;
    }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("phase", self.phase);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
        visit("stretches", self.stretches);
    }
};

/// Time the survivors of an incident did not train: draw it on every lane but `replica`'s that was
/// training then. `replica` -1: on all.
struct StallInterval {
    uint64_t incident = 0;  ///< 0: no step was committed, and nobody was found lost for it
    IncidentPhaseKind phase = IncidentPhaseKind::kDetect;  ///< detect, decide, reform, reexchange
    int32_t replica = -1;                                  ///< the one that was lost
    int64_t beginNs = 0;
    int64_t endNs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("incident", self.incident);
        visit("phase", self.phase);
        visit("replica", self.replica);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
    }
};

struct CatchUpView {
    uint64_t snapshotStep = 0;
    uint64_t bytesDone = 0;
    uint64_t bytesTotal = 0;
    uint64_t step = 0;  ///< reached by replay
    std::vector<int32_t> sources;
    int64_t sinceNs = 0;
    int64_t updatedNs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("snapshot_step", self.snapshotStep);
        visit("bytes_done", self.bytesDone);
        visit("bytes_total", self.bytesTotal);
        visit("step", self.step);
        visit("sources", self.sources);
        visit("since_ns", self.sinceNs);
        visit("updated_ns", self.updatedNs);
    }
};

struct ReplicaView {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    ReplicaState state = ReplicaState::kAbsent;
    int64_t sinceNs = 0;
    std::string node;
    uint64_t step = 0;  ///< last step whose state it holds, as far as events tell
    std::string why;
    std::optional<CatchUpView> catchUp;   ///< while it fetches or replays
    std::optional<ReplicaLedger> ledger;  ///< of the last step it contributed to
    uint64_t lastContributedStep = 0;
    uint32_t losses = 0;           ///< times it left kTraining without being asked
    uint64_t openIncident = 0;     ///< 0: none
    Lane<LaneInterval, 512> lane;  ///< the last one is the present
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("state", self.state);
        visit("since_ns", self.sinceNs);
        visit("node", self.node);
        visit("step", self.step);
        visit("why", self.why);
        visit("catch_up", self.catchUp);
        visit("ledger", self.ledger);
        visit("last_contributed_step", self.lastContributedStep);
        visit("losses", self.losses);
        visit("open_incident", self.openIncident);
        visit("lane", self.lane);
    }
};

struct OutputLine {
    int64_t timeNs = 0;
    uint32_t incarnation = 0;
    bool isStderr = false;
    std::string line;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("incarnation", self.incarnation);
        visit("is_stderr", self.isStderr);
        visit("line", self.line);
    }
};

/// A rank but for what it printed.
struct RankFigures {
    RankId rank;
    uint32_t incarnation = 0;
    int32_t pid = 0;  ///< 0: no process
    std::string node;
    RankPhase phase = RankPhase::kGone;
    uint64_t step = 0;
    int64_t sampledNs = 0;                ///< when the figures below were taken; 0: never
    std::optional<double> beatAgeMs;      ///< absent: it has not sent a heartbeat yet
    std::optional<double> progressAgeMs;  ///< likewise
    std::optional<double> tokensPerSecond;
    std::optional<double> cpuPercent;  ///< of one core
    std::optional<uint64_t> rssBytes;
    std::optional<double> gpuPercent;
    std::optional<uint64_t> gpuBytes;
    std::vector<uint32_t> gpus;  ///< as in RankSample
    int64_t startedNs = 0;
    std::optional<RankExited> lastExit;
    int64_t exitedNs = 0;
};

struct RankView : RankFigures {
    /// The last lines it printed; fewer per rank in a very large job (Limits::kOutputLines).
    Ring<OutputLine, 40> output;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("pid", self.pid);
        visit("node", self.node);
        visit("phase", self.phase);
        visit("step", self.step);
        visit("sampled_ns", self.sampledNs);
        visit("beat_age_ms", self.beatAgeMs);
        visit("progress_age_ms", self.progressAgeMs);
        visit("tokens_per_second", self.tokensPerSecond);
        visit("cpu_percent", self.cpuPercent);
        visit("rss_bytes", self.rssBytes);
        visit("gpu_percent", self.gpuPercent);
        visit("gpu_bytes", self.gpuBytes);
        visit("gpus", self.gpus);
        visit("started_ns", self.startedNs);
        visit("last_exit", self.lastExit);
        visit("exited_ns", self.exitedNs);
        visit("output", self.output);
    }
};

/// One committed step, as the charts need it.
struct StepPoint {
    uint64_t step = 0;
    uint64_t lineage = 0;
    int64_t timeNs = 0;
    double loss = 0;  ///< nats per token
    double gradNorm = 0;
    double learningRate = 0;
    double tokensPerSecond = 0;
    double effectiveTime = 1;
    double stepMs = 0;   ///< commit to commit
    double stallMs = 0;  ///< of it, what incidents took from the survivors
    uint32_t contributors = 0;
    uint32_t attempt = 1;
    uint64_t samples = 0;
    bool skip = false;
    bool suspect = false;
    bool superseded = false;         ///< a rollback went behind it
    std::vector<double> domainLoss;  ///< -1: no tokens of that domain in the step
    uint64_t layout = 0;
    uint64_t copies = 0;         ///< routed to experts, all domains
    uint64_t remoteCopies = 0;   ///< of them, to another shard
    uint64_t allToAllBytes = 0;  ///< sent for them
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("lineage", self.lineage);
        visit("time_ns", self.timeNs);
        visit("loss", self.loss);
        visit("grad_norm", self.gradNorm);
        visit("learning_rate", self.learningRate);
        visit("tokens_per_second", self.tokensPerSecond);
        visit("effective_time", self.effectiveTime);
        visit("step_ms", self.stepMs);
        visit("stall_ms", self.stallMs);
        visit("contributors", self.contributors);
        visit("attempt", self.attempt);
        visit("samples", self.samples);
        visit("skip", self.skip);
        visit("suspect", self.suspect);
        visit("superseded", self.superseded);
        visit("domain_loss", self.domainLoss);
        visit("layout", self.layout);
        visit("copies", self.copies);
        visit("remote_copies", self.remoteCopies);
        visit("all_to_all_bytes", self.allToAllBytes);
    }
};

/// Figures of several steps. Those that were not finite are left out.
struct Extent {
    double least = 0;
    double greatest = 0;
    double mean = 0;
    uint64_t count = 0;  ///< 0: the others mean nothing

    static Extent of(double figure) {
        return std::isfinite(figure) ? Extent{figure, figure, figure, 1} : Extent{};
    }
    void absorb(const Extent& next) {
        if (next.count == 0) return;
        if (count == 0) return void(*this = next);
        const double share = static_cast<double>(next.count) /
                             (static_cast<double>(count) + static_cast<double>(next.count));
        least = std::min(least, next.least);
        greatest = std::max(greatest, next.greatest);
        mean += (next.mean - mean) * share;
        count += next.count;
    }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("least", self.least);
        visit("greatest", self.greatest);
        visit("mean", self.mean);
        visit("count", self.count);
    }
};

/// Steps that followed each other, of which single ones are not kept any more. Figures as in
/// StepPoint; superseded steps are left out.
struct StepStretch {
    uint64_t first = 0;
    uint64_t last = 0;
    int64_t beginNs = 0;  ///< commit of `first`
    int64_t endNs = 0;    ///< commit of `last`
    uint64_t steps = 0;
    uint64_t samples = 0;
    bool odd = false;  ///< some step was tried again, skipped or suspect
    Extent loss = {};
    Extent gradNorm = {};
    Extent learningRate = {};
    Extent tokensPerSecond = {};
    Extent effectiveTime = {};
    Extent stepMs = {};
    Extent stallMs = {};
    Extent contributors = {};
    std::vector<Extent> domainLoss = {};

    static StepStretch of(const StepPoint& point);
    void absorb(const StepStretch& next);
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("first", self.first);
        visit("last", self.last);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
        visit("steps", self.steps);
        visit("samples", self.samples);
        visit("odd", self.odd);
        visit("loss", self.loss);
        visit("grad_norm", self.gradNorm);
        visit("learning_rate", self.learningRate);
        visit("tokens_per_second", self.tokensPerSecond);
        visit("effective_time", self.effectiveTime);
        visit("step_ms", self.stepMs);
        visit("stall_ms", self.stallMs);
        visit("contributors", self.contributors);
        visit("domain_loss", self.domainLoss);
    }
};

/// Steps (first, last] of `lineage`. `last` 0: up to whatever was committed then.
struct StepSpan {
    uint64_t lineage = 0;
    uint64_t first = 0;
    uint64_t last = 0;
    int64_t timeNs = 0;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("first", self.first);
        visit("last", self.last);
        visit("time_ns", self.timeNs);
        visit("why", self.why);
    }
};

struct QuarantineView {
    int64_t timeNs = 0;
    SampleRange range;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("range", self.range);
        visit("why", self.why);
    }
};

struct RedoView {
    int64_t timeNs = 0;
    StepRedone redo;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("redo", self.redo);
    }
};

struct EvidenceView {
    int64_t timeNs = 0;
    EvidenceSeen evidence;
    uint64_t incident = 0;  ///< that it belongs to, 0: none so far
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("evidence", self.evidence);
        visit("incident", self.incident);
    }
};

struct PhaseView {
    IncidentPhaseKind phase = IncidentPhaseKind::kDetect;
    int64_t beginNs = 0;
    int64_t endNs = 0;
    double ms() const { return durationMs(beginNs, endNs); }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("phase", self.phase);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
    }
};

struct IncidentView {
    uint64_t incident = 0;
    int64_t openedNs = 0;
    int64_t closedNs = 0;  ///< 0: open
    int32_t replica = -1;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    EvidenceKind cause = EvidenceKind::kProcessExit;
    uint64_t fault = 0;  ///< 0: nobody injected it
    std::string title;
    std::vector<PhaseView> phases;       ///< in the order reported, at most 64
    std::vector<EvidenceView> evidence;  ///< at most 32
    double survivorStallMs = 0;          ///< detect + decide + reform; running until closed
    double rejoinMs = 0;
    double replicaSeconds = 0;
    uint64_t samplesRedone = 0;
    std::string outcome;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("incident", self.incident);
        visit("opened_ns", self.openedNs);
        visit("closed_ns", self.closedNs);
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("cause", self.cause);
        visit("fault", self.fault);
        visit("title", self.title);
        visit("phases", self.phases);
        visit("evidence", self.evidence);
        visit("survivor_stall_ms", self.survivorStallMs);
        visit("rejoin_ms", self.rejoinMs);
        visit("replica_seconds", self.replicaSeconds);
        visit("samples_redone", self.samplesRedone);
        visit("outcome", self.outcome);
    }
};

struct FaultView {
    uint64_t fault = 0;
    FaultSpec spec;
    uint64_t step = 0;
    std::string by;
    int64_t injectedNs = 0;
    int64_t endedNs = 0;  ///< 0: it lasts
    std::string outcome;
    std::vector<uint64_t> incidents;  ///< that it caused, at most 32
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("spec", self.spec);
        visit("step", self.step);
        visit("by", self.by);
        visit("injected_ns", self.injectedNs);
        visit("ended_ns", self.endedNs);
        visit("outcome", self.outcome);
        visit("incidents", self.incidents);
    }
};

struct ActionView {
    int64_t timeNs = 0;
    Action action;
    std::string requestId;
    std::string by;
    std::string outcome;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("action", self.action);
        visit("request_id", self.requestId);
        visit("by", self.by);
        visit("outcome", self.outcome);
    }
};

struct CheckpointView {
    int64_t timeNs = 0;
    CheckpointWritten checkpoint;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("checkpoint", self.checkpoint);
    }
};

struct GpuTroubleView {
    int64_t timeNs = 0;
    GpuTroubled trouble;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("trouble", self.trouble);
    }
};

struct InvariantView {
    int64_t timeNs = 0;
    std::string invariant;
    std::string detail;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("invariant", self.invariant);
        visit("detail", self.detail);
    }
};

struct SkippedView {
    int64_t timeNs = 0;
    uint64_t planned = 0;  ///< place in the plan, from 1
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("planned", self.planned);
        visit("why", self.why);
    }
};

struct CampaignView {
    CampaignStarted started;
    int64_t startedNs = 0;
    std::vector<SkippedView> skipped;  ///< at most as many as were planned
    std::optional<CampaignEnded> ended;
    int64_t endedNs = 0;  ///< 0: it goes on
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("started", self.started);
        visit("started_ns", self.startedNs);
        visit("skipped", self.skipped);
        visit("ended", self.ended);
        visit("ended_ns", self.endedNs);
    }
};

/// Expert traffic of some steps together.
struct TrafficSum {
    uint64_t steps = 0;
    uint64_t copies = 0;
    uint64_t remote = 0;
    uint64_t bytes = 0;
    /// 0..1; -1: no step, or no experts.
    double remoteShare() const {
        return copies > 0 ? static_cast<double>(remote) / static_cast<double>(copies) : -1;
    }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("steps", self.steps);
        visit("copies", self.copies);
        visit("remote", self.remote);
        visit("bytes", self.bytes);
    }
};

/// A move of experts, and what was predicted of it beside what was measured.
struct LayoutView {
    uint64_t layout = 0;
    uint64_t step = 0;  ///< after which they moved
    int64_t timeNs = 0;
    bool ok = true;  ///< else the placement before it stays
    uint64_t expertsMoved = 0;
    uint64_t bytesMoved = 0;      ///< in all replicas
    bool grouped = false;         ///< samples are dealt to shards by domain
    double predictedRemote = -1;  ///< share of copies; -1: nobody said
    TrafficSum before;            ///< the last steps of the layout before, at most kWindow
    TrafficSum after;             ///< the first ones in this layout, at most kWindow
    std::string why;
    static constexpr size_t kWindow = 50;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("layout", self.layout);
        visit("step", self.step);
        visit("time_ns", self.timeNs);
        visit("ok", self.ok);
        visit("experts_moved", self.expertsMoved);
        visit("bytes_moved", self.bytesMoved);
        visit("grouped", self.grouped);
        visit("predicted_remote", self.predictedRemote);
        visit("before", self.before);
        visit("after", self.after);
        visit("why", self.why);
    }
};

/// A plan that the backend proposed.
struct ProposalView {
    int64_t timeNs = 0;
    PlanProposed plan;
    bool dismissed = false;  ///< an operator does not want it
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("time_ns", self.timeNs);
        visit("plan", self.plan);
        visit("dismissed", self.dismissed);
    }
};

struct ImbalancePoint {
    uint64_t step = 0;
    double worst = 1;  ///< of all layers: busiest expert / mean expert
    double mean = 1;   ///< over layers
    /// The worst of several steps counts.
    void absorb(const ImbalancePoint& next) {
        if (next.worst > worst) *this = next;
    }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("worst", self.worst);
        visit("mean", self.mean);
    }
};

/// Tokens routed in steps that follow each other.
struct ExpertStretch {
    uint64_t from = 0;            ///< step before its first
    std::vector<uint64_t> loads;  ///< as in ExpertView
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("from", self.from);
        visit("loads", self.loads);
    }
};

/// Loads by [moeLayer][domain][expert] flattened, in tokens routed. Imbalance of a layer is the
/// load of its busiest expert over the mean of its experts, all domains together: 1 is even,
/// `experts` is everything on one.
struct ExpertView {
    uint64_t step = 0;  ///< of `latest`
    int64_t timeNs = 0;
    uint32_t moeLayers = 0;
    uint32_t domains = 0;
    uint32_t experts = 0;
    std::vector<uint64_t> latest;
    std::vector<uint64_t> total;  ///< since the run began or the shape changed
    /// The last steps in stretches of kStretch, oldest first, the last one still filling: together
    /// they say what routing is like now, whatever it was earlier; apart, how much it varies.
    std::vector<ExpertStretch> stretches;
    static constexpr uint64_t kStretch = 10;
    static constexpr size_t kStretches = 10;
    Thinned<ImbalancePoint, 4096> history;  ///< of recent() as it was
    /// Tokens of all stretches; what heat map, chart and plans look at.
    std::vector<uint64_t> recent() const {
        std::vector<uint64_t> sum(latest.size());
        for (const ExpertStretch& stretch : stretches)
            for (size_t i = 0; i < sum.size() && i < stretch.loads.size(); ++i)
                sum[i] += stretch.loads[i];
        return sum;
    }
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("time_ns", self.timeNs);
        visit("moe_layers", self.moeLayers);
        visit("domains", self.domains);
        visit("experts", self.experts);
        visit("latest", self.latest);
        visit("total", self.total);
        visit("stretches", self.stretches);
        visit("history", self.history);
    }
};

struct Counters {
    uint64_t events = 0;
    uint64_t commits = 0;
    uint64_t skippedSteps = 0;
    uint64_t redos = 0;
    uint64_t samples = 0;            ///< committed, superseded ones included
    uint64_t tokens = 0;             ///< likewise
    uint64_t samplesRedone = 0;      ///< by incidents that closed
    uint64_t samplesSuperseded = 0;  ///< committed, then rolled back
    uint64_t stepsSuperseded = 0;
    uint64_t evidence = 0;
    uint64_t incidents = 0;
    uint64_t incidentsOpen = 0;
    uint64_t faults = 0;
    uint64_t rankExits = 0;  ///< that nobody asked for
    uint64_t checkpoints = 0;
    uint64_t checkpointsFailed = 0;
    uint64_t rollbacks = 0;
    uint64_t warnings = 0;  ///< events of severity warning
    uint64_t errors = 0;
    uint64_t malformed = 0;      ///< events that named impossible things, ignored
    double survivorStallMs = 0;  ///< of incidents that closed
    double rejoinMs = 0;         ///< sum over incidents that closed with a rejoin
    uint64_t rejoins = 0;
    double replicaSeconds = 0;  ///< lost, of incidents that closed
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("events", self.events);
        visit("commits", self.commits);
        visit("skipped_steps", self.skippedSteps);
        visit("redos", self.redos);
        visit("samples", self.samples);
        visit("tokens", self.tokens);
        visit("samples_redone", self.samplesRedone);
        visit("samples_superseded", self.samplesSuperseded);
        visit("steps_superseded", self.stepsSuperseded);
        visit("evidence", self.evidence);
        visit("incidents", self.incidents);
        visit("incidents_open", self.incidentsOpen);
        visit("faults", self.faults);
        visit("rank_exits", self.rankExits);
        visit("checkpoints", self.checkpoints);
        visit("checkpoints_failed", self.checkpointsFailed);
        visit("rollbacks", self.rollbacks);
        visit("warnings", self.warnings);
        visit("errors", self.errors);
        visit("malformed", self.malformed);
        visit("survivor_stall_ms", self.survivorStallMs);
        visit("rejoin_ms", self.rejoinMs);
        visit("rejoins", self.rejoins);
        visit("replica_seconds", self.replicaSeconds);
    }
};

}  // namespace bulkhead::model
