// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/simulation/driven_rank.h"
#include "backend/runtime/simulation/simulated_job_impl.h"

/// Agents, the nodes they run on, and the ranks as processes of those.
namespace bulkhead::simulation {
namespace {

constexpr int32_t kAgentPid = 1;
constexpr int32_t kFirstPid = 100;
/// Pids are given out again soon, so that an agent which trusts one is found out.
constexpr int32_t kPids = 64;
constexpr int kSigKill = 9, kSigTerm = 15, kSigCont = 18, kSigStop = 19;

}  // namespace

/// Null: the connection is refused.
std::unique_ptr<MemoryChannel> DrivenJob::dial(Executor executor, size_t there, size_t back) {
    const auto c = controller_;
    if (!c || c->dead || !c->network.accept) return nullptr;
    auto [mine, theirs] = streams_.join(std::move(executor), executorOf(c), there, back);
    std::erase_if(c->connections, [](const auto& x) { return x.end() == nullptr; });
    c->connections.push_back({theirs->wire(), 1});
    executorOf(c)(
        [c = c.get(), end = std::make_shared<std::unique_ptr<MemoryChannel>>(std::move(theirs))] {
            if (!c->dead && c->network.accept) c->network.accept(std::move(*end));
        });
    return std::move(mine);
}

// ---- ranks

void DrivenJob::disconnect(Process& rank, bool) {
    if (const auto real = rankingOf(rank)) real->breakUp();
}

void DrivenJob::die(Process& rank, int signal, bool silent) {
    if (!rank.alive) return;
    end(rank, signal, silent);
    if (const auto real = rankingOf(rank)) {
        real->crash(silent);
        at(now_, [this, key = RankKey{rank.id, rank.incarnation}] { rankings_.erase(key); });
    }
    const size_t node = rank.node;
    for (auto& [pid, process] : nodes_[node]->processes) {
        if (process.rank != RankKey{rank.id, rank.incarnation}) continue;
        process.dead = true;
        process.signal = signal;
        process.exitCode = signal == 0 ? rank.exitCode : 0;
        NodeHost* host = hostOf(node);
        if (host != nullptr && process.exitCode != 0)
            host->printed(pid, true, "00:00:00.000 critical it was put out");
        const auto later = [&, pid = pid, &process = process](double fromMs, double toMs, auto f) {
            at(now_ + agentRng_.between(fromMs, toMs),
               [this, node, p = pid, start = process.startTime, f] {
                   if (kernelProcess(node, p, start) != nullptr) f(node, p);
               });
        };
        // A few have no life lock; a few have much memory to give back.
        if (signal != 0 && agentRng_.chance(0.9))
            later(0.05, 0.5, [this, signal](size_t n, int32_t p) {
                if (NodeHost* h = hostOf(n)) h->died(p, signal);
            });
        later(0.5, agentRng_.chance(0.1) ? 900 : 6, [this](size_t n, int32_t p) {
            const auto ended = nodes_[n]->processes.extract(p);
            if (NodeHost* h = hostOf(n)) h->gone(p, ended.mapped());
        });
        return;
    }
}

// ---- processes of a node

const DrivenJob::KernelProcess* DrivenJob::kernelProcess(size_t node, int32_t pid,
                                                         uint64_t startTime) const {
    const auto it = nodes_[node]->processes.find(pid);
    return it == nodes_[node]->processes.end() || it->second.startTime != startTime ? nullptr
                                                                                    : &it->second;
}

absl::StatusOr<int32_t> DrivenJob::startRank(size_t node, const runtime::RankProcess& process) {
    const int32_t replica = process.rank.replica;
    if (failStart_.erase(replica) > 0) return absl::UnavailableError("no memory");
    placement_[replica] = node;
    if (const Process* twin = live(process.rank, process.incarnation))
        fail("I5", absl::StrCat(nameOf(process.rank), " #", process.incarnation, " runs on ",
                                nodeName(twin->node), " and starts on ", nodeName(node)));
    Node& n = *nodes_[node];
    do n.lastPid = (n.lastPid + 1) % kPids;
    while (n.processes.contains(kFirstPid + n.lastPid));
    const int32_t pid = kFirstPid + n.lastPid;
    const RankKey key{process.rank, process.incarnation};
    n.processes[pid] = {key, static_cast<uint64_t>(now_ / (10 * kMillisecond)), n.agent.get()};
    makeProcess(key.first, key.second, node);
    at(now_ + agentRng_.between(5, 60), [this, key, pid] {
        Process* rank = live(key.first, key.second);
        if (rank == nullptr) return;
        if (NodeHost* host = hostOf(rank->node)) host->printed(pid, false, "begins");
        begin(key);
    });
    return pid;
}

// ---- what runs in them

std::shared_ptr<DrivenJob::Ranking> DrivenJob::rankingOf(const Process& rank) const {
    const auto it = rankings_.find({rank.id, rank.incarnation});
    return it == rankings_.end() ? nullptr : it->second;
}

std::shared_ptr<DrivenJob::Ranking> DrivenJob::rankingOf(const Fibers& threads) const {
    for (const auto& [key, rank] : rankings_)
        if (&rank->threads() == &threads) return rank;
    return nullptr;
}

void DrivenJob::begin(const RankKey& key) {
    Process& rank = *live(key.first, key.second);
    const auto real = std::make_shared<Ranking>(*this, rank);
    rankings_[key] = real;
    if (rank.hung) real->threads().stop();
    real->begin();
    look(key);
}

void DrivenJob::look(const RankKey& key) {
    const auto it = rankings_.find(key);
    if (it == rankings_.end() || it->second->isDead()) return;
    it->second->look();
    at(now_ + options_.timeouts.beatMs * kMillisecond, [this, key] { look(key); });
}

void DrivenJob::exchanged(Process& rank, const ExchangeId& id, const Sum& sum, bool overflow) {
    if (const auto real = rankingOf(rank)) real->summed(id, sum, overflow);
}

void DrivenJob::landed(Process& rank, size_t bucket, uint64_t value) {
    if (const auto real = rankingOf(rank)) real->landed(bucket, value);
}

void DrivenJob::accuse(Process& rank, const ExchangeId& id, EvidenceKind kind,
                       const std::vector<int32_t>& peers) {
    if (const auto real = rankingOf(rank)) real->exchangeFailed(id, kind, peers);
}

void DrivenJob::hang(Process& rank) {
    SimulatedJob::hang(rank);
    if (const auto real = rankingOf(rank)) real->threads().stop();
}

void DrivenJob::flip(Process& rank) {
    SimulatedJob::flip(rank);
    tainted_.insert(rank.now.state);
}

void DrivenJob::wake(Process& rank) {
    rank.hung = false;
    if (const auto real = rankingOf(rank)) real->threads().goOn();
}

absl::Status DrivenJob::signalRank(size_t node, int32_t pid, uint64_t startTime, int signal) {
    const KernelProcess* process = kernelProcess(node, pid, startTime);
    if (process == nullptr) return absl::NotFoundError("the process is gone");
    at(now_ + agentRng_.between(0.01, 1), [this, key = process->rank, signal] {
        Process* rank = live(key.first, key.second);
        if (rank == nullptr) return;
        if (signal == kSigKill) return die(*rank, signal, false);
        if (signal == kSigStop) hang(*rank);
        if (signal == kSigCont) wake(*rank);
        if (signal != kSigTerm) return;
        if (const auto real = rankingOf(*rank)) return real->requestLeave();
        // Its program has not come to say what the signal is to do.
        if (!rank->hung) die(*rank, signal, false);
    });
    return absl::OkStatus();
}

class DrivenJob::NodeHost::Handle final : public runtime::HostProcess {
  public:
    Handle(NodeHost& host, int32_t pid, uint64_t startTime, runtime::ProcessWatcher watcher)
        : host_(host), pid_(pid), startTime_(startTime), watcher_(std::move(watcher)) {
        host_.handles_[pid] = this;
    }
    ~Handle() override {
        const auto it = host_.handles_.find(pid_);
        if (it != host_.handles_.end() && it->second == this) host_.handles_.erase(it);
    }
    int32_t pid() const override { return pid_; }
    uint64_t startTime() const override { return startTime_; }
    absl::Status signal(int signal, int32_t) override {
        return host_.job_.signalRank(host_.node_, pid_, startTime_, signal);
    }
    runtime::ExitStatus reap() override { return ended_; }
    void drainOutput() override {}
    runtime::ProcessFigures sample() override { return {50, uint64_t{1} << 30}; }

    void ended(const runtime::ExitStatus& how) { ended_ = how; }
    /// On the agent's thread, unless the object is gone by then.
    template <class F>
    void notify(F notice) {
        if (host_.agent_.dead) return;
        host_.agent_.reactor->after(
            0, [notice, watcher = watcher_, life = std::weak_ptr<char>(life_)] {
                if (!life.expired()) notice(watcher);
            });
        host_.job_.runLater(host_.job_.nodes_[host_.node_]->agent, host_.job_.now_);
    }

  private:
    NodeHost& host_;
    const int32_t pid_;
    const uint64_t startTime_;
    const runtime::ProcessWatcher watcher_;
    runtime::ExitStatus ended_;
    const std::shared_ptr<char> life_ = std::make_shared<char>();
};

absl::StatusOr<std::unique_ptr<runtime::HostProcess>> DrivenJob::NodeHost::start(
    const runtime::StartRank& command, const std::string&, runtime::ProcessWatcher watcher) {
    const auto pid = job_.startRank(node_, command.process);
    if (!pid.ok()) return pid.status();
    return std::make_unique<Handle>(*this, *pid, job_.nodes_[node_]->processes.at(*pid).startTime,
                                    std::move(watcher));
}

absl::StatusOr<std::unique_ptr<runtime::HostProcess>> DrivenJob::NodeHost::find(
    const runtime::RegisteredRank& rank, const std::string&, runtime::ProcessWatcher watcher) {
    int32_t pid = rank.pid;
    uint64_t startTime = rank.startTime;
    for (const auto& [known, process] : job_.nodes_[node_]->processes)
        if (rank.pid == 0 && process.rank == RankKey{rank.process.rank, rank.process.incarnation})
            pid = known, startTime = process.startTime;
    const KernelProcess* process = job_.kernelProcess(node_, pid, startTime);
    if (process == nullptr) return absl::NotFoundError("the process is gone");
    auto handle = std::make_unique<Handle>(*this, pid, startTime, std::move(watcher));
    if (process->dead && process->signal != 0) died(pid, process->signal);
    return handle;
}

void DrivenJob::NodeHost::sample(std::function<void(runtime::HostFigures)> done) {
    agent_.reactor->after(5 * kMillisecond, [done = std::move(done)] {
        done({{uint64_t{64} << 30, uint64_t{32} << 30}, {}, "none is simulated"});
    });
}

DrivenJob::NodeHost::Handle* DrivenJob::NodeHost::handleOf(int32_t pid) const {
    const auto it = handles_.find(pid);
    return it == handles_.end() ? nullptr : it->second;
}

void DrivenJob::NodeHost::died(int32_t pid, int32_t signal) {
    if (Handle* handle = handleOf(pid))
        handle->notify([signal](const runtime::ProcessWatcher& w) { w.died(signal); });
}

void DrivenJob::NodeHost::gone(int32_t pid, const KernelProcess& process) {
    Handle* handle = handleOf(pid);
    if (handle == nullptr) return;
    if (process.parent == &agent_) handle->ended({true, process.exitCode, process.signal});
    handle->notify([](const runtime::ProcessWatcher& w) { w.gone(); });
}

void DrivenJob::NodeHost::printed(int32_t pid, bool isStderr, const std::string& line) {
    if (Handle* handle = handleOf(pid))
        handle->notify(
            [isStderr, line](const runtime::ProcessWatcher& w) { w.printed(isStderr, line, 0); });
}

// ---- agents

DrivenJob::NodeHost* DrivenJob::hostOf(size_t node) const {
    const auto& agent = nodes_[node]->agent;
    return agent && !agent->dead ? &agent->host : nullptr;
}

void DrivenJob::startAgent(size_t node) {
    Node& n = *nodes_[node];
    if (n.agent && !n.agent->dead && !n.agent->dying) return;
    if (n.agent) crash(n.agent);
    tell(nodeName(node), "its agent begins");
    const MonoNs zero = static_cast<MonoNs>(agentRng_.below(1000)) * kSecond;
    const auto a = std::make_shared<Agenting>(*this, node, zero, n.disk);
    for (auto& [pid, process] : n.processes) process.parent = nullptr;
    n.agent = a;
    mayDieWorking(a);
    a->network.dial = [this, weak = std::weak_ptr(a)](auto done) { connectAgent(weak, done, 0); };
    runtime::AgentOptions options;
    options.node = nodeName(node);
    options.slots = static_cast<uint32_t>(places() * options_.shards);
    options.controllers = {"unix:/controller"};
    options.key = Secret::ofText(kToken).derive(runtime::agentIdentity(options.node));
    options.runDir = "/agent";
    options.files = &a->files;
    options.network = &a->network;
    options.host = &a->host;
    options.reactor = a->reactor.get();
    options.pid = kAgentPid;
    auto agent = runtime::Agent::create(std::move(options), a->clock);
    if (!agent.ok()) return fail("I5", std::string(agent.status().message()));
    a->agent = *std::move(agent);
    a->agent->begin();
    run(a);
}

/// Follows the kernel: a SYN that is lost is sent again, a dead controller's machine refuses.
void DrivenJob::connectAgent(const std::weak_ptr<Agenting>& weak,
                             std::weak_ptr<runtime::ConnectedChannel> done, size_t attempt) {
    const bool last = attempt == std::size(kSynAgain);
    const MonoNs before = attempt == 0 ? 0 : kSynAgain[attempt - 1];
    const MonoNs wait = (last ? kConnectTimeout : kSynAgain[attempt]) - before;
    at(now_ + wait + agentRng_.between(0.2, 2), [this, weak, done, attempt, last] {
        const auto a = weak.lock();
        if (!a || a->dead || done.expired()) return;
        const size_t there = agentLink(a->node, true), back = agentLink(a->node, false);
        if (!last && (network_.link(there).cutUntil > now_ || network_.link(back).cutUntil > now_))
            return connectAgent(weak, done, attempt + 1);
        std::unique_ptr<MemoryChannel> channel;
        if (!last) channel = dial(executorOf(a), there, back);
        std::erase_if(a->connections, [](const auto& x) { return x.end() == nullptr; });
        if (channel) a->connections.push_back({channel->wire(), 0});
        auto made = std::make_shared<std::unique_ptr<MemoryChannel>>(std::move(channel));
        executorOf(a)([done, made, last] {
            const auto to = done.lock();
            if (!to) return;
            if (*made) return (*to)(std::move(*made));
            (*to)(last ? absl::DeadlineExceededError("no answer")
                       : absl::UnavailableError("refused"));
        });
    });
}

/// The agents' supervisor restarts a refused one.
void DrivenJob::Agenting::looked() {
    if (!dead && !agent->refused().ok()) job.killAgent(node, kSecond, false);
}

void DrivenJob::killAgent(size_t node, MonoNs forTime, bool silent) {
    if (!agents_[node].up) return;
    SimulatedJob::killAgent(node, forTime, silent);
    const auto agent = nodes_[node]->agent;
    if (!agent || agent->dead) return;
    agent->losesPower = silent;
    silent ? crash(agent) : kill(agent, agentRng_);
}

void DrivenJob::agentBack(size_t node, uint64_t life) {
    if (agents_[node].up && agents_[node].life == life) startAgent(node);
}

void DrivenJob::crashNode(size_t node, MonoNs forTime) {
    SimulatedJob::crashNode(node, forTime);
    if (nodes_[node]->agent) crash(nodes_[node]->agent);
    nodes_[node]->processes.clear();
    nodes_[node]->disk.cutPower();
    disk_.cutPower(machineOf(node));
    checkStored();
}

void DrivenJob::cutAgent(const Fault& fault) {
    const size_t node = nodeOf(fault.replica);
    const MonoNs until = now_ + fault.duration;
    const auto reset = [this, node](bool everybody) {
        const auto agent = nodes_[node]->agent;
        if (!agent || agent->dead) return;
        for (const auto& connection : agent->connections)
            if (MemoryChannel* end = connection.end()) everybody ? end->reset() : end->drop();
    };
    const auto longer = [until](MonoNs& t) { t = std::max(t, until); };
    const uint64_t how = fault.parameter % 3;
    if (how == 2) return reset(false);
    longer(network_.link(agentLink(node, true)).cutUntil);
    if (how == 1) {
        longer(network_.link(agentLink(node, false)).cutUntil);
        reset(true);
    }
    at(until, [reset] { reset(true); });
}

/// SIGSTOP for the agent and its ranks.
void DrivenJob::freezeNode(const Fault& fault) {
    const size_t node = nodeOf(fault.replica);
    const MonoNs until = now_ + fault.duration;
    if (const auto agent = nodes_[node]->agent)
        agent->stoppedUntil = std::max(agent->stoppedUntil, until);
    forProcesses(node, [&](Process& rank) {
        if (!rank.alive || rank.hung) return;
        hang(rank);
        at(until, [this, id = rank.id, inc = rank.incarnation] {
            if (Process* r = live(id, inc)) wake(*r);
        });
    });
}

}  // namespace bulkhead::simulation
