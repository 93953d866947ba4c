// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/simulated_job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"

namespace bulkhead::protocol {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

uint64_t partOf(uint64_t state, const std::vector<SampleRange>& ranges, int32_t shard) {
    uint64_t h = mix(state, static_cast<uint64_t>(shard));
    for (const SampleRange& r : ranges) h = mix(mix(mix(h, r.domain), r.begin), r.end);
    return h;
}

uint64_t seedState(int32_t shard) {
    return mix(4711, static_cast<uint64_t>(shard));
}

}  // namespace

struct SimulatedJob::Rank {
    RankId id;
    uint32_t incarnation = 0;
    RankMachine machine;
    std::unique_ptr<ReplicaFold> fold;
    bool alive = true;
    bool hung = false;
    std::vector<RankInput> inbox;  ///< while hung
    uint64_t state = 0;
    uint64_t retained = 0;  ///< copy made when the state came to be: flips do not reach it
    std::optional<BeginStep> work;
    bool computing = false;
    bool computed = false;
    bool nonFiniteNext = false;
    uint64_t generation = 0;
    std::optional<std::pair<ExchangeId, uint64_t>> sum;  ///< of the exchange that completed
    std::map<uint64_t, uint64_t> sums;                   ///< by step: the delta window
    std::map<uint64_t, uint64_t> snapshots;              ///< by step
    std::map<uint64_t, uint64_t> history;                ///< state before the step
    uint64_t fetchGeneration = 0;
    bool fetching = false;
    uint64_t progress = 0;
    std::map<uint64_t, std::set<int32_t>> checkpointParts;  ///< leader

    Rank(RankId i, uint32_t inc, const Options& o)
        : id(i), incarnation(inc), machine(RankConfig{i, inc, o.shards, o.timeouts.orphanMs}) {
        if (i.shard == 0) fold = std::make_unique<ReplicaFold>(i.replica, inc, o.shards);
    }
};

SimulatedJob::SimulatedJob(Options options, uint64_t seed)
    : rng(seed), options_(std::move(options)) {}
SimulatedJob::~SimulatedJob() = default;

void SimulatedJob::at(MonoNs when, std::function<void()> what) {
    events_.push(Event{std::max(when, now_), ++order_, std::move(what)});
}

MonoNs SimulatedJob::soon(double fromMs, double toMs) {
    return now_ + static_cast<MonoNs>(std::uniform_real_distribution<double>(fromMs, toMs)(rng) *
                                      kMillisecond);
}

void SimulatedJob::post(const std::string& link, double fromMs, double toMs,
                        std::function<void()> what) {
    MonoNs& last = lastOnLink_[link];
    last = std::max(last + 1, soon(fromMs, toMs));
    at(last, std::move(what));
}

bool SimulatedJob::runUntil(const std::function<bool()>& done, MonoNs limit) {
    const MonoNs end = now_ + limit;
    while (!done()) {
        if (events_.empty() || events_.top().when > end) {
            now_ = end;
            return false;
        }
        Event e = events_.top();
        events_.pop();
        now_ = e.when;
        e.what();
        check();
        if (failures_.size() > 5) return false;
    }
    return true;
}

void SimulatedJob::runFor(MonoNs time) {
    runUntil([] { return false; }, time);
}

void SimulatedJob::start() {
    startCoordinator();
}

// ---- the coordinator and its driver
// --------------------------------------------------------------

void SimulatedJob::startCoordinator() {
    ++life_;
    std::string bytes(kLogHeader);
    for (const LogEntry& e : log_) bytes += encodeEntry(e);
    const auto decoded = decodeLog(bytes);
    if (!decoded.ok()) return fail(decoded.status().ToString());
    auto state =
        recoverState(decoded->entries, options_.replicas + options_.spares, options_.domains);
    if (!state.ok()) return fail(state.status().ToString());
    term_ = std::max(term_, state->term) + 1;
    const bool recovered = state->lineage != 0;
    coordinator_ = std::make_unique<CoordinatorMachine>(options_, term_, *std::move(state));
    carryOut(coordinator_->begin(now_));
    if (!recovered) return;
    for (auto& [id, rank] : ranks_) {
        if (!rank->alive) continue;
        coordinate(RankRunning{id, rank->incarnation, 1, "node0"});
        if (!rank->hung) hello(*rank);
    }
    at(soon(1, 20), [this, life = life_] {
        if (life == life_) coordinate(InventoryDone{});
    });
}

void SimulatedJob::killCoordinator() {
    coordinator_.reset();
    ++life_;
    unsynced_.clear();
    wakeAt_ = 0;
    for (auto& [id, rank] : ranks_)
        if (rank->alive) give(id, rank->incarnation, Disconnected{});
}

void SimulatedJob::coordinate(const Input& input) {
    if (!coordinator_ || finished_) return;
    carryOut(coordinator_->step(now_, input));
    if (coordinator_)
        if (auto v = InvariantChecker::ledger(coordinator_->ledger())) fail(v->detail);
}

void SimulatedJob::syncLog(uint64_t upTo) {
    while (!unsynced_.empty() && unsynced_.front().sequence <= upTo) {
        const LogEntry& e = unsynced_.front().entry;
        log_.push_back(e);
        if (const auto* l = std::get_if<LogLineage>(&e)) {
            if (auto v = checker_.lineage(l->lineage, l->ledger, l->fromStep))
                fail(v->invariant + ": " + v->detail);
        } else if (const auto* commit = std::get_if<LogCommit>(&e)) {
            const CommitRecord& r = commit->record;
            durable_[{r.lineage, r.step}] = r;
            lastRecord_ = r;
            if (auto v = checker_.committed(r)) fail(v->invariant + ": " + v->detail);
        }
        unsynced_.erase(unsynced_.begin());
    }
}

void SimulatedJob::operate(Operation operation) {
    coordinate(operation);
}

void SimulatedJob::carryOut(Actions actions) {
    for (Action& action : actions) {
        if (onAction) onAction(action);
        if (!coordinator_) return;  // the hook killed it
        if (auto* a = std::get_if<SendReplica>(&action)) {
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s)
                down({a->replica, s}, a->incarnation, a->message);
        } else if (auto* b = std::get_if<SendRank>(&action)) {
            down(b->rank, b->incarnation, b->message);
        } else if (auto* c = std::get_if<AppendLog>(&action)) {
            unsynced_.push_back(*c);
            if (!c->overlapped) {
                syncLog(c->sequence);
                continue;
            }
            at(soon(0.2, 3), [this, seq = c->sequence, life = life_] {
                if (life != life_) return;
                syncLog(seq);
                coordinate(RecordDurable{seq});
            });
        } else if (auto* d = std::get_if<StartReplica>(&action)) {
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
                const RankId id{d->replica, s};
                at(soon(5, 60), [this, id, inc = d->incarnation] {
                    auto& slot = ranks_[id];
                    if (slot && slot->incarnation >= inc) return;
                    if (slot) {
                        if (slot->alive) die(*slot, 9);
                        graveyard_.push_back(std::move(slot));
                    }
                    slot = std::make_unique<Rank>(id, inc, options_);
                    coordinate(RankRunning{id, inc, 1, "node0"});
                    hello(*slot);
                    // Beats for as long as it lives.
                    auto beat = std::make_shared<std::function<void()>>();
                    *beat = [this, id, inc, weak = std::weak_ptr(beat)] {
                        Rank* r = live(id, inc);
                        if (r == nullptr) return;
                        if (r->computing) ++r->progress;
                        if (!r->hung)
                            up(id, inc,
                               Beat{id, inc, r->machine.phase(), r->machine.appliedStep(),
                                    r->progress});
                        give(id, inc, RankTick{});
                        if (auto again = weak.lock())
                            at(now_ + options_.timeouts.beatMs * kMillisecond,
                               [again] { (*again)(); });
                    };
                    (*beat)();
                });
            }
        } else if (auto* e = std::get_if<StopReplica>(&action)) {
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s)
                at(soon(1, 10),
                   [this, id = RankId{e->replica, s}, inc = e->incarnation, kill = e->kill] {
                       const auto it = ranks_.find(id);
                       if (it == ranks_.end() || !it->second->alive) return;
                       if (it->second->incarnation <= inc) die(*it->second, kill ? 9 : 15);
                   });
        } else if (auto* w = std::get_if<WakeAt>(&action)) {
            wakeAt_ = w->at;
            at(w->at, [this, when = w->at, life = life_] {
                if (life == life_ && wakeAt_ == when) coordinate(Tick{});
            });
        } else if (auto* f = std::get_if<Emit>(&action)) {
            if (const auto* broken = std::get_if<fact::InvariantBroken>(&f->fact))
                fail(broken->invariant + ": " + broken->detail);
            facts_.push_back(std::move(f->fact));
        } else if (std::holds_alternative<Finished>(action)) {
            finished_ = true;
        }
    }
}

// ---- links
// ---------------------------------------------------------------------------------------

SimulatedJob::Rank* SimulatedJob::live(RankId id, uint32_t incarnation) {
    Rank* r = live(id);
    return r != nullptr && r->incarnation == incarnation ? r : nullptr;
}

SimulatedJob::Rank* SimulatedJob::live(RankId id) {
    const auto it = ranks_.find(id);
    return it != ranks_.end() && it->second && it->second->alive ? it->second.get() : nullptr;
}

void SimulatedJob::hello(Rank& rank) {
    give(rank.id, rank.incarnation, Connected{});
    Hello h;
    h.endpoint.rank = rank.id;
    h.endpoint.incarnation = rank.incarnation;
    h.corpusHash = 1;
    up(rank.id, rank.incarnation, h);
}

void SimulatedJob::up(RankId from, uint32_t incarnation, ToCoordinator message) {
    (void)incarnation;
    post(absl::StrCat("up", from.replica, "/", from.shard, "/", incarnation, "/", life_), 0.1, 2,
         [this, from, message = std::move(message), life = life_] {
             if (life == life_) coordinate(Received{from, message});
         });
}

void SimulatedJob::down(RankId to, uint32_t incarnation, const ToReplica& message) {
    post(absl::StrCat("down", to.replica, "/", to.shard, "/", incarnation), 0.1, 2,
         [this, to, incarnation, message] { give(to, incarnation, FromCoordinator{message}); });
}

void SimulatedJob::give(RankId id, uint32_t incarnation, RankInput input) {
    Rank* r = live(id, incarnation);
    if (r == nullptr) return;
    if (r->hung) {
        r->inbox.push_back(std::move(input));
        return;
    }
    carryOut(*r, r->machine.step(now_, input));
}

// ---- processes
// -----------------------------------------------------------------------------------

void SimulatedJob::die(Rank& rank, int signal) {
    if (!rank.alive) return;
    rank.alive = false;
    breakMeetings(rank.id.replica);
    at(soon(1, 8), [this, id = rank.id, inc = rank.incarnation, signal, life = life_] {
        if (life == life_) coordinate(RankExited{id, inc, 0, signal, "node0", 0});
    });
}

void SimulatedJob::killRank(int32_t replica, int32_t shard) {
    if (Rank* r = live({replica, shard})) die(*r, 9);
}

void SimulatedJob::killReplica(int32_t replica) {
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) killRank(replica, s);
}

void SimulatedJob::hangRank(int32_t replica, int32_t shard) {
    if (Rank* r = live({replica, shard})) r->hung = true;
}

void SimulatedJob::wakeRank(int32_t replica, int32_t shard) {
    Rank* r = live({replica, shard});
    if (r == nullptr || !r->hung) return;
    r->hung = false;
    auto inbox = std::exchange(r->inbox, {});
    for (RankInput& in : inbox) give(r->id, r->incarnation, std::move(in));
}

void SimulatedJob::flipState(int32_t replica, int32_t shard) {
    if (Rank* r = live({replica, shard})) {
        r->state ^= 1;
        flipped_.insert(replica);
    }
}

void SimulatedJob::nextGradientNotFinite(int32_t replica) {
    if (Rank* r = live({replica, 0})) r->nonFiniteNext = true;
}

void SimulatedJob::poison(uint32_t domain, uint64_t sample) {
    poisoned_.insert({domain, sample});
}

void SimulatedJob::cutData(int32_t replica, bool cut) {
    if (!cut) {
        cut_.erase(replica);
        return;
    }
    cut_.insert(replica);
    breakMeetings(replica);
}

// ---- a rank's driver
// -----------------------------------------------------------------------------

void SimulatedJob::carryOut(Rank& rank, RankActions actions) {
    const RankId id = rank.id;
    const uint32_t inc = rank.incarnation;
    for (RankAction& action : actions) {
        if (onRankAction) onRankAction(id, action);
        if (!rank.alive) return;
        if (auto* build = std::get_if<BuildReplica>(&action)) {
            at(soon(5, 30), [this, id, inc, b = *build] {
                Rank* r = live(id, inc);
                if (r == nullptr) return;
                InitDone done{!b.formed.blank, 0, 0, b.welcome.layout};
                if (!b.formed.blank) {
                    const auto it = checkpoints_.find(b.welcome.resumeFrom);
                    r->state =
                        it == checkpoints_.end() ? seedState(id.shard) : it->second.at(id.shard);
                    if (it != checkpoints_.end())
                        done.step = checkpointSteps_[b.welcome.resumeFrom];
                    done.hash = r->retained = r->state;
                }
                give(id, inc, done);
            });
        } else if (auto* begin = std::get_if<BeginStep>(&action)) {
            rank.work = *begin;
            if (begin->enter) {
                rank.computing = false;
                rank.computed = true;
                ++rank.generation;
                beginExchange(rank);
            } else if (begin->compute) {
                rank.computing = true;
                rank.computed = false;
                const uint64_t generation = ++rank.generation;
                at(soon(8, 20), [this, id, inc, generation] {
                    Rank* r = live(id, inc);
                    if (r == nullptr || r->generation != generation || !r->work) return;
                    if (r->hung) {
                        r->inbox.push_back(ComputeDone{r->work->quorum.step, false});
                        r->computing = false;
                        r->computed = true;
                        return;
                    }
                    r->computing = false;
                    r->computed = true;
                    bool nonFinite = std::exchange(r->nonFiniteNext, false);
                    for (const SampleRange& range : r->work->ranges)
                        for (const auto& [domain, sample] : poisoned_)
                            nonFinite = nonFinite || (range.domain == domain &&
                                                      range.begin <= sample && sample < range.end);
                    give(id, inc, ComputeDone{r->work->quorum.step, nonFinite});
                    if (!nonFinite) beginExchange(*r);
                });
            } else if (rank.computed) {
                beginExchange(rank);
            }
        } else if (auto* abort = std::get_if<AbortExchange>(&action)) {
            if (rank.computed && rank.work)
                at(soon(0, 1), [this, id, inc, exchange = abort->id] {
                    give(id, inc, ExchangeDone{exchange, false, {}});
                });
        } else if (std::holds_alternative<DropStep>(action)) {
            rank.work.reset();
            rank.computing = rank.computed = false;
            ++rank.generation;
        } else if (auto* commit = std::get_if<ApplyCommit>(&action)) {
            at(soon(1, 4), [this, id, inc, c = *commit] {
                Rank* r = live(id, inc);
                if (r == nullptr || !r->sum) return;
                apply(*r, c.record, r->sum->second);
                r->work.reset();
                r->computed = false;
                if (c.checkpoint) checkpointPart(*r, c.record.step);
                give(id, inc, Applied{c.record.step, r->state, 1});
            });
        } else if (auto* write = std::get_if<WriteCheckpoint>(&action)) {
            checkpointPart(rank, write->step);
        } else if (auto* take = std::get_if<TakeSnapshot>(&action)) {
            rank.snapshots[take->step] = rank.state;
            at(soon(0.5, 3),
               [this, id, inc, step = take->step] { give(id, inc, SnapshotTaken{step}); });
        } else if (auto* drop = std::get_if<DropSnapshot>(&action)) {
            rank.snapshots.erase(drop->step);
        } else if (auto* fetch = std::get_if<BeginFetch>(&action)) {
            if (fetch->sourcesOnly && !rank.fetching) continue;
            const uint64_t generation = ++rank.fetchGeneration;
            rank.fetching = true;
            at(soon(10, 60), [this, id, inc, generation, f = fetch->fetch] {
                Rank* r = live(id, inc);
                if (r == nullptr || r->fetchGeneration != generation) return;
                r->fetching = false;
                std::vector<int32_t> failed;
                for (const Member& m : f.sources) {
                    Rank* source =
                        live({m.contribution.replica, id.shard}, m.contribution.incarnation);
                    if (source == nullptr || !source->snapshots.contains(f.snapshotStep)) {
                        failed.push_back(m.contribution.replica);
                        continue;
                    }
                    r->state = r->retained = source->snapshots[f.snapshotStep];
                    give(id, inc, FetchAdvanced{50, 100});
                    give(id, inc, FetchDone{f.snapshotStep, r->state});
                    return;
                }
                give(id, inc, FetchBroke{false, failed, "no source answered"});
            });
        } else if (auto* replay = std::get_if<ReplayCommit>(&action)) {
            at(soon(1, 6), [this, id, inc, record = replay->record,
                            generation = rank.fetchGeneration, exchanged = replay->exchanged] {
                Rank* r = live(id, inc);
                if (r == nullptr || r->fetchGeneration != generation) return;
                if (exchanged) {
                    apply(*r, record, r->sum->second);
                    give(id, inc, Replayed{record.step, r->state});
                    return;
                }
                for (const auto& [other, source] : ranks_)
                    if (other.shard == id.shard && source->alive &&
                        source->sums.contains(record.step) &&
                        source->machine.lineage() == record.lineage) {
                        apply(*r, record, source->sums[record.step]);
                        give(id, inc, Replayed{record.step, r->state});
                        return;
                    }
                give(id, inc, FetchBroke{true, {}, "the delta is gone"});
            });
        } else if (auto* judge = std::get_if<JudgeReplay>(&action)) {
            at(soon(1, 3), [this, id, inc, step = judge->step] {
                Rank* r = live(id, inc);
                if (r == nullptr || !r->history.contains(step)) return;
                const CommitRecord& record = durable_[{r->machine.lineage(), step}];
                uint64_t again = r->history[step];
                again = record.skip ? again : mix(mix(again, r->sums[step]), record.gradScaleBits);
                give(id, inc, ReplayJudged{step, again == r->state});
            });
        } else if (auto* move = std::get_if<MoveLayout>(&action)) {
            const bool ok = !failMove_.contains(id.replica);
            at(soon(1, 5), [this, id, inc, layout = move->layout, ok, hash = rank.state] {
                give(id, inc, LayoutMoveDone{layout, ok, 10, ok ? "" : "no room", hash});
            });
        } else if (auto* sendUp = std::get_if<SendUp>(&action)) {
            up(id, inc, std::move(sendUp->message));
        } else if (auto* toLeader = std::get_if<SendLeader>(&action)) {
            post(absl::StrCat("in", id.replica, "/", id.shard, "/", inc), 0.05, 0.5,
                 [this, id, inc, message = toLeader->message] {
                     Rank* leader = live({id.replica, 0}, inc);
                     if (leader == nullptr || leader->hung) return;
                     auto folded = leader->fold->add(message);
                     if (!folded.ok()) return fail(folded.status().ToString());
                     if (*folded) up(leader->id, inc, **folded);
                 });
        } else if (std::holds_alternative<ExitRank>(action)) {
            die(rank, 0);
            return;
        }
    }
}

void SimulatedJob::beginExchange(Rank& rank) {
    if (!rank.work || !rank.alive) return;
    const Quorum& q = rank.work->quorum;
    const MeetingKey key{q.exchangeToken, {q.step, q.epoch, q.attempt}, rank.id.shard};
    if (rank.machine.exchange() != std::get<1>(key)) return;
    Meeting& m = meetings_[key];
    if (m.members.empty())
        for (const Member& member : q.contributors)
            m.members.push_back(member.contribution.replica);
    m.parts[rank.id.replica] = {
        rank.incarnation,
        rank.work->enter ? 0 : partOf(rank.state, rank.work->ranges, rank.id.shard)};
    for (int32_t other : m.members) {
        const Rank* peer = live({other, rank.id.shard});
        uint32_t expected = 0;
        for (const Member& member : q.contributors)
            if (member.contribution.replica == other) expected = member.contribution.incarnation;
        if (peer == nullptr || peer->incarnation != expected || cut_.contains(other) ||
            (cut_.contains(rank.id.replica) && other != rank.id.replica))
            if (other != rank.id.replica) complain(key, rank.id.replica, other);
    }
    if (m.allIn || m.parts.size() != m.members.size()) return;
    if (std::any_of(m.members.begin(), m.members.end(),
                    [&](int32_t r) { return cut_.contains(r) && m.members.size() > 1; }))
        return;
    m.allIn = true;
    for (int32_t r : m.members) m.sum = mix(m.sum, m.parts[r].second);
    for (int32_t r : m.members) at(soon(1, 6), [this, key, r] { meet(key, r); });
}

/// One member has received the last of its sum.
void SimulatedJob::meet(const MeetingKey& key, int32_t replica) {
    const auto it = meetings_.find(key);
    if (it == meetings_.end()) return;
    Meeting& m = it->second;
    const RankId id{replica, std::get<2>(key)};
    Rank* r = live(id, m.parts[replica].first);
    if (r == nullptr || r->hung || r->machine.exchange() != std::get<1>(key)) return;
    for (int32_t other : m.members) {
        const Rank* peer = live({other, id.shard}, m.parts[other].first);
        // Dead before it had sent everything, or just after: both happen.
        if (peer == nullptr && !m.done.contains(other) && rng() % 2 == 0) {
            complain(key, replica, other);
            return;
        }
    }
    m.done.insert(replica);
    r->sum = std::pair{std::get<1>(key), m.sum};
    RankVote vote;
    vote.gradSquares = static_cast<double>(m.sum % 1000003);
    vote.tokens = options_.sequenceLength * sampleCount(r->work->ranges) / options_.shards;
    vote.lossSum = 2.0 * static_cast<double>(vote.tokens);
    vote.exchangeMs = 4;
    give(id, r->incarnation, ExchangeDone{std::get<1>(key), true, vote});
}

void SimulatedJob::complain(const MeetingKey& key, int32_t reporter, int32_t accused) {
    const ExchangeId id = std::get<1>(key);
    const RankId from{reporter, std::get<2>(key)};
    Rank* r = live(from);
    if (r == nullptr || r->hung || !r->work) return;
    uint32_t incarnation = 0;
    for (const Member& m : r->work->quorum.contributors)
        if (m.contribution.replica == accused) incarnation = m.contribution.incarnation;
    Evidence e{EvidenceKind::kTransportReset,
               {accused, from.shard},
               incarnation,
               absl::StrCat("r", reporter, "s", from.shard),
               "connection reset",
               id.step,
               id.epoch,
               id.attempt};
    up(from, r->incarnation, e);
}

/// Everybody who still exchanges with a replica loses it.
void SimulatedJob::breakMeetings(int32_t replica) {
    for (auto& [key, m] : meetings_) {
        if (!std::count(m.members.begin(), m.members.end(), replica)) continue;
        for (int32_t other : m.members) {
            if (other == replica || !m.parts.contains(other) || m.done.contains(other)) continue;
            Rank* r = live({other, std::get<2>(key)}, m.parts[other].first);
            if (r != nullptr && r->machine.exchange() == std::get<1>(key) && !m.allIn)
                complain(key, other, replica);
        }
        if (cut_.contains(replica) && !m.allIn) m.parts.erase(replica);
    }
    while (meetings_.size() > 400) meetings_.erase(meetings_.begin());
}

void SimulatedJob::apply(Rank& rank, const CommitRecord& record, uint64_t sum) {
    const auto durable = durable_.find({record.lineage, record.step});
    if (durable == durable_.end() || durable->second != record)
        fail(absl::StrCat("I1/I5: r", rank.id.replica, " applied a record of step ", record.step,
                          " that is not the durable one"));
    rank.history[record.step] = rank.retained;
    if (!record.skip) rank.state = mix(mix(rank.state, sum), record.gradScaleBits);
    rank.retained = rank.state;
    rank.sums[record.step] = sum;
    while (rank.sums.size() > 40) rank.sums.erase(rank.sums.begin());
    while (rank.history.size() > 4) rank.history.erase(rank.history.begin());
    auto [it, fresh] =
        stateAfter_.try_emplace({record.lineage, record.step, rank.id.shard}, rank.state);
    if (!fresh && it->second != rank.state && flipped_.empty())
        fail(absl::StrCat("I3: r", rank.id.replica, "s", rank.id.shard, " differs after step ",
                          record.step));
    while (stateAfter_.size() > 4000) stateAfter_.erase(stateAfter_.begin());
}

void SimulatedJob::checkpointPart(Rank& rank, uint64_t step) {
    const std::string path = absl::StrCat("ckpt-", rank.machine.lineage(), "-", step, "-r",
                                          rank.id.replica, "-", rank.incarnation);
    checkpoints_[path][rank.id.shard] = rank.state;
    checkpointSteps_[path] = step;
    if (checkpoints_[path].size() < options_.shards) return;
    at(soon(2, 20), [this, id = RankId{rank.id.replica, 0}, inc = rank.incarnation, path, step] {
        if (live(id, inc) != nullptr)
            up(id, inc, CheckpointDone{id.replica, inc, step, path, 100, 5, true, ""});
    });
}

// ---- looking at it
// -------------------------------------------------------------------------------

void SimulatedJob::check() {
    if (coordinator_ && lastRecord_ && coordinator_->lineage() == lastRecord_->lineage &&
        coordinator_->committedStep() > lastRecord_->step)
        fail(absl::StrCat("I6: step ", coordinator_->committedStep(),
                          " counts as committed, the "
                          "log ends at ",
                          lastRecord_->step));
}

size_t SimulatedJob::training() const {
    if (!coordinator_) return 0;
    size_t n = 0;
    for (const ReplicaView& v : coordinator_->replicas()) n += v.state == ReplicaState::kTraining;
    return n;
}

Hashes SimulatedJob::stateOf(int32_t replica) const {
    Hashes out;
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
        const auto it = ranks_.find({replica, s});
        if (it == ranks_.end() || !it->second->alive) return {};
        out.push_back(it->second->state);
    }
    return out;
}

std::string SimulatedJob::ranksOf(int32_t replica) const {
    std::string text;
    for (const auto& [id, r] : ranks_) {
        if (id.replica != replica) continue;
        absl::StrAppend(&text, " s", id.shard, r->alive ? "" : " dead", r->hung ? " hung" : "", " ",
                        std::string(enumName(r->machine.phase())));
        if (const auto e = r->machine.exchange())
            absl::StrAppend(&text, " ", e->step, "/", e->epoch, "/", e->attempt);
        absl::StrAppend(&text, r->computing ? " computing" : "", r->computed ? " computed" : "");
    }
    return text;
}

uint64_t SimulatedJob::appliedBy(int32_t replica) const {
    const auto it = ranks_.find({replica, 0});
    return it == ranks_.end() ? 0 : it->second->machine.appliedStep();
}

uint64_t SimulatedJob::samplesOfReplicaInLastCommit(int32_t replica) const {
    if (lastRecord_)
        for (const Contribution& c : lastRecord_->contributors)
            if (c.replica == replica) return sampleCount(c.ranges);
    return 0;
}

}  // namespace bulkhead::protocol
