// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/common/ledger_chain.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/data_ledger.h"
#include "backend/runtime/protocol/incident_book.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/protocol/options.h"
#include "backend/runtime/protocol/parity.h"

/// Format of the commit log: an append-only file of framed, checksummed entries. The coordinator
/// branch owns the file; here is what stands in it. A log is kLogHeader, then encodeEntry() of each
/// entry. One writer at a time (the term's lock).
namespace bulkhead::protocol {

inline constexpr std::string_view kLogHeader = "BHCLOG03";

/// A life of the coordinator begins.
struct LogTerm {
    static constexpr std::string_view kType = "term";
    uint64_t term = 0;
    std::string run = {};     ///< Options::run; empty in logs older than it
    std::string secret = {};  ///< Options::secretId; empty in logs older than it
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("term", self.term);
        visit("run", self.run);
        visit("secret", self.secret);
    }
};

/// A stretch between rollbacks begins after step `fromStep`, with this data position.
struct LogLineage {
    static constexpr std::string_view kType = "lineage";
    uint64_t lineage = 0;
    uint64_t fromStep = 0;
    uint64_t updates = 0;
    std::string resumeFrom;  ///< manifest of the state it starts from; empty: the seed
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;  ///< as in Quorum
    LedgerState ledger;
    std::string why;
    std::string link = {};  ///< of the ledger's chain; empty in logs older than it
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("from_step", self.fromStep);
        visit("updates", self.updates);
        visit("resume_from", self.resumeFrom);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
        visit("ledger", self.ledger);
        visit("why", self.why);
        visit("link", self.link);
    }
};

/// The part of a step's ledger line that is not in its record, so that a coordinator that dies
/// before it told anybody leaves the line to the next one. Hashes and squares by shard are in
/// votes.front(); counts of experts are left out.
struct StepFigures {
    double gradNorm = 0;  ///< of the mean gradient, before clipping
    double stepMs = 0;    ///< until the vote was complete
    double productiveMs = 0;
    double effectiveTime = 1;
    std::vector<ReplicaVote> votes;
    std::vector<ParityGroup> parity = {};  ///< of all votes, where the step compared them
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("grad_norm", self.gradNorm);
        visit("step_ms", self.stepMs);
        visit("productive_ms", self.productiveMs);
        visit("effective_time", self.effectiveTime);
        visit("votes", self.votes);
        visit("parity", self.parity);
    }
};

struct LogCommit {
    static constexpr std::string_view kType = "commit";
    CommitRecord record;
    StepFigures figures;
    std::string link = {};  ///< as in LogLineage
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("record", self.record);
        visit("figures", self.figures);
        visit("link", self.link);
    }
};

struct LogQuarantine {
    static constexpr std::string_view kType = "quarantine";
    SampleRange range;
    std::string why;
    std::string link = {};  ///< as in LogLineage
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("range", self.range);
        visit("why", self.why);
        visit("link", self.link);
    }
};

/// A replica is started for the `incarnation`-th time: the number is used up.
struct LogIncarnation {
    static constexpr std::string_view kType = "incarnation";
    int32_t replica = 0;
    uint32_t incarnation = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
    }
};

/// A whole checkpoint lies behind the manifest at `path`.
struct LogCheckpoint {
    static constexpr std::string_view kType = "checkpoint";
    uint64_t lineage = 0;
    uint64_t step = 0;
    uint64_t updates = 0;
    std::string path;
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;  ///< as in Quorum
    LedgerState ledger;                 ///< settled, after `step`
    std::vector<uint64_t> hashes{};     ///< of the state, by shard; empty: unknown
    /// Another run wrote it, and this one began from it. Not stored: such a one has no entry.
    bool borrowed = false;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("step", self.step);
        visit("updates", self.updates);
        visit("path", self.path);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
        visit("ledger", self.ledger);
        visit("hashes", self.hashes);
    }
};

/// The job goes back to these checkpoints no more. `unusable`: they are damaged, and their files
/// stay for people to look at; else ranks may remove the files once this entry is durable.
struct LogCheckpointsDropped {
    static constexpr std::string_view kType = "checkpoints_dropped";
    std::vector<std::string> paths;
    bool unusable = false;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("paths", self.paths);
        visit("unusable", self.unusable);
    }
};

/// A move of experts to `layout` is tried: the number is used up, whatever becomes of it.
struct LogLayoutTried {
    static constexpr std::string_view kType = "layout_tried";
    uint64_t layout = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("layout", self.layout);
    }
};

/// Epochs up to this one may be given out by this life of the coordinator; the next one begins
/// above them, because what was exchanged or voted in one that no record names must not be taken
/// for its own.
struct LogEpochs {
    static constexpr std::string_view kType = "epochs";
    uint64_t upTo = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("up_to", self.upTo);
    }
};

/// Expert placement `layout` holds from the quorum of `fromStep` on.
struct LogLayout {
    static constexpr std::string_view kType = "layout";
    uint64_t layout = 0;
    uint64_t fromStep = 0;
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;  ///< as in Quorum
    double predictedRemote = -1;        ///< as the operation said; -1: it did not
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("layout", self.layout);
        visit("from_step", self.fromStep);
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
        visit("predicted_remote", self.predictedRemote);
    }
};

/// The job came to its end; nothing follows.
struct LogFinished {
    static constexpr std::string_view kType = "finished";
    bool ok = true;
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("ok", self.ok);
        visit("why", self.why);
    }
};

/// All orders in force: the last one counts. Durable before the operator hears
/// that it is done.
struct LogOrders {
    static constexpr std::string_view kType = "orders";
    Policies policies;
    bool paused = false;
    bool stopping = false;
    bool stopCheckpoint = true;
    std::string stopWhy;
    bool checkpoint = false;  ///< asked for; the next LogCheckpoint is the answer
    std::vector<int32_t> held;
    std::vector<int32_t> drained;
    std::vector<int32_t> givenUp;  ///< by the restart limit
    bool operator==(const LogOrders&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("policies", self.policies);
        visit("paused", self.paused);
        visit("stopping", self.stopping);
        visit("stop_checkpoint", self.stopCheckpoint);
        visit("stop_why", self.stopWhy);
        visit("checkpoint", self.checkpoint);
        visit("held", self.held);
        visit("drained", self.drained);
        visit("given_up", self.givenUp);
        visit("checkpoints_kept", self.policies.checkpointsKept);  // appended later
    }
};

/// States that should be equal differ. The job goes on as the rest of the log says.
struct LogDispute {
    static constexpr std::string_view kType = "dispute";
    ParityDispute dispute;
    std::string link = {};  ///< as in LogLineage
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("dispute", self.dispute);
        visit("link", self.link);
    }
};

/// Append only: entries to the variant, fields to the end of an entry. Older logs are read.
using LogEntry = std::variant<LogTerm, LogLineage, LogCommit, LogQuarantine, LogIncarnation,
                              LogCheckpoint, LogLayout, LogFinished, LogOrders,
                              LogCheckpointsDropped, LogLayoutTried, LogEpochs, LogDispute>;

/// The link of such an entry covers this.
Chained chained(const LogLineage& entry);
Chained chained(const LogCommit& entry);
Chained chained(const LogQuarantine& entry);
Chained chained(const LogDispute& entry);

/// The frame of one entry: magic, length, checksum (64 bit), bytes.
std::string encodeEntry(const LogEntry& entry);

struct DecodedLog {
    std::vector<LogEntry> entries;
    uint64_t validBytes = 0;  ///< cut the file here before appending
    bool tornTail = false;    ///< bytes after validBytes were a write that did not finish
};

/// Reads a whole log. A tail that a crash cut short or garbled is left out (`tornTail`). DataLoss
/// naming the byte when an entry is broken but a good one follows it; InvalidArgument when the
/// header is not ours, FailedPrecondition when another build wrote an entry. Empty: an empty log.
absl::StatusOr<DecodedLog> decodeLog(std::string_view bytes);

/// Every entry that is whole, those behind damage too: to look for checkpoints, not to go on from.
std::vector<LogEntry> wholeEntries(std::string_view bytes);

/// The state that a new coordinator continues from.
struct RecoveredState {
    uint64_t term = 0;     ///< highest seen; the new one is higher
    std::string run;       ///< the log's; empty: it does not say
    std::string secret;    ///< of its last term; empty: it does not say
    std::string link;      ///< last of the ledger's chain; empty: there is none yet
    uint64_t lineage = 0;  ///< 0: the log is empty, the job never began
    uint64_t lineageFromStep = 0;
    std::string resumeFrom;            ///< where the lineage's state comes from
    std::optional<CommitRecord> last;  ///< of this lineage
    uint64_t step = 0;                 ///< last committed, or lineageFromStep
    uint64_t updates = 0;
    uint64_t epoch = 0;  ///< highest that may have been given out
    uint64_t layout = 0;
    uint64_t layoutTried = 0;  ///< highest number ever given to a move
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;       ///< as in Quorum
    LedgerState ledger;                      ///< settled: every open lease is back in the pool
    std::vector<LogCheckpoint> checkpoints;  ///< of every lineage still valid, in the log's order
    std::vector<std::string> discarded;      ///< the last ones whose files ranks may remove
    std::vector<std::string> unusable;       ///< damaged ones, and of wrong states
    AgreedHashes agreed;                     ///< of this lineage and layout, by votes
    std::map<uint64_t, DisputedSteps> disputed;  ///< by lineage, from the first dispute to the last
    std::vector<uint32_t> incarnations;          ///< by replica: highest used
    std::optional<LogOrders> orders;             ///< none: as the job says
    std::map<uint64_t, double> productiveMs;     ///< by step since the last checkpoint
    double productiveSum = 0;                    ///< of the whole line of descent
    bool finished = false;

    // The log does not know these; the driver does, from the run's history.
    std::vector<OpenIncident> incidents;
    uint64_t lastIncident = 0;
    MonoNs ranFor = 0;    ///< since the run began
    MonoNs lastSign = 0;  ///< that the coordinator before was there; 0: unknown
    /// Says to people that the log has lost something, and what: the job goes back to a checkpoint,
    /// because ranks and history are of a past that is lost.
    std::string lost;
    uint64_t lineageUsed = 0;  ///< highest number given out in it
};

/// Number of discarded checkpoints that are named again to ranks: one may have died before it
/// removed them.
constexpr size_t kDiscardedKept = 16;

/// Called with each entry of a log and the state after it; its ledger is settled where the entry is
/// a commit.
using LogObserver = std::function<void(const LogEntry& entry, const RecoveredState& state)>;

/// Folds a log. DataLoss when entries contradict each other (a step committed twice, a sample
/// consumed twice, a step left out), naming the entry's number.
absl::StatusOr<RecoveredState> recoverState(const std::vector<LogEntry>& entries, uint32_t replicas,
                                            uint32_t domains, const LogObserver& observer = {});

}  // namespace bulkhead::protocol
