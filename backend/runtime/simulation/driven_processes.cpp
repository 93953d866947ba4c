// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/simulation/driven_controlling.h"
#include "backend/runtime/simulation/simulated_job_impl.h"

/// The scripted ranks and agents as the real controller meets them: over connections, in bytes.
namespace bulkhead::simulation {
namespace {

constexpr int32_t kPid = 1;
constexpr int kSigKill = 9;

/// Ranks and agents are scripted: they act at once.
void atOnce(const std::function<void()>& task) {
    task();
}

}  // namespace

/// Null: the connection is refused.
std::unique_ptr<MemoryChannel> DrivenJob::dial(Executor executor, size_t there, size_t back) {
    const auto c = controller_;
    const bool cut = network_.link(there).cutUntil > now_ || network_.link(back).cutUntil > now_;
    if (cut || !c || c->dead || !c->network.accept) return nullptr;
    auto [mine, theirs] = streams_.join(std::move(executor), executorOf(c), there, back);
    std::erase_if(c->wires, [](const auto& w) { return w->ends[1] == nullptr; });
    c->wires.push_back(theirs->wire());
    executorOf(c)(
        [c = c.get(), end = std::make_shared<std::unique_ptr<MemoryChannel>>(std::move(theirs))] {
            if (!c->dead && c->network.accept) c->network.accept(std::move(*end));
        });
    return std::move(mine);
}

// ---- ranks

void DrivenJob::connect(Process& rank) {
    if (rank.connected || rank.machine.exited()) return;
    auto channel = rank.hung
                       ? nullptr
                       : dial(atOnce, linkOf(rank.id, Wire::kUp), linkOf(rank.id, Wire::kDown));
    if (channel == nullptr) return connectLater(rank, 20, 250);
    rank.connected = true;
    const RankKey key{rank.id, rank.incarnation};
    channel->start(
        [this, key](const std::string& bytes) {
            auto message = decode<ToReplica>(bytes);
            if (!message.ok()) return fail("I5", std::string(message.status().message()));
            give(key.first, key.second,
                 std::make_shared<const RankInput>(FromCoordinator{*std::move(message)}));
        },
        [this, key](const absl::Status&) { lost(key); });
    channels_[key] = std::move(channel);
    Hello hello;
    hello.job = kRun;
    hello.token = kToken;
    hello.endpoint.rank = rank.id;
    hello.endpoint.incarnation = rank.incarnation;
    hello.pid = kPid;
    hello.corpusHash = 1;
    up(rank, hello);
    ModelDescribed model;
    model.moeLayers = 1;
    model.experts = options_.shards;
    model.topK = 1;
    for (uint32_t s = 0; s < options_.shards; ++s)
        model.expertShard.push_back(static_cast<int32_t>(s));
    up(rank, model);
    step(rank, Connected{});
}

void DrivenJob::lost(const RankKey& key) {
    const auto keep = std::move(channels_[key]);
    channels_.erase(key);
    Process* rank = live(key.first, key.second);
    if (rank == nullptr || !std::exchange(rank->connected, false)) return;
    connectLater(*rank, 10, 100);
    give(key.first, key.second, std::make_shared<const RankInput>(Disconnected{}));
}

void DrivenJob::disconnect(Process& rank, bool) {
    const auto it = channels_.find({rank.id, rank.incarnation});
    if (it != channels_.end()) it->second->reset();
}

void DrivenJob::up(Process& rank, ToCoordinator message) {
    if (rank.connected) {
        (void)channels_.at({rank.id, rank.incarnation})->send(encode(message));
        return;
    }
    const Process* carrier = carrierOf(rank);
    if (carrier == nullptr) return;
    send(innerLink(rank.id, carrier->id), 0.05, 0.5,
         [this, key = RankKey{carrier->id, carrier->incarnation}, bytes = encode(message)] {
             const auto it = channels_.find(key);
             if (it != channels_.end()) (void)it->second->send(bytes);
         });
}

void DrivenJob::die(Process& rank, int signal, bool silent) {
    if (!rank.alive) return;
    SimulatedJob::die(rank, signal, silent);
    const auto it = channels_.find({rank.id, rank.incarnation});
    if (it == channels_.end()) return;
    if (silent) it->second->vanish();
    channels_.erase(it);
}

// ---- agents

void DrivenJob::fromAgent(size_t node, Input input) {
    NodeAgent& agent = nodes_[node];
    runtime::AgentMessage message;
    if (const auto* running = std::get_if<RankRunning>(&input)) {
        message = runtime::RankUp{{kRun, running->rank, running->incarnation}, kPid, ""};
    } else if (const auto* exited = std::get_if<RankExited>(&input)) {
        const uint64_t receipt = ++agent.receipts;
        message = runtime::RankGone{{kRun, exited->rank, exited->incarnation},
                                    kPid,
                                    exited->exitCode,
                                    exited->signal,
                                    exited->signal >= 0,
                                    kEpochNs + now_,
                                    receipt};
        agent.unheard[receipt] = message;
    } else {
        return;
    }
    if (agent.welcome) (void)agent.channel->send(encode(message));
}

void DrivenJob::killAgent(size_t node, MonoNs forTime, bool silent) {
    if (!agents_[node].up) return;
    SimulatedJob::killAgent(node, forTime, silent);
    NodeAgent& agent = nodes_[node];
    if (silent && agent.channel) agent.channel->vanish();
    const uint64_t receipts = agent.receipts;
    agent = {};
    agent.receipts = receipts;
}

/// It finds its processes again; how those ended that are gone nobody can say.
void DrivenJob::agentBack(size_t node, uint64_t life) {
    Agent& a = agents_[node];
    if (!a.up || a.life != life || a.connected) return;
    a.connected = true;
    ++a.life;
    forProcesses(node, [&](Process& r) {
        if (r.alive || r.reported) return;
        r.reported = true;
        fromAgent(node, RankExited{r.id, r.incarnation, 0, -1, nodeName(node), 0});
    });
    connectAgent(node);
}

void DrivenJob::cutAgent(const Fault& fault) {
    const size_t node = nodeOf(fault.replica);
    const MonoNs until = now_ + fault.duration;
    const auto longer = [until](MonoNs& t) { t = std::max(t, until); };
    const auto reset = [this, node] {
        if (nodes_[node].channel) nodes_[node].channel->reset();
    };
    longer(network_.link(agentLink(node, true)).cutUntil);
    if (fault.parameter % 2) {
        longer(network_.link(agentLink(node, false)).cutUntil);
        reset();
    }
    at(until, reset);
}

void DrivenJob::connectAgentLater(size_t node) {
    if (std::exchange(nodes_[node].retrying, true)) return;
    at(now_ + agentRng_.between(100, 250), [this, node, life = agents_[node].life] {
        if (agents_[node].life != life) return;
        nodes_[node].retrying = false;
        connectAgent(node);
    });
}

void DrivenJob::connectAgent(size_t node) {
    NodeAgent& agent = nodes_[node];
    if (!agents_[node].up || agent.channel) return;
    agent.channel = dial(atOnce, agentLink(node, true), agentLink(node, false));
    if (!agent.channel) return connectAgentLater(node);
    agent.channel->start([this, node](const std::string& bytes) { obey(node, bytes); },
                         [this, node](const absl::Status&) {
                             const auto keep = std::move(nodes_[node].channel);
                             nodes_[node].welcome = false;
                             connectAgentLater(node);
                         });
    runtime::AgentHello hello;
    hello.token = kToken;
    hello.node = nodeName(node);
    hello.address = "127.0.0.1";
    hello.slots = static_cast<uint32_t>(places() * options_.shards);
    hello.pid = kPid;
    forProcesses(node, [&](const Process& r) {
        if (r.alive || !r.reported) hello.running.push_back({{kRun, r.id, r.incarnation}, kPid});
    });
    (void)agent.channel->send(encode(hello));
}

void DrivenJob::beatLater(size_t node, const std::shared_ptr<MemoryChannel::Wire>& over,
                          MonoNs every) {
    at(now_ + every, [this, node, over, every] {
        NodeAgent& agent = nodes_[node];
        if (!agent.welcome || !agent.channel || agent.channel->wire() != over) return;
        (void)agent.channel->send(encode(runtime::AgentMessage(runtime::AgentBeat{})));
        beatLater(node, over, every);
    });
}

void DrivenJob::obey(size_t node, const std::string& bytes) {
    NodeAgent& agent = nodes_[node];
    auto command = decode<runtime::AgentCommand>(bytes);
    if (!command.ok()) return fail("I5", std::string(command.status().message()));
    if (const auto* heard = std::get_if<runtime::AgentHeard>(&*command)) {
        agent.unheard.erase(heard->receipt);
    } else if (const auto* welcome = std::get_if<runtime::AgentWelcome>(&*command)) {
        // One that is refused ends, and whoever keeps it running starts it again.
        agent.welcome = welcome->error.empty();
        if (!agent.welcome) return;
        beatLater(node, agent.channel->wire(), welcome->beatMs * kMillisecond);
        for (const auto& [receipt, message] : agent.unheard)
            (void)agent.channel->send(encode(message));
    } else if (const auto* start = std::get_if<runtime::StartRank>(&*command)) {
        startRank(node, start->process);
    } else if (const auto* signal = std::get_if<runtime::SignalRank>(&*command)) {
        signalRank(node, *signal);
    }
}

void DrivenJob::startRank(size_t node, const runtime::RankProcess& process) {
    const int32_t replica = process.rank.replica;
    if (failStart_.erase(replica) > 0) {
        (void)nodes_[node].channel->send(
            encode(runtime::AgentMessage(runtime::RankUp{process, 0, "no memory"})));
        return;
    }
    placement_[replica] = node;
    if (const Process* twin = live(process.rank, process.incarnation)) {
        if (twin->node != node)
            fail("I5", absl::StrCat(nameOf(process.rank), " #", process.incarnation, " runs on ",
                                    nodeName(twin->node), " and starts on ", nodeName(node)));
        return fromAgent(node, RankRunning{process.rank, process.incarnation, kPid, ""});
    }
    startProcess(process.rank, process.incarnation, node);
}

void DrivenJob::signalRank(size_t node, const runtime::SignalRank& command) {
    const RankKey key{command.process.rank, command.process.incarnation};
    const Process* rank = live(key.first, key.second);
    if (rank == nullptr || rank->node != node) return;
    const int signal = command.signal;
    at(now_ + agentRng_.between(0.5, signal == kSigKill ? 6 : 60), [this, key, signal] {
        if (Process* r = live(key.first, key.second)) die(*r, signal, false);
    });
}

}  // namespace bulkhead::simulation
