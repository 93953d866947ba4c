// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/describe.h"
#include "backend/runtime/simulation/simulated_job_impl.h"

/// A rank's surroundings: its connections, and what its machine's actions mean. The training itself
/// is in training_driver.cpp.
namespace bulkhead::simulation {

Process* SimulatedJob::live(RankId id, uint32_t incarnation) const {
    Process* r = live(id);
    if (r != nullptr && r->incarnation == incarnation) return r;
    for (const auto& z : zombies_)
        if (z->id == id && z->incarnation == incarnation && z->alive) return z.get();
    return nullptr;
}

Process* SimulatedJob::live(RankId id) const {
    const auto& r = ranks_[index(id)];
    return r && r->alive ? r.get() : nullptr;
}

// ---- connections

void SimulatedJob::connectLater(Process& rank, double fromMs, double toMs) {
    at(now_ + rank.rng.between(fromMs, toMs), [this, id = rank.id, inc = rank.incarnation] {
        if (Process* r = live(id, inc)) connect(*r);
    });
}

void SimulatedJob::connect(Process& rank) {
    if (rank.connected || rank.machine.exited()) return;
    const bool cut = network_.link(linkOf(rank.id, Wire::kUp)).cutUntil > now_ ||
                     network_.link(linkOf(rank.id, Wire::kDown)).cutUntil > now_;
    if (rank.hung || !coordinator_ || cut) return connectLater(rank, 20, 150);
    rank.connected = true;
    Hello h;
    h.endpoint.rank = rank.id;
    h.endpoint.incarnation = rank.incarnation;
    h.corpusHash = 1;
    up(rank, h);
    step(rank, Connected{});
}

void SimulatedJob::disconnect(Process& rank, bool noticed) {
    if (!rank.connected) return;
    rank.connected = false;
    if (noticed) {
        const auto told = std::make_shared<const RankInput>(Disconnected{});
        at(now_ + rank.rng.between(0.2, 5),
           [this, told, id = rank.id, inc = rank.incarnation] { give(id, inc, told); });
    }
    connectLater(rank, 10, 100);
}

/// Without a connection of its own, a sibling of the same replica carries it up.
void SimulatedJob::up(Process& rank, ToCoordinator message) {
    auto input = std::make_shared<const Input>(Received{rank.id, std::move(message)});
    const auto deliver = [this, input, life = life_] {
        if (life == life_) coordinate(*input);
    };
    if (rank.connected) return send(linkOf(rank.id, Wire::kUp), 0.1, 2, deliver);
    const Process* carrier = carrierOf(rank);
    if (carrier == nullptr) return;
    send(innerLink(rank.id, carrier->id), 0.05, 0.5, [this, sibling = carrier->id, deliver] {
        send(linkOf(sibling, Wire::kUp), 0.1, 2, deliver);
    });
}

Process* SimulatedJob::carrierOf(const Process& rank) const {
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
        if ((rank.id.shard == 0) == (s == 0)) continue;
        Process* carrier = live({rank.id.replica, s}, rank.incarnation);
        if (carrier != nullptr && !carrier->hung && carrier->connected) return carrier;
    }
    return nullptr;
}

void SimulatedJob::down(RankId to, uint32_t incarnation, const SharedInput& message) {
    const Process* r = live(to, incarnation);
    if (r == nullptr || !r->connected) return;
    send(linkOf(to, Wire::kDown), 0.1, 2,
         [this, to, incarnation, message] { give(to, incarnation, message); });
}

void SimulatedJob::toLeader(Process& rank, ToLeader message) {
    if (rank.id.shard == 0) return fold(rank, message);
    auto part = std::make_shared<const ToLeader>(std::move(message));
    send(linkOf(rank.id, Wire::kInner), 0.05, 0.5,
         [this, id = rank.id, inc = rank.incarnation, part] {
             Process* leader = live({id.replica, 0}, inc);
             if (leader == nullptr) return;
             if (leader->hung)
                 leader->parts.push_back(part);
             else
                 fold(*leader, *part);
         });
}

void SimulatedJob::fold(Process& leader, const ToLeader& part) {
    auto folded = leader.fold->add(part);
    if (!folded.ok()) return fail("I5", std::string(folded.status().message()));
    if (*folded) up(leader, **folded);
}

// ---- the machine

void SimulatedJob::give(RankId id, uint32_t incarnation, const RankInput& input) {
    Process* r = live(id, incarnation);
    if (r == nullptr) return;
    if (r->hung)
        r->inbox.push_back(std::make_shared<const RankInput>(input));
    else
        step(*r, input);
}

void SimulatedJob::give(RankId id, uint32_t incarnation, const SharedInput& input) {
    Process* r = live(id, incarnation);
    if (r == nullptr) return;
    if (r->hung)
        r->inbox.push_back(input);
    else
        step(*r, *input);
}

void SimulatedJob::step(Process& rank, const RankInput& input) {
    const bool ignored = mustIgnore(rank, input);
    const auto local = static_cast<MonoNs>(static_cast<double>(now_) * rank.clockRate);
    RankActions actions = rank.machine.step(local, input);
    digest_ = mix(digest_, actions.size());
    if (ignored && !actions.empty())
        fail("I5", absl::StrCat(nameOf(rank.id), " #", rank.incarnation,
                                " acts on a stale message: ", describe(actions.front())));
    carryOut(rank, std::move(actions));
}

/// True when the message is stale by the known facts on the rank: nothing may follow from it.
bool SimulatedJob::mustIgnore(Process& rank, const RankInput& input) {
    if (std::holds_alternative<Connected>(input)) rank.knowsLink = true;
    if (std::holds_alternative<Disconnected>(input)) {
        rank.knowsLink = false;
        if (rank.orphanSince == 0) rank.orphanSince = now_;
    }
    const auto* in = std::get_if<FromCoordinator>(&input);
    if (in == nullptr) return false;
    const uint64_t term = std::visit(
        [](const auto& m) -> uint64_t {
            if constexpr (requires { m.term; }) return m.term;
            return ~uint64_t{0};
        },
        in->message);
    if (term == ~uint64_t{0}) return false;
    if (term < rank.highestTerm) return true;
    const bool news = term > rank.highestTerm;
    rank.highestTerm = term;
    if (rank.knowsLink) rank.orphanSince = 0;  // a connection alone does not: it may be refused
    if (const auto* e = std::get_if<Expelled>(&in->message))
        return e->incarnation != rank.incarnation;
    if (news) return false;  // any message of a new term drops older snapshots
    if (const auto* a = std::get_if<Abort>(&in->message))
        return rank.rules().exchange() != ExchangeId{a->step, a->epoch, a->attempt};
    if (const auto* q = std::get_if<Quorum>(&in->message))
        return q->lineage != rank.rules().lineage() || q->step <= rank.rules().appliedStep();
    if (const auto* f = std::get_if<Fetch>(&in->message))
        return f->lineage != rank.rules().lineage();
    if (const auto* f = std::get_if<ReplicaFormed>(&in->message))
        return f->incarnation != rank.incarnation;
    if (const auto* c = std::get_if<Commit>(&in->message))
        return c->record.lineage != rank.rules().lineage();
    return false;
}

/// An orphan leaves at its limit, by its own clock, neither much before nor much after; one that a
/// signal asked to end need not wait for that. With a coordinator nobody leaves with a checkpoint
/// of its own.
void SimulatedJob::checkOrphan(const Process& rank, const ExitRank* exit) {
    const auto limit = static_cast<double>(options_.timeouts.orphanMs * kMillisecond);
    const auto alone =
        rank.orphanSince == 0 ? 0 : static_cast<double>(now_ - rank.orphanSince) * rank.clockRate;
    const double slack = static_cast<double>(200 * kMillisecond);
    if (exit != nullptr && exit->checkpoint &&
        (exit->ok ? rank.orphanSince == 0 : alone < limit - slack))
        fail("orphans", absl::StrCat(nameOf(rank.id), " leaves, alone for ", alone / kMillisecond,
                                     " ms only"));
    if (exit == nullptr && alone > limit + slack)
        fail("orphans",
             absl::StrCat(nameOf(rank.id), " stays, alone for ", alone / kMillisecond, " ms"));
}

void SimulatedJob::exitSoon(const Process& rank) {
    // Behind what its training thread has left to do, and behind what it wrote.
    at(std::max(now_, rank.busyUntil) + Rng(mix(seed_, rank.incarnation)).between(25, 60),
       [this, id = rank.id, inc = rank.incarnation] {
           if (Process* r = live(id, inc)) die(*r, 0);
       });
}

void SimulatedJob::carryOut(Process& rank, RankActions actions) {
    const RankId id = rank.id;
    const uint32_t inc = rank.incarnation;
    for (RankAction& action : actions) {
        if (onRankAction) onRankAction(id, action);
        if (!armed_.empty()) strikeArmed(id, action);
        if (live(id, inc) != &rank) return;
        if (story)
            if (const std::string text = describe(action); !text.empty()) tell(nameOf(id), text);
        if (auto* b = std::get_if<BuildReplica>(&action)) {
            build(rank, *b);
        } else if (auto* s = std::get_if<BeginStep>(&action)) {
            begin(rank, std::move(*s));
        } else if (auto* a = std::get_if<AbortExchange>(&action)) {
            abort(rank, *a);
        } else if (std::holds_alternative<DropStep>(action)) {
            drop(rank);
        } else if (auto* c = std::get_if<ApplyCommit>(&action)) {
            apply(rank, *c);
        } else if (const auto* h = std::get_if<HashState>(&action)) {
            hashState(rank, h->step);
        } else if (auto* w = std::get_if<WriteCheckpoint>(&action)) {
            train(rank, 0.1, 1, [this, step = w->step](Process& r) { writeCheckpoint(r, step); });
        } else if (const auto* v = std::get_if<RemoveCheckpoints>(&action)) {
            removeCheckpoints(v->paths);
        } else if (auto* t = std::get_if<TakeSnapshot>(&action)) {
            train(rank, 0.5, 3, [this, step = t->step](Process& r) { takeSnapshot(r, step); });
        } else if (auto* d = std::get_if<DropSnapshot>(&action)) {
            rank.snapshots.erase(d->step);
        } else if (auto* f = std::get_if<BeginFetch>(&action)) {
            fetch(rank, std::move(*f));
        } else if (auto* p = std::get_if<ReplayCommit>(&action)) {
            p->exchanged ? replayExchanged(rank, p->record) : replay(rank, p->record, 0);
        } else if (auto* j = std::get_if<JudgeReplay>(&action)) {
            train(rank, 1, 3, [this, step = j->step](Process& r) { judge(r, step); });
        } else if (auto* m = std::get_if<MoveLayout>(&action)) {
            train(rank, 1, 5, [this, layout = m->layout](Process& r) { moveLayout(r, layout); });
        } else if (auto* y = std::get_if<SettleLayout>(&action)) {
            train(rank, 0.01, 0.2, [this, s = *y](Process& r) { settle(r, s); });
        } else if (auto* u = std::get_if<SendUp>(&action)) {
            up(rank, std::move(u->message));
        } else if (auto* l = std::get_if<SendLeader>(&action)) {
            toLeader(rank, std::move(l->message));
        } else if (const auto* x = std::get_if<ExitRank>(&action)) {
            checkOrphan(rank, x);
            rank.exitCode = x->ok ? 0 : 3;
            plane_.leave(id, inc);
            if (x->checkpoint)
                train(rank, 0.1, 1, [this](Process& r) { writeCheckpoint(r, r.now.step); });
            exitSoon(rank);
        }
    }
}

}  // namespace bulkhead::simulation
