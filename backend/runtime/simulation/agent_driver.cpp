// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/simulated_job_impl.h"

/// Agents: they start and reap processes of their node, and come and go themselves.
namespace bulkhead::simulation {
namespace {

/// Away for so long, an agent counts as lost.
constexpr MonoNs kLossAfter = 1000 * kMillisecond;

std::string agentName(size_t node) {
    return absl::StrCat("node", node);
}

}  // namespace

size_t SimulatedJob::nodeOf(int32_t replica) const {
    const auto it = placement_.find(replica);
    return it == placement_.end() ? homeOf(replica) : it->second;
}

/// At home when its agent is there, else wherever one is: what still runs at home is a zombie.
void SimulatedJob::tryStarts() {
    for (auto it = waitingStarts_.begin(); it != waitingStarts_.end();) {
        const auto [replica, incarnation] = *it;
        size_t node = homeOf(replica);
        for (size_t n = 0; n < agents_.size() && !agents_[node].connected; ++n)
            if (agents_[n].connected) node = n;
        if (!agents_[node].connected) {
            ++it;
            continue;
        }
        it = waitingStarts_.erase(it);
        placement_[replica] = node;
        send(agentLink(node, false), 0.2, 3, [this, node, r = replica, inc = incarnation] {
            if (!agents_[node].up) return;
            if (failStart_.erase(r) > 0) return fromAgent(node, StartFailed{r, inc, "no memory"});
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s)
                at(now_ + agentRng_.between(5, 60), [this, id = RankId{r, s}, inc, node] {
                    if (agents_[node].up) startProcess(id, inc, node);
                });
        });
    }
}

void SimulatedJob::startProcess(RankId id, uint32_t incarnation, size_t node) {
    const auto& slot = ranks_[index(id)];
    // Told to stop it before it was there, or asked twice.
    if (slot && slot->incarnation >= incarnation) return;
    if (stopped_[id.replica] >= incarnation) return;
    if (slot && slot->alive && slot->node == node) die(*slot, 9);
    Process& rank = makeProcess(id, incarnation, node);
    fromAgent(node, RankRunning{id, incarnation, 1, agentName(node)});
    connect(rank);
    beat(id, incarnation);
}

/// An older incarnation may start after a newer one.
Process& SimulatedJob::makeProcess(RankId id, uint32_t incarnation, size_t node) {
    auto made = std::make_unique<Process>(id, incarnation, node, options_,
                                          mix(mix(seed_, 100 + index(id)), incarnation));
    Process& rank = *made;
    auto& slot = ranks_[index(id)];
    // The log may have lost that this number, or a higher one, was given out.
    const bool again =
        slot && (slot->ofLostPast || (slot->incarnation == incarnation && !slot->alive));
    if (!slot || slot->incarnation < incarnation || again) std::swap(slot, made);
    if (made) zombies_.push_back(std::move(made));
    rank.clockRate = nodeRate(node);
    tell(nameOf(id), absl::StrCat("starts, #", incarnation, " on ", agentName(node)));
    return rank;
}

double SimulatedJob::nodeRate(size_t node) const {
    if (environment_.clockDrift == 0) return 1;
    return 1 + environment_.clockDrift * (2 * Rng(mix(seed_, 50 + node)).unit() - 1);
}

/// Beats for as long as it lives.
void SimulatedJob::beat(RankId id, uint32_t incarnation) {
    Process* r = live(id, incarnation);
    if (r == nullptr) return;
    if (!r->hung) {
        if (r->computing || r->fetching) ++r->progress;
        up(*r, Beat{id, incarnation, r->machine.phase(), r->machine.appliedStep(), r->progress, 0,
                    r->machine.hashMs()});
        step(*r, RankTick{});
        if (live(id, incarnation) == nullptr) return;
        if (!r->machine.exited()) checkOrphan(*r, nullptr);
    }
    const auto interval = static_cast<MonoNs>(
        static_cast<double>(options_.timeouts.beatMs * kMillisecond) * r->clockRate);
    at(now_ + interval, [this, id, incarnation] { beat(id, incarnation); });
}

void SimulatedJob::stopProcesses(size_t node, int32_t replica, uint32_t incarnation, bool kill) {
    stopped_[replica] = std::max(stopped_[replica], incarnation);
    forProcesses(node, [&](const Process& p) {
        if (!p.alive || p.id.replica != replica || p.incarnation > incarnation) return;
        at(now_ + agentRng_.between(0.5, kill ? 6 : 60),
           [this, id = p.id, inc = p.incarnation, kill] {
               if (Process* r = live(id, inc)) die(*r, kill ? 9 : 15);
           });
    });
}

void SimulatedJob::end(Process& rank, int signal, bool silent) {
    tell(nameOf(rank.id), signal == 0 ? "has exited" : "is dead");
    rank.alive = rank.connected = rank.reported = false;
    plane_.died(rank.id, rank.incarnation, silent);
    if (!rank.ofLostPast) return;
    // The log has lost that this one was started: the one before it is the replica's again.
    auto& slot = ranks_[index(rank.id)];
    for (auto& other : zombies_)
        if (slot.get() == &rank && other->alive && other->id == rank.id) std::swap(slot, other);
}

void SimulatedJob::die(Process& rank, int signal, bool silent) {
    if (!rank.alive) return;
    end(rank, signal, silent);
    const size_t node = rank.node;
    at(now_ + agentRng_.between(0.5, 6),
       [this, node, id = rank.id, inc = rank.incarnation, signal] {
           if (!agents_[node].up || !agents_[node].connected) return;  // told when it is back
           forProcesses(node, [&](Process& r) {
               if (r.id == id && r.incarnation == inc) r.reported = true;
           });
           fromAgent(node, RankExited{id, inc, 0, signal, agentName(node), 0});
       });
    // Its connection ends at once; that alone says nothing yet (kExitGrace of the real one).
    if (!silent) suspectLater(rank.id, rank.incarnation);
}

/// A broken control connection that nothing explains within the grace is evidence of its own.
void SimulatedJob::suspectLater(RankId id, uint32_t incarnation) {
    at(now_ + agentRng_.between(200, 300), [this, id, incarnation, life = life_] {
        if (life != life_ || !coordinator_) return;
        const Process* r = ranks_[index(id)].get();
        if (r == nullptr || r->incarnation != incarnation || r->connected) return;
        Evidence e;
        e.kind = EvidenceKind::kTransportReset;
        e.accused = id;
        e.incarnation = incarnation;
        e.reporter = "coordinator";
        e.detail = absl::StrCat("the control connection of ", nameOf(id), " broke");
        coordinate(Received{id, e});
    });
}

void SimulatedJob::fromAgent(size_t node, Input input) {
    send(agentLink(node, true), 0.2, 3, [this, input = std::move(input), life = life_] {
        if (life == life_) coordinate(input);
    });
}

void SimulatedJob::killAgent(size_t node, MonoNs forTime, bool) {
    Agent& a = agents_[node];
    if (!a.up) return;
    tell(agentName(node), "its agent is dead");
    a.up = a.connected = false;
    const uint64_t life = ++a.life;
    at(now_ + forTime, [this, node, life] {
        if (agents_[node].life != life) return;
        agents_[node].up = true;
        agentBack(node, life);
    });
    at(now_ + kLossAfter, [this, node, life] {
        if (agents_[node].life != life || agents_[node].connected) return;
        NodeLost lost{agentName(node), {}};
        for (int32_t r = 0; r < static_cast<int32_t>(places()); ++r)
            if (nodeOf(r) == node) lost.replicas.push_back(r);
        coordinate(lost);
    });
}

void SimulatedJob::agentBack(size_t node, uint64_t life) {
    Agent& a = agents_[node];
    if (!a.up || a.life != life || a.connected || !coordinator_) return;
    a.connected = true;
    ++a.life;  // nobody waits for it any more
    agentReports(node);
    tryStarts();
}

/// First of all it says what runs and what has ended since.
void SimulatedJob::agentReports(size_t node) {
    forProcesses(node, [&](Process& r) {
        if (r.alive) {
            fromAgent(node, RankRunning{r.id, r.incarnation, 1, agentName(node)});
        } else if (!r.reported) {
            r.reported = true;
            fromAgent(node, RankExited{r.id, r.incarnation, 0, 9, agentName(node), 0});
        }
    });
}

void SimulatedJob::crashNode(size_t node, MonoNs forTime) {
    killAgent(node, forTime, true);
    forProcesses(node, [&](Process& r) {
        if (r.alive) die(r, 9, true);
    });
}

}  // namespace bulkhead::simulation
