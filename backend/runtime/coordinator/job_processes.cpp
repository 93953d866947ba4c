// SPDX-License-Identifier: Apache-2.0
// The reaching-out half of JobCoordinator: its ranks, their processes and the nodes they run on.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/model/gpu_text.h"
#include "backend/runtime/coordinator/job_coordinator.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

/// A lost connection may be the first sign of an exit that the agent is about to report, with its
/// signal and at once; only what has no such explanation is evidence of its own.
constexpr MonoNs kExitGrace = 50 * kMillisecond;

/// Exits come right behind the hello of an agent that is back.
constexpr MonoNs kExitsToldWithin = 100 * kMillisecond;
constexpr MonoNs kInventoryLook = 50 * kMillisecond;
constexpr MonoNs kRoomLook = kSecond;

/// A killed process that is not gone by then is stuck, or has very much memory to give back.
constexpr MonoNs kEndsWithin = 5 * kSecond;

std::string name(RankId rank) {
    return absl::StrCat("r", rank.replica, "s", rank.shard);
}

/// A program in Python that lacks a module when it begins lacks it at every start.
bool lacksModule(const RankGone& gone) {
    return gone.statusKnown && gone.signal == 0 && gone.exitCode == 1 &&
           gone.words.starts_with("ModuleNotFoundError:");
}

}  // namespace

void JobCoordinator::rankConnected(std::unique_ptr<ControlChannel> channel,
                                   const protocol::Hello& hello) {
    const RankId rank = hello.endpoint.rank;
    const uint32_t incarnation = hello.endpoint.incarnation;
    links_.add(rank, incarnation, std::move(channel));
    if (finished_)
        return links_.send(rank, incarnation,
                           protocol::Leave{machine_.term(), "the run has ended"});
    received(rank, incarnation, hello);
    faults_.rankBack(rank, incarnation);
}

void JobCoordinator::received(RankId rank, uint32_t incarnation, protocol::ToCoordinator message) {
    if (const auto* beat = std::get_if<protocol::Beat>(&message))
        fleet_.beat(*beat, around_.reactor.now());
    if (const auto* noted = std::get_if<protocol::FaultNoted>(&message))
        return faults_.noted(noted->fault, noted->ended, "", noted->unixNs, noted->step);
    if (const auto* described = std::get_if<protocol::ModelDescribed>(&message)) {
        if (described_) return;
        described_ = *described;
        experts_.describe(*described, static_cast<uint32_t>(beginning_.spec.domains.size()));
        routing_.describe(*described);
        return emit(
            model::ModelDescribed{{described->name, described->parameters,
                                   described->activeParameters, described->layers,
                                   described->moeLayers, described->experts, described->topK,
                                   described->mixtureLayers, described->expertBytes,
                                   described->expertShard, described->expertsFixed}},
            model::Severity::kInfo);
    }
    (void)incarnation;
    if (const auto* unusable = std::get_if<protocol::CheckpointUnusable>(&message))
        if (const absl::Status s = checkCheckpoints(unusable->path); !s.ok()) return halt(s);
    feed(protocol::Received{rank, std::move(message)});
}

void JobCoordinator::linkClosed(RankId rank, uint32_t incarnation, const absl::Status& why) {
    const std::weak_ptr<bool> alive = alive_;
    around_.reactor.after(kExitGrace,
                          [this, alive, rank, incarnation, text = std::string(why.message())] {
                              if (!alive.expired()) suspect(rank, incarnation, text);
                          });
}

void JobCoordinator::suspect(RankId rank, uint32_t incarnation, const std::string& why) {
    const auto known = known_.find(rank);
    const bool explained = known == known_.end() || known->second.incarnation != incarnation ||
                           known->second.stopping || links_.has(rank, incarnation);
    if (explained) return;
    protocol::Evidence evidence;
    evidence.accused = rank;
    evidence.incarnation = incarnation;
    evidence.reporter = "coordinator";
    const std::string node = nodeOf(rank);
    const bool agentGone = !node.empty() && !around_.pool.isConnected(node);
    evidence.kind =
        agentGone ? protocol::EvidenceKind::kNodeLost : protocol::EvidenceKind::kTransportReset;
    evidence.detail =
        agentGone ? absl::StrCat("node ", node, ": its agent and ", name(rank), " are both gone")
        // Its process may take long to be gone, and to be told of.
        : !known->second.words.empty()
            ? absl::StrCat(name(rank), " ended: ", known->second.words)
            : absl::StrCat("the control connection of ", name(rank), ": ", why);
    feed(protocol::Received{rank, std::move(evidence)});
}

/// An agent speaks for the processes of its own node.
bool JobCoordinator::isElsewhere(const std::string& node, const RankProcess& process) const {
    const std::string there = nodeOf(process.rank);
    if (there.empty() || there == node ||
        placed_.at(process.rank.replica).incarnation != process.incarnation)
        return false;
    spdlog::warn("node {} spoke of {}, which runs on {}: ignored", node, name(process.rank), there);
    return true;
}

void JobCoordinator::rankUp(const std::string& node, const RankUp& up) {
    const RankId rank = up.process.rank;
    if (isElsewhere(node, up.process)) return;
    if (rank.shard < 0 || static_cast<uint32_t>(rank.shard) >= beginning_.spec.shards)
        return spdlog::warn("node {} spoke of {}, which this job has not: ignored", node,
                            name(rank));
    if (!up.error.empty()) {
        return feed(protocol::StartFailed{rank.replica, up.process.incarnation,
                                          absl::StrCat("node ", node, ": ", up.error)});
    }
    KnownRank& known = known_[rank];
    const bool same = known.incarnation == up.process.incarnation && known.pid == up.pid;
    // Killed, or replaced elsewhere, while its agent was away and could not be told.
    if (known.incarnation > up.process.incarnation || (same && known.killed))
        return (void)around_.pool.send(node, SignalRank{up.process, SIGKILL, 0, 0});
    if (same) return;
    known = {up.process.incarnation, up.pid, !up.gpu.uuid.empty()};
    Placed& placed = placed_[rank.replica];
    if (placed.incarnation != up.process.incarnation) placed = {up.process.incarnation, {}};
    placed.nodes.resize(beginning_.spec.shards);
    placed.nodes.at(static_cast<size_t>(rank.shard)) = node;
    fleet_.started(rank, up.process.incarnation);
    // One that outlived a coordinator was told of when it started.
    const model::RankView* told = model::findRank(state_, rank);
    if (told == nullptr || told->incarnation != up.process.incarnation || told->pid != up.pid)
        emit(model::RankStarted{rank, up.process.incarnation, up.pid, node,
                                up.gpu.uuid.empty() ? std::nullopt : std::optional(up.gpu.gpu),
                                up.gpu.uuid},
             model::Severity::kInfo);
    feed(protocol::RankRunning{rank, up.process.incarnation, up.pid, node});
    faults_.rankBack(rank, up.process.incarnation);
    // Behind the rest of what its agent tells: a hello names one rank after the other.
    if (inventoryTimer_ == 0) return;
    around_.reactor.cancel(inventoryTimer_);
    inventoryTimer_ = around_.reactor.after(0, [this] { takeInventory(); });
}

void JobCoordinator::noteFiles(const std::string& node, const RankFiles& of) {
    if (of.process.job != beginning_.run || isElsewhere(node, of.process)) return;
    constexpr size_t kMost = 16;  // more than an agent of ours names
    for (size_t f = 0; f < std::min(of.files.size(), kMost); ++f) {
        const RunFile& file = of.files[f];
        std::string before;
        for (size_t i = 0; i < state_.programs.size(); ++i)
            if (state_.programs[i].node == node && state_.programs[i].path == file.path)
                before = state_.programs[i].sha256;
        if (before == file.sha256) continue;
        const bool changed = !before.empty();
        emit(model::ProgramSeen{node, file.path, file.sha256, std::move(before), of.process.rank},
             changed ? model::Severity::kWarning : model::Severity::kInfo);
    }
}

/// Not one that died and is not gone yet.
const JobCoordinator::KnownRank* JobCoordinator::living(RankId rank) const {
    const auto it = known_.find(rank);
    return it == known_.end() || it->second.dying ? nullptr : &it->second;
}

void JobCoordinator::rankDied(const std::string& node, const RankDied& died) {
    const RankId rank = died.process.rank;
    if (isElsewhere(node, died.process)) return;
    const auto it = known_.find(rank);
    if (it == known_.end() || it->second.incarnation != died.process.incarnation) return;
    KnownRank& known = it->second;
    if (known.dying || known.stopping || finished_) return;
    known.dying = true;
    faults_.rankExited(rank, died.signal, died.unixNs);
    feed(protocol::RankExited{rank, known.incarnation, 0, died.signal, node, monoNs(died.unixNs),
                              died.words});
}

void JobCoordinator::rankGone(const std::string& node, const RankGone& gone) {
    const RankId rank = gone.process.rank;
    if (isElsewhere(node, gone.process)) return;
    ended_.insert(rank);
    const auto known = known_.find(rank);
    const bool current =
        known != known_.end() && known->second.incarnation == gone.process.incarnation;
    const bool expected = finished_ || (current && known->second.stopping);
    // Told again because nobody said that it was heard: the coordinator before may have ended
    // there.
    const model::RankView* told = model::findRank(state_, rank);
    if (told != nullptr && told->lastExit && told->lastExit->pid == gone.pid &&
        told->lastExit->incarnation == gone.process.incarnation)
        return;
    if (current) known_.erase(known);
    fleet_.exited(rank, gone.process.incarnation);
    emit(model::RankExited{rank, gone.process.incarnation, gone.pid,
                           gone.statusKnown ? gone.exitCode : -1, gone.signal, expected},
         expected ? model::Severity::kInfo : model::Severity::kWarning);
    faults_.rankExited(rank, gone.signal, gone.unixNs);
    const model::ReplicaView* replica = model::findReplica(state_, rank.replica);
    const bool begun = replica != nullptr && replica->state != model::ReplicaState::kStarting;
    const int32_t code =
        !begun && lacksModule(gone) ? int32_t{protocol::kExitHopeless} : gone.exitCode;
    feed(protocol::RankExited{rank, gone.process.incarnation, code, gone.signal, node,
                              monoNs(gone.unixNs), gone.words, gone.statusKnown});
    tryStarts();
}

/// One that is connected lives: it trains on, and what its agent would have told of its end is left
/// to its connection.
void JobCoordinator::rankUnknown(const std::string& node, const RunningRank& rank,
                                 const std::string& why) {
    const RankProcess& process = rank.process;
    if (!links_.has(process.rank, process.incarnation))
        return rankGone(node,
                        {process, rank.pid, 0, 0, false, around_.reactor.clock().unixNs(), 0, why});
    emit(model::EvidenceSeen{model::EvidenceKind::kProcessExit, process.rank.replica,
                             process.rank.shard, absl::StrCat("agent ", node),
                             absl::StrCat(name(process.rank), " (pid ", rank.pid,
                                          ") is connected and trains on without an agent: ", why)},
         model::Severity::kWarning);
}

/// It may run there all the same, or begin when the node wakes: the next start is a new
/// incarnation, which fences this one.
void JobCoordinator::startLost(const std::string& node, const RankProcess& process) {
    feed(protocol::StartFailed{process.rank.replica, process.incarnation,
                               absl::StrCat("node ", node, " went meanwhile")});
}

void JobCoordinator::agentSaid(const std::string& node, const AgentMessage& message) {
    if (const auto* files = std::get_if<RankFiles>(&message)) noteFiles(node, *files);
    if (const auto* sample = std::get_if<NodeSample>(&message)) {
        for (const ProcessSample& rank : sample->ranks)
            if (rank.process.job == beginning_.run) fleet_.sampled(rank);
        fleet_.sampled(sample->node);
    }
    if (const auto* seen = std::get_if<GpuTroubleSeen>(&message)) gpuTroubled(*seen);
    if (const auto* out = std::get_if<OutputLine>(&message)) {
        const std::string lost =
            out->dropped == 0 ? "" : absl::StrCat("[", out->dropped, " lines were too many] ");
        emit(model::RankOutput{out->process.rank, out->process.incarnation, out->isStderr,
                               lost + out->line},
             model::Severity::kInfo);
        const auto known = known_.find(out->process.rank);
        if (out->isStderr && known != known_.end() &&
            known->second.incarnation == out->process.incarnation)
            if (std::string words = criticalWords(out->line); !words.empty())
                known->second.words = std::move(words);
    }
    if (const auto* noted = std::get_if<AgentFaultNoted>(&message))
        faults_.noted(noted->fault, noted->ended, noted->error, noted->unixNs, 0);
}

void JobCoordinator::gpuTroubled(const GpuTroubleSeen& seen) {
    model::GpuTroubled trouble = seen.trouble;
    // Told again because nobody said that it was heard: the coordinator before may have ended
    // there.
    for (size_t i = 0; i < state_.gpuTroubles.size(); ++i) {
        const model::GpuTroubled& told = state_.gpuTroubles[i].trouble;
        if (told.node == trouble.node && told.gpu == trouble.gpu && told.seenNs == trouble.seenNs &&
            told.xid == trouble.xid && told.eccUncorrected == trouble.eccUncorrected)
            return;
    }
    for (const RankProcess& rank : seen.ranks)
        if (rank.job == beginning_.run) trouble.ranks.push_back(rank.rank);
    const model::Severity severity = model::severityOf(trouble);
    emit(std::move(trouble), severity);
}

void JobCoordinator::nodeChanged(const NodeStatus& node, const std::string& why) {
    const auto seen = nodeStates_.find(node.node);
    if (seen == nodeStates_.end() || seen->second != node.state) {
        nodeStates_[node.node] = node.state;
        lastNodeAt_ = around_.reactor.now();
        const bool lost = node.state == model::NodeState::kLost;
        emit(model::NodeChanged{node.node, node.address, node.slots, node.state, why},
             lost ? model::Severity::kWarning : model::Severity::kNotice);
        if (lost) fleet_.lost(node.node);
        if (lost) feed(protocol::NodeLost{node.node, replicasOn(node.node)});
    }
    tryStarts();
}

void JobCoordinator::act(const protocol::StartReplica& action) {
    placed_.erase(action.replica);  // the nodes that it had may go
    waitingStarts_[action.replica] = action.incarnation;
    tryStarts();
}

/// By its own link, or by its node's agent.
bool JobCoordinator::isFound(RankId rank) const {
    const model::RankView* past = model::findRank(state_, rank);
    return known_.contains(rank) || (past != nullptr && links_.has(rank, past->incarnation));
}

/// Replicas with a rank that history has running and that was not found, by its node, whose agent
/// has not told: its hello would name all that runs there. When history was lost nobody knows the
/// nodes, and whatever was not told to be gone may run.
std::map<int32_t, std::string> JobCoordinator::unheard() const {
    std::map<int32_t, std::string> unheard;
    if (machine_.committedStep() == machine_.checkpointStep()) return unheard;
    const uint32_t replicas = beginning_.spec.replicas + beginning_.spec.spares;
    for (uint32_t r = 0; r < replicas; ++r)
        for (uint32_t s = 0; s < beginning_.spec.shards; ++s) {
            const RankId rank{static_cast<int32_t>(r), static_cast<int32_t>(s)};
            if (isFound(rank)) continue;
            const model::RankView* past = model::findRank(state_, rank);
            if (past == nullptr ? state_.ranks.empty() && !ended_.contains(rank)
                                : past->pid != 0 && !around_.pool.isConnected(past->node))
                unheard.emplace(rank.replica, past == nullptr ? "" : past->node);
        }
    return unheard;
}

/// All that could be there has been heard of. A node that is away for longer than agents may be
/// silent is not waited for here when a whole replica was found, nor is any for longer than joinMs:
/// the machine is told who is unheard, and waits for them if they may hold what nobody else does.
bool JobCoordinator::inventoryDone(const std::map<int32_t, std::string>& unheard) const {
    const auto shards = static_cast<int32_t>(beginning_.spec.shards);
    const auto isWhole = [&](int32_t replica) {
        for (int32_t s = 0; s < shards; ++s)
            if (!isFound({replica, s})) return false;
        return true;
    };
    size_t whole = 0;
    const uint32_t replicas = beginning_.spec.replicas + beginning_.spec.spares;
    for (uint32_t r = 0; r < replicas; ++r) whole += isWhole(static_cast<int32_t>(r));
    const MonoNs now = around_.reactor.now();
    if (whole == replicas || now - beganAt_ >= beginning_.spec.timeouts.joinMs * kMillisecond)
        return true;
    if (whole > 0 && now - beganAt_ > around_.pool.silence()) return true;
    for (const model::NodePlacement& p : beginning_.spec.placement)
        if (!around_.pool.knows(p.node)) return false;
    const bool heard =
        std::all_of(state_.ranks.begin(), state_.ranks.end(), [&](const model::RankView& r) {
            return r.pid == 0 || isFound(r.rank) || around_.pool.isConnected(r.node);
        });
    return heard && unheard.empty() && !nodeStates_.empty() && now - lastNodeAt_ > kExitsToldWithin;
}

void JobCoordinator::takeInventory() {
    around_.reactor.cancel(std::exchange(inventoryTimer_, 0));
    if (finished_) return;
    const std::map<int32_t, std::string> now = unheard();
    if (!awaited_ && inventoryDone(now)) {
        awaited_ = now;
        faults_.inventoryDone();  // first: a loss that is found now may answer to one of them
        feed(protocol::InventoryDone{now});
    } else if (awaited_ && around_.reactor.now() - lastNodeAt_ > kExitsToldWithin) {
        const size_t before = awaited_->size();
        std::erase_if(*awaited_, [&](const auto& r) { return !now.contains(r.first); });
        if (awaited_->size() < before) feed(protocol::InventoryDone{*awaited_});
    }
    if ((!awaited_ || !awaited_->empty()) && !finished_)
        inventoryTimer_ = around_.reactor.after(kInventoryLook, [this] { takeInventory(); });
}

/// A node that went while no controller looked is lost like any other, with the ranks that it had.
void JobCoordinator::missNodes() {
    missTimer_ = 0;
    const std::vector<model::NodeView> nodes = {state_.nodes.begin(), state_.nodes.end()};
    for (const model::NodeView& node : nodes) {
        std::vector<RunningRank> ranks;
        for (const model::RankView& rank : state_.ranks)
            if (rank.node == node.node && rank.pid != 0 && !isFound(rank.rank))
                ranks.push_back({{beginning_.run, rank.rank, rank.incarnation}, rank.pid});
        if (node.state == model::NodeState::kLost)
            nodeStates_.emplace(node.node, node.state);  // told already
        around_.pool.miss({node.node, node.address, node.slots}, ranks);
    }
}

std::string JobCoordinator::preferredNode(int32_t replica) const {
    for (const model::NodePlacement& p : beginning_.spec.placement)
        if (std::find(p.replicas.begin(), p.replicas.end(), replica) != p.replicas.end())
            return p.node;
    return "";
}

/// A replica of it spans nodes now, or did when it was started last.
bool JobCoordinator::spansNodes() const {
    return std::ranges::any_of(state_.replicas, [this](const model::ReplicaView& replica) {
        return model::nodesOf(state_, replica).size() > 1;
    });
}

/// A job that chooses by itself and has chosen: all of its ranks have GPUs, or none.
bool JobCoordinator::computesWithoutGpus() const {
    const model::JobSpec& spec = beginning_.spec;
    return spec.device == "auto" && !spec.shareGpu && !known_.empty() &&
           !known_.begin()->second.onGpu;
}

/// Those for which no node has room, and their incarnations.
std::map<int32_t, uint32_t> JobCoordinator::tryStarts() {
    std::map<int32_t, uint32_t> noRoom;
    if (finished_) return noRoom;
    std::vector<protocol::StartFailed> failed;
    std::optional<bool> spans;  // found when it is asked
    for (auto it = waitingStarts_.begin(); it != waitingStarts_.end();) {
        const auto [replica, incarnation] = *it;
        const std::string preferred = preferredNode(replica);
        AgentPool::Need need{beginning_.spec.shards,
                             beginning_.spec.mayUseGpus() && !computesWithoutGpus(),
                             beginning_.spec.shareGpu};
        std::vector<std::string> nodes = around_.pool.choose(need, preferred);
        if (nodes.empty() && need.slots > 1) {
            if (!spans) spans = spansNodes();
            need.spans = *spans;
            nodes = around_.pool.choose(need, preferred);
        }
        // At the start of a job its nodes connect one after the other: wait for the one it names.
        const bool early = !preferred.empty() && !around_.pool.knows(preferred) &&
                           around_.reactor.now() < placementUntil_;
        if (nodes.empty() || early) {
            if (nodes.empty()) noRoom.insert(*it);
            ++it;
            continue;
        }
        // It may still hold what the new process needs: addresses, a GPU's memory.
        const auto old = std::ranges::find_if(nodes, [&](const std::string& node) {
            return around_.pool.predecessor(node, beginning_.run, replica, incarnation).has_value();
        });
        if (old != nodes.end()) {
            tellPredecessor(replica, incarnation, *old);
            ++it;
            continue;
        }
        const absl::Status started = startOn(nodes, replica, incarnation);
        // Its agent has just gone: the same again finds another node, or waits for one. Of several
        // nodes some have begun it, and the next start is a new incarnation.
        if (!started.ok() && nodes.front() == nodes.back() &&
            !around_.pool.isConnected(nodes.front()))
            continue;
        toldNoSlots_.erase(replica);
        it = waitingStarts_.erase(it);
        if (!started.ok()) failed.push_back({replica, incarnation, std::string(started.message())});
    }
    lookForRoomAgain();
    for (protocol::StartFailed& f : failed) feed(std::move(f));
    return noRoom;
}

/// However long there is no room, none of those that wait for it is late.
void JobCoordinator::lookForRoomAgain() {
    around_.reactor.cancel(std::exchange(placementTimer_, 0));
    if (waitingStarts_.empty()) return;
    const MonoNs named = placementUntil_ - around_.reactor.now();
    placementTimer_ =
        around_.reactor.after(named > 0 ? std::min(named, kRoomLook) : kRoomLook, [this] {
            placementTimer_ = 0;
            protocol::Tick tick;
            for (const auto& [replica, incarnation] : waitingStarts_)
                tick.unplaced.push_back(replica);
            feed(tick);
            for (const auto& [replica, incarnation] : tryStarts()) {
                const auto waiting = waitingStarts_.find(replica);
                if (waiting != waitingStarts_.end() && waiting->second == incarnation &&
                    around_.reactor.now() >= placementUntil_)
                    tellNoSlots(replica, incarnation);
            }
        });
}

/// Most are gone at once. One that stays keeps its replica away, which must be said.
void JobCoordinator::tellPredecessor(int32_t replica, uint32_t incarnation,
                                     const std::string& node) {
    if (std::exchange(awaitingEnd_[replica], incarnation) == incarnation) return;
    const std::weak_ptr<bool> alive = alive_;
    around_.reactor.after(kEndsWithin, [this, alive, replica, incarnation, node] {
        if (alive.expired() || finished_) return;
        const auto waiting = waitingStarts_.find(replica);
        const auto old = around_.pool.predecessor(node, beginning_.run, replica, incarnation);
        if (waiting == waitingStarts_.end() || waiting->second != incarnation || !old) return;
        emit(
            model::ReplicaChanged{
                replica, incarnation, model::ReplicaState::kStarting, node, 0,
                absl::StrCat("it starts when process ", old->pid, " of ", name(old->process.rank),
                             ", incarnation ", old->process.incarnation, ", is gone from ", node,
                             ", which takes long: look at what it hangs in, or cordon the node")},
            model::Severity::kWarning);
    });
}

/// A job that stands still for want of slots must say so, and what it is now.
void JobCoordinator::tellNoSlots(int32_t replica, uint32_t incarnation) {
    const bool onGpus = beginning_.spec.mayUseGpus(), share = beginning_.spec.shareGpu;
    bool gpus = false;
    std::string nodes;
    for (const NodeStatus& node : around_.pool.nodes()) {
        absl::StrAppend(&nodes, nodes.empty() ? "" : ", ", node.node, " ",
                        model::NodeState::kUp == node.state ? "" : "(not up) ", node.used, " of ",
                        node.slots, " used");
        gpus = gpus || (onGpus && node.gpus > 0);
        if (onGpus && node.gpus > 0)
            absl::StrAppend(&nodes, " and ", node.gpusUsed, " of ", node.gpus, " GPUs");
    }
    std::string why = absl::StrCat(
        "no node has ", beginning_.spec.shards, " free slots",
        !gpus   ? ""
        : share ? " and a GPU that no job has for itself"
                : " with a GPU each",
        " (", nodes.empty() ? "no agent is connected" : nodes, "); it starts when there are: ",
        !gpus   ? "add an agent, or one with more --slots"
        : share ? "add a node, or set share_gpu = true in the other jobs too"
                : "add a node, use fewer replicas or shards, or set share_gpu = true");
    if (const auto told = toldNoSlots_.find(replica);
        told != toldNoSlots_.end() && told->second == std::pair(incarnation, why))
        return;
    toldNoSlots_[replica] = {incarnation, why};
    emit(model::ReplicaChanged{replica, incarnation, model::ReplicaState::kStarting, "", 0,
                               std::move(why)},
         model::Severity::kWarning);
}

RankSecrets JobCoordinator::rankSecrets(const RankProcess& process) const {
    const std::string replica =
        absl::StrCat("replica ", process.rank.replica, " ", process.incarnation);
    return {around_.secret.derive(rankIdentity(beginning_.run, process.rank, process.incarnation)),
            around_.secret.derive(replica)};
}

absl::Status JobCoordinator::startOn(const std::vector<std::string>& nodes, int32_t replica,
                                     uint32_t incarnation) {
    placed_[replica] = {incarnation, nodes};
    for (uint32_t s = 0; s < beginning_.spec.shards; ++s) {
        const std::string& node = nodes[s];
        StartRank start;
        start.process = {beginning_.run, {replica, static_cast<int32_t>(s)}, incarnation};
        const bool own = !beginning_.spec.command.empty();
        start.argv = own ? beginning_.spec.command : std::vector{around_.workerPath};
        start.environment = beginning_.spec.env;
        start.directory = beginning_.spec.directory;
        start.onGpu = beginning_.spec.mayUseGpus();
        start.shareGpu = beginning_.spec.shareGpu;
        start.noGpu = computesWithoutGpus();
        if (!own) start.workload = beginning_.spec.workload;
        if (!own) start.device = beginning_.spec.device;
        start.secrets = rankSecrets(start.process);
        start.shared = {{beginning_.dir + "/id", beginning_.id}};
        // Behind the first step others have the state, though this storage be away.
        if (!state_.lastCommit)
            start.shared.push_back({checkpointLock(beginning_.spec.checkpointDir), ""});
        const std::pair<std::string, std::string> told[] = {
            {"job", beginning_.run},
            {"job-file", beginning_.dir + "/job.json"},
            {"coordinator", around_.pool.reachedAt(node)},
            {"replica", absl::StrCat(replica)},
            {"shard", absl::StrCat(s)},
            {"incarnation", absl::StrCat(incarnation)},
            {"node", node},
            {"address", around_.pool.addressOf(node)},
            {"run-dir", beginning_.dir + "/run"}};
        for (const auto& [name, value] : told) {
            if (own)
                start.environment.push_back(absl::StrCat(protocol::rankVariable(name), "=", value));
            else
                start.argv.insert(start.argv.end(), {absl::StrCat("--", name), value});
        }
        if (absl::Status sent = around_.pool.start(node, std::move(start)); !sent.ok()) return sent;
    }
    return absl::OkStatus();
}

void JobCoordinator::act(const protocol::StopReplica& action) {
    if (const auto it = waitingStarts_.find(action.replica);
        it != waitingStarts_.end() && it->second <= action.incarnation) {
        protocol::StartFailed never{it->first, it->second, "it was stopped before a node had it"};
        waitingStarts_.erase(it);
        feed(std::move(never));
    }
    const model::ReplicaView* replica = model::findReplica(state_, action.replica);
    const auto placed = placed_.find(action.replica);
    if (action.kill && replica != nullptr && replica->state == model::ReplicaState::kStarting &&
        placed != placed_.end() && placed->second.incarnation == action.incarnation)
        for (const std::string& node : placed->second.nodes) around_.pool.doubt(node);
    for (auto& [rank, known] : known_)
        if (rank.replica == action.replica && known.incarnation <= action.incarnation) {
            known.stopping = true;
            known.killed = known.killed || action.kill;
        }
    for (const auto& [node, running] : around_.pool.running(beginning_.run)) {
        const RankProcess& process = running.process;
        if (process.rank.replica != action.replica || process.incarnation > action.incarnation)
            continue;
        // One that is connected was told to leave and does so in order.
        if (!action.kill && links_.has(process.rank, process.incarnation)) continue;
        (void)around_.pool.send(node, SignalRank{process, action.kill ? SIGKILL : SIGTERM, 0, 0});
    }
    // A process that hangs does not leave by itself.
    const std::weak_ptr<bool> alive = alive_;
    protocol::StopReplica last = action;
    last.kill = true;
    if (!action.kill)
        around_.reactor.after(protocol::Timeouts{}.stopMs * kMillisecond, [this, alive, last] {
            if (!alive.expired()) act(last);
        });
}

FaultRunner::Hands JobCoordinator::hands() {
    FaultRunner::Hands h;
    h.commit = [this](RankId rank, const protocol::CommitFault& fault) -> absl::Status {
        const KnownRank* known = living(rank);
        if (known == nullptr || !links_.has(rank, known->incarnation))
            return absl::UnavailableError(absl::StrCat(name(rank), " is not connected"));
        links_.send(rank, known->incarnation, fault);
        return absl::OkStatus();
    };
    h.signal = [this](RankId rank, int signal, uint64_t fault,
                      uint64_t durationMs) -> absl::Status {
        const KnownRank* known = living(rank);
        if (known == nullptr)
            return absl::UnavailableError(absl::StrCat(name(rank), " does not run"));
        const RankProcess process{beginning_.run, rank, known->incarnation};
        return around_.pool.send(nodeOf(rank), SignalRank{process, signal, fault, durationMs});
    };
    h.fillDisk = [this](const std::string& node, uint64_t fault, uint64_t durationMs) {
        const std::string& dir = beginning_.spec.checkpointDir;
        const auto nodes = around_.pool.nodes();
        const std::string where = node.empty() && !nodes.empty() ? nodes.front().node : node;
        return around_.pool.send(where, FillDisk{beginning_.run, fault, dir, durationMs});
    };
    h.killNode = [this](const std::string& node, uint64_t fault) {
        return around_.pool.send(node, KillNode{fault});
    };
    h.end = [this](uint64_t fault, const std::set<RankId>& ranks) {
        EndFault command{beginning_.run, fault, {}};
        for (const RankId rank : ranks)
            if (const KnownRank* known = living(rank))
                command.ranks.push_back({beginning_.run, rank, known->incarnation});
        for (const NodeStatus& node : around_.pool.nodes())
            if (around_.pool.isConnected(node.node)) (void)around_.pool.send(node.node, command);
    };
    h.replicasOn = [this](const std::string& node) { return replicasOn(node); };
    h.emit = [this](model::EventBody body, model::Severity severity) {
        emit(std::move(body), severity);
    };
    h.unixNs = [this] { return around_.reactor.clock().unixNs(); };
    h.incarnationOf = [this](RankId rank) -> std::optional<uint32_t> {
        const KnownRank* known = living(rank);
        if (known == nullptr) return std::nullopt;
        return known->incarnation;
    };
    h.save = [this](const SavedFaults& faults) {
        return saveFaults(around_.files, beginning_.dir, faults);
    };
    return h;
}

std::string JobCoordinator::nodeOf(RankId rank) const {
    const auto it = placed_.find(rank.replica);
    const auto shard = static_cast<size_t>(rank.shard);
    return it == placed_.end() || shard >= it->second.nodes.size() ? "" : it->second.nodes[shard];
}

std::vector<int32_t> JobCoordinator::replicasOn(const std::string& node) const {
    std::vector<int32_t> replicas;
    for (const auto& [replica, placed] : placed_)
        if (std::ranges::find(placed.nodes, node) != placed.nodes.end())
            replicas.push_back(replica);
    return replicas;
}

}  // namespace bulkhead::runtime
