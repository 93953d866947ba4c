// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/common/clock.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/agent/death_watch.h"
#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::runtime {

/// A whole job for tests of the rank's side: real worker processes under the coordinator machine,
/// with a driver that does just enough (no log on disk). It notices deaths and begins the next
/// process of a replica as agent and controller do. Everything on the test's thread.
class MiniJob {
  public:
    /// `resume`: begins from this checkpoint.
    MiniJob(model::JobSpec spec, std::string folder,
            std::optional<protocol::LogCheckpoint> resume = std::nullopt);
    ~MiniJob();

    /// Turns the loop until `done`; false when `patience` passed first.
    bool runUntil(const std::function<bool()>& done, MonoNs patience = 90 * kSecond);
    bool runToStep(uint64_t step) {
        return runUntil([&] { return committed() >= step; });
    }

    void kill(RankId rank, int signal);
    void toReplica(int32_t replica, const protocol::ToReplica& message);
    /// Stops killing expelled replicas from now on: they must leave by themselves.
    void keepExpelled() { keepExpelled_ = true; }
    void operate(protocol::Operation operation);
    /// Gives that replica's job file another device than the others', from its next start on.
    void moveTo(int32_t replica, const std::string& device);
    /// Answers every Hello from now on as another build would.
    void speakAnotherVersion() { anotherVersion_ = true; }
    /// Closes listener and connections as a coordinator that dies does; the machine is gone.
    void loseCoordinator();

    uint64_t committed() const;
    bool contributes(int32_t replica) const;
    /// Ended by exit code, in the order they ended.
    const std::vector<std::pair<RankId, int>>& exits() const { return exits_; }
    template <class F>
    std::vector<F> facts() const {
        std::vector<F> found;
        for (Timed<F>& timed : timedFacts<F>()) found.push_back(std::move(timed.fact));
        return found;
    }
    /// By the steady clock.
    template <class F>
    struct Timed {
        MonoNs at = 0;
        F fact;
    };
    template <class F>
    std::vector<Timed<F>> timedFacts() const {
        std::vector<Timed<F>> found;
        for (const Timed<protocol::Fact>& timed : facts_)
            if (const F* f = std::get_if<F>(&timed.fact)) found.push_back({timed.at, *f});
        return found;
    }
    const std::vector<protocol::CheckpointDone>& checkpoints() const { return checkpoints_; }
    const std::vector<protocol::FaultNoted>& faultsNoted() const { return noted_; }
    bool finished() const { return finished_; }
    /// The exchange keys that ranks were told, by term and epoch.
    const std::map<std::pair<uint64_t, uint64_t>, std::set<std::array<uint64_t, 4>>>& keys() const {
        return keys_;
    }
    /// Returns all output of the processes so far, for failure messages.
    std::string output() const;

  private:
    struct Process {
        RankId rank;
        uint32_t incarnation = 0;
        pid_t pid = 0;
        std::unique_ptr<DeathWatch> death;
    };
    struct Link {
        std::unique_ptr<ControlChannel> channel;
        std::optional<RankId> rank;
        uint32_t incarnation = 0;
    };
    void feed(const protocol::Input& input);
    void perform(const protocol::Actions& actions);
    void accept(std::unique_ptr<ControlChannel> channel);
    void receive(uint64_t id, const std::string& bytes);
    void send(const std::function<bool(const Link&)>& to, protocol::ToReplica message);
    void startReplica(const protocol::StartReplica& start);
    std::string jobFileOf(int32_t replica) const;
    void startWaiting();
    void died(pid_t pid, int32_t signal);
    void reap();

    const SystemClock clock_;
    model::JobSpec spec_;
    std::string folder_;
    const Secret secret_ = Secret::random();
    std::unique_ptr<Reactor> reactor_;
    std::unique_ptr<ControlListener> listener_;
    std::string address_;
    std::unique_ptr<protocol::CoordinatorMachine> machine_;
    std::map<uint64_t, Link> links_;
    uint64_t nextLink_ = 1;
    std::vector<Process> processes_;
    std::map<int32_t, protocol::StartReplica> waitingStarts_;  ///< until the one before has ended
    std::vector<std::pair<RankId, int>> exits_;
    std::vector<Timed<protocol::Fact>> facts_;
    std::vector<protocol::CheckpointDone> checkpoints_;
    std::vector<protocol::FaultNoted> noted_;
    std::map<std::pair<uint64_t, uint64_t>, std::set<std::array<uint64_t, 4>>> keys_;
    std::optional<MonoNs> wakeAt_;
    bool finished_ = false;
    bool keepExpelled_ = false;
    bool anotherVersion_ = false;
    std::set<int32_t> moved_;  ///< replicas with a job file of their own
};

/// A 2 x 2 job of the tiny model on generated text below `folder`.
model::JobSpec tinyJob(const std::string& folder);

}  // namespace bulkhead::runtime
