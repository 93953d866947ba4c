// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/simulated_job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/simulated_job_impl.h"

namespace bulkhead::simulation {

SimulatedJob::SimulatedJob(Options options, uint64_t seed)
    : SimulatedJob(std::move(options), seed, Environment{}) {}

SimulatedJob::SimulatedJob(Options options, uint64_t seed, Environment environment)
    : rng(mix(seed, 1)),
      options_(std::move(options)),
      environment_(environment),
      seed_(seed),
      network_(mix(seed, 2), places() * options_.shards * 3 + 2 * environment.nodes),
      plane_(events_, now_, mix(seed, 3),
             DataPlane::Hooks{
                 [this](RankId id, uint32_t inc) { return live(id, inc) != nullptr; },
                 [this](RankId id, uint32_t inc, const ExchangeId& e, const Sum& sum, bool over) {
                     if (Process* r = live(id, inc)) exchanged(*r, e, sum, over);
                 },
                 [this](RankId id, uint32_t inc, size_t bucket, uint64_t value) {
                     if (Process* r = live(id, inc)) landed(*r, bucket, value);
                 },
                 [this](RankId id, uint32_t inc, const ExchangeId& e, EvidenceKind kind,
                        const std::vector<int32_t>& peers) {
                     if (Process* r = live(id, inc)) accuse(*r, e, kind, peers);
                 },
                 [this](std::string what) { fail("I5", std::move(what)); }}),
      oracle_(options_, [this](const char* i, std::string d) { fail(i, std::move(d)); }),
      diskRng_(mix(seed, 4)),
      agentRng_(mix(seed, 5)) {
    ranks_.resize(places() * options_.shards);
    agents_.resize(environment_.nodes);
    if (environment_.clockDrift > 0)
        coordinatorRate_ = 1 + environment_.clockDrift * (2 * diskRng_.unit() - 1);
}

SimulatedJob::~SimulatedJob() = default;

void SimulatedJob::start() {
    startCoordinator();
}

size_t SimulatedJob::index(RankId id) const {
    return static_cast<size_t>(id.replica) * options_.shards + static_cast<size_t>(id.shard);
}

size_t SimulatedJob::agentLink(size_t node, bool up) const {
    return 3 * ranks_.size() + 2 * node + (up ? 0 : 1);
}

void SimulatedJob::fail(const char* invariant, std::string detail) {
    tell("INVARIANT", absl::StrCat(invariant, " is broken: ", detail));
    failures_.push_back(absl::StrCat(invariant, ": ", detail));
}

bool SimulatedJob::runUntil(const std::function<bool()>& done, MonoNs limit) {
    const MonoNs end = now_ + limit;
    while (!done()) {
        if (!failures_.empty()) return false;
        if (events_.empty() || events_.nextAt() > end) {
            now_ = end;
            return false;
        }
        now_ = events_.nextAt();
        EventQueue::Event event = events_.takeNext();
        event();
        ++eventCount_;
        digest_ = mix(digest_, static_cast<uint64_t>(now_));
    }
    return failures_.empty();
}

void SimulatedJob::runFor(MonoNs time) {
    runUntil([] { return false; }, time);
}

// ---- looking at it

size_t SimulatedJob::training() const {
    if (!coordinatorUp()) return 0;
    size_t n = 0;
    for (const ReplicaView& v : machine()->replicas()) n += v.state == ReplicaState::kTraining;
    return n;
}

bool SimulatedJob::whole() const {
    if (!coordinatorUp() || training() != options_.replicas) return false;
    for (const ReplicaView& v : machine()->replicas())
        if (v.state != ReplicaState::kTraining && v.state != ReplicaState::kProven) return false;
    if (machine()->ledger().pooledSamples() != 0) return false;
    std::map<std::pair<uint64_t, int32_t>, uint64_t> states;
    for (const auto& r : ranks_) {
        if (!r || !r->alive || r->hung || !r->hasState) return false;
        const auto [it, fresh] = states.try_emplace({r->now.step, r->id.shard}, r->now.state);
        if (!fresh && it->second != r->now.state && !r->now.tainted) return false;
    }
    return true;
}

bool SimulatedJob::tainted() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& r) { return r && r->alive && r->now.tainted; });
}

size_t SimulatedJob::living() const {
    size_t n = 0;
    for (const auto* list : {&ranks_, &zombies_})
        for (const auto& r : *list) n += r && r->alive;
    return n;
}

size_t SimulatedJob::snapshots() const {
    size_t n = 0;
    for (const auto& r : ranks_)
        if (r && r->alive) n += r->snapshots.size();
    return n;
}

SimulatedJob::Counts SimulatedJob::counts() const {
    Counts c{eventCount_, faultCount_, oracle_.commits(), redone_, starts_, 0, network_.counts()};
    for (const auto& r : ranks_)
        if (r) c.fenced += r->rules().fenced();
    for (const auto& r : zombies_) c.fenced += r->rules().fenced();
    return c;
}

std::vector<uint64_t> SimulatedJob::stateOf(int32_t replica) const {
    std::vector<uint64_t> out;
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
        const Process* r = live({replica, s});
        if (r == nullptr) return {};
        out.push_back(r->now.state);
    }
    return out;
}

uint64_t SimulatedJob::appliedBy(int32_t replica) const {
    const auto& r = ranks_[index({replica, 0})];
    return r ? r->rules().appliedStep() : 0;
}

std::string SimulatedJob::ranksOf(int32_t replica) const {
    std::string text;
    for (const auto& r : ranks_) {
        if (!r || r->id.replica != replica) continue;
        absl::StrAppend(&text, " s", r->id.shard, r->alive ? "" : " dead", r->hung ? " hung" : "",
                        r->connected ? "" : " unconnected", " ",
                        std::string(enumName(r->rules().phase())));
        if (const auto e = r->rules().exchange())
            absl::StrAppend(&text, " ", e->step, "/", e->epoch, "/", e->attempt);
        absl::StrAppend(&text, r->computing ? " computing" : "", r->computed ? " computed" : "");
    }
    return text;
}

std::string SimulatedJob::standing() const {
    const CoordinatorMachine* c = machine();
    if (c == nullptr) return "no coordinator";
    std::string text =
        absl::StrCat("term ", c->term(), " lineage ", c->lineage(), " step ", c->committedStep(),
                     " open ", c->openStep(), " ", std::string(enumName(c->phase())), ": ",
                     c->explanation(), "; pooled ", c->ledger().pooledSamples());
    for (const ReplicaView& v : c->replicas())
        absl::StrAppend(&text, "\nr", v.replica, " #", v.incarnation, " ",
                        std::string(enumName(v.state)), " step ", v.step, " applied ",
                        appliedBy(v.replica), ranksOf(v.replica));
    return text;
}

uint64_t SimulatedJob::samplesOfReplicaInLastCommit(int32_t replica) const {
    uint64_t samples = 0;
    if (const CommitRecord* last = oracle_.last())
        for (const Contribution& c : last->contributors)
            if (c.replica == replica)
                for (const SampleRange& r : c.ranges) samples += r.end - r.begin;
    return samples;
}

}  // namespace bulkhead::simulation
