// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/agent_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "backend/common/codec.h"
#include "backend/model/names.h"

namespace bulkhead::runtime {
namespace {

/// After this a node that went silent counts as lost.
constexpr MonoNs kLossAfter = kSecond;
/// Likewise one whose agent went. It may be started again; what became of its ranks is seen sooner,
/// on their own connections.
constexpr MonoNs kAgentBackWithin = 5 * kSecond;
/// Exits that happened while the connection was down come right behind the hello. What is neither
/// running nor reported by then has left no trace.
constexpr MonoNs kMissingAfter = 300 * kMillisecond;
/// A node on which something failed is the last choice for so long.
constexpr MonoNs kDoubtedFor = 300 * kSecond;

}  // namespace

AgentPool::AgentPool(Reactor& reactor, FileSystem& files, AgentHeartbeat heartbeat,
                     std::string cordonFile, Listener listener)
    : reactor_(reactor),
      files_(files),
      heartbeat_(heartbeat),
      cordonFile_(std::move(cordonFile)),
      listener_(std::move(listener)) {
    const std::string names = files_.read(cordonFile_).value_or("");
    cordoned_ = absl::StrSplit(names, '\n', absl::SkipEmpty());
    lookedAt_ = reactor_.now();
    listening_ = reactor_.every(heartbeat_.intervalMs * kMillisecond, [this] { loseSilent(); });
}

AgentPool::~AgentPool() {
    reactor_.cancel(listening_);
    for (auto& [name, node] : nodes_) {
        reactor_.cancel(node.lossTimer);
        reactor_.cancel(node.missingTimer);
    }
}

absl::Status AgentPool::refusal(const AgentHello& hello) const {
    if (!model::isFileName(hello.node))
        return absl::InvalidArgumentError(
            model::concat("its name is none; start it with --node and ", model::kFileNameRule));
    for (const auto& [name, node] : nodes_)
        for (const std::string& gpu : node.gpus)
            if (name != hello.node && node.channel != nullptr && !isSilent(node) &&
                std::ranges::find(hello.gpus, gpu) != hello.gpus.end())
                return absl::AlreadyExistsError(
                    absl::StrCat(gpu, " is given to ranks by the agent of node ", name,
                                 " already; narrow one of them with --gpus"));
    const auto it = nodes_.find(hello.node);
    // The connection before may be dead without a word; then its silence tells.
    if (it == nodes_.end() || isSilent(it->second)) return absl::OkStatus();
    if (it->second.channel != nullptr)
        return absl::AlreadyExistsError(
            absl::StrCat("a node named ", hello.node, " is connected already; rename one of them"));
    // An agent that ended is back within this; it alone can look after the ranks that it started.
    if (it->second.home != hello.home && !it->second.processes.empty())
        return absl::AlreadyExistsError(
            absl::StrCat("the agent named ", hello.node, " at ", it->second.home,
                         " went a moment ago and left ranks; rename this one"));
    return absl::OkStatus();
}

void AgentPool::accept(std::unique_ptr<ControlChannel> channel, const AgentHello& hello) {
    if (absl::Status no = refusal(hello); !no.ok()) {
        const uint32_t tryAgainMs = absl::IsAlreadyExists(no) ? 2 * heartbeat_.silenceMs() : 0;
        (void)channel->send(
            encode(AgentCommand(AgentWelcome{std::string(no.message()), 0, tryAgainMs})));
        channel->close();
        return;
    }
    Node& node = nodes_[hello.node];
    if (node.channel != nullptr) lost(hello.node, "another connection took its place", kLossAfter);
    reactor_.cancel(node.lossTimer);
    reactor_.cancel(node.missingTimer);
    const bool isNew = node.status.node.empty() || node.status.state == model::NodeState::kLost;
    node.status.node = hello.node;
    node.status.address = hello.address;
    node.status.slots = hello.slots;
    node.gpus = hello.gpus;
    node.status.state =
        cordoned_.contains(hello.node) ? model::NodeState::kCordoned : model::NodeState::kUp;
    node.status.why.clear();
    node.channel = std::move(channel);
    node.broken = false;
    node.lastHeard = reactor_.now();
    std::erase_if(held_, [&](const auto& h) { return h.first == hello.node; });  // told again

    const std::string before = std::exchange(node.home, hello.home);
    const std::string why =
        before == node.home
            ? absl::StrCat("the agent of ", hello.node, " is back and does not know of it")
            : absl::StrCat("the agent of ", hello.node, " was replaced: the one at ", before,
                           " had started it, the one at ", node.home, " does not know of it");
    std::set<RankProcess> missed;
    for (const auto& [process, pid] : node.processes) missed.insert(process);
    for (const RunningRank& running : hello.running) {
        missed.erase(running.process);
        add(node, running.process, running.pid, running.gpu);
    }
    count(node);
    const std::string name = hello.node;
    node.channel->start([this, name](std::string bytes) { received(name, bytes); },
                        [this, name](const absl::Status& why) {
                            lost(name, absl::StrCat("its agent is gone: ", why.message()),
                                 kAgentBackWithin);
                        });
    const AgentWelcome welcome{"", heartbeat_.intervalMs, 0};
    if (absl::Status s = node.channel->send(encode(AgentCommand(welcome))); !s.ok())
        return lost(name, absl::StrCat("its agent is gone: ", s.message()), kAgentBackWithin);
    if (!missed.empty())
        node.missingTimer = reactor_.after(
            kMissingAfter, [this, name, missed, why] { missing(name, missed, why); });
    for (const RunningRank& running : hello.running)
        listener_.rankUp(name, {running.process, running.pid, "", running.gpu});
    listener_.nodeChanged(node.status, isNew ? "its agent has connected" : "its agent is back");
}

void AgentPool::missing(const std::string& name, const std::set<RankProcess>& processes,
                        const std::string& why) {
    for (const RankProcess& process : processes) {
        Node& node = nodes_[name];
        const auto it = node.processes.find(process);
        if (it == node.processes.end()) continue;
        const int32_t pid = it->second;
        forget(node, process);
        listener_.rankUnknown(name, {process, pid}, why);
    }
}

void AgentPool::add(Node& node, const RankProcess& process, int32_t pid, const GpuPlace& gpu) {
    node.processes[process] = pid;
    node.onGpus.erase(process);
    if (!gpu.uuid.empty()) node.onGpus[process] = gpu;
    count(node);
}

void AgentPool::forget(Node& node, const RankProcess& process) {
    node.processes.erase(process);
    node.onGpus.erase(process);
    count(node);
}

void AgentPool::count(Node& node) const {
    node.status.used = static_cast<uint32_t>(node.processes.size());
    node.status.gpus = static_cast<uint32_t>(node.gpus.size());
    node.status.gpusUsed = node.status.gpus - freeGpus(node, false);
}

/// That a rank can have for itself, or share. A rank keeps its GPU when its agent comes back with
/// others, and another agent of the machine with that one.
uint32_t AgentPool::freeGpus(const Node& node, bool shared) const {
    std::set<std::string> taken;
    size_t promised = 0;
    for (const auto& [name, other] : nodes_)
        for (const auto& [process, gpu] : other.onGpus) {
            if ((shared && gpu.shared) || other.status.state == model::NodeState::kLost) continue;
            promised += gpu.uuid.empty() && &other == &node;
            taken.insert(gpu.uuid);
        }
    const auto free = static_cast<size_t>(std::ranges::count_if(
        node.gpus, [&](const std::string& gpu) { return !taken.contains(gpu); }));
    return static_cast<uint32_t>(free - std::min(free, promised));
}

void AgentPool::received(const std::string& name, const std::string& bytes) {
    auto message = decode<AgentMessage>(bytes);
    if (!message.ok())
        return lost(name, absl::StrCat("its agent is not understood: ", message.status().message()),
                    kAgentBackWithin);
    Node& node = nodes_[name];
    node.lastHeard = reactor_.now();
    if (std::holds_alternative<AgentBeat>(*message)) {
        // An agent that knows other controllers listens whether this one is alive.
        (void)node.channel->send(encode(AgentCommand(AgentHeard{})));
        return;
    }
    if (const auto* up = std::get_if<RankUp>(&*message)) {
        if (up->error.empty())
            add(node, up->process, up->pid, up->gpu);
        else
            forget(node, up->process);
        return listener_.rankUp(name, *up);
    }
    if (const auto* gone = std::get_if<RankGone>(&*message)) forget(node, gone->process);
    if (const auto* seen = std::get_if<GpuTroubleSeen>(&*message)) {
        node.gpus = seen->gpusLeft;
        count(node);
    }
    tell(name, *std::move(message));
}

/// The agent hears that it was heard only after everybody has acted on it: a controller that ends
/// before is told again.
void AgentPool::tell(const std::string& name, AgentMessage message) {
    const auto* died = std::get_if<RankDied>(&message);
    const auto* gone = std::get_if<RankGone>(&message);
    const auto* noted = std::get_if<AgentFaultNoted>(&message);
    const auto* trouble = std::get_if<GpuTroubleSeen>(&message);
    const auto* files = std::get_if<RankFiles>(&message);
    const uint64_t receipt = died != nullptr      ? died->receipt
                             : gone != nullptr    ? gone->receipt
                             : noted != nullptr   ? noted->receipt
                             : trouble != nullptr ? trouble->receipt
                             : files != nullptr   ? files->receipt
                                                  : 0;
    const bool acted = died != nullptr   ? listener_.rankDied(name, *died)
                       : gone != nullptr ? listener_.rankGone(name, *gone)
                                         : listener_.other(name, message);
    if (!acted) return held_.emplace_back(name, std::move(message)), void();
    if (receipt != 0) (void)send(name, AgentHeard{receipt});
}

void AgentPool::tellHeld() {
    for (auto& [name, message] : std::exchange(held_, {})) tell(name, std::move(message));
}

bool AgentPool::isSilent(const Node& node) const {
    return reactor_.now() - node.lastHeard > heartbeat_.silenceMs() * kMillisecond;
}

/// Treats a silent agent like one whose connection was cut: when it wakes it connects again and
/// says what runs.
void AgentPool::loseSilent() {
    // A pool that was not run has not read what was said meanwhile: nobody was silent.
    const MonoNs now = reactor_.now();
    const MonoNs away = now - std::exchange(lookedAt_, now) - heartbeat_.intervalMs * kMillisecond;
    if (away > heartbeat_.intervalMs * kMillisecond)
        for (auto& [name, node] : nodes_)
            if (node.lastHeard != 0) node.lastHeard += away;
    std::vector<std::string> silent;
    for (const auto& [name, node] : nodes_)
        if (node.channel != nullptr && isSilent(node)) silent.push_back(name);
    for (const std::string& name : silent)
        lost(name,
             absl::StrCat("it does not respond: nothing was heard of its agent for ",
                          heartbeat_.silenceMs(), " ms"),
             kLossAfter);
}

void AgentPool::doubt(const std::string& node) {
    if (const auto it = nodes_.find(node); it != nodes_.end()) it->second.failedAt = reactor_.now();
}

void AgentPool::lost(const std::string& name, const std::string& why, MonoNs after) {
    Node& node = nodes_[name];
    node.channel.reset();
    node.status.why = why;
    reactor_.cancel(node.lossTimer);
    node.lossTimer = reactor_.after(after, [this, name, why] {
        Node& lostNode = nodes_[name];
        lostNode.status.state = model::NodeState::kLost;
        lostNode.failedAt = reactor_.now();
        listener_.nodeChanged(lostNode.status, why);
    });
    std::vector<RankProcess> starting;
    for (const auto& [process, pid] : node.processes)
        if (pid == 0) starting.push_back(process);
    for (const RankProcess& process : starting) forget(node, process);
    for (const RankProcess& process : starting) listener_.startLost(name, process);
    listener_.nodeChanged(node.status, "its agent is away");  // ends all waits for this node
}

std::vector<std::string> AgentPool::choose(Need need, const std::string& preferred) const {
    // All ranks of a job compute on GPUs, or none does.
    const bool gpus = need.onGpu && std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
                          return node.second.status.gpus > 0;
                      });
    const auto isUp = [&](const Node& node) {
        return node.status.state == model::NodeState::kUp && isConnected(node.status.node);
    };
    const auto room = [&](const Node& node) -> uint32_t {
        const NodeStatus& has = node.status;
        if (!isUp(node)) return 0;
        uint32_t free = has.slots - std::min(has.slots, has.used);
        if (gpus && need.shareGpu) return freeGpus(node, true) > 0 ? free : 0;
        return gpus ? std::min(free, freeGpus(node, false)) : free;
    };
    const bool anyIsLarge = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
        const NodeStatus& has = node.second.status;
        return isUp(node.second) && has.slots >= need.slots &&
               (!gpus || has.gpus >= (need.shareGpu ? 1 : need.slots));
    });
    const MonoNs now = reactor_.now();
    const auto missesBeats = [&](const Node& node) {
        return now - node.lastHeard > 3 * heartbeat_.intervalMs * kMillisecond / 2;
    };
    const auto isDoubtful = [&](const Node& node) {
        return missesBeats(node) || (node.failedAt != 0 && now - node.failedAt < kDoubtedFor);
    };
    std::vector<const Node*> best;
    const auto take = [&](uint32_t least) {
        for (const auto& [name, node] : nodes_)
            if (room(node) >= least) best.push_back(&node);
    };
    if (anyIsLarge) take(need.slots);
    if (!anyIsLarge || (best.empty() && need.spans)) take(1);
    const auto rank = [&](const Node* node) {
        const bool wanted = node->status.node == preferred && !missesBeats(*node);
        return std::tuple(wanted, !isDoubtful(*node), room(*node));
    };
    std::ranges::stable_sort(best, std::ranges::greater{}, rank);
    std::vector<std::string> slots;
    for (const Node* node : best)
        slots.insert(slots.end(), std::min<size_t>(room(*node), need.slots - slots.size()),
                     node->status.node);
    if (slots.size() < need.slots) slots.clear();
    return slots;
}

absl::Status AgentPool::start(const std::string& node, StartRank command) {
    const RankProcess process = command.process;
    const bool wantsGpu = command.onGpu;
    const GpuPlace promised{0, "", command.shareGpu};
    if (absl::Status s = send(node, std::move(command)); !s.ok()) return s;
    Node& n = nodes_[node];
    if (n.processes.contains(process)) return absl::OkStatus();
    add(n, process, 0, {});
    if (wantsGpu && !n.gpus.empty()) n.onGpus[process] = promised;
    count(n);
    return absl::OkStatus();
}

absl::Status AgentPool::send(const std::string& node, const AgentCommand& command) {
    const auto it = nodes_.find(node);
    if (it == nodes_.end()) return noSuchNode(node);
    if (it->second.channel == nullptr)
        return absl::UnavailableError(absl::StrCat("the agent of node ", node, " is away"));
    const absl::Status sent = it->second.channel->send(encode(command));
    if (!sent.ok() && !absl::IsResourceExhausted(sent)) it->second.broken = true;
    return sent;
}

absl::Status AgentPool::keepCordoned(std::set<std::string> names) {
    if (names == cordoned_) return absl::OkStatus();
    std::string lines;
    for (const std::string& name : names) absl::StrAppend(&lines, name, "\n");
    if (absl::Status s = writeDurably(files_, cordonFile_, lines); !s.ok()) return s;
    cordoned_ = std::move(names);
    return absl::OkStatus();
}

absl::Status AgentPool::cordon(const std::string& node, bool cordoned, const std::string& by) {
    const auto it = nodes_.find(node);
    if (it == nodes_.end()) return noSuchNode(node);
    std::set<std::string> names = cordoned_;
    if (cordoned)
        names.insert(node);
    else
        names.erase(node);
    if (absl::Status s = keepCordoned(std::move(names)); !s.ok()) return s;
    NodeStatus& status = it->second.status;
    if (status.state == model::NodeState::kLost) return absl::OkStatus();
    const auto state = cordoned ? model::NodeState::kCordoned : model::NodeState::kUp;
    if (std::exchange(status.state, state) == state) return absl::OkStatus();
    listener_.nodeChanged(status, absl::StrCat(cordoned ? "cordoned by " : "uncordoned by ", by));
    return absl::OkStatus();
}

absl::Status AgentPool::forget(const std::string& node, bool machineIsOff, const std::string& by) {
    const auto it = nodes_.find(node);
    if (it == nodes_.end()) return noSuchNode(node);
    const size_t ranks = it->second.processes.size();
    if (it->second.status.state != model::NodeState::kLost)
        return absl::FailedPreconditionError(
            absl::StrCat("node ", node, " is not lost; stop its agent first, or cordon it"));
    if (ranks > 0 && !machineIsOff)
        return absl::FailedPreconditionError(
            absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks", " may still run on node ", node,
                         "; if its machine is off, say so (--machine-is-off)"));
    std::set<std::string> names = cordoned_;
    names.erase(node);
    if (absl::Status s = keepCordoned(std::move(names)); !s.ok()) return s;
    std::set<RankProcess> ended;
    for (const auto& [process, pid] : it->second.processes) ended.insert(process);
    missing(node, ended, absl::StrCat("its machine is off, says ", by));
    std::erase_if(held_, [&](const auto& held) { return held.first == node; });
    NodeStatus gone = it->second.status;
    gone.state = model::NodeState::kForgotten;
    nodes_.erase(node);
    listener_.nodeChanged(gone, absl::StrCat("forgotten by ", by));
    return absl::OkStatus();
}

void AgentPool::miss(const NodeStatus& missed, const std::vector<RunningRank>& ranks) {
    Node& node = nodes_[missed.node];
    if (node.lastHeard != 0) return;  // its agent says, or has said, what runs there
    node.status = missed;
    node.status.state = model::NodeState::kLost;
    node.status.why = "its agent has not connected since the controller began";
    node.failedAt = reactor_.now();
    for (const RunningRank& rank : ranks) node.processes[rank.process] = rank.pid;
    count(node);
    listener_.nodeChanged(node.status, node.status.why);
}

absl::Status AgentPool::noSuchNode(const std::string& node) const {
    std::string names;
    for (const auto& [name, unused] : nodes_)
        absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    return absl::NotFoundError(absl::StrCat("no node is named \"", node, "\"; known: ",
                                            names.empty() ? "none has connected yet" : names));
}

bool AgentPool::isConnected(const std::string& node) const {
    const auto it = nodes_.find(node);
    return it != nodes_.end() && it->second.channel != nullptr && !it->second.broken &&
           it->second.channel->isOpen();
}

std::string AgentPool::reachedAt(const std::string& node) const {
    return isConnected(node) ? nodes_.at(node).channel->here() : "";
}

std::string AgentPool::addressOf(const std::string& node) const {
    const auto it = nodes_.find(node);
    return it == nodes_.end() ? "" : it->second.status.address;
}

std::optional<RunningRank> AgentPool::predecessor(const std::string& node, const std::string& job,
                                                  int32_t replica, uint32_t incarnation) const {
    const auto it = nodes_.find(node);
    if (it == nodes_.end()) return std::nullopt;
    for (const auto& [process, pid] : it->second.processes)
        if (process.job == job && process.rank.replica == replica &&
            process.incarnation < incarnation)
            return RunningRank{process, pid};
    return std::nullopt;
}

std::vector<std::pair<std::string, RunningRank>> AgentPool::running(const std::string& job) const {
    std::vector<std::pair<std::string, RunningRank>> all;
    for (const auto& [name, node] : nodes_)
        for (const auto& [process, pid] : node.processes)
            if (process.job == job) all.emplace_back(name, RunningRank{process, pid});
    return all;
}

std::vector<NodeStatus> AgentPool::nodes() const {
    std::vector<NodeStatus> all;
    for (const auto& [name, node] : nodes_) all.push_back(node.status);
    return all;
}

}  // namespace bulkhead::runtime
