// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
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

/// A simulated job whose controller is the real one: Controller, AgentPool, JobCoordinator, commit
/// log, term and history's tail as they are compiled for production, on a reactor in virtual time,
/// a disk in memory and connections that carry real bytes. It is killed, stopped and left without
/// power in the course of any of its file operations. Agents and ranks are the scripted ones.
class DrivenJob final : public SimulatedJob {
  public:
    DrivenJob(const Setup& setup, uint64_t seed);
    ~DrivenJob() override;

    void killCoordinator(bool losingTail) override;
    void startCoordinator() override;
    void operate(Operation operation) override;
    void healAll() override;

  private:
    struct Controlling;
    using RankKey = std::pair<RankId, uint32_t>;
    struct NodeAgent {
        std::unique_ptr<MemoryChannel> channel;
        bool welcome = false;
        bool retrying = false;
        std::map<uint64_t, runtime::AgentMessage> unheard;  ///< by receipt
        uint64_t receipts = 0;
    };

    const CoordinatorMachine* machine() const override;

    // -- driven_job.cpp: the controller
    std::shared_ptr<Controlling> makeController(uint64_t seed);
    void crash(const std::shared_ptr<Controlling>& controller);
    void readDisk();
    void logged(LogEntry entry);
    void run(const std::shared_ptr<Controlling>& controller);
    void runLater(const std::shared_ptr<Controlling>& controller, MonoNs at);
    Executor executorOf(const std::shared_ptr<Controlling>& controller);
    void observe(const Input& input);
    void observe(const Action& action);
    void told(const model::Event& event);
    void synced(const std::string& path);
    void strikeDrivers(const Fault& fault) override;
    std::string checkpointRoot() const override;
    void checkpointChanged(const std::string& path, const Stored& stored, bool there) override;
    void startSecond();
    void answer(const std::shared_ptr<Controlling>& controller);

    // -- driven_processes.cpp: who talks to it
    std::unique_ptr<MemoryChannel> dial(Executor executor, size_t there, size_t back);
    void connect(Process& rank) override;
    void disconnect(Process& rank, bool noticed) override;
    void up(Process& rank, ToCoordinator message) override;
    void die(Process& rank, int signal, bool silent) override;
    void lost(const RankKey& key);
    void fromAgent(size_t node, Input input) override;
    void killAgent(size_t node, MonoNs forTime, bool silent) override;
    void agentBack(size_t node, uint64_t life) override;
    void cutAgent(const Fault& fault);
    void connectAgent(size_t node);
    void connectAgentLater(size_t node);
    void beatLater(size_t node, const std::shared_ptr<MemoryChannel::Wire>& over, MonoNs every);
    void obey(size_t node, const std::string& bytes);
    void startRank(size_t node, const runtime::RankProcess& process);
    void signalRank(size_t node, const runtime::SignalRank& command);

    const model::JobSpec spec_;
    const bool corruption_;  ///< parity may rightly be broken
    MemoryDisk disk_;
    MemoryNetwork streams_;
    RunDatabase database_;
    std::shared_ptr<Controlling> controller_;  ///< null or dead: none
    bool powerCut_ = false;                    ///< since the last controller began
    uint64_t lastTold_ = 0;                    ///< event
    std::optional<Operation> unanswered_;      ///< by the coordinator that was told it
    bool unansweredLogged_ = false;            ///< the log has it
    std::vector<LogEntry> pending_;            ///< given to the log, not known to be on the disk
    std::vector<NodeAgent> nodes_;
    std::map<RankKey, std::unique_ptr<MemoryChannel>> channels_;
};

/// The setup of a seed for a DrivenJob. Detection bounds that no job file sets are the real ones.
Setup drawDrivenSetup(uint64_t seed);

}  // namespace bulkhead::simulation
