// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/common/fields.h"
#include "backend/common/secret.h"
#include "backend/common/types.h"

/// Messages between ranks, leaders and the coordinator (docs/protocol.md). Pure values: the
/// coordinator machine, the rank machine and the simulator exchange them; the control channel
/// carries them. Every rank has a connection to the coordinator and, within its replica, to its
/// leader. Down: the coordinator addresses whole replicas. Up: votes and reports are folded by the
/// leader; hello, beats and evidence come from each rank; any sibling relays for a cut leader.
///
/// Fencing: the coordinator's messages carry the term, those of ranks the incarnation and, where a
/// step is concerned, (step, epoch, attempt). Stale ones are dropped and counted, never acted on.
namespace bulkhead::protocol {

/// A rank and a coordinator whose versions differ cannot read each other: a hash of the shape of
/// all messages of channels.h. Thread: any.
[[nodiscard]] uint64_t protocolVersion();

/// Address of a rank's data plane. `host` decides shm or tcp per pair.
struct RankEndpoint {
    RankId rank;
    uint32_t incarnation = 0;
    std::string host;     ///< equal strings: same machine and node, shared memory works
    std::string data;     ///< "ip:port" of its tcp data plane (the exchange)
    std::string shm;      ///< name prefix of its shared-memory segments, unique per incarnation
    std::string control;  ///< leaders: "unix:/path" or "ip:port" where its ranks connect
    std::string state;    ///< "ip:port" where joiners pull snapshots and deltas
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("host", self.host);
        visit("data", self.data);
        visit("shm", self.shm);
        visit("control", self.control);
        visit("state", self.state);
    }
};

// ---- rank -> coordinator ---------------------------------------------------------------------

/// First message on a connection. Refused with Expelled when version or incarnation differ, or when
/// its connection has proved to be another's.
/// `version` stays its first field, and it the first of ToCoordinator: that much is read of every
/// version.
struct Hello {
    uint64_t version = 0;  ///< protocolVersion() of the build that sends it
    std::string job;
    RankEndpoint endpoint;
    int32_t pid = 0;
    uint64_t corpusHash = 0;   ///< of the training text; must agree across the job
    std::string corpusNewest;  ///< the file of it changed last, named when the hash does not agree
    /// Its compute device, and whether gradients are exchanged there: must agree across the job.
    std::string device;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("version", self.version);
        visit("job", self.job);
        visit("endpoint", self.endpoint);
        visit("pid", self.pid);
        visit("corpus_hash", self.corpusHash);
        visit("corpus_newest", self.corpusNewest);
        visit("device", self.device);
    }
};

enum class Phase { kStarting, kIdle, kCompute, kExchange, kVote, kApply, kFetch, kReplay };

/// Every beat interval, from the control thread: alive, and how far the training thread is.
struct Beat {
    RankId rank;
    uint32_t incarnation = 0;
    Phase phase = Phase::kStarting;
    uint64_t step = 0;
    uint64_t progress = 0;  ///< grows with every micro-batch, layer, chunk, piece
    /// Keeping the state before a step took so long the last time; 0: it was not kept, or is small.
    double keepMs = 0;
    /// Hashing the state takes so long, as the last few times show; 0: it was not asked for yet.
    double hashMs = 0;
    /// Norm of the last gradient that it computed, over its tokens, and of which step; 0: none yet.
    double gradNorm = 0;
    uint64_t gradStep = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("phase", self.phase);
        visit("step", self.step);
        visit("progress", self.progress);
        visit("keep_ms", self.keepMs);
        visit("hash_ms", self.hashMs);
        visit("grad_norm", self.gradNorm);
        visit("grad_step", self.gradStep);
    }
};

enum class EvidenceKind {
    kProcessExit,
    kTransportReset,
    kChunkTimeout,
    kMissedHeartbeat,
    kMissedProgress,
    kParityMismatch,
    kNonFinite,
    kCommitFailed,
    kOperator,
    kNodeLost,
    kControllerLost,
    kGradientJump,
};

/// Somebody saw something; the coordinator alone decides. `shard` -1: the replica as a whole.
struct Evidence {
    EvidenceKind kind = EvidenceKind::kProcessExit;
    RankId accused;
    uint32_t incarnation = 0;  ///< of the accused; evidence against an older one is stale
    std::string reporter;
    std::string detail;
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("kind", self.kind);
        visit("accused", self.accused);
        visit("incarnation", self.incarnation);
        visit("reporter", self.reporter);
        visit("detail", self.detail);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
    }
};

// ---- leader -> coordinator (folded over the replica's shards) -----------------------------------

/// "My replica holds step `step`." Sent when groups are built, after a fetch, after each apply of a
/// joiner, and to a new coordinator. `ready`: it wants a part in the next quorum.
struct Report {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t lineage = 0;
    bool hasState = false;         ///< false: blank, needs a fetch
    uint64_t step = 0;             ///< last applied
    std::vector<uint64_t> hashes;  ///< by shard, of the state at `step`; empty: not computed
    bool ready = false;            ///< and thus has a state
    bool following = false;        ///< a joiner that applies the commit stream as it comes
    uint64_t layout = 0;
    uint64_t moved = 0;  ///< to this layout it has moved too; a quorum will say whether it counts
    std::optional<CommitRecord> last;  ///< last record applied, for a coordinator that restarts
    uint64_t retainedStep = 0;  ///< gradients of this step are held or being computed; 0: none
    std::vector<SampleRange> retained;  ///< over these
    uint64_t computation = 0;           ///< by this one, Member::computation
    uint64_t snapshotStep = 0;          ///< of the fetch that its state comes from; 0: none
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("lineage", self.lineage);
        visit("has_state", self.hasState);
        visit("step", self.step);
        visit("hashes", self.hashes);
        visit("ready", self.ready);
        visit("following", self.following);
        visit("layout", self.layout);
        visit("moved", self.moved);
        visit("last", self.last);
        visit("retained_step", self.retainedStep);
        visit("retained", self.retained);
        visit("computation", self.computation);
        visit("snapshot_step", self.snapshotStep);
    }
};

/// One rank's vote, rank -> leader. The leader adds them up to a ReplicaVote.
struct RankVote {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t term = 0;  ///< of the quorum, as step, epoch and attempt are
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 0;
    bool complete = false;         ///< every bucket of its shard is reduced
    bool nonFiniteLocal = false;   ///< own gradient not finite, said before the exchange
    double gradSquares = 0;        ///< of its reduced shard, undivided; fixed order
    double lossSum = 0;            ///< nats over its tokens, own contribution only
    uint64_t tokens = 0;           ///< own contribution only
    std::optional<uint64_t> hash;  ///< of its state after the previous step, if it was asked for
    std::vector<int32_t> failedPeers;   ///< replicas whose frames did not come
    std::vector<double> domainLossSum;  ///< own contribution, by domain
    std::vector<uint64_t> domainTokens;
    std::vector<uint64_t> expertCounts;  ///< [moeLayer][domain][expert], own contribution
    ExpertTraffic traffic;               ///< own contribution
    std::vector<RoutedSample> routed;    ///< as the quorum asks
    double computeMs = 0;
    double exchangeMs = 0;
    double exposedMs = 0;
    double applyMs = 0;
    double waitedOnMs = 0;
    int32_t waitedOn = -1;
    uint64_t bytes = 0;
    std::vector<Scalar> scalars;  ///< the program's own figures, of its own contribution
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("term", self.term);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("complete", self.complete);
        visit("non_finite_local", self.nonFiniteLocal);
        visit("grad_squares", self.gradSquares);
        visit("loss_sum", self.lossSum);
        visit("tokens", self.tokens);
        visit("hash", self.hash);
        visit("failed_peers", self.failedPeers);
        visit("domain_loss_sum", self.domainLossSum);
        visit("domain_tokens", self.domainTokens);
        visit("expert_counts", self.expertCounts);
        visit("traffic", self.traffic);
        visit("routed", self.routed);
        visit("compute_ms", self.computeMs);
        visit("exchange_ms", self.exchangeMs);
        visit("exposed_ms", self.exposedMs);
        visit("apply_ms", self.applyMs);
        visit("waited_on_ms", self.waitedOnMs);
        visit("waited_on", self.waitedOn);
        visit("bytes", self.bytes);
        visit("scalars", self.scalars);
    }
};

/// All shards of a replica, folded: complete only if every shard is. Vectors are by shard.
struct ReplicaVote {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t term = 0;  ///< of the quorum, as step, epoch and attempt are
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 0;
    bool complete = false;
    bool nonFiniteLocal = false;
    std::vector<double> gradSquares;
    std::vector<uint64_t> hashes;  ///< empty: not asked for
    std::vector<int32_t> failedPeers;
    double lossSum = 0;
    uint64_t tokens = 0;
    std::vector<double> domainLossSum;
    std::vector<uint64_t> domainTokens;
    std::vector<uint64_t> expertCounts;
    ExpertTraffic traffic;
    std::vector<RoutedSample> routed;
    double computeMs = 0;  ///< slowest shard, likewise below
    double exchangeMs = 0;
    double exposedMs = 0;
    double applyMs = 0;
    double waitedOnMs = 0;
    int32_t waitedOn = -1;
    uint64_t bytes = 0;           ///< sum
    std::vector<Scalar> scalars;  ///< of the first shard that has each
    uint32_t shardsIn = 0;        ///< of how many shards this is; a "no" may come before all are in
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("term", self.term);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("complete", self.complete);
        visit("non_finite_local", self.nonFiniteLocal);
        visit("grad_squares", self.gradSquares);
        visit("hashes", self.hashes);
        visit("failed_peers", self.failedPeers);
        visit("loss_sum", self.lossSum);
        visit("tokens", self.tokens);
        visit("domain_loss_sum", self.domainLossSum);
        visit("domain_tokens", self.domainTokens);
        visit("expert_counts", self.expertCounts);
        visit("traffic", self.traffic);
        visit("routed", self.routed);
        visit("compute_ms", self.computeMs);
        visit("exchange_ms", self.exchangeMs);
        visit("exposed_ms", self.exposedMs);
        visit("apply_ms", self.applyMs);
        visit("waited_on_ms", self.waitedOnMs);
        visit("waited_on", self.waitedOn);
        visit("bytes", self.bytes);
        visit("scalars", self.scalars);
        visit("shards_in", self.shardsIn);
    }
};

/// Outcome of a parity tie-break: does replaying the last step give the state it holds?
struct ReplayVerdict {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    std::vector<int32_t> mismatchedShards;  ///< empty: matches its own replay, if there was one
    bool replayed = true;  ///< every shard could, or those that did tell enough: they mismatch
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("mismatched_shards", self.mismatchedShards);
        visit("replayed", self.replayed);
    }
};

/// Snapshot of `step` stands ready at every shard of this source.
struct SnapshotReady {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
    }
};

/// A joiner's fetch: how far, whom it pulls from.
struct FetchProgress {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t snapshotStep = 0;
    uint64_t bytesDone = 0;
    uint64_t bytesTotal = 0;
    uint64_t step = 0;  ///< reached by replay so far
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("snapshot_step", self.snapshotStep);
        visit("bytes_done", self.bytesDone);
        visit("bytes_total", self.bytesTotal);
        visit("step", self.step);
    }
};

/// A joiner cannot go on with its fetch: the snapshot or the deltas after it are gone, or no source
/// answers. The coordinator chooses anew.
struct FetchFailed {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t snapshotStep = 0;
    bool outOfWindow = false;            ///< deltas are gone: a younger snapshot is needed
    std::vector<int32_t> failedSources;  ///< that did not answer
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("snapshot_step", self.snapshotStep);
        visit("out_of_window", self.outOfWindow);
        visit("failed_sources", self.failedSources);
        visit("why", self.why);
    }
};

struct CheckpointDone {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    uint64_t layout = 0;  ///< in which every shard's file lies
    std::string path;     ///< of the manifest
    uint64_t bytes = 0;
    double ms = 0;
    bool ok = true;
    std::string error;
    std::vector<uint64_t> hashes{};  ///< of the state, by shard
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("layout", self.layout);
        visit("path", self.path);
        visit("bytes", self.bytes);
        visit("ms", self.ms);
        visit("ok", self.ok);
        visit("error", self.error);
        visit("hashes", self.hashes);
    }
};

/// This replica cannot begin from the checkpoint its Welcome named: a file is missing or damaged.
/// It leaves after this; other replicas, or an older checkpoint, may do.
struct CheckpointUnusable {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    std::string path;  ///< of the manifest
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("path", self.path);
        visit("why", self.why);
    }
};

struct LayoutMoved {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    uint64_t layout = 0;
    bool ok = true;
    uint64_t bytesMoved = 0;
    std::string error;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("layout", self.layout);
        visit("ok", self.ok);
        visit("bytes_moved", self.bytesMoved);
        visit("error", self.error);
    }
};

// ---- coordinator -> ranks of a replica ---------------------------------------------------------

/// Answer to Hello: who the coordinator is now, and the job (JSON of model::JobSpec).
struct Welcome {
    uint64_t term = 0;
    uint64_t lineage = 0;
    std::string jobJson;
    std::string resumeFrom;  ///< checkpoint manifest to load; empty: initialise from the seed
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;  ///< empty: the workload's default placement
    /// Step of that checkpoint by the log: files of another one may lie under its name.
    uint64_t resumeStep = 0;
    std::vector<uint64_t> resumeHashes{};  ///< of the state, by shard; empty: unknown
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("lineage", self.lineage);
        visit("job_json", self.jobJson);
        visit("resume_from", self.resumeFrom);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
        visit("resume_step", self.resumeStep);
        visit("resume_hashes", self.resumeHashes);
    }
};

/// All ranks of the replica said hello: build the groups.
struct ReplicaFormed {
    uint64_t term = 0;
    uint32_t incarnation = 0;
    std::vector<RankEndpoint> ranks;  ///< by shard
    bool blank = false;               ///< true: do not initialise, a fetch follows
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("incarnation", self.incarnation);
        visit("ranks", self.ranks);
        visit("blank", self.blank);
    }
};

struct Member {
    Contribution contribution;        ///< replica, incarnation, leased ranges
    std::vector<RankEndpoint> ranks;  ///< by shard
    /// A joiner that brings zeros and computes nothing: so the sum comes to it when it comes to
    /// the others, and not a delta's way later. The record of the step does not name it.
    bool entering = false;
    /// Names the computation of its gradient of this step. A rank that has done or begun it keeps
    /// it; any other computes anew, so that all ranks of the replica do the same. Never used again.
    uint64_t computation = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("contribution", self.contribution);
        visit("ranks", self.ranks);
        visit("entering", self.entering);
        visit("computation", self.computation);
    }
};

/// Participants in the exchange of `step`. For attempt 1 it is conditional: it holds only if step
/// `step`-1 commits in epoch `afterEpoch`; otherwise it is void and another follows. A redo
/// (attempt > 1) repeats the exchange of the same step from the retained gradients.
struct Quorum {
    uint64_t term = 0;
    uint64_t lineage = 0;
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;
    uint64_t afterEpoch = 0;
    uint64_t layout = 0;
    /// Ascending by replica: the order of the reduction; those who enter among them.
    std::vector<Member> contributors;
    std::vector<int32_t> joiners;
    /// Part of the layout: each domain's samples by shard (sample_deal.h); empty: any shard.
    std::vector<uint32_t> domainShare;
    double lrFactor = 1;
    Secret exchangeKey;  ///< one for each epoch; a data-plane peer must know it
    uint32_t chunkTimeoutMs = 0;
    /// Each rank hashes its state before this step, and tells it with its vote.
    bool checkParity = true;
    /// Each rank keeps the state before this step, to replay it if states differ after it.
    bool keepBefore = false;
    /// Each rank tells with its vote how so many of its tokens were routed, in whole samples.
    uint32_t routedTokens = 0;
    std::string explanation;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("lineage", self.lineage);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("after_epoch", self.afterEpoch);
        visit("layout", self.layout);
        visit("contributors", self.contributors);
        visit("joiners", self.joiners);
        visit("domain_share", self.domainShare);
        visit("lr_factor", self.lrFactor);
        visit("exchange_key", self.exchangeKey);
        visit("chunk_timeout_ms", self.chunkTimeoutMs);
        visit("check_parity", self.checkParity);
        visit("keep_before", self.keepBefore);
        visit("routed_tokens", self.routedTokens);
        visit("explanation", self.explanation);
    }
};

/// The record is durable: apply it. `checkpoint`: write one of the state after this step.
/// Sent to contributors and to joiners that follow.
struct Commit {
    CommitRecord record;
    uint64_t term =
        0;  ///< of the coordinator that sends it; the record keeps the term it was made in
    bool checkpoint = false;
    std::string dataPosition;  ///< with `checkpoint`: the data ledger after this step, kept in the
                               ///< manifest as it is and read back only by a coordinator
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("record", self.record);
        visit("term", self.term);
        visit("checkpoint", self.checkpoint);
        visit("data_position", self.dataPosition);
    }
};

/// Stop waiting in the exchange of (step, epoch, attempt), at once. What was complete stays
/// complete and is voted so; what was not is voted incomplete. Retained gradients stay.
struct Abort {
    uint64_t term = 0;
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 0;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("why", self.why);
    }
};

/// To a contributor: keep a snapshot of the state after `step` for joiners, until told to drop it.
struct KeepSnapshot {
    uint64_t term = 0;
    uint64_t step = 0;
    bool keep = true;
    Secret key;            ///< Fetch.key of the joiners that may pull it
    uint64_t layout = 0;   ///< in which the state is wanted
    uint64_t settled = 0;  ///< moves up to this number count if they led to `layout`, or never will
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("step", self.step);
        visit("keep", self.keep);
        visit("key", self.key);
        visit("layout", self.layout);
        visit("settled", self.settled);
    }
};

/// To a joiner: pull the state after `snapshotStep` from these, then replay their deltas.
struct Fetch {
    uint64_t term = 0;
    uint64_t epoch = 0;  ///< the newest: a rank that contributes in a later one has come to more
    uint64_t lineage = 0;
    uint64_t snapshotStep = 0;
    uint64_t snapshotEpoch = 0;  ///< in which snapshotStep was committed (Quorum::afterEpoch)
    std::vector<Member> sources;
    Secret key;                   ///< of the snapshot
    uint64_t bytesPerSecond = 0;  ///< cap for this joiner, 0: none
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("epoch", self.epoch);
        visit("lineage", self.lineage);
        visit("snapshot_step", self.snapshotStep);
        visit("snapshot_epoch", self.snapshotEpoch);
        visit("sources", self.sources);
        visit("key", self.key);
        visit("bytes_per_second", self.bytesPerSecond);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
    }
};

/// Parity tie: replay the last step from the retained snapshot and report.
struct ReplayLast {
    uint64_t term = 0;
    uint64_t step = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("step", self.step);
    }
};

/// After commit `step`: move experts to this placement, keep the old copies until the next commit.
struct ChangeLayout {
    uint64_t term = 0;
    uint64_t step = 0;
    uint64_t epoch = 0;  ///< quorums up to this one were taken back for the move
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
    }
};

/// The log no longer names these checkpoints: remove their files. Paths are of manifests; a leader
/// removes what lies in its job's checkpoint folder and leaves the rest alone.
struct DiscardCheckpoints {
    uint64_t term = 0;
    std::vector<std::string> paths;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("paths", self.paths);
    }
};

/// You are out: stop at once, touch nothing shared, exit. A new incarnation may come.
struct Expelled {
    uint64_t term = 0;
    uint32_t incarnation = 0;
    std::string why;
    bool hopeless = false;  ///< so would be a later incarnation of the same program
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("incarnation", self.incarnation);
        visit("why", self.why);
        visit("hopeless", self.hopeless);
    }
};

/// The job ends: leave in order.
struct Leave {
    uint64_t term = 0;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("why", self.why);
    }
};

/// An injected fault that only the process itself can commit (model::FaultKind slow, cut_network,
/// delay_network, flip_*, nan_gradient), named as there; and kill_rank or hang aimed at a phase:
/// the rank signals itself at a random moment inside it.
struct CommitFault {
    uint64_t fault = 0;
    std::string kind;
    int32_t shard = -1;
    uint64_t durationMs = 0;
    double factor = 0;
    uint64_t delayMs = 0;
    uint64_t step = 0;  ///< wait for this step (or the first after it); 0: the current one
    std::string phase;  ///< "" or compute | exchange | vote | apply: wait for it within the step
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("kind", self.kind);
        visit("shard", self.shard);
        visit("duration_ms", self.durationMs);
        visit("factor", self.factor);
        visit("delay_ms", self.delayMs);
        visit("step", self.step);
        visit("phase", self.phase);
    }
};

/// A fault inside a rank ends early by this signal of its agent, whose value is the fault's id: a
/// rank whose network is cut would hear of it no other way. Real-time signals queue.
inline int endFaultSignal() {
    return SIGRTMIN;
}

/// Rank -> coordinator: the fault took effect, or ended. `unixNs` is when.
struct FaultNoted {
    uint64_t fault = 0;
    RankId rank;
    bool ended = false;
    int64_t unixNs = 0;
    uint64_t step = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("rank", self.rank);
        visit("ended", self.ended);
        visit("unix_ns", self.unixNs);
        visit("step", self.step);
    }
};

/// Shard 0 of a replica -> coordinator, once the model stands: what the workload says of it. For
/// the expert views; the machine takes no part in it.
struct ModelDescribed {
    std::string name;
    uint64_t parameters = 0;
    uint64_t activeParameters = 0;
    uint32_t layers = 0;
    uint32_t moeLayers = 0;
    uint32_t experts = 0;
    uint32_t topK = 0;
    std::vector<uint32_t> mixtureLayers;  ///< decoder layer, from 0, of each mixture
    uint64_t expertBytes = 0;             ///< parameters and optimizer state of one expert
    std::vector<int32_t> expertShard;     ///< [moeLayer][expert]: where the experts lie now
    /// They stay there, and counts are all that is told of routing.
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

/// A rank with a program of its own learns by this environment variable what bulkhead-worker learns
/// by the option --`option`: BULKHEAD_JOB_FILE for --job-file.
inline std::string rankVariable(std::string_view option) {
    std::string name = "BULKHEAD_";
    for (const char c : option)
        name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return name;
}

/// Exit code of a rank for a reason that no restart can help (README of runtime/replica).
constexpr int32_t kExitHopeless = 5;

/// Rank -> coordinator, ahead of its exit with kExitHopeless: why it cannot run this job.
struct RankHopeless {
    RankId rank;
    uint32_t incarnation = 0;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("why", self.why);
    }
};

/// Rank -> coordinator: its process was asked to end (SIGTERM). The replica leaves after its step,
/// and not before somebody else, or a checkpoint, has the state that it holds. Answer: Leave.
struct LeaveAsked {
    RankId rank;
    uint32_t incarnation = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
    }
};

/// A rank holds no sum of a step that was committed with its replica: its state stays behind, and
/// its replica is as good as all its ranks. Said again until a fetch begins.
struct CommitMissed {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t step = 0;  ///< that was committed
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
    }
};

}  // namespace bulkhead::protocol

namespace bulkhead {
template <>
struct EnumNames<protocol::Phase> {
    static constexpr std::array<std::string_view, 8> kNames = {
        "starting", "idle", "compute", "exchange", "vote", "apply", "fetch", "replay"};
};
template <>
struct EnumNames<protocol::EvidenceKind> {
    static constexpr std::array<std::string_view, 12> kNames = {
        "process_exit",    "transport_reset", "chunk_timeout",   "missed_heartbeat",
        "missed_progress", "parity_mismatch", "non_finite",      "commit_failed",
        "operator",        "node_lost",       "controller_lost", "gradient_jump"};
};
}  // namespace bulkhead
