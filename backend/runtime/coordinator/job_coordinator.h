// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/run_state.h"
#include "backend/runtime/coordinator/agent_pool.h"
#include "backend/runtime/coordinator/campaign_runner.h"
#include "backend/runtime/coordinator/commit_log.h"
#include "backend/runtime/coordinator/event_sink.h"
#include "backend/runtime/coordinator/fault_runner.h"
#include "backend/runtime/coordinator/job_status.h"
#include "backend/runtime/coordinator/probe.h"
#include "backend/runtime/coordinator/proposer.h"
#include "backend/runtime/coordinator/rank_links.h"
#include "backend/runtime/coordinator/telemetry.h"
#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/invariants.h"

namespace bulkhead::runtime {

/// Services of the enclosing program that a job uses.
struct JobSurroundings {
    Reactor& reactor;
    FileSystem& files;
    AgentPool& pool;
    EventSink* sink = nullptr;  ///< may be null
    std::string workerPath;
    Secret secret;  ///< the job's: keys of its ranks and of what they exchange are derived from it
    std::string secretId;  ///< tells the controller's secret from others, and nothing else of it
    std::string version;
    uint32_t sampleMs = 500;
    const Probe* probe = nullptr;  ///< may be null
    Proposer proposer;             ///< may be empty
    /// The job's files could not be written. Whoever is told destroys the coordinator, later, and
    /// tries another one. May be empty.
    std::function<void()> halted;
};

struct JobBeginning {
    std::string run;
    std::string dir;  ///< of the run, exists
    model::JobSpec spec;
    model::RunState past;     ///< fold of the run's events before, empty for a new run
    std::string resumedFrom;  ///< for RunStarted
    std::optional<protocol::LogCheckpoint> resume;  ///< begin from this checkpoint of another run
    bool waited = false;  ///< the coordinator before halted, and this one can go on
    std::string id = {};  ///< of a run that has none yet (runIdentity)
    /// Reason for sending the log's content to history again, reported as an error; empty: none.
    std::string lost = {};
    bool settled = false;    ///< as checkInPlace() has it
    bool newSecret = false;  ///< ControllerOptions::newSecret
};

/// Drives the coordinator machine of one job: timers, the commit log, the connections of its ranks,
/// its processes through the agents, its faults, and turns what the machine says into events.
/// Thread: the reactor's.
class JobCoordinator {
  public:
    /// Mints a term and opens the commit log: FailedPrecondition when another coordinator runs this
    /// job, DataLoss when the log is damaged.
    static absl::StatusOr<std::unique_ptr<JobCoordinator>> create(JobSurroundings surroundings,
                                                                  JobBeginning beginning);
    ~JobCoordinator();

    void begin();

    /// Reason why this coordinator has halted although the job goes on; empty: it has not.
    const std::string& halted() const { return halted_; }

    // ---- what happens to it ------------------------------------------------------------------
    void rankConnected(std::unique_ptr<ControlChannel> channel, const protocol::Hello& hello);
    void rankUp(const std::string& node, const RankUp& up);
    void rankDied(const std::string& node, const RankDied& died);
    void rankGone(const std::string& node, const RankGone& gone);
    void rankUnknown(const std::string& node, const RunningRank& rank, const std::string& why);
    void startLost(const std::string& node, const RankProcess& process);
    void agentSaid(const std::string& node, const AgentMessage& message);
    void nodeChanged(const NodeStatus& node, const std::string& why);

    // ---- what is asked of it -----------------------------------------------------------------
    absl::Status act(const model::Action& action, uint64_t expectedRevision,
                     const std::string& requestId, const std::string& by);
    /// Ends the job. Errors as act(); OK for a job that has ended.
    absl::Status stop(bool checkpoint, const std::string& by);
    void shutDown();
    absl::StatusOr<uint64_t> inject(const model::FaultSpec& fault, uint64_t expectedRevision,
                                    const std::string& requestId, const std::string& by);
    absl::Status endFault(uint64_t fault) { return faults_.end(fault); }
    absl::StatusOr<model::CampaignPreflight> preflightCampaign(
        const model::CampaignText& text) const;
    absl::StatusOr<uint64_t> startCampaign(const model::CampaignText& text,
                                           uint64_t expectedRevision, const std::string& requestId,
                                           const std::string& by);
    absl::Status stopCampaign(uint64_t campaign, const std::string& by);

    /// To those who watch: nothing else hears of it.
    void tellLost(const std::string& why);

    JobStatus status() const;
    const model::RunState& state() const { return state_; }
    /// It trains on, also when its agent is gone.
    bool isConnected(const RankProcess& process) const {
        return links_.has(process.rank, process.incarnation);
    }
    bool finished() const { return finished_; }
    const std::string& run() const { return beginning_.run; }

    /// Called for every event, after the sink.
    void setObserver(std::function<void(const model::Event&)> observer) {
        observer_ = std::move(observer);
    }

  private:
    JobCoordinator(JobSurroundings surroundings, JobBeginning beginning,
                   std::vector<std::unique_ptr<FileLock>> locks, CommitLog log,
                   protocol::CoordinatorMachine machine, const protocol::RecoveredState& past,
                   std::vector<protocol::LogEntry> untold);

    // job_coordinator.cpp: the machine's loop
    void feed(protocol::Input input);
    void carryOut(protocol::Actions actions);
    void act(const protocol::SendReplica& action);
    void act(const protocol::SendRank& action);
    void act(const protocol::AppendLog& action);
    void act(const protocol::StartReplica& action);
    void act(const protocol::StopReplica& action);
    void act(const protocol::WakeAt& action);
    void act(const protocol::FindCheckpoints& action);
    void act(const protocol::Emit& action);
    void act(const protocol::Finished& action);
    void flushLog();
    void checkLocks();
    absl::Status checkCheckpoints(const std::string& unusable) const;
    void halt(const absl::Status& why);

    // job_events.cpp: what is told
    void emit(model::EventBody body, model::Severity severity);
    void tell(MonoNs at, const protocol::Fact& fact);
    void told(const protocol::fact::StepCommitted& fact);
    void injectPlanned();
    void goOnTelling();
    void tellMissing(const std::vector<protocol::LogEntry>& entries);
    void checkInvariants(const protocol::fact::StepCommitted& fact);
    void report(const std::optional<protocol::Violation>& violation);
    void explainIncident(model::IncidentOpened& incident, MonoNs at);
    void widenDetection(model::IncidentPhase& phase);
    void sampleFleet();
    void propose();
    int64_t unixNs(MonoNs at) const;
    MonoNs monoNs(int64_t unixNs) const;

    // job_campaigns.cpp
    CampaignRunner::Hands campaignHands();
    campaign::LedgerFinding readLedger() const;

    // job_processes.cpp: ranks and nodes
    std::map<int32_t, uint32_t> tryStarts();
    void lookForRoomAgain();
    bool spansNodes() const;
    bool computesWithoutGpus() const;
    struct KnownRank;
    void noteFiles(const std::string& node, const RankFiles& of);
    bool isElsewhere(const std::string& node, const RankProcess& process) const;
    const KnownRank* living(RankId rank) const;
    void tellPredecessor(int32_t replica, uint32_t incarnation, const std::string& node);
    void tellNoSlots(int32_t replica, uint32_t incarnation);
    void takeInventory();
    void missNodes();
    bool isFound(RankId rank) const;
    std::map<int32_t, std::string> unheard() const;
    bool inventoryDone(const std::map<int32_t, std::string>& unheard) const;
    std::string preferredNode(int32_t replica) const;
    RankSecrets rankSecrets(const RankProcess& process) const;
    /// `nodes`: by shard.
    absl::Status startOn(const std::vector<std::string>& nodes, int32_t replica,
                         uint32_t incarnation);
    void gpuTroubled(const GpuTroubleSeen& seen);
    void linkClosed(RankId rank, uint32_t incarnation, const absl::Status& why);
    void suspect(RankId rank, uint32_t incarnation, const std::string& why);
    void received(RankId rank, uint32_t incarnation, protocol::ToCoordinator message);
    FaultRunner::Hands hands();
    /// Empty: not known.
    std::string nodeOf(RankId rank) const;
    /// Its first rank's.
    std::string nodeOf(int32_t replica) const { return nodeOf(RankId{replica, 0}); }
    std::vector<int32_t> replicasOn(const std::string& node) const;

    JobSurroundings around_;
    JobBeginning beginning_;
    std::vector<std::unique_ptr<FileLock>> locks_;  ///< of the run and its checkpoints, to its end
    CommitLog log_;
    protocol::CoordinatorMachine machine_;
    protocol::InvariantChecker invariants_;
    RankLinks links_;
    FaultRunner faults_;
    CampaignRunner campaigns_;
    FleetBook fleet_;
    ExpertBook experts_;
    RoutingBook routing_;
    model::RunState state_;
    std::function<void(const model::Event&)> observer_;

    std::deque<protocol::Input> inputs_;
    bool busy_ = false;
    bool recovered_ = false;  ///< an earlier coordinator ran this job
    bool finished_ = false;
    std::string halted_;
    std::vector<protocol::LogEntry> unsynced_;
    uint64_t durable_ = 0;
    Reactor::TimerId wake_ = 0;
    Reactor::TimerId fleetTimer_ = 0;
    Reactor::TimerId placementTimer_ = 0;
    Reactor::TimerId inventoryTimer_ = 0;
    Reactor::TimerId missTimer_ = 0;
    Reactor::TimerId campaignTimer_ = 0;
    /// Replicas that the machine was told to be unheard, by node; none before the inventory is
    /// done.
    std::optional<std::map<int32_t, std::string>> awaited_;
    std::set<RankId> ended_;  ///< told of by agents since this coordinator began
    MonoNs lastNodeAt_ = 0;   ///< when a node last came or went
    MonoNs placementUntil_ = 0;
    MonoNs beganAt_ = 0;
    uint32_t fleetTicks_ = 0;
    uint64_t seq_ = 0;
    std::vector<protocol::LogEntry> untold_;  ///< the log as it was found, until history knows it
    const std::string lost_;                  ///< as in protocol::RecoveredState
    int64_t startedNs_ = 0;

    struct Placed {
        uint32_t incarnation = 0;
        std::vector<std::string> nodes;  ///< by shard; empty: not known
    };
    std::map<int32_t, Placed> placed_;  ///< replicas and where they were put, unless they wait
    std::map<int32_t, uint32_t> waitingStarts_;  ///< replica, incarnation: no slots yet
    std::map<int32_t, std::pair<uint32_t, std::string>> toldNoSlots_;  ///< and why, as told last
    std::map<int32_t, uint32_t> awaitingEnd_;  ///< those that wait for a process before them
    struct KnownRank {
        uint32_t incarnation = 0;
        int32_t pid = 0;
        bool onGpu = false;
        bool stopping = false;
        bool dying = false;      ///< it died and is not gone
        bool killed = false;     ///< its agent was told, if it was there
        std::string words = {};  ///< of its last critical line
    };
    std::map<RankId, KnownRank> known_;
    std::set<std::string> requests_;  ///< ids already answered
    std::optional<protocol::fact::OperatorAnswered> answer_;
    std::set<uint64_t> stalling_;                  ///< incidents whose cause stops the survivors
    std::map<uint64_t, double> unseenMs_;          ///< incident, from fault to first symptom
    std::map<uint64_t, int64_t> incidentFaultNs_;  ///< incident, when its fault took effect
    std::map<std::string, model::NodeState> nodeStates_;
    std::optional<protocol::ModelDescribed> described_;
    std::jthread proposing_;    ///< makes a plan
    bool proposed_ = true;      ///< ... or does not any more
    uint64_t proposeFrom_ = 0;  ///< step before which no plan is made again
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace bulkhead::runtime
