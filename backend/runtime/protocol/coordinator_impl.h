// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/protocol/checkpoint_book.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/gradient_watch.h"
#include "backend/runtime/protocol/incident_book.h"
#include "backend/runtime/protocol/invariants.h"
#include "backend/runtime/protocol/membership.h"
#include "backend/runtime/protocol/parity.h"
#include "backend/runtime/protocol/quorum.h"
#include "backend/runtime/protocol/step_commit.h"

/// The inside of CoordinatorMachine; nobody else includes this. One file per concern implements it:
/// coordinator_{machine,replicas,evidence,step,commit,catch_up,operations,recovery}.cpp.
namespace bulkhead::protocol {

/// Stages of a replica, from no process to a contributor.
enum class Stage {
    kOut,         ///< no process of the current incarnation counts
    kBackingOff,  ///< waits for startAt
    kAdopted,     ///< found running after a recovery, has not reported
    kStarting,    ///< until every rank said hello
    kInit,        ///< until it reports
    kSnapshot,    ///< sources take a snapshot for it
    kFetching,
    kReplaying,  ///< state is there, the commits since are not, or it follows unproven
    kUpToDate,
};

/// Values of one fetch of a state; the next begins with none of them.
struct CatchUp {
    MonoNs plannedAt = 0;
    MonoNs fetchTook = 0;  ///< from there until it had the state; 0: it has not
    uint64_t snapshotStep = 0;
    std::set<int32_t> kept;   ///< were told to keep it
    std::set<int32_t> ready;  ///< hold it
    MonoNs firstReady = 0;
    std::vector<int32_t> sources;
    uint64_t bytesDone = 0;
    bool following = false;
    bool proven = false;
    std::map<uint64_t, Hashes> claims;  ///< a joiner's hashes that nobody could confirm yet
    /// The state of its replay when its pace was last measured; at 0: it was not yet.
    struct Replayed {
        MonoNs at = 0;
        uint64_t committed = 0;
        uint64_t step = 0;
    } lookedAt;
};

/// Values of one incarnation of a replica; the next begins with none of them.
struct Life : CatchUp {
    std::vector<RankPulse> pulses;
    std::vector<RankEndpoint> endpoints;
    uint32_t hellos = 0;
    std::set<int32_t> running;  ///< shards heard of
    bool formed = false;
    uint64_t greetedIn = 0;  ///< layout that the first of its ranks was told to build in
    struct Wish {
        EvidenceKind kind = EvidenceKind::kProcessExit;
        std::string why;
    };
    /// It is to end and start again, as soon as nothing is lost by that.
    std::optional<Wish> wish;
    /// Found by nobody after a recovery, and waited for: the node it ran on, as far as that is
    /// known, has not told that it is gone.
    std::optional<std::string> unheardOn;
    bool nodeLost = false;
    bool accusedByPeer = false;
    EvidenceKind accusedOf = EvidenceKind::kTransportReset;  ///< by the first of them
    uint64_t toldAgain = 0;             ///< step whose commit it was told again after a recovery
    std::vector<SampleRange> retained;  ///< it held gradients of the open step when it reported
    struct Gradient {
        uint64_t layout = 0;
        std::vector<SampleRange> ranges;
        uint64_t computation = 0;
    };
    /// By step: what its ranks were told to compute, or told that they have. All of them have it,
    /// or will; where some may have given it up it is not here.
    std::map<uint64_t, Gradient> gradients;
    uint64_t step = 0;
    /// Hashes of the last commit's state, which it told this coordinator that it follows with:
    /// until it is sent a Fetch it holds that state.
    std::optional<Hashes> followsWith;
    bool sentFetch = false;
    /// It holds the last commit's state placed as before experts moved, until it is sent a Fetch.
    bool placedOtherwise = false;
    MonoNs owesSnapshotSince = 0;  ///< of the last commit's state, while the job waits; 0: of none
    std::set<uint64_t> dropped;    ///< as a source: steps of snapshots it was told to drop
};

struct Replica : Life {
    int32_t id = 0;
    uint32_t incarnation = 0;  ///< current, or highest used
    uint32_t gone = 0;         ///< let go by this coordinator, up to this one
    uint32_t heard = 0;        ///< highest that a process has: the log may have lost its number
    Stage stage = Stage::kOut;
    ReplicaState shown = ReplicaState::kAbsent;
    MonoNs stageSince = 0;
    MonoNs advancedAt = 0;
    MonoNs startAt = 0;
    RestartSchedule schedule;

    std::vector<GradientWatch> shares;  ///< by shard, over its incarnations

    bool hold = false;
    bool drain = false;
    bool givenUp = false;
    bool hopeless = false;  ///< given up for a reason that no restart can help

    bool alive() const { return stage >= Stage::kAdopted; }
    bool leaves() const { return drain || wish; }
    bool joining() const { return stage >= Stage::kSnapshot && stage <= Stage::kReplaying; }
};

struct Exchange {
    Quorum quorum;
    Ballot ballot;
    MonoNs openedAt = 0;  ///< of attempt 1
    MonoNs attemptAt = 0;
    bool aborted = false;
    MonoNs abortedAt = 0;
    uint32_t noes = 0;     ///< redone with nobody lost
    MonoNs redoAt = 0;     ///< not before: nobody knows yet why the last attempts failed
    bool tainted = false;  ///< a lost contributor's part must not count: redo even if complete
    bool holding = false;  ///< cannot go on before min_replicas are there
    MonoNs lastVoteAt = 0;
    std::map<int32_t, MonoNs> voteAt;
    std::map<int32_t, std::set<int32_t>> resetAccusers;  ///< accused -> by whom
    std::map<int32_t, uint32_t> nonFiniteBy;             ///< replica -> times in this step
    std::map<SampleRange, uint32_t> nonFiniteRanges;
    std::optional<std::map<int32_t, std::optional<ReplayVerdict>>> tie;  ///< verdicts awaited
    MonoNs tieSince = 0;
    struct Committing {
        uint64_t sequence = 0;
        MonoNs decidedAt = 0;
        CommitRecord record;
        StepFigures figures;
        std::string link;
    };
    std::optional<Committing> committing;
};

struct LayoutMove {
    uint64_t step = 0;
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;
    double predictedRemote = -1;
    bool sent = false;
    MonoNs sentAt = 0;
    std::set<int32_t> waiting;
    bool takesUp = false;  ///< those that move hold the state in a layout that no longer counts
    uint64_t bytesMoved = 0;
};

struct CheckpointPlan {
    LogCheckpoint entry;
    int32_t writer = -1;
    uint32_t incarnation = 0;  ///< the writer's
    MonoNs askedAt = 0;
    /// Hashes that contributors agreed on since; empty when the layout has changed.
    std::optional<Hashes> agreed;
    std::optional<CheckpointDone> done;  ///< and the state is still to be compared
    MonoNs doneAt = 0;
    bool ordered = false;  ///< answers an order, which stands in the log until this has ended
};

/// Values of one lineage; the next begins with none of them.
struct Lineage {
    std::optional<CommitRecord> last_;
    std::map<uint64_t, uint64_t> epochOf_;  ///< of recent steps
    uint64_t commitEpoch_ = 0;
    std::vector<std::pair<int32_t, uint32_t>> membership_;  ///< of the newest epoch
    AgreedHashes agreed_;
    std::map<int32_t, Hashes> reported_;          ///< by replica, of the state reportedOf_
    std::pair<uint64_t, uint64_t> reportedOf_{};  ///< step, layout
    std::map<int32_t, std::string> cannotLoad_;   ///< replica, why: the checkpoint it begins from
    std::optional<uint64_t> movedAfter_;  ///< the step whose successor settles the last move
    bool first_ = true;                   ///< nothing was committed since it, or a term, began
    uint32_t disproved_ = 0;  ///< joiners in a row, while the job waits after the last commit
};

class CoordinatorMachine::Impl : Lineage {
  public:
    Impl(Options options, uint64_t term, RecoveredState recovered);

    Actions begin(MonoNs now);
    Actions step(MonoNs now, const Input& input);

    // -- coordinator_machine.cpp: dispatch and small tools
    void on(const Received& in);
    void on(const RankRunning& in);
    void on(const RankExited& in);
    void on(const NodeLost& in);
    void on(const StartFailed& in);
    void on(const RecordDurable& in);
    void on(const Operation& in);
    void on(const Tick& in);
    void on(const InventoryDone&);
    void on(const CheckpointsFound& in);
    void from(RankId from, const Hello& m);
    void from(RankId from, const Beat& m);
    void from(RankId from, const Evidence& m);
    void from(RankId from, const Report& m);
    void from(RankId from, const ReplicaVote& m);
    void from(RankId from, const ReplayVerdict& m);
    void from(RankId from, const SnapshotReady& m);
    void from(RankId from, const FetchProgress& m);
    void from(RankId from, const CheckpointDone& m);
    void from(RankId from, const CheckpointUnusable& m);
    void from(RankId from, const LayoutMoved& m);
    void from(RankId, const FaultNoted&) {}
    void from(RankId, const ModelDescribed&) {}
    void from(RankId from, const RankHopeless& m);
    void from(RankId from, const LeaveAsked& m);
    void from(RankId from, const CommitMissed& m);
    void from(RankId from, const FetchFailed& m);
    void noteAbsence(MonoNs now);
    void advance();
    void scan();
    void wake();
    Replica* find(int32_t replica);
    Replica* current(int32_t replica, uint32_t incarnation);
    template <class A>
    void act(A action) {
        out_.emplace_back(std::move(action));
    }
    void fact(Fact f) { out_.emplace_back(Emit{now_, std::move(f)}); }
    /// Calls f(facts) of the incident book and emits what it wrote.
    template <class F>
    void book(F&& f) {
        std::vector<Fact> facts;
        f(facts);
        for (Fact& x : facts) fact(std::move(x));
    }
    /// A key that a peer has to know; nobody can tell it who does not know Options::secret.
    Secret keyFor(const char* use, uint64_t first, uint64_t second) const;
    void tell(const Replica& r, ToReplica message);
    uint64_t log(LogEntry entry, bool overlapped);
    std::vector<ParityGroup> parityOf(const std::map<int32_t, Hashes>& hashes) const;
    void dispute(uint64_t step, uint32_t attempt, const std::map<int32_t, Hashes>& hashes,
                 const ParityResult& parity);
    void broken(const std::optional<Violation>& v);
    void setPhase(JobPhase phase, const std::string& why);

    // -- coordinator_replicas.cpp: processes come and go
    void openLineage(uint64_t fromStep, const std::string& why, uint64_t undone = 0);
    void statesDiffer(const std::string& why);
    void noteDisputed(uint64_t step);
    bool isDisputed(const LogCheckpoint& found) const;
    void seekRollback(const std::string& why);
    void rollback(const std::string& why);
    bool stateLost() const;
    bool holds(const Replica& r) const;
    bool someoneHolds(int32_t but = -1) const;
    bool holdsAlone(const Replica& r) const;
    void takeFollowers();
    bool holdsOtherwise(const Replica& r) const;
    void takePlacedOtherwise();
    bool nobodyCanLoad() const;
    bool mustWriteBeforeLeaving(const Replica& r);
    void start(Replica& r);
    bool adoptable(const Replica& r, uint32_t incarnation) const;
    void adoptRunning(Replica& r, uint32_t incarnation);
    void heardOf(Replica& r, int32_t shard);
    void enter(Replica& r, Stage stage);
    void show(Replica& r, ReplicaState state, const std::string& why);
    void scheduleRestart(Replica& r, bool atOnce, const std::string& why);
    void expel(Replica& r, EvidenceKind kind, const std::string& why, MonoNs symptomAt,
               bool atOnce = false);
    void restartAll(const Replica& lost, const std::string& why);
    void letGo(Replica& r, const std::string& why);
    void left(Replica& r);
    void hopeless(Replica& r, const std::string& why, MonoNs symptomAt);
    void stayOut(Replica& r, const std::string& why);
    void giveUp(Replica& r, const std::string& why);
    bool nobodyLeft() const;
    void finishDrains();
    void form(Replica& r);
    void upToDate(Replica& r);
    void noteReported(const Report& m);
    void judgeReported();
    bool beginsBlank(const Replica& r) const;
    Welcome welcome() const;

    // -- coordinator_evidence.cpp
    void condemn(Replica& r, EvidenceKind kind, const std::string& why, MonoNs symptomAt,
                 bool confirmed);
    void judgeAccused();
    bool awaitedByStop(const Replica& r) const;
    bool silenceConfirms(const Replica& r) const;
    MonoNs suspectLostAt(const Replica& r) const;
    void judgeSuspects();
    void judgeSilent();
    bool progressing(const Replica& r) const;
    bool owesVote(const Replica& r) const;
    bool missesRanks(const Replica& r) const;
    bool startOverdue(const Replica& r) const;
    bool silent(const Replica& r) const;
    size_t trainedReplicas() const;

    // -- coordinator_step.cpp: quorums and ballots
    QuorumDecision compute(uint64_t step);
    void tryOpen();
    bool mayOverlap() const;
    void ensurePending();
    Quorum makeQuorum(uint64_t step, uint32_t attempt, uint64_t afterEpoch,
                      const QuorumDecision& decision);
    uint64_t computationOf(uint64_t step, const Contribution& of);
    uint64_t nextEpoch();
    void announce(const Quorum& q);
    void tellQuorum(const Quorum& q);
    void activate(Quorum q);
    void voidPending();
    void cancelPending();
    void voidOpen(const std::string& why);
    /// Exchanges the open step and was not lost; those who enter too.
    bool contributes(int32_t replica) const;
    /// Of them, those that bring something.
    bool contributesData(int32_t replica) const;
    /// Returns the hashes in the votes: the contributors' states before the open step.
    std::map<int32_t, Hashes> votedHashes() const;
    bool isSpare(const Replica& r) const { return r.id >= static_cast<int32_t>(options_.replicas); }
    void abortExchange(const std::string& why);
    void decide();
    bool parityHolds();
    bool choosesPace() const { return options_.policies.parityEverySteps == kParityAuto; }
    bool comparesStates() const { return options_.policies.parityEverySteps != 0; }
    uint32_t parityEvery() const;
    bool comparesBesides(uint64_t step) const;
    void noteAgreed(uint64_t step, const Hashes& hashes);
    void noteCosts();
    void noteHeldHashes();
    void resolveTie();
    void redo(const BallotResult& result);
    bool moveNonFinite(const std::vector<int32_t>& nonFinite);

    // -- coordinator_commit.cpp
    void beginCommit(const BallotResult& result);
    void finishCommit();
    void sendCommit(const CommitRecord& record);
    int32_t checkpointWriter(const CommitRecord& record) const;
    bool holdsLast(const Replica& r) const;
    void pursueCheckpoint(int32_t writer);
    void discardSurplus(const Replica& remover);
    bool checkpointed() const;
    bool awaitsComparison(uint64_t step, const CheckpointPlan& plan) const;
    void settleCheckpoints();
    void checkpointEnded(CheckpointPlan plan);
    void distrustCheckpoints(const Replica& writer);
    void planCheckpoint(int32_t writer, uint64_t step);
    StepFigures figuresOf(const Exchange& e, const CommitRecord& record,
                          const std::vector<double>& gradSquares) const;
    MonoNs stepTook(const Exchange& e) const;
    double productive(const Exchange& e, const CommitRecord& record) const;
    fact::StepCommitted ledgerLine(const Exchange& e);
    void afterCommit(const CommitRecord& record);
    bool checkpointDue(uint64_t step) const;

    // -- coordinator_catch_up.cpp
    void planFetch(Replica& r, const std::string& why);
    bool serves(const Replica& r) const;
    bool vouches(const Replica& r) const;
    static bool isUnproven(const Replica& r) {
        return r.stage == Stage::kReplaying && r.following && !r.proven;
    }
    void doubtSources();
    void askForHashes();
    void judgeSources();
    bool owesSnapshot(const Replica& r) const;
    KeepSnapshot snapshotOrder(const Replica& r, bool keep) const;
    void sendFetch(Replica& r);
    Fetch fetchOf(const Replica& r) const;
    bool keepsItsOwn(const Replica& r) const;
    void keepSnapshot(Replica& source, Replica& r);
    void dropSnapshot(Replica& source, const Replica& r);
    void maybeFetch(Replica& r);
    void addDeltaSources(Replica& r);
    void forgetSnapshot(const Replica& r);
    void releaseSnapshot(Replica& r);
    void sourceLost(int32_t replica);
    void prove(Replica& r);
    void proveAll();
    void scanJoiners();
    void seeWhetherItGains(Replica& r);
    bool mayWaitFor(const Replica& r) const;
    void letCatchUp(const Replica& r, MonoNs needs);
    void fetchWhileOthersWait(Replica& r, const std::string& why);

    // -- coordinator_recovery.cpp
    void restore(const RecoveredState& past);
    void obey(const LogOrders& orders);
    LogOrders orders() const;
    void logOrders();
    void startAgain(Replica& r, const std::string& why);
    void noteOutage(size_t survivors);
    void noteLostMeanwhile(const Replica& r, size_t survivors);
    void awaitUnheard(const std::map<int32_t, std::string>& unheard);
    void unheardTold(const std::map<int32_t, std::string>& unheard);
    void releaseUnheard();
    bool wantsUnheard() const;
    void leaseRetained(uint64_t step, const std::vector<int32_t>& contributors);

    // -- coordinator_operations.cpp
    std::string operate(const Operation& in);
    void tryStop();
    void finish(bool ok, const std::string& why);
    void startLayoutMove();
    void askToMove(Replica& r);
    ChangeLayout orderOfMove() const;
    void settleLayoutMove(bool ok, const std::string& why, bool others = false);
    void checkLayoutMove();
    std::string explain(const std::string& why) const;

    Options options_;
    uint64_t term_ = 0;
    uint64_t computations_ = 0;  ///< named by this coordinator
    MonoNs now_ = 0;
    Actions out_;

    std::vector<Replica> replicas_;
    DataLedger ledger_;
    InvariantChecker checker_;
    AdaptiveLimits limits_;
    SuspicionGate gate_;
    IncidentBook incidents_;

    uint64_t lineage_ = 0;
    uint64_t lineageUsed_ = 0;  ///< highest number given out, perhaps one that the log has lost
    uint64_t lineageFrom_ = 0;
    std::string resumeFrom_;
    uint64_t committed_ = 0;
    uint64_t updates_ = 0;
    GradientWatch norms_;  ///< of the committed steps
    uint64_t epoch_ = 0;
    uint64_t epochsUpTo_ = 0;  ///< the log says that they are used
    uint64_t layout_ = 0;
    fact::ParityPaced pace_;  ///< as told last; 0 ms: nothing was told
    uint32_t comparisonsPerKeep_ = 1;
    std::string keepText_;      ///< reason when it is more than one, for the operator
    uint64_t layoutTried_ = 0;  ///< highest number given to a move, whatever came of it
    std::vector<int32_t> expertShard_;
    std::vector<uint32_t> domainShare_;
    CheckpointBook checkpoints_;
    std::vector<std::string> discarded_;  ///< the last ones that ranks were told to remove
    std::set<std::string> unusable_;
    std::map<uint64_t, DisputedSteps>
        disputed_;  ///< by lineage, from the first dispute to the last
    uint64_t sequence_ = 0;
    std::string link_;  ///< last of the ledger's chain
    uint64_t corpusHash_ = 0;
    std::optional<std::string> device_;  ///< of the first Hello

    std::optional<Exchange> open_;
    std::optional<Quorum> pending_;  ///< of the next step; only while open_ is committing
    std::optional<LayoutMove> move_;
    std::map<uint64_t, CheckpointPlan> checkpointPlans_;

    bool recovering_ = false;  ///< until the inventory is done
    LogOrders ordered_;        ///< as the log has them
    bool paused_ = false;
    bool stopping_ = false;
    bool stopCheckpoint_ = true;
    bool stopThisTermOnly_ = false;
    bool stopOk_ = true;
    bool leaving_ = false;             ///< Leave was sent, the end is near
    uint32_t checkpointFailures_ = 0;  ///< in a row
    MonoNs checkpointRetryAt_ = 0;
    MonoNs stopSince_ = 0;
    std::string stopWhy_;
    bool checkpointWanted_ = false;
    bool finished_ = false;
    std::optional<std::string> rollbackWhy_;
    std::string givenUpWhy_;            ///< of the last replica that was
    uint64_t furthest_ = 0;             ///< last step ever committed, of any lineage
    std::optional<uint64_t> undoneAt_;  ///< furthest_ at the last rollback
    uint32_t fruitless_ = 0;      ///< rollbacks in a row with no step beyond furthest_ in between
    bool beginsDamaged_ = false;  ///< rollbackWhy_: resumeFrom_ cannot be read
    bool searching_ = false;      ///< the driver looks for checkpoints to roll back to
    MonoNs suspectHeardAt_ = 0;   ///< last time that a suspect was heard again; 0: never
    std::string explanation_;
    JobPhase phase_ = JobPhase::kStarting;
    uint64_t revision_ = 1;

    MonoNs ranFor_ = 0;  ///< the job, before this machine
    MonoNs ranSince_ = 0;
    MonoNs lastSign_ = 0;      ///< of the coordinator before; 0: unknown
    MonoNs beganAt_ = 0;       ///< this machine
    MonoNs begunAt_ = 0;       ///< this lineage or term: join timeout
    MonoNs lastCommitAt_ = 0;  ///< when the last commit was decided
    MonoNs nextScan_ = 0;
    MonoNs decideAgain_ = 0;
    struct WaitFor {
        int32_t replica = 0;
        uint32_t incarnation = 0;
        MonoNs until = 0;
    };
    std::optional<WaitFor> waitFor_;  ///< a joiner that would not catch up otherwise
    MonoNs waitAgainFrom_ = 0;
    MonoNs toldWake_ = 0;
    MonoNs phaseToldAt_ = 0;
    std::string phaseWhy_;                     ///< the explanation told then
    std::map<uint64_t, double> productiveMs_;  ///< by step of this lineage
    double productiveSum_ = 0;
};

}  // namespace bulkhead::protocol
