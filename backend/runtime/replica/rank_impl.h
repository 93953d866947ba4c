// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/runtime/protocol/rank_machine.h"
#include "backend/runtime/protocol/replica_fold.h"
#include "backend/runtime/replica/catch_up.h"
#include "backend/runtime/replica/checkpoint_desk.h"
#include "backend/runtime/replica/fault_desk.h"
#include "backend/runtime/replica/links.h"
#include "backend/runtime/replica/replica_rank.h"
#include "backend/runtime/replica/snapshot_cache.h"
#include "backend/runtime/replica/state_server.h"
#include "backend/runtime/replica/state_store.h"
#include "backend/runtime/replica/step_exchange.h"
#include "backend/runtime/replica/training_queue.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::runtime {

/// Control-thread functions carry out the machine's actions; training-thread functions touch the
/// program. They meet in the queue one way and in post() the other.
class ReplicaRank::Impl {
  public:
    Impl(RankOptions options, TrainingProgram* program, const Clock& clock);
    ~Impl();
    absl::Status start();

    // Training thread.
    absl::StatusOr<Work> next();
    void gradientReady(uint64_t generation, uint64_t begin, uint64_t end);
    void microBatchDone(MonoNs took);
    void computed(uint64_t generation, StepFigures figures);

    uint64_t appliedStep() const { return applied_; }
    bool leaving() const { return leaving_; }
    void requestLeave();
    void reportHopeless(const std::string& why);
    void endFault(uint64_t fault) { faults_->end(fault); }

  private:
    // Set-up.
    protocol::Hello hello() const;
    void startControl();
    void awaitControl();
    void startDesks();
    CatchUp::Hooks catchUpHooks();
    FaultDesk::Hooks faultHooks();

    // Control thread.
    void feed(const protocol::RankInput& input);
    void post(protocol::RankInput input);  // any thread
    void received(const protocol::ToReplica& message);
    void refused(const absl::Status& why);
    void fromSibling(const protocol::ToLeader& message);
    void sendUp(const protocol::ToCoordinator& message);
    void toLeader(const protocol::ToLeader& message);
    void pushTogether(TrainingTask task);
    void tellReady();
    void groupReady(const protocol::GroupReady& ready);
    void giveUp(const protocol::GroupTask& move);
    void beat();
    /// Where the coordinator is.
    std::string coordinatorNow() const;
    void on(const protocol::BuildReplica& action);
    void on(const protocol::BeginStep& action);
    void on(const protocol::AbortExchange& action);
    void on(const protocol::DropStep& action);
    void on(const protocol::ApplyCommit& action);
    void on(const protocol::HashState& action);
    void on(const protocol::WriteCheckpoint& action);
    void on(const protocol::RemoveCheckpoints& action);
    void on(const protocol::TakeSnapshot& action);
    void on(const protocol::DropSnapshot& action);
    void on(const protocol::BeginFetch& action);
    void on(const protocol::ReplayCommit& action);
    void on(const protocol::JudgeReplay& action);
    void on(const protocol::MoveLayout& action);
    void on(const protocol::AbandonMove& action);
    void on(const protocol::SettleLayout& action);
    void on(const protocol::InjectFault& action);
    void on(const protocol::SendUp& action);
    void on(const protocol::SendLeader& action);
    void on(const protocol::ExitRank& action);
    uint64_t deltaBudget(const model::JobSpec& spec) const;
    ExchangeGroup groupOf(const protocol::Quorum& quorum) const;
    bool complete(const protocol::Quorum& quorum) const;

    // Communication thread.
    void exchanged(const ExchangeResult& result);
    protocol::RankVote figuresOf(const ExchangeResult& result);
    void addFigures(protocol::RankVote& vote);  ///< training thread: of what it computed last
    void accuse(const ExchangeResult& result);

    // Training thread.
    absl::Status build(const protocol::BuildReplica& action);
    absl::Status makeExchange();
    absl::Status loadCheckpoint(const protocol::Welcome& welcome);
    absl::Status unusable(const std::string& manifest, const absl::Status& why);
    absl::Status applyCommit(const protocol::ApplyCommit& action);
    absl::Status update(const CommitRecord& record, std::span<const float> reduced);
    absl::Status damageParameter(uint64_t step);
    absl::Status writeCheckpoint(const std::string& dataPosition);
    void keepRecord(const CommitRecord& record);
    void cannotGoOn(const absl::Status& why);  ///< any thread: the rank cannot go on
    absl::Status takeSnapshot(uint64_t step);
    absl::StatusOr<StateSnapshot> label();
    absl::Status importState(const StateSnapshot& snapshot);
    absl::Status adopt(std::shared_ptr<const StateSnapshot> snapshot);
    absl::Status clearGradient();
    absl::Status bringNothing(uint64_t generation);
    absl::Status replay(const Delta& delta);
    absl::Status replayExchanged(const CommitRecord& record);
    absl::StatusOr<double> keepBefore();  ///< milliseconds that count, as RankVote says
    absl::Status takeRoomToKeep();
    void forgetBefore();
    absl::Status judgeReplay(uint64_t step);
    absl::Status moveLayout(const protocol::MoveLayout& action);
    absl::Status settleLayout(const protocol::SettleLayout& action);
    absl::Status layoutChanged();
    absl::Status leave(const protocol::ExitRank& action, bool orphaned);
    absl::StatusOr<uint64_t> stateHash();
    absl::Status tellHash(uint64_t step);
    void stands(bool updated) const;
    void bindExchange();
    void offer(uint64_t generation, uint64_t begin, uint64_t end);
    absl::Status touchGradient(std::span<float> part);
    void notFinite(uint64_t generation);
    void keepDelta(const CommitRecord& record, std::span<const float> reduced);

    RankOptions options_;
    TrainingProgram* program_;
    const Clock& clock_;
    const bool leader_;

    std::unique_ptr<Reactor> reactor_;
    NetworkFaults network_;
    protocol::RankMachine machine_;
    protocol::ReplicaFold fold_;
    protocol::RankEndpoint endpoint_;
    std::unique_ptr<DataPort> dataPort_;
    std::unique_ptr<LeaderLink> leaderLink_;
    std::unique_ptr<CoordinatorLink> coordinator_;
    std::optional<protocol::GroupReady> readyFor_;      ///< of several ranks: the last task pushed
    GroupAgreement agreement_;                          ///< of a leader
    std::map<protocol::ExchangeId, ExchangeKey> keys_;  ///< of exchanges begun, the last few

    StateStore store_;
    std::unique_ptr<StateServer> server_;
    std::unique_ptr<CheckpointDesk> checkpoints_;
    std::unique_ptr<FaultDesk> faults_;
    std::unique_ptr<CatchUp> catchUp_;
    std::unique_ptr<StepExchange> exchange_;  ///< made by build(), before InitDone is posted
    TrainingQueue queue_;

    std::atomic<uint64_t> progress_{0};
    std::atomic<uint64_t> applied_{0};
    std::atomic<uint64_t> keepBefore_{0};  ///< the step before which the state is to be kept
    std::atomic<bool> leaving_{false};
    Mutex figuresMutex_;
    StepFigures figures_ ABSL_GUARDED_BY(figuresMutex_);
    double gradNorm_ ABSL_GUARDED_BY(figuresMutex_) = 0;  ///< as Beat says
    uint64_t gradStep_ ABSL_GUARDED_BY(figuresMutex_) = 0;
    double computeMs_ ABSL_GUARDED_BY(figuresMutex_) = 0;
    std::map<int32_t, uint32_t> incarnations_
        ABSL_GUARDED_BY(figuresMutex_);  ///< of the peers of the exchange begun last
    std::optional<protocol::ExchangeId> entering_
        ABSL_GUARDED_BY(figuresMutex_);  ///< it, when a joiner enters by it

    // Training thread only.
    uint64_t lineage_ = 0;
    uint64_t layout_ = 0;
    std::optional<uint64_t> hash_;  ///< of the state as it stands, once somebody wants it
    double hashMs_ = 0;             ///< computing the last one
    uint64_t step_ = 0;
    uint64_t snapshotOf_ = 0;  ///< the step of the last one for joiners
    CommitRecord last_;
    /// Those that led to the state, up to last_; of a leader.
    std::deque<CommitRecord> records_;
    size_t contributions_ = 0;  ///< in records_
    std::vector<int32_t> expertShard_;
    SnapshotCache snapshots_;
    std::optional<uint64_t> kept_;  ///< the step whose state the program keeps
    bool noRoomToKeep_ = false;
    uint64_t computing_ = 0;  ///< step
    uint64_t computingGeneration_ = 0;
    MonoNs computeBegun_ = 0;
    bool nonFinite_ = false;
    bool gradientIsZero_ = false;
    uint64_t heldBack_ = 0;     ///< the end of the part at 0 that a device's gradient still owes
    bool sumIsJudged_ = false;  ///< the sum that leaves the device is needed, whoever waits for it
    const bool onDevice_;       ///< gradient and sum are out of the CPU's reach
    absl::Status deviceError_;  ///< met where it could not be returned

    Thread control_;
};

}  // namespace bulkhead::runtime
