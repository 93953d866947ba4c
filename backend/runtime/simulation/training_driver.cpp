// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "backend/runtime/simulation/simulated_job_impl.h"

/// A rank's training thread and its data: computing, exchanging, applying, copies of state.
namespace bulkhead::simulation {
namespace {

constexpr int kDeltaRounds = 12;

}  // namespace

void SimulatedJob::build(Process& rank, const BuildReplica& a) {
    train(rank, 5, 30, [this, formed = a.formed, welcome = a.welcome](Process& r) {
        InitDone done{!formed.blank, 0, 0, welcome.layout};
        r.now = {welcome.lineage, 0, welcome.layout, 0, false};
        if (!formed.blank) {
            r.now.state = initialState(r.id.shard);
            if (!welcome.resumeFrom.empty()) {
                const auto it = checkpoints_.find(welcome.resumeFrom);
                // Steps were committed since, and the next checkpoints took its place.
                const bool late = oracle_.lineage() != welcome.lineage || oracle_.movedOn();
                if (it == checkpoints_.end() && late) return exitSoon(r);
                if (it == checkpoints_.end() || !it->second.whole)
                    return fail("I6", absl::StrCat(nameOf(r.id), " is to begin from ",
                                                   welcome.resumeFrom, ", which does not exist"));
                if (it->second.damaged) {
                    up(r, CheckpointUnusable{r.id.replica, r.incarnation, welcome.resumeFrom,
                                             "a shard does not have its hash"});
                    return exitSoon(r);
                }
                r.now = it->second.parts.at(r.id.shard);
                r.now.lineage = welcome.lineage;
            }
            r.hasState = true;
            done.step = r.now.step;
            done.hash = r.now.hash();
            r.clean = r.now;
            done.layout = r.now.layout;
            oracle_.stood(r, true);
        }
        give(r.id, r.incarnation, done);
    });
}

// ---- a step

void SimulatedJob::begin(Process& rank, BeginStep a) {
    const bool compute = a.compute;
    rank.work = std::move(a);
    oracle_.began(rank, rank.work->quorum);
    rank.sumIn = rank.overflow = false;
    if (rank.work->enter) {
        rank.gradient = {};
        rank.computing = false;
        rank.computed = true;
        ++rank.generation;
        return exchange(rank);
    }
    if (!compute) {
        if (rank.computed) exchange(rank);
        return;
    }
    // The running computation is dropped when it is done; nothing overtakes it.
    rank.computing = true;
    rank.computed = false;
    const uint64_t generation = ++rank.generation;
    train(rank, 8 * rank.slow, 25 * rank.slow, [this, generation](Process& r) {
        if (r.generation != generation || !r.work) return;
        computeDone(r);
    });
}

void SimulatedJob::computeDone(Process& rank) {
    const uint64_t step = rank.work->quorum.step;
    if (rank.now.step + 1 != step || !rank.hasState)
        fail("I5", absl::StrCat(nameOf(rank.id), " is to compute step ", step,
                                " from a state of step ", rank.now.step));
    rank.computing = false;
    rank.computed = true;
    rank.gradient = gradientOf(rank.now.hash(), rank.work->ranges);
    if (rank.flipGradientNext) rank.gradient[0] ^= 1u << 7;
    oracle_.computed(rank);
    rank.flipGradientNext = false;
    bool finite = rank.nanNext == 0;
    if (!finite) --rank.nanNext;
    notFinite_ += !finite;
    for (const SampleRange& range : rank.work->ranges)
        for (const auto& [domain, sample] : poisoned_)
            finite =
                finite && !(range.domain == domain && range.begin <= sample && sample < range.end);
    const RankId id = rank.id;
    const uint32_t inc = rank.incarnation;
    this->step(rank, ComputeDone{step, !finite});
    if (finite && live(id, inc) == &rank) exchange(rank);
}

void SimulatedJob::exchange(Process& rank) {
    if (!rank.work || rank.hung) return;
    const Quorum& q = rank.work->quorum;
    if (rank.machine.exchange() != ExchangeId{q.step, q.epoch, q.attempt}) return;
    plane_.join(rank.id, rank.incarnation, q, rank.gradient);
}

/// Everything arrived; the sum of squares is the training thread's.
void SimulatedJob::exchanged(Process& rank, const ExchangeId& id, const Sum& sum, bool overflow) {
    if (rank.machine.exchange() != id || !rank.work) return;
    rank.reduced = sum;
    rank.overflow = overflow;
    rank.sumIn = true;
    ++rank.progress;
    oracle_.completed(rank, id, overflow);
    if (rank.work->enter) return step(rank, ExchangeDone{id, true, {}});
    train(rank, 0.05, 0.5, [this, id](Process& r) {
        if (!r.work) return;
        RankVote vote;
        vote.gradSquares =
            r.overflow ? std::numeric_limits<double>::infinity() : squaresOf(r.reduced);
        uint64_t samples = 0;
        for (const SampleRange& range : r.work->ranges) samples += range.end - range.begin;
        vote.tokens = options_.sequenceLength * samples / options_.shards;
        vote.lossSum = 2.0 * static_cast<double>(vote.tokens);
        vote.exchangeMs = 4;
        step(r, ExchangeDone{id, true, vote});
    });
}

void SimulatedJob::accuse(Process& rank, const ExchangeId& id, EvidenceKind kind,
                          const std::vector<int32_t>& peers) {
    if (rank.hung || rank.machine.exchange() != id || !rank.work) return;
    tell(nameOf(rank.id), absl::StrCat("cannot complete step ", id.step, " attempt ", id.attempt,
                                       ": ", std::string(enumName(kind))));
    for (int32_t peer : peers) {
        Evidence e;
        e.kind = kind;
        e.accused = {peer, rank.id.shard};
        for (const Member& m : rank.work->quorum.contributors)
            if (m.contribution.replica == peer) e.incarnation = m.contribution.incarnation;
        e.reporter = nameOf(rank.id);
        e.step = id.step;
        e.epoch = id.epoch;
        e.attempt = id.attempt;
        up(rank, e);
    }
    ExchangeDone done{id, false, {}};
    done.vote.failedPeers = peers;
    step(rank, done);
}

void SimulatedJob::abort(Process& rank, const AbortExchange& a) {
    plane_.leave(rank.id, rank.incarnation);
    const bool complete = rank.sumIn && rank.work &&
                          a.id == ExchangeId{rank.work->quorum.step, rank.work->quorum.epoch,
                                             rank.work->quorum.attempt};
    if (complete || (!rank.computed && !rank.rng.chance(0.3))) return;
    at(now_ + rank.rng.between(0, 1), [this, id = rank.id, inc = rank.incarnation, e = a.id] {
        give(id, inc, ExchangeDone{e, false, {}});
    });
}

void SimulatedJob::drop(Process& rank) {
    rank.work.reset();
    rank.computing = rank.computed = rank.sumIn = false;
    ++rank.generation;
}

void SimulatedJob::apply(Process& rank, const ApplyCommit& a) {
    train(rank, 1, 4, [this, a](Process& r) {
        update(r, a.record, r.reduced, false);
        r.work.reset();
        r.computed = r.sumIn = false;
        const RankId id = r.id;
        const uint32_t inc = r.incarnation;
        if (a.checkpoint) writeCheckpoint(r, a.record.step);
        give(id, inc, Applied{a.record.step, 1});
    });
}

void SimulatedJob::update(Process& rank, const CommitRecord& record, const Sum& sum,
                          bool replayed) {
    if (record.step != rank.now.step + 1)
        fail("I5", absl::StrCat(nameOf(rank.id), " is to apply step ", record.step,
                                " to a state of step ", rank.now.step));
    rank.before = rank.clean;
    // A gradient of experts that lie elsewhere fits nothing here.
    if (record.layout != rank.now.layout) rank.now.state = mix(rank.now.state, record.layout);
    rank.now.state = applied(rank.now.state, sum, record);
    rank.now.step = record.step;
    rank.now.lineage = record.lineage;
    rank.clean = rank.now;
    ++rank.progress;
    oracle_.applied(rank, record, replayed);
    // A window has no gap and does not cross a lineage or a layout.
    if (!rank.deltas.empty()) {
        const CommitRecord& last = rank.deltas.rbegin()->second.record;
        if (last.step + 1 != record.step || last.lineage != record.lineage ||
            last.layout != record.layout)
            rank.deltas.clear();
    }
    rank.deltas[record.step] = {record, sum};
    while (rank.deltas.size() > environment_.deltaWindow) rank.deltas.erase(rank.deltas.begin());
}

/// By the sum of the exchange it entered, which no later one has overwritten.
void SimulatedJob::replayExchanged(Process& rank, const CommitRecord& record) {
    train(rank, 1, 4, [this, record, generation = rank.fetchGeneration](Process& r) {
        if (r.fetchGeneration != generation) return;
        update(r, record, r.reduced, true);
        r.work.reset();
        r.computed = r.sumIn = false;
        give(r.id, r.incarnation, Replayed{record.step});
    });
}

void SimulatedJob::hashState(Process& rank, uint64_t step) {
    train(rank, environment_.hashMs * 0.9, environment_.hashMs * 1.1, [this, step](Process& r) {
        if (r.now.step != step) return;  // overtaken
        give(r.id, r.incarnation, StateHashed{step, r.now.hash(), environment_.hashMs});
    });
}

void SimulatedJob::judge(Process& rank, uint64_t step) {
    const auto delta = rank.deltas.find(step);
    const bool can = rank.now.step == step && rank.before && rank.before->step + 1 == step &&
                     delta != rank.deltas.end();
    const bool matches = can && applied(rank.before->state, delta->second.sum,
                                        delta->second.record) == rank.now.state;
    give(rank.id, rank.incarnation, ReplayJudged{step, can, matches});
}

// ---- copies of state

void SimulatedJob::takeSnapshot(Process& rank, uint64_t step) {
    if (step != rank.now.step)
        return fail("I5", absl::StrCat(nameOf(rank.id), " is to keep a snapshot of step ", step,
                                       ", its state is of step ", rank.now.step));
    rank.snapshots[step] = rank.now;
    give(rank.id, rank.incarnation, SnapshotTaken{step});
}

/// The leader writes the manifest when every shard's file is there.
void SimulatedJob::writeCheckpoint(Process& rank, uint64_t step) {
    if (step != rank.now.step) return;  // overtaken
    const std::string path =
        absl::StrCat("/checkpoints/l", rank.now.lineage, "-step", step, "-layout", rank.now.layout,
                     "-r", rank.id.replica, "-", rank.incarnation, "/manifest.json");
    Stored& stored = checkpoints_[path];
    stored.parts[rank.id.shard] = rank.now;
    if (stored.parts.size() < options_.shards) return;
    const bool ok = failCheckpoint_.erase(rank.id.replica) == 0;
    at(now_ + rank.rng.between(2, 20),
       [this, id = RankId{rank.id.replica, 0}, inc = rank.incarnation, layout = rank.now.layout,
        path, step, ok, parts = stored.parts] {
           Process* leader = live(id, inc);
           if (leader == nullptr || leader->hung) return;
           Stored& written = checkpoints_[path];
           written.whole = written.whole || ok;
           if (ok) written.parts = parts;  // an attempt before it may have failed meanwhile
           if (!written.whole) written.parts.clear();
           up(*leader, CheckpointDone{id.replica, inc, step, layout, ok ? path : "", 100, 5, ok,
                                      ok ? "" : "disk full"});
       });
}

/// All files on disk are gone; nobody may need them any more.
void SimulatedJob::removeCheckpoints(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
        const auto it = checkpoints_.find(path);
        if (it == checkpoints_.end()) continue;  // the order came twice
        oracle_.removed(path);
        checkpoints_.erase(it);
    }
}

void SimulatedJob::fetch(Process& rank, BeginFetch a) {
    rank.fetch = std::move(a.fetch);
    if (a.sourcesOnly && rank.fetched) return;
    if (!a.sourcesOnly) rank.hasState = rank.fetched = false;
    rank.fetching = true;
    pullLater(rank, a.sourcesOnly ? 2 : 10, a.sourcesOnly ? 10 : 60);
}

void SimulatedJob::pullLater(Process& rank, double fromMs, double toMs) {
    const uint64_t generation = ++rank.fetchGeneration;
    train(rank, fromMs, toMs, [this, generation](Process& r) {
        if (r.fetchGeneration == generation) pull(r);
    });
}

Process* SimulatedJob::source(const Process& rank, const Member& m) const {
    const int32_t replica = m.contribution.replica;
    Process* s = live({replica, rank.id.shard}, m.contribution.incarnation);
    const bool reachable =
        s != nullptr && !s->hung && !cut_.contains(replica) && !cut_.contains(rank.id.replica);
    return reachable ? s : nullptr;
}

void SimulatedJob::pull(Process& rank) {
    rank.fetching = false;
    const Fetch f = *rank.fetch;
    std::vector<int32_t> failed;
    const bool broken = failFetch_.erase(rank.id.replica) > 0;
    const size_t first = f.sources.empty() ? 0 : rank.rng.below(f.sources.size());
    for (size_t i = 0; i < f.sources.size(); ++i) {
        const Member& m = f.sources[(first + i) % f.sources.size()];
        const Process* s = source(rank, m);
        const auto copy =
            s == nullptr ? decltype(s->snapshots.end()){} : s->snapshots.find(f.snapshotStep);
        if (broken || s == nullptr || copy == s->snapshots.end() ||
            copy->second.lineage != f.lineage || copy->second.layout != f.layout) {
            failed.push_back(m.contribution.replica);
            continue;
        }
        rank.now = copy->second;
        if (flipCopy_.erase(rank.id.replica) > 0) flip(rank);
        rank.clean = rank.now;
        rank.hasState = rank.fetched = true;
        rank.before.reset();
        rank.deltas.clear();
        oracle_.stood(rank, true);
        const RankId id = rank.id;
        const uint32_t inc = rank.incarnation;
        give(id, inc, FetchAdvanced{100, 100});
        return give(id, inc, FetchDone{f.snapshotStep, rank.now.hash(), rank.now.layout});
    }
    give(rank.id, rank.incarnation, FetchBroke{false, failed, "no source answered"});
}

void SimulatedJob::replay(Process& rank, const CommitRecord& record, int round) {
    train(rank, 1, 5, [this, record, round, generation = rank.fetchGeneration](Process& r) {
        if (r.fetchGeneration != generation || !r.fetch) return;
        const Delta* found = nullptr;
        const Delta nothing{record, {}};
        if (record.skip) found = &nothing;
        for (const Member& m : r.fetch->sources) {
            const Process* s = source(r, m);
            if (found != nullptr || s == nullptr) continue;
            const auto it = s->deltas.find(record.step);
            if (it != s->deltas.end() && it->second.record.lineage == record.lineage)
                found = &it->second;
        }
        if (found == nullptr) {
            // A source may not have applied it yet.
            if (round < kDeltaRounds) return replay(r, record, round + 1);
            return give(r.id, r.incarnation, FetchBroke{true, {}, "the delta is gone"});
        }
        update(r, record, found->sum, true);
        give(r.id, r.incarnation, Replayed{record.step});
    });
}

// ---- moving experts

void SimulatedJob::moveLayout(Process& rank, uint64_t layout) {
    const bool ok = !failMove_.contains(rank.id.replica);
    if (ok) layOut(rank, layout);
    give(rank.id, rank.incarnation,
         LayoutMoveDone{layout, ok, 10, ok ? "" : "no room", rank.now.hash()});
}

/// State and all that is served of it lie otherwise from here on.
void SimulatedJob::layOut(Process& rank, uint64_t layout) {
    rank.now.layout = rank.clean.layout = layout;
    rank.gradient = rank.reduced = {};
    rank.before.reset();
    rank.deltas.clear();
}

void SimulatedJob::settle(Process& rank, const SettleLayout& a) {
    if (rank.now.layout != a.layout)
        return fail("I5", absl::StrCat(nameOf(rank.id), " is to settle layout ", a.layout,
                                       ", to which it has not moved"));
    if (!a.adopt) layOut(rank, a.countsInstead);
    oracle_.settled(rank);
}

}  // namespace bulkhead::simulation
