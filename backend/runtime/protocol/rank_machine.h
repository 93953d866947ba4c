// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/common/clock.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/channels.h"

/// The replica's side of the protocol, one machine per rank. It fences, chooses the quorum that
/// counts, and says what the rank does next; the driver owns threads, tensors and sockets.
namespace bulkhead::protocol {

struct RankConfig {
    RankId rank;
    uint32_t incarnation = 0;
    uint32_t shards = 1;
    uint32_t orphanMs = 600000;
};

/// Identifies the exchange that something belongs to.
struct ExchangeId {
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 0;
    auto operator<=>(const ExchangeId&) const = default;
};

// ---- inputs: what the driver tells
// ---------------------------------------------------------------

struct FromCoordinator {
    ToReplica message;
};
struct Connected {};  ///< to the coordinator (perhaps another one); Hello was sent
struct Disconnected {};
struct Terminate {};   ///< the process was asked to end: SIGTERM
struct LeaderBack {};  ///< the connection to the leader had broken, with what was on its way
/// Groups are built and the model stands: from the seed or a checkpoint (`hasState`), or blank.
struct InitDone {
    bool hasState = true;
    uint64_t step = 0;
    uint64_t hash = 0;
    uint64_t layout = 0;
};
/// The gradients of (step, epoch, attempt of BeginStep) are complete; not sent when it fell away.
struct ComputeDone {
    uint64_t step = 0;
    bool nonFinite = false;
};
/// The exchange ended, well or not. `vote` carries figures; the machine fills in rank, incarnation,
/// id, complete, hash.
struct ExchangeDone {
    ExchangeId id;
    bool complete = false;
    RankVote vote;
    bool nonFinite =
        false;  ///< it failed because the own gradient is not; the rest is not computed
};
struct Applied {
    uint64_t step = 0;
    double applyMs = 0;
    double keepMs = 0;  ///< of these: keeping the state before the update; 0: not kept, or small
};
/// Answer to HashState.
struct StateHashed {
    uint64_t step = 0;
    uint64_t hash = 0;
    double ms = 0;
};
struct SnapshotTaken {
    uint64_t step = 0;
};
struct FetchAdvanced {
    uint64_t bytesDone = 0;
    uint64_t bytesTotal = 0;
};
/// The state after Fetch::snapshotStep stands in this rank.
struct FetchDone {
    uint64_t snapshotStep = 0;
    uint64_t hash = 0;
    uint64_t layout = 0;
};
struct FetchBroke {
    bool outOfWindow = false;
    std::vector<int32_t> failedSources;
    std::string why;
};
/// A retained or pulled reduced gradient was applied by record `step`.
struct Replayed {
    uint64_t step = 0;
};
struct ReplayJudged {
    uint64_t step = 0;
    bool replayed = true;  ///< false: what that takes is not there
    bool matches = true;
};
struct LayoutMoveDone {
    uint64_t layout = 0;
    bool ok = true;
    uint64_t bytesMoved = 0;
    std::string error;
    uint64_t hash = 0;  ///< of the state as it lies now
};
struct RankTick {};

using RankInput =
    std::variant<FromCoordinator, Connected, Disconnected, Terminate, LeaderBack, InitDone,
                 ComputeDone, ExchangeDone, Applied, StateHashed, SnapshotTaken, FetchAdvanced,
                 FetchDone, FetchBroke, Replayed, ReplayJudged, LayoutMoveDone, RankTick>;

// ---- actions: what the driver does, in this order
// ------------------------------------------------

/// Load the checkpoint or initialise from the seed (`resumeFrom` empty), or build blank.
struct BuildReplica {
    ReplicaFormed formed;
    Welcome welcome;
};
/// A step begins, or its exchange begins anew. `compute`: gradients of `ranges` must be computed
/// (again), whatever is being computed falls away; else the retained ones, or those still being
/// computed, are exchanged. Frames of any other ExchangeId are stale. `enter`: a joiner exchanges
/// zeros, computes nothing, and goes on catching up meanwhile; ExchangeDone must follow.
struct BeginStep {
    Quorum quorum;
    bool compute = true;
    std::vector<SampleRange> ranges;  ///< own
    bool enter = false;
};
/// End the exchange `id` at once if it runs. Gradients stay, a computation goes on. When
/// ComputeDone was told, ExchangeDone must follow, complete if it was complete by then; before, it
/// may.
struct AbortExchange {
    ExchangeId id;
    std::string why;
};
/// Stop working on `step` altogether: its quorum fell away.
struct DropStep {
    uint64_t step = 0;
};
struct ApplyCommit {
    CommitRecord record;
    bool checkpoint = false;
    std::string dataPosition;
};
/// The state stands at `step`: hash it before anything changes it. None of what is asked for after
/// this is done before it.
struct HashState {
    uint64_t step = 0;
};
/// A checkpoint of the state as it is, which is that after `step`.
struct WriteCheckpoint {
    uint64_t step = 0;
    std::string dataPosition;
};
/// Leaders: remove these checkpoints, of which the log no longer knows.
struct RemoveCheckpoints {
    std::vector<std::string> paths;  ///< of manifests
};
/// The state stands at `step`: copy it before anything changes it.
struct TakeSnapshot {
    uint64_t step = 0;
};
struct DropSnapshot {
    uint64_t step = 0;
};
/// `sourcesOnly`: the same snapshot as before from other sources; what arrived stays, also for the
/// deltas. Otherwise whatever was being fetched or replayed falls away, unanswered.
struct BeginFetch {
    Fetch fetch;
    bool sourcesOnly = false;
};
/// Joiner: apply the reduced gradient of this record: the sum of the exchange it entered
/// (`exchanged`), which no later one has overwritten, or one pulled from a source.
struct ReplayCommit {
    CommitRecord record;
    bool exchanged = false;
};
struct JudgeReplay {
    uint64_t step = 0;
};
struct MoveLayout {
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
};
/// The job goes on without that move of experts: if it has not begun, it need not. LayoutMoveDone
/// follows in any case.
struct AbandonMove {
    uint64_t layout = 0;
};
/// The moved experts count from here on (`adopt`), or the old placement stays, which is layout
/// `countsInstead`.
struct SettleLayout {
    uint64_t layout = 0;
    bool adopt = true;
    uint64_t countsInstead = 0;
};
struct InjectFault {
    CommitFault fault;
};
struct SendUp {
    ToCoordinator message;
};
struct SendLeader {
    ToLeader message;
};
/// Leave the process. `checkpoint`: write one first (orphaned).
struct ExitRank {
    bool ok = true;
    bool checkpoint = false;
    std::string why;
};

using RankAction =
    std::variant<BuildReplica, BeginStep, AbortExchange, DropStep, ApplyCommit, HashState,
                 WriteCheckpoint, RemoveCheckpoints, TakeSnapshot, DropSnapshot, BeginFetch,
                 ReplayCommit, JudgeReplay, MoveLayout, AbandonMove, SettleLayout, InjectFault,
                 SendUp, SendLeader, ExitRank>;
using RankActions = std::vector<RankAction>;

/// Thread: none of its own; externally serialised. Deterministic.
class RankMachine {
  public:
    explicit RankMachine(RankConfig config);

    RankActions step(MonoNs now, const RankInput& input);

    Phase phase() const { return phase_; }
    bool hasState() const { return hasState_; }
    uint64_t lineage() const { return lineage_; }
    uint64_t appliedStep() const { return applied_; }
    double keepMs() const { return keepMs_; }  ///< as Beat says
    double hashMs() const;                     ///< likewise
    uint64_t term() const { return term_; }
    bool exited() const { return exited_; }
    /// The exchange that counts now; frames of another are stale.
    std::optional<ExchangeId> exchange() const;
    /// Stale messages dropped so far (I5).
    uint64_t fenced() const { return fenced_; }

  private:
    enum class Vote { kNone, kNo, kYes };

    void on(MonoNs now, const FromCoordinator& in);
    void on(MonoNs now, const Connected&);
    void on(MonoNs now, const Disconnected&);
    void on(MonoNs now, const Terminate&);
    void on(MonoNs now, const LeaderBack&);
    void on(MonoNs now, const InitDone& in);
    void on(MonoNs now, const ComputeDone& in);
    void on(MonoNs now, const ExchangeDone& in);
    void on(MonoNs now, const Applied& in);
    void on(MonoNs now, const StateHashed& in);
    void on(MonoNs now, const SnapshotTaken& in);
    void on(MonoNs now, const FetchAdvanced& in);
    void on(MonoNs now, const FetchDone& in);
    void on(MonoNs now, const FetchBroke& in);
    void on(MonoNs now, const Replayed& in);
    void on(MonoNs now, const ReplayJudged& in);
    void on(MonoNs now, const LayoutMoveDone& in);
    void on(MonoNs now, const RankTick&);

    void receive(const Welcome& m);
    void receive(const ReplicaFormed& m);
    void receive(const Quorum& m);
    void receive(const Commit& m);
    void receive(const Abort& m);
    void receive(const KeepSnapshot& m);
    void receive(const Fetch& m);
    void receive(const ReplayLast& m);
    void receive(const ChangeLayout& m);
    void receive(const Expelled& m);
    void receive(const Leave& m);
    void receive(const CommitFault& m);
    void receive(const DiscardCheckpoints& m);

    bool accept(uint64_t term);
    void tryAdopt();
    void adopt(const Quorum& q);
    void tryEnter();
    void leaveExchange(const char* why);
    uint64_t placement() const;
    void moveLayout(const ChangeLayout& change);
    void abandonMove();
    bool isSettled(uint64_t layout) const;
    void settleLayout(uint64_t counts);
    void noteSettled(uint64_t term, uint64_t upTo, uint64_t layout);
    void writeWanted();
    void dropCurrent(const char* why);
    void forgetGradient();
    void fetchFailed(bool outOfWindow, std::vector<int32_t> failedSources, std::string why);
    void castVote(RankVote vote, bool complete);
    void afterState();
    /// The last state that it knows to be committed.
    bool holds() const { return hasState_ && (!joiner_ || following_); }
    /// The state is whole and stands still.
    bool mayCopy() const { return hasState_ && !applying_ && !replaying_ && !moving_; }
    void takeWanted();
    void forgetSnapshot(uint64_t step);
    void pumpReplay();
    void stateChanged();
    void wantHash(bool toReport);
    void hashWanted();
    bool nextMayCompare() const;
    void report();
    void tellAgain();
    void reportProgress();
    void leave(bool ok, bool checkpoint, std::string why);
    template <class A>
    void act(A action) {
        out_.emplace_back(std::move(action));
    }

    RankConfig config_;
    RankActions out_;
    Phase phase_ = Phase::kStarting;
    bool formed_ = false;
    bool hasState_ = false;
    bool exited_ = false;
    uint64_t term_ = 0;
    uint64_t lineage_ = 0;
    uint64_t applied_ = 0;
    uint64_t appliedEpoch_ = 0;
    std::optional<uint64_t> hash_;  ///< of the state at applied_ as it lies in layout_
    bool hashWanted_ = false;
    bool hashing_ = false;
    bool reportsHash_ = false;      ///< once it is there
    std::deque<double> hashTimes_;  ///< milliseconds, the last few
    uint64_t layout_ = 0;
    uint64_t fenced_ = 0;
    double applyMs_ = 0, keepMs_ = 0;
    std::optional<CommitRecord> last_;
    std::optional<Welcome> welcome_;
    bool connected_ = false;
    bool terminating_ = false;  ///< a signal asked for its end
    std::optional<MonoNs> orphanSince_;

    std::optional<Quorum> pending_;  ///< of a step after the one in work: waits for its commit
    std::optional<ExchangeId> abortedPending_;
    std::optional<Quorum> current_;    ///< in work: step applied_+1
    std::vector<SampleRange> ranges_;  ///< of the gradients in work or retained
    uint64_t retainedStep_ = 0;        ///< step of the gradients of `ranges_`; 0: none
    uint64_t retainedLayout_ = 0;      ///< in which those lie
    uint64_t computation_ = 0;         ///< Member::computation they answer to
    bool computed_ = false;
    bool nonFinite_ = false;  ///< these gradients, as far as they are computed
    Vote vote_ = Vote::kNone;
    RankVote lastVote_;                         ///< unless vote_ is kNone
    std::optional<RankLayoutMoved> lastMoved_;  ///< until it is known which layout counts
    std::optional<FetchFailed> fetchFailed_;    ///< until another fetch begins
    std::optional<CommitMissed> missed_;        ///< until a fetch begins
    std::optional<Commit> applying_;
    std::optional<Commit> checkpointWanted_;  ///< of a step that is applied, or being applied

    struct Snapshot {
        uint64_t layout = 0;
        bool taken = false;  ///< else it is being taken
    };
    std::map<uint64_t, uint64_t> snapshotsWanted_;  ///< step, in which layout
    std::map<uint64_t, Snapshot> snapshots_;        ///< kept, by step
    std::optional<ChangeLayout> layoutChange_;
    uint64_t layoutAsked_ = 0;  ///< highest that it was told to move to
    bool moving_ = false;
    bool abandoned_ = false;  ///< the move under way
    uint64_t movingTo_ = 0;   ///< layout
    uint64_t moveTerm_ = 0;   ///< of the coordinator that wanted the last move
    uint64_t moveStep_ = 0;   ///< after which it was wanted
    uint64_t moveEpoch_ = 0;  ///< quorums up to this one were taken back for it
    struct Settled {
        uint64_t term = 0;
        uint64_t upTo = 0;
        uint64_t layout = 0;
    };
    Settled settled_;  ///< moves up to `upTo` count if they led to `layout`, or never will
    std::optional<Fetch> fetchAfterMove_;
    std::optional<LayoutMoveDone> layoutMoved_;  ///< until a quorum says whether it counts

    bool joiner_ = false;
    bool fetched_ = false;
    bool following_ = false;
    bool replaying_ = false;
    bool replayingSum_ = false;       ///< replaying_ reads the sum of an exchange
    std::optional<Quorum> entering_;  ///< joiner: whose exchange it takes part in
    std::optional<ExchangeId> sum_;   ///< joiner: the last exchange that it completed
    std::optional<Fetch> fetch_;
    std::map<uint64_t, Commit> replay_;  ///< joiner: commits to come, by step
};

}  // namespace bulkhead::protocol
