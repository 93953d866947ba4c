// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/runtime/replica/replica_rank.h"
#include "backend/runtime/simulation/driven_program.h"
#include "backend/runtime/simulation/fibers.h"

namespace bulkhead::simulation {

/// A connection for the transfer of state, between two processes in memory.
struct StateWire;
class StateEars;

/// One life of a rank: the real ReplicaRank with all its threads, around a training program whose
/// state and gradient are the oracle's. What the oracle looks at is shown in a Process.
class DrivenJob::Ranking final : public std::enable_shared_from_this<Ranking> {
  public:
    Ranking(DrivenJob& job, Process& shown);
    ~Ranking();

    void begin();
    /// SIGKILL; with `silent`, the machine's power.
    void crash(bool silent);
    /// Or in the course of one of its next file operations.
    void crashSoon();
    void requestLeave();
    /// Every now and then, while it lives.
    void look();
    /// The network breaks what connects it to the controller.
    void breakUp();
    bool isDead() const { return dead_; }
    Fibers& threads() { return fibers_; }

    // The exchange it takes part in: see DataPlane.
    void summed(const ExchangeId& id, const Sum& sum, bool overflow);
    void landed(size_t bucket, uint64_t value);
    void exchangeFailed(const ExchangeId& id, EvidenceKind kind, const std::vector<int32_t>& peers);

  private:
    class Training;
    class AllReduce;
    class Host;
    class Control;
    class States;
    struct Attempt;

    void main();
    absl::StatusOr<runtime::Work> train(runtime::ReplicaRank& rank);
    runtime::RankProbe probe();
    void told(const RankInput& input);
    void acts(const RankAction& action);
    void stands(const runtime::StateSnapshot& state, bool updated);
    void exited(int code);
    void completed(const ExchangeId& id, const Sum& sum, bool overflow);
    Executor executor(runtime::Reactor& reactor);
    void connect(runtime::Reactor& reactor, const std::string& address,
                 const std::weak_ptr<runtime::ConnectedChannel>& done, size_t attempt);
    std::unique_ptr<MemoryChannel> reach(runtime::Reactor& reactor, const std::string& address);
    std::string addressOf(const char* what) const;

    DrivenJob& job_;
    Process& shown_;
    DriftingClock clock_;
    Fibers fibers_;
    DiskUser files_;
    Rng rng_;
    std::unique_ptr<Training> training_;
    std::unique_ptr<Host> host_;
    AllReduce* exchange_ = nullptr;  ///< null: none is made
    runtime::ReplicaRank* running_ = nullptr;
    std::vector<Program::Connection> up_;     ///< to the controller
    std::vector<Program::Connection> inner_;  ///< to its siblings
    std::vector<std::weak_ptr<StateWire>> wires_;
    std::map<ExchangeId, BeginStep> works_;  ///< the last few
    bool ignores_ = false;                   ///< its latest order
    bool leaving_ = false;
    bool over_ = false;  ///< nothing is left of it but its exit
    bool dead_ = false;
};

}  // namespace bulkhead::simulation
