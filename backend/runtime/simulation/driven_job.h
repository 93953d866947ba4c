// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/simulation/driven_history.h"
#include "backend/runtime/simulation/memory_disk.h"
#include "backend/runtime/simulation/memory_network.h"
#include "backend/runtime/simulation/schedule.h"
#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {

class Fibers;
class StateEars;

/// A simulated job whose controller and agents are the real ones: Controller, AgentPool,
/// JobCoordinator, commit log, term, history's tail, Agent and Supervisor as they are compiled for
/// production, on reactors in virtual time, disks in memory and connections that carry real bytes.
/// So are the ranks: ReplicaRank with all its threads. They are killed, stopped and left without
/// power in the course of any of their file operations.
class DrivenJob final : public SimulatedJob {
  public:
    DrivenJob(const Setup& setup, uint64_t seed);
    ~DrivenJob() override;

    void killCoordinator(bool losingTail) override;
    void startCoordinator() override;
    void operate(Operation operation) override;
    void healAll() override;

  private:
    struct Program;
    struct Controlling;
    struct Agenting;
    class NodeHost;
    class Ranking;
    using RankKey = std::pair<RankId, uint32_t>;
    /// A process as its node's kernel knows it until it is gone.
    struct KernelProcess {
        RankKey rank;
        uint64_t startTime = 0;
        const Program* parent = nullptr;  ///< null: its agent has ended
        bool dead = false;
        int32_t exitCode = 0;
        int32_t signal = 0;
    };
    struct Node {
        explicit Node(uint64_t seed) : disk(seed) {}
        MemoryDisk disk;
        std::shared_ptr<Agenting> agent;             ///< null or dead: none
        std::map<int32_t, KernelProcess> processes;  ///< by pid
        int32_t lastPid = 0;
    };

    const CoordinatorMachine* machine() const override;

    // -- driven_job.cpp: the controller
    std::shared_ptr<Controlling> makeController(uint64_t seed);
    void readDisk();
    void logged(LogEntry entry);
    void halted();
    bool foundNoRoom(const absl::Status& status) const;
    void observe(const Input& input);
    void observe(const Action& action);
    void told(const model::Event& event);
    void synced(const std::string& path);
    void strikeDrivers(const Fault& fault) override;
    std::string checkpointRoot() const;
    void startSecond();
    void answer(Controlling& controller);

    // -- driven_job.cpp: any program
    void mayDieWorking(const std::shared_ptr<Program>& program);
    void kill(const std::shared_ptr<Program>& program, Rng& rng);
    void crash(const std::shared_ptr<Program>& program);
    void run(const std::shared_ptr<Program>& program);
    template <class F>
    void runAs(Program& program, F task);
    void runLater(const std::shared_ptr<Program>& program, MonoNs at);
    Executor executorOf(const std::shared_ptr<Program>& program);

    // -- driven_processes.cpp: who talks to it
    std::unique_ptr<MemoryChannel> dial(Executor executor, size_t there, size_t back);
    void disconnect(Process& rank, bool noticed) override;
    void die(Process& rank, int signal, bool silent) override;
    void killAgent(size_t node, MonoNs forTime, bool silent) override;
    void agentBack(size_t node, uint64_t life) override;
    void crashNode(size_t node, MonoNs forTime) override;
    void cutAgent(const Fault& fault);
    void freezeNode(const Fault& fault);
    void fillDisk(const Fault& fault);
    void lieAboutSync(const Fault& fault);
    void rewind(const std::vector<LogEntry>& entries);
    bool moveLostCheckpointsAway();
    void restoreUpTo(const LogCheckpoint& checkpoint);
    void startAgent(size_t node);
    void connectAgent(const std::weak_ptr<Agenting>& agent,
                      std::weak_ptr<runtime::ConnectedChannel> done, size_t attempt);
    NodeHost* hostOf(size_t node) const;
    absl::StatusOr<int32_t> startRank(size_t node, const runtime::RankProcess& process);
    void begin(const RankKey& key);
    void look(const RankKey& key);
    std::shared_ptr<Ranking> rankingOf(const Process& rank) const;
    std::shared_ptr<Ranking> rankingOf(const Fibers& threads) const;
    bool dataCut(int32_t a, int32_t b) const { return cut_.contains(a) || cut_.contains(b); }
    void exchanged(Process& rank, const ExchangeId& id, const Sum& sum, bool overflow) override;
    void landed(Process& rank, size_t bucket, uint64_t value) override;
    void accuse(Process& rank, const ExchangeId& id, EvidenceKind kind,
                const std::vector<int32_t>& peers) override;
    void hang(Process& rank) override;
    void flip(Process& rank) override;
    void wake(Process& rank) override;
    void leaderBack(RankId) override {}  ///< a real rank sees its connection break
    void damaged(const std::string& path) override;
    void findCheckpoint(const LogCheckpoint& entry);
    void checkStored();
    void forgetCheckpoint(const Process& by, const std::string& path);
    absl::Status signalRank(size_t node, int32_t pid, uint64_t startTime, int signal);
    const KernelProcess* kernelProcess(size_t node, int32_t pid, uint64_t startTime) const;

    const model::JobSpec spec_;
    const bool corruption_;  ///< parity may rightly be broken
    /// The controller's own, and with the checkpoints shared storage: each node is a
    /// machine.
    MemoryDisk disk_;
    MemoryNetwork streams_;
    RunDatabase database_;
    std::shared_ptr<Controlling> controller_;  ///< null or dead: none
    bool powerCut_ = false;                    ///< since the last controller began
    bool lies_ = false;                        ///< its disk
    /// The log has lost what was told of, and nobody has said yet that it has.
    bool lossUnsaid_ = false;
    std::vector<LogEntry> lost_;           ///< log records lost by a disk that lied, in order
    MonoNs fullUntil_ = 0;                 ///< the controller's disk
    uint64_t lastTold_ = 0;                ///< event
    std::optional<Operation> unanswered_;  ///< by the coordinator that was told it
    bool unansweredLogged_ = false;        ///< the log has it
    std::vector<LogEntry> pending_;        ///< given to the log, not known to be on the disk
    std::vector<std::unique_ptr<Node>> nodes_;
    /// The address at which the leader of a replica listens for its siblings.
    struct Leader {
        std::weak_ptr<Ranking> rank;
        runtime::Reactor* reactor = nullptr;
        runtime::AcceptChannel accept;
    };
    std::map<std::string, Leader> leaders_;
    std::map<std::string, StateEars*> stateEars_;
    std::set<uint64_t> tainted_;     ///< states that come from a flipped bit
    std::set<std::string> damaged_;  ///< manifests of checkpoints in which a bit flipped
    std::map<RankKey, std::shared_ptr<Ranking>> rankings_;
    /// By replica and incarnation, then by shard: what its ranks have begun together, in order.
    std::map<std::pair<int32_t, uint32_t>, std::vector<std::vector<std::string>>> together_;
};

/// The setup of a seed for a DrivenJob. Detection bounds that no job file sets are the real ones.
Setup drawDrivenSetup(uint64_t seed);

}  // namespace bulkhead::simulation
