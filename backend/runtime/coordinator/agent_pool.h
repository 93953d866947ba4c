// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/file_system.h"
#include "backend/model/event.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/coordinator/job_status.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::runtime {

/// The nodes of a controller: their agents' connections, their slots, what runs where. Shared by
/// all jobs. Thread: the reactor's.
class AgentPool {
  public:
    /// Callbacks of the pool; all run on the reactor's thread.
    struct Listener {
        /// The node came, went or was cordoned, or its agent went and may come back.
        std::function<void(const NodeStatus&, const std::string& why)> nodeChanged;
        std::function<void(const std::string& node, const RankUp&)> rankUp;
        /// false: whoever it is for is not there yet. It is told again by tellHeld().
        std::function<bool(const std::string& node, const RankDied&)> rankDied;
        /// The same.
        std::function<bool(const std::string& node, const RankGone&)> rankGone;
        /// The agent that is there now does not know the process, which the one before started: it
        /// ended unseen, or runs without an agent.
        std::function<void(const std::string& node, const RunningRank&, const std::string& why)>
            rankUnknown;
        /// The agent went before it said whether the process runs.
        std::function<void(const std::string& node, const RankProcess&)> startLost;
        /// The same.
        std::function<bool(const std::string& node, const AgentMessage&)> other;
    };

    /// `cordonFile` holds the names of cordoned nodes, one a line.
    AgentPool(Reactor& reactor, FileSystem& files, AgentHeartbeat heartbeat, std::string cordonFile,
              Listener listener);
    ~AgentPool();

    /// A connection whose first message was `hello`. Takes it, or refuses it with the reason.
    void accept(std::unique_ptr<ControlChannel> channel, const AgentHello& hello);

    /// The room that a replica needs.
    struct Need {
        uint32_t slots = 1;
        bool onGpu = false;     ///< a GPU a slot; when no node has any, none
        bool shareGpu = false;  ///< instead, one that no job has for itself
        bool spans = false;     ///< nodes, also where one is large enough but full
    };
    /// The node of each slot, all the same: `preferred` when it is up and has that free, else the
    /// one with most room. Where no node that is up is so large, or those are full and the replica
    /// is one that spans nodes, few nodes with that free together,
    /// neighbouring slots on the same one. Nodes that miss heartbeats now, or failed lately
    /// (doubt()), come last. Empty: there is no such room now.
    std::vector<std::string> choose(Need need, const std::string& preferred) const;

    /// Reserves the slot and tells the agent; RankUp or RankGone follows. Unavailable when the
    /// agent is away.
    absl::Status start(const std::string& node, StartRank command);
    absl::Status send(const std::string& node, const AgentCommand& command);

    /// Durable when it returns OK: a later controller knows. NotFound names the nodes there are.
    absl::Status cordon(const std::string& node, bool cordoned, const std::string& by);
    /// A lost node is known no more, nor that it was cordoned, until an agent of that name
    /// connects. FailedPrecondition when it is not lost, or ran ranks of which nothing is known,
    /// unless `machineIsOff`: then these have ended unseen.
    absl::Status forget(const std::string& node, bool machineIsOff, const std::string& by);
    /// History has `ranks` running on `node` under an earlier controller. If its agent has not
    /// connected to this one, the node is lost.
    void miss(const NodeStatus& node, const std::vector<RunningRank>& ranks);

    /// A start on the node failed, for no reason that lies in the job: it is the last choice for
    /// some time, as a node that was lost is.
    void doubt(const std::string& node);

    /// Tells the listener again what nobody could act on so far.
    void tellHeld();

    /// A node of which nothing was heard for longer does not respond.
    MonoNs silence() const { return heartbeat_.silenceMs() * kMillisecond; }
    /// It has connected at some time, or is missed.
    bool knows(const std::string& node) const { return nodes_.contains(node); }
    bool isConnected(const std::string& node) const;
    /// The controller's address as the node's agent reached it, for the node's ranks: whatever the
    /// controller listens on, a wildcard too. Empty: the agent is not connected.
    std::string reachedAt(const std::string& node) const;
    std::string addressOf(const std::string& node) const;
    /// One of the replica's processes of incarnations before `incarnation` that is not gone from
    /// the node; its pid, 0 while starting.
    std::optional<RunningRank> predecessor(const std::string& node, const std::string& job,
                                           int32_t replica, uint32_t incarnation) const;
    /// Processes of a job and their pids, 0 while starting, by node.
    std::vector<std::pair<std::string, RunningRank>> running(const std::string& job) const;
    std::vector<NodeStatus> nodes() const;

  private:
    struct Node {
        NodeStatus status;
        std::unique_ptr<ControlChannel> channel;
        std::string home;               ///< AgentHello::home of its agent
        std::vector<std::string> gpus;  ///< UUIDs of those that it gives to ranks
        MonoNs lastHeard = 0;  ///< 0: its agent has never connected (miss())
        MonoNs failedAt = 0;  ///< was lost or doubted last; 0: never
        bool broken = false;  ///< a message could not be sent; that it closed is about to be told
        std::map<RankProcess, int32_t> processes;  ///< pid, 0 while starting
        std::map<RankProcess, GpuPlace> onGpus;    ///< of them; no UUID while starting
        Reactor::TimerId lossTimer = 0;
        Reactor::TimerId missingTimer = 0;
    };

    void received(const std::string& name, const std::string& bytes);
    void lost(const std::string& name, const std::string& why, MonoNs after);
    bool isSilent(const Node& node) const;
    void loseSilent();
    void missing(const std::string& name, const std::set<RankProcess>& processes,
                 const std::string& why);
    void tell(const std::string& name, AgentMessage message);
    void add(Node& node, const RankProcess& process, int32_t pid, const GpuPlace& gpu);
    void forget(Node& node, const RankProcess& process);
    void count(Node& node) const;
    uint32_t freeGpus(const Node& node, bool shared) const;
    absl::Status keepCordoned(std::set<std::string> names);
    absl::Status refusal(const AgentHello& hello) const;
    absl::Status noSuchNode(const std::string& node) const;

    Reactor& reactor_;
    FileSystem& files_;
    const AgentHeartbeat heartbeat_;
    const std::string cordonFile_;
    std::set<std::string> cordoned_;
    Listener listener_;
    std::map<std::string, Node> nodes_;
    MonoNs lookedAt_ = 0;  ///< for silent agents
    Reactor::TimerId listening_ = 0;
    std::vector<std::pair<std::string, AgentMessage>> held_;  ///< by node; its agent keeps it, too
};

}  // namespace bulkhead::runtime
