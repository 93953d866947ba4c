// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/file_system.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/run_state.h"

/// The history of runs: one SQLite file holds many runs (a project), each the sequence of its
/// events, with tables derived from them in the same transaction. One process writes a run, any
/// number read, also while it is written and after it was killed.
///
/// Errors everywhere: NotFound (no such file or run), InvalidArgument (not a run file),
/// FailedPrecondition (schema newer than this program), ResourceExhausted (disk or buffer full),
/// PermissionDenied, Unavailable (locked by another), DataLoss (damaged). Each message is one line
/// with the file, the cause and what to do.
namespace bulkhead::history {

/// One run as its file knows it (model::RunInfo is what the API says of it).
struct StoredRun {
    int64_t id = 0;    ///< within the file
    std::string uuid;  ///< across files
    std::string name;  ///< unique within the file: "demo", "demo-2"
    std::string note;  ///< the operator's, free text
    int64_t createdNs = 0;
    int64_t startedNs = 0;  ///< of the first event, 0 while there is none
    int64_t endedNs = 0;    ///< of the last event
    uint64_t events = 0;    ///< stored
    uint64_t lastSeq = 0;
    uint64_t lastStep = 0;  ///< committed
    double lastLoss = 0;
    double effectiveTime = 1;
    uint64_t incidents = 0;
    uint64_t faults = 0;
    uint32_t replicas = 0;
    uint32_t shards = 0;
    std::string workload;
    std::string phase;  ///< model::JobPhase by name; "interrupted": its writer ended without
                        ///< RunFinished and nobody writes it now
    std::string resumedFrom;
    uint64_t missing = 0;  ///< events known to be lost (gaps)
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("id", self.id);
        visit("uuid", self.uuid);
        visit("name", self.name);
        visit("note", self.note);
        visit("created_ns", self.createdNs);
        visit("started_ns", self.startedNs);
        visit("ended_ns", self.endedNs);
        visit("events", self.events);
        visit("last_seq", self.lastSeq);
        visit("last_step", self.lastStep);
        visit("last_loss", self.lastLoss);
        visit("effective_time", self.effectiveTime);
        visit("incidents", self.incidents);
        visit("faults", self.faults);
        visit("replicas", self.replicas);
        visit("shards", self.shards);
        visit("workload", self.workload);
        visit("phase", self.phase);
        visit("resumed_from", self.resumedFrom);
        visit("missing", self.missing);
    }
};

struct WriterOptions {
    size_t batchEvents = 512;       ///< a transaction holds at most so many
    size_t batchBytes = 4u << 20;   ///< and ends with the one that fills these
    uint32_t flushMs = 100;         ///< an event waits at most so long for its transaction
    size_t bufferEvents = 1 << 16;  ///< accepted and not yet durable; beyond it events are lost
    size_t bufferBytes = 64u << 20;
    /// A keyframe after so many events or so many bytes of them as they are stored, whichever come
    /// first, and not before these are as many as those of the keyframe before.
    uint64_t keyframeEvents = 5000;
    size_t keyframeBytes = 1u << 20;
    uint32_t retryMs = 500;  ///< after a write failed
    std::string uuid;        ///< of a run that is made anew; empty: a new one
    /// A name that is taken although the file does not know it. May be empty.
    std::function<bool(const std::string& name)> isTaken;
    /// Called with the name of a new run before anything of it is made; after an error nothing is,
    /// and create() returns it. Runs while the file is locked for writing. May be empty.
    std::function<absl::Status(const std::string& name)> claim;
    /// Called on the writer's thread whenever its health changes: not OK while it cannot write
    /// (it keeps retrying), OK again afterwards. Must not call back into the writer.
    std::function<void(const absl::Status&)> onHealth;
    /// Called on the writer's thread inside each transaction, while nobody else can write: does not
    /// return if this process may not write any more. May be empty.
    std::function<void()> fence;
    FileSystem* files = &diskFiles();  ///< of what lies beside the database; outlives the writer
};

/// Lets other processes write the runs that one writes which is stopped, and whose fence() will not
/// let it write when it goes on.
absl::Status releaseWriters(const std::filesystem::path& file);

/// Appends the events of one run, on a thread of its own. Thread safety: all methods, any thread.
class RunWriter {
  public:
    /// Creates the file if there is none (mode 0600), migrates an older schema, and opens a new run
    /// whose name is `name`, with "-2", "-3" ... if that is taken.
    static absl::StatusOr<std::unique_ptr<RunWriter>> create(const std::filesystem::path& file,
                                                             std::string_view name,
                                                             const Clock& clock,
                                                             WriterOptions options = {});
    /// Goes on with a run, e.g. after its daemon was killed: continue with seq lastSeq() + 1. What
    /// had been accepted and was not in the database yet is, once this returns, or as soon as the
    /// database can be written. Unavailable while another process writes this run.
    static absl::StatusOr<std::unique_ptr<RunWriter>> resume(const std::filesystem::path& file,
                                                             int64_t runId, const Clock& clock,
                                                             WriterOptions options = {});

    /// Flushes what it can within five seconds.
    virtual ~RunWriter() = default;

    /// Accepts an event; it survives a kill of this process at once, and is in the database within
    /// about flushMs. Never waits for the disk. `event.seq`
    /// must be the one after the last given, else InvalidArgument and it is not taken.
    /// ResourceExhausted when the buffer is full (the disk has been failing): the event is not
    /// kept, and once writing works again one InvariantBroken event of severity error, invariant
    /// "history", stands at the last lost seq and names the lost range. Aborted as health().
    virtual absl::Status append(const model::Event& event) = 0;

    /// Waits until everything accepted so far is in the file. DeadlineExceeded, with the last
    /// write error if there was one.
    virtual absl::Status flush(uint32_t timeoutMs = 5000) = 0;

    virtual int64_t runId() const = 0;
    virtual StoredRun info() const = 0;    ///< name and uuid as given; counts as of the last flush
    virtual uint64_t lastSeq() const = 0;  ///< accepted
    virtual uint64_t durableSeq() const = 0;  ///< in the file
    /// Aborted: the file, or what SQLite keeps beside it, was removed, replaced or emptied, and
    /// this writer writes nothing any more. An emptied file is FILE.emptied from then on.
    virtual absl::Status health() const = 0;
    /// The fold of all events up to the one that it goes on from; the first call has it.
    virtual model::RunState takePast() = 0;
};

struct RunFilter {
    std::string text;  ///< in name, note, workload or host; empty: all
    bool newestFirst = true;
    uint32_t limit = 1000;
    uint32_t offset = 0;
};

/// Conditions join by "and"; defaults match everything.
struct EventFilter {
    uint64_t fromSeq = 0;
    uint64_t toSeq = UINT64_MAX;  ///< inclusive
    int64_t fromNs = INT64_MIN;
    int64_t toNs = INT64_MAX;        ///< inclusive
    std::vector<std::string> types;  ///< any of these
    model::Severity minSeverity = model::Severity::kInfo;
    std::optional<int32_t> replica;
    std::string text;  ///< in the event's JSON, ASCII case ignored; or a rank named there, "r2s1"
    bool newestFirst = false;
    uint32_t limit = 10000;
    uint64_t limitBytes = UINT64_MAX;  ///< of the events' JSON; one comes in any case
};

/// One row of the `steps` table: the ledger's main figures.
struct LedgerRow {
    uint64_t lineage = 0;
    uint64_t step = 0;
    uint64_t seq = 0;  ///< of the StepCommitted event, which has the rest
    int64_t timeNs = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;
    uint32_t contributors = 0;
    std::string members;  ///< "0,1,3"
    uint64_t samples = 0;
    uint64_t tokens = 0;
    double loss = 0;
    double gradNorm = 0;
    double learningRate = 0;
    double lrFactor = 1;
    double stepMs = 0;
    double commitMs = 0;
    double computeMs = 0;  ///< slowest contributor, likewise below
    double exchangeMs = 0;
    double exposedMs = 0;
    double voteMs = 0;
    double waitedOnMs = 0;
    int32_t waitedOn = -1;
    uint64_t bytes = 0;  ///< exchanged, all contributors
    uint64_t layout = 0;
    uint64_t copies = 0;          ///< tokens routed to experts, all mixtures
    uint64_t remoteCopies = 0;    ///< of them, to another shard
    double predictedRemote = -1;  ///< their share, by the plan in force; -1: there is none
    uint64_t allToAllBytes = 0;   ///< sent from shard to shard for them
    double tokensPerSecond = 0;
    double effectiveTime = 1;
    bool skip = false;
    bool suspect = false;
    bool superseded = false;
    std::string hashes;  ///< by shard, hexadecimal, before the step: "8d1c...,77aa..."
    std::string link;    ///< of the ledger's chain; empty in older runs
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("step", self.step);
        visit("seq", self.seq);
        visit("time_ns", self.timeNs);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("contributors", self.contributors);
        visit("members", self.members);
        visit("samples", self.samples);
        visit("tokens", self.tokens);
        visit("loss", self.loss);
        visit("grad_norm", self.gradNorm);
        visit("learning_rate", self.learningRate);
        visit("lr_factor", self.lrFactor);
        visit("step_ms", self.stepMs);
        visit("commit_ms", self.commitMs);
        visit("compute_ms", self.computeMs);
        visit("exchange_ms", self.exchangeMs);
        visit("exposed_ms", self.exposedMs);
        visit("vote_ms", self.voteMs);
        visit("waited_on_ms", self.waitedOnMs);
        visit("waited_on", self.waitedOn);
        visit("bytes", self.bytes);
        visit("layout", self.layout);
        visit("copies", self.copies);
        visit("remote_copies", self.remoteCopies);
        visit("predicted_remote", self.predictedRemote);
        visit("all_to_all_bytes", self.allToAllBytes);
        visit("tokens_per_second", self.tokensPerSecond);
        visit("effective_time", self.effectiveTime);
        visit("skip", self.skip);
        visit("suspect", self.suspect);
        visit("superseded", self.superseded);
        visit("hashes", self.hashes);
        visit("link", self.link);
    }
};

struct LedgerFilter {
    uint64_t fromStep = 0;
    uint64_t toStep = UINT64_MAX;  ///< inclusive
    bool withSuperseded = true;
    uint32_t limit = UINT32_MAX;
    bool newestFirst = false;
};

enum class ExportFormat { kCsv, kJsonLines };

/// Is it a file in which nothing was ever written? It is empty, or SQLite has begun it and was
/// killed before there was a table.
[[nodiscard]] bool holdsNothing(const std::filesystem::path& file);

/// Reads a file of runs and works beside a writer; never changes a run. (A file of an older schema
/// is migrated when it is opened, or refused when it may not be written.) A read sees one
/// consistent moment. Not thread-safe: one owner at a time, open one per thread.
class RunReader {
  public:
    static absl::StatusOr<std::unique_ptr<RunReader>> open(const std::filesystem::path& file);
    virtual ~RunReader() = default;

    virtual absl::StatusOr<std::vector<StoredRun>> runs(const RunFilter& query = {}) = 0;
    virtual absl::StatusOr<StoredRun> run(int64_t runId) = 0;
    /// By id, by name, or "latest".
    virtual absl::StatusOr<StoredRun> findRun(std::string_view idOrName) = 0;

    virtual absl::StatusOr<std::vector<model::Event>> events(int64_t runId,
                                                             const EventFilter& query = {}) = 0;
    /// Told after each event how many of how many are folded; false: give it up.
    using LoadProgress = std::function<bool(uint64_t done, uint64_t all)>;
    /// The state after the event with the greatest seq <= `seq`: nearest keyframe, then the rest.
    /// Cancelled when `progress` said so.
    virtual absl::StatusOr<model::RunState> stateAtSeq(int64_t runId, uint64_t seq,
                                                       const LoadProgress& progress = {}) = 0;
    /// The same, for the last event at or before `timeNs`.
    virtual absl::StatusOr<model::RunState> stateAtTime(int64_t runId, int64_t timeNs) = 0;
    /// seq of the last event at or before `timeNs`, 0 if none.
    virtual absl::StatusOr<uint64_t> seqAtTime(int64_t runId, int64_t timeNs) = 0;
    /// seq of the event that committed `step`, of the newest lineage that has it. NotFound if none.
    virtual absl::StatusOr<uint64_t> seqOfStep(int64_t runId, uint64_t step) = 0;

    virtual absl::StatusOr<std::vector<LedgerRow>> ledger(int64_t runId,
                                                          const LedgerFilter& query = {}) = 0;
    virtual absl::StatusOr<std::vector<model::IncidentView>> incidents(int64_t runId) = 0;
    virtual absl::StatusOr<std::vector<model::FaultView>> faults(int64_t runId) = 0;
    virtual absl::StatusOr<std::vector<model::CheckpointView>> checkpoints(int64_t runId) = 0;

    /// The ledger as CSV (units in the header line: "step_ms [ms]") or JSON lines, and all events
    /// as JSON lines. Unavailable when the stream stops taking bytes.
    virtual absl::Status exportLedger(int64_t runId, ExportFormat format, std::ostream& out,
                                      const LedgerFilter& filter = {}) = 0;
    virtual absl::Status exportEvents(int64_t runId, std::ostream& out,
                                      const EventFilter& query = {}) = 0;

    /// Reads everything: SQLite's own check, gaps that no row explains, derived tables against the
    /// events. DataLoss naming the first thing that is wrong.
    virtual absl::Status verify(int64_t runId) = 0;

    /// The steps of the run's commit log in its order; NotFound: there is none.
    using LogSource = std::function<absl::StatusOr<std::vector<model::LogLink>>()>;
    /// All that verify() looks for and the ledger with its chain (model/ledger_audit.h), held
    /// against `log`, which is asked once, after the file was read. Whatever is off is a finding of
    /// the report; errors are only those that keep the file from being read at all.
    virtual absl::StatusOr<model::LedgerReport> audit(int64_t runId, const LogSource& log) = 0;
};

/// Renames a run or sets its note; `name` must be free. Its own short transaction.
[[nodiscard]] absl::Status renameRun(const std::filesystem::path& file, int64_t runId,
                                     std::string_view name);
/// Takes out a run that has no event and that nobody writes; one with events is left as it is.
[[nodiscard]] absl::Status removeUnusedRun(const std::filesystem::path& file, int64_t runId);
struct Removal {
    int64_t endedBeforeNs = 0;  ///< Unix time
    std::function<bool(const std::string& name)> isKept;
    std::function<bool()> goesOn;  ///< asked between transactions; false: leave the rest
    std::function<void()> fence;   ///< as WriterOptions::fence
};
/// Takes out the runs that ended before a time, that nobody writes and that are not kept, and
/// returns their names. In short transactions, so that writers have their turn: a run goes event by
/// event, and one of which a part has gone goes on with the next call. The file does not become
/// smaller; what runs had in it is used by later ones.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> removeOldRuns(
    const std::filesystem::path& file, const Removal& removal);
[[nodiscard]] absl::Status setRunNote(const std::filesystem::path& file, int64_t runId,
                                      std::string_view note);

}  // namespace bulkhead::history
