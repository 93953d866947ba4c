// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace bulkhead::simulation {
namespace {

constexpr size_t kStepsKept = 600;
constexpr size_t kAnnouncedKept = 64;
constexpr uint64_t kWholeLookEvery = 64;

std::string name(const CommitRecord& r) {
    return absl::StrCat("step ", r.step, " (lineage ", r.lineage, ", epoch ", r.epoch, ", attempt ",
                        r.attempt, ")");
}

std::string name(const SampleRange& r) {
    return absl::StrCat("samples [", r.begin, ", ", r.end, ") of domain ", r.domain);
}

FrameKey announcementKey(const CommitRecord& r) {
    return {r.term, {r.step, r.epoch, r.attempt}, 0, 0};
}

/// Who enters brings nothing, and no record names it.
std::vector<Contribution> broughtBy(const Quorum& quorum) {
    std::vector<Contribution> out;
    for (const Member& m : quorum.contributors)
        if (!m.entering) out.push_back(m.contribution);
    return out;
}

bool near(uint32_t bits, double expected) {
    const double value = std::bit_cast<float>(bits);
    return std::abs(value - expected) <= 1e-6 * std::max(std::abs(value), std::abs(expected));
}

}  // namespace

std::string Oracle::name(const Process& rank) const {
    return absl::StrCat("r", rank.id.replica, "s", rank.id.shard, " #", rank.incarnation);
}

const CommitRecord* Oracle::last() const {
    const auto it = records_.find({lineage_, step_});
    return it == records_.end() ? nullptr : &it->second;
}

const Oracle::Truth* Oracle::truthAt(uint64_t lineage, uint64_t step) const {
    const auto it = truths_.find({lineage, step});
    return it == truths_.end() ? nullptr : &it->second;
}

uint64_t Oracle::stateBefore(const Truth& truth, size_t shard, uint64_t layout) const {
    return moved(truth.states[shard], layout);
}

Sum Oracle::sumOf(const std::vector<Contribution>& parts, uint64_t lineage, uint64_t step,
                  size_t shard, uint64_t stateBefore) const {
    Sum sum{};
    for (const Contribution& c : parts) {
        add(sum, gradientOf(stateBefore, c.ranges));
        const auto taint =
            taints_.find({lineage, step, c.replica, c.incarnation, static_cast<int32_t>(shard)});
        if (taint != taints_.end()) add(sum, taint->second);
    }
    return sum;
}

// ---- quorums and records

void Oracle::announced(const Quorum& q, const Policies& policies) {
    if (q.contributors.empty()) return;
    const FrameKey key{q.term, {q.step, q.epoch, q.attempt}, 0, 0};
    const auto known = announced_.find(key);
    if (known != announced_.end()) {
        const auto& before = known->second.quorum.contributors;
        bool same = before.size() == q.contributors.size();
        for (size_t i = 0; same && i < before.size(); ++i)
            same = before[i].contribution == q.contributors[i].contribution &&
                   before[i].entering == q.contributors[i].entering;
        if (!same)
            fail_("I5", absl::StrCat("two quorums of step ", q.step, " are both epoch ", q.epoch,
                                     ", attempt ", q.attempt));
        return;
    }
    Announcement a{q, 1};
    const auto bringing = static_cast<size_t>(std::count_if(
        q.contributors.begin(), q.contributors.end(), [](const Member& m) { return !m.entering; }));
    if (bringing == 0 || bringing > options_.replicas)
        fail_("I5", absl::StrCat("the quorum of step ", q.step, " has ", bringing,
                                 " contributors of ", options_.replicas, " replicas"));
    const double share = static_cast<double>(bringing) / static_cast<double>(options_.replicas);
    if (policies.batch == BatchPolicy::kShrink && policies.lr == LrPolicy::kLinear)
        a.factor = share;
    if (policies.batch == BatchPolicy::kShrink && policies.lr == LrPolicy::kSqrt)
        a.factor = std::sqrt(share);
    if (q.lineage == lineage_ && q.step <= step_)
        fail_("I6", absl::StrCat("a quorum of step ", q.step, ", which is committed"));
    if (q.lineage == lineage_ && q.step > step_ + 2)
        fail_("I6",
              absl::StrCat("a quorum of step ", q.step, ", but only ", step_, " is committed"));
    std::map<uint32_t, std::map<uint64_t, uint64_t>> taken;
    for (size_t i = 0; i < q.contributors.size(); ++i) {
        const Member& m = q.contributors[i];
        const Contribution& c = m.contribution;
        if (i > 0 && q.contributors[i - 1].contribution.replica >= c.replica)
            fail_("I5", absl::StrCat("the quorum of step ", q.step, " names r", c.replica,
                                     " twice or out of order"));
        if (m.entering && !c.ranges.empty())
            fail_("I2", absl::StrCat("the quorum of step ", q.step, " leases samples to r",
                                     c.replica, ", which brings nothing"));
        const auto inc = incarnations_.find(c.replica);
        if (inc != incarnations_.end() && inc->second > c.incarnation)
            fail_("I5", absl::StrCat("the quorum of step ", q.step, " names r", c.replica, " #",
                                     c.incarnation, ", but #", inc->second, " was started"));
        for (const RankEndpoint& e : m.ranks)
            if (e.incarnation != c.incarnation)
                fail_("I5", absl::StrCat("the quorum of step ", q.step, " sends others to r",
                                         c.replica, " #", e.incarnation));
        for (const SampleRange& r : c.ranges) {
            for (const auto& [begin, end] : taken[r.domain])
                if (begin < r.end && r.begin < end)
                    fail_("I2", absl::StrCat("the quorum of step ", q.step, " leases ",
                                             simulation::name(r), " twice"));
            taken[r.domain][r.begin] = r.end;
            if (q.lineage != lineage_ || r.domain >= samples_.size()) continue;
            for (uint64_t s = r.begin; s < std::min(r.end, uint64_t{samples_[r.domain].size()});
                 ++s)
                if (samples_[r.domain][s].use != Use::kFree)
                    fail_("I2", absl::StrCat("the quorum of step ", q.step, " leases sample ", s,
                                             " of domain ", r.domain, ", which is used up"));
        }
    }
    announced_.emplace(key, std::move(a));
    announcedOrder_.push_back(key);
    if (announcedOrder_.size() < 2 * kAnnouncedKept) return;
    for (size_t i = 0; i < kAnnouncedKept; ++i) announced_.erase(announcedOrder_[i]);
    announcedOrder_.erase(announcedOrder_.begin(), announcedOrder_.begin() + kAnnouncedKept);
}

const Oracle::Announcement* Oracle::announcementOf(const CommitRecord& record) const {
    const auto it = announced_.find(announcementKey(record));
    return it == announced_.end() ? nullptr : &it->second;
}

void Oracle::voted(const ReplicaVote& vote) {
    if (!vote.complete) return;
    votes_[{ExchangeId{vote.step, vote.epoch, vote.attempt}, vote.replica}] = vote;
    while (votes_.size() > kAnnouncedKept) votes_.erase(votes_.begin());
}

void Oracle::decided(const CommitRecord& record,
                     const std::function<const Process*(RankId, uint32_t)>& process) {
    const Announcement* a = announcementOf(record);
    if (a == nullptr) {
        fail_("I1", absl::StrCat(simulation::name(record), " was never announced"));
        return;
    }
    if (record.contributors != broughtBy(a->quorum))
        fail_("I1", absl::StrCat("the record of ", simulation::name(record),
                                 " names other contributors or ranges than were summed"));
    const ExchangeId id{record.step, record.epoch, record.attempt};
    for (const Member& m : a->quorum.contributors) {
        const Contribution& c = m.contribution;
        if (expelled_.contains({c.replica, c.incarnation})) continue;
        for (uint32_t s = 0; s < options_.shards; ++s) {
            const RankId rank{c.replica, static_cast<int32_t>(s)};
            const Process* p = process(rank, c.incarnation);
            if (p == nullptr || p->machine.exchange() != id) continue;
            const auto done = completed_.find({rank, c.incarnation});
            if (done == completed_.end() || !done->second.contains(id))
                fail_("I1", absl::StrCat(simulation::name(record), " is committed, but ", name(*p),
                                         " has not completed its sum"));
        }
    }
    checkParity(record);
}

void Oracle::checkParity(const CommitRecord& record) {
    const Announcement* a = announcementOf(record);
    if (a == nullptr || !a->quorum.checkParity) return;
    const ReplicaVote* first = nullptr;
    for (const Contribution& c : record.contributors) {
        if (expelled_.contains({c.replica, c.incarnation})) continue;
        const auto it =
            votes_.find({ExchangeId{record.step, record.epoch, record.attempt}, c.replica});
        if (it == votes_.end() || it->second.shardsIn != options_.shards) continue;
        if (first == nullptr)
            first = &it->second;
        else if (first->hashes != it->second.hashes)
            fail_("I3",
                  absl::StrCat(simulation::name(record), " is committed although r", first->replica,
                               " and r", c.replica, " told different hashes of the state before"));
    }
}

void Oracle::appended(const LogEntry& entry) {
    if (const auto* l = std::get_if<LogLineage>(&entry)) openLineage(*l);
}

void Oracle::durable(const LogEntry& entry) {
    if (const auto* t = std::get_if<LogTerm>(&entry)) {
        if (t->term <= term_) fail_("I5", absl::StrCat("term ", t->term, " follows term ", term_));
        term_ = t->term;
    } else if (const auto* l = std::get_if<LogLineage>(&entry)) {
        if (l->lineage <= lineage_)
            fail_("I6", absl::StrCat("lineage ", l->lineage, " follows lineage ", lineage_));
        if (samples_.empty()) samples_.resize(options_.domains);
        for (auto& domain : samples_)
            for (Sample& s : domain) {
                // What was found bad stays out, whatever lineage found it.
                if (s.use == Use::kQuarantined)
                    s.step = 0;
                else if (s.step > l->fromStep)
                    s = {};
            }
        lineage_ = l->lineage;
        step_ = l->fromStep;
        layout_ = l->layout;
        if (const Truth* truth = truthAt(lineage_, step_)) updates_ = truth->updates;
        checkUse(l->ledger, l->fromStep, absl::StrCat("lineage ", l->lineage));
    } else if (const auto* c = std::get_if<LogCommit>(&entry)) {
        commit(c->record);
    } else if (const auto* q = std::get_if<LogQuarantine>(&entry)) {
        auto& domain = samples_[q->range.domain];
        if (domain.size() < q->range.end) domain.resize(q->range.end);
        for (uint64_t s = q->range.begin; s < q->range.end; ++s)
            domain[s] = {Use::kQuarantined, step_ + 1};
    } else if (const auto* k = std::get_if<LogCheckpoint>(&entry)) {
        checkpoints_[k->path] = *k;
        if (k->lineage == lineage_)
            checkUse(k->ledger, k->step, absl::StrCat("the checkpoint of step ", k->step));
    } else if (const auto* y = std::get_if<LogLayout>(&entry)) {
        layout_ = y->layout;
    } else if (const auto* o = std::get_if<LogOrders>(&entry)) {
        policies_ = o->policies;
    }
}

void Oracle::openLineage(const LogLineage& e) {
    Truth truth;
    truth.layout = e.layout;
    if (e.resumeFrom.empty()) {
        if (e.fromStep != 0)
            fail_("I6", absl::StrCat("lineage ", e.lineage, " begins at step ", e.fromStep,
                                     " from nothing"));
        for (uint32_t s = 0; s < options_.shards; ++s)
            truth.states.push_back(initialState(static_cast<int32_t>(s)));
    } else {
        const auto from = checkpoints_.find(e.resumeFrom);
        const Truth* then =
            from == checkpoints_.end() ? nullptr : truthAt(from->second.lineage, from->second.step);
        if (then == nullptr) {
            fail_("I6", absl::StrCat("lineage ", e.lineage, " begins from ", e.resumeFrom,
                                     ", of which nothing durable is known"));
            return;
        }
        truth = *then;
        if (e.updates != truth.updates)
            fail_("I1", absl::StrCat("lineage ", e.lineage, " counts ", e.updates,
                                     " updates, its checkpoint ", truth.updates));
    }
    truths_[{e.lineage, e.fromStep}] = std::move(truth);
}

void Oracle::consume(const CommitRecord& r) {
    for (const Contribution& c : r.contributors)
        for (const SampleRange& range : c.ranges) {
            if (range.domain >= samples_.size() || range.begin >= range.end) {
                fail_("I2", absl::StrCat(simulation::name(r), " names ", simulation::name(range)));
                continue;
            }
            auto& domain = samples_[range.domain];
            if (domain.size() < range.end) domain.resize(range.end);
            for (uint64_t s = range.begin; s < range.end; ++s) {
                if (domain[s].use == Use::kCommitted)
                    fail_("I2", absl::StrCat(simulation::name(r), " consumes sample ", s,
                                             " of domain ", range.domain, " again, by r", c.replica,
                                             "; step ", domain[s].step, " had it"));
                if (domain[s].use == Use::kQuarantined)
                    fail_("I2",
                          absl::StrCat(simulation::name(r), " consumes sample ", s, " of domain ",
                                       range.domain, ", which is quarantined"));
                domain[s] = {Use::kCommitted, r.step};
            }
        }
}

void Oracle::commit(const CommitRecord& r) {
    if (r.lineage != lineage_ || r.step != step_ + 1)
        fail_("I6", absl::StrCat("the record of ", simulation::name(r), " follows lineage ",
                                 lineage_, " step ", step_));
    const auto [it, fresh] = records_.try_emplace({r.lineage, r.step}, r);
    if (!fresh) fail_("I1", absl::StrCat("two records of ", simulation::name(r)));
    const Truth* before = truthAt(r.lineage, r.step - 1);
    if (before == nullptr || before->states.size() != options_.shards) {
        fail_("I6", absl::StrCat(simulation::name(r), " has no step before it"));
        return;
    }
    ++commits_;
    if (r.layout != layout_)
        fail_("I1", absl::StrCat(simulation::name(r), " is in layout ", r.layout, ", the log in ",
                                 layout_));
    Truth after{{}, r.layout, before->updates + (r.skip ? 0 : 1)};
    std::vector<Sum> sums;
    for (size_t s = 0; s < options_.shards; ++s) {
        const uint64_t state = stateBefore(*before, s, r.layout);
        sums.push_back(sumOf(r.contributors, r.lineage, r.step, s, state));
        after.states.push_back(simulation::applied(before->states[s], sums[s], r));
    }
    checkRecord(r, *before, sums);
    consume(r);
    truths_[{r.lineage, r.step}] = std::move(after);
    step_ = r.step;
    trim();
}

/// Everything the record fixes, worked out again from what was announced and summed.
void Oracle::checkRecord(const CommitRecord& r, const Truth& before, const std::vector<Sum>& sums) {
    const auto wrong = [&](const char* what, double is, double expected) {
        fail_("I1", absl::StrCat("the record of ", simulation::name(r), " has ", what, " ", is,
                                 " instead of ", expected));
    };
    uint64_t samples = 0;
    for (const Contribution& c : r.contributors)
        for (const SampleRange& range : c.ranges) samples += range.end - range.begin;
    const uint64_t tokens = samples * options_.sequenceLength;
    const auto number = [](uint64_t v) { return static_cast<double>(v); };
    if (r.samples != samples) wrong("samples", number(r.samples), number(samples));
    if (r.tokens != tokens) wrong("tokens", number(r.tokens), number(tokens));
    const bool overflow = overflowed_.contains({r.term, {r.step, r.epoch, r.attempt}});
    if (r.skip != overflow) wrong("skip", r.skip, overflow);
    const uint64_t updates = before.updates + (overflow ? 0 : 1);
    if (r.updates != updates) wrong("updates", number(r.updates), number(updates));
    const double divisor = std::max(1.0, number(tokens));
    if (!near(r.divisorBits, divisor))
        wrong("divisor", std::bit_cast<float>(r.divisorBits), divisor);
    double factor = 1;
    if (const Announcement* a = announcementOf(r)) factor = a->factor;
    if (!near(r.lrFactorBits, factor))
        wrong("LR factor", std::bit_cast<float>(r.lrFactorBits), factor);
    const Optimizer& o = options_.optimizer;
    const double update = std::max(1.0, number(updates));
    double rate = o.learningRate;
    if (update <= number(o.warmupSteps)) {
        rate *= update / number(o.warmupSteps);
    } else {
        const double done =
            std::min(1.0, (update - number(o.warmupSteps)) / number(o.decaySteps - o.warmupSteps));
        rate = o.minLearningRate +
               (o.learningRate - o.minLearningRate) * (1 + std::cos(std::numbers::pi * done)) / 2;
    }
    if (!near(r.learningRateBits, rate * factor))
        wrong("learning rate", std::bit_cast<float>(r.learningRateBits), rate * factor);
    double squares = 0;
    for (const Sum& s : sums) squares += squaresOf(s);
    const double norm = std::sqrt(squares) / divisor;
    const double clip = norm > o.clipNorm && !overflow ? o.clipNorm / norm : 1;
    if (!near(r.gradScaleBits, clip / divisor))
        wrong("gradient scale", std::bit_cast<float>(r.gradScaleBits), clip / divisor);
    if (!near(r.biasCorrection1Bits, 1 - std::pow(o.beta1, update)))
        wrong("first bias correction", std::bit_cast<float>(r.biasCorrection1Bits),
              1 - std::pow(o.beta1, update));
    if (!near(r.biasCorrection2Bits, 1 - std::pow(o.beta2, update)))
        wrong("second bias correction", std::bit_cast<float>(r.biasCorrection2Bits),
              1 - std::pow(o.beta2, update));
}

void Oracle::commitSent(const Commit& commit) {
    const CommitRecord& r = commit.record;
    const auto it = records_.find({r.lineage, r.step});
    if (it == records_.end())
        fail_("I6",
              absl::StrCat("the commit of ", simulation::name(r), " is sent before it is durable"));
    else if (it->second != r)
        fail_("I1", absl::StrCat("another record of ", simulation::name(r),
                                 " is sent than stands in the log"));
}

void Oracle::expelled(int32_t replica, uint32_t incarnation) {
    expelled_.insert({replica, incarnation});
}

void Oracle::started(int32_t replica, uint32_t incarnation) {
    uint32_t& newest = incarnations_[replica];
    if (incarnation < newest)
        fail_("I5", absl::StrCat("r", replica, " #", incarnation, " is started after #", newest));
    newest = incarnation;
}

// ---- the coordinator's own books

void Oracle::recovered(const CoordinatorMachine& c) {
    if (c.term() <= term_)
        fail_("I5", absl::StrCat("a coordinator of term ", c.term(), " follows term ", term_));
    if (policies_ && c.policies() != *policies_)
        fail_("I6", "the new coordinator has forgotten the policies the operator set");
    if (lineage_ == 0) return;
    if (c.lineage() != lineage_ || c.committedStep() != step_)
        fail_("I6", absl::StrCat("the new coordinator goes on from lineage ", c.lineage(), " step ",
                                 c.committedStep(), ", the log ends at lineage ", lineage_,
                                 " step ", step_));
    checkUse(c.ledger().state(), std::numeric_limits<uint64_t>::max(), "the recovered ledger");
}

void Oracle::looked(const CoordinatorMachine& c) {
    if (c.lineage() == lineage_ && c.committedStep() > step_)
        fail_("I6", absl::StrCat("step ", c.committedStep(),
                                 " counts as committed, the log ends at ", step_));
    const LedgerState ledger = c.ledger().state();
    checkTiling(ledger);
    for (const LeaseState& l : ledger.leases)
        if (l.step <= c.committedStep() || l.step > c.committedStep() + 2)
            fail_("I2", absl::StrCat("r", l.replica, " still holds a lease of step ", l.step,
                                     " after step ", c.committedStep()));
    if (c.lineage() == lineage_ && c.committedStep() == step_ && ++looks_ % kWholeLookEvery == 0)
        checkUse(ledger, std::numeric_limits<uint64_t>::max(), "the ledger");
}

void Oracle::checkTiling(const LedgerState& l) {
    for (uint32_t d = 0; d < l.highWater.size(); ++d) {
        std::vector<std::pair<uint64_t, uint64_t>> all;
        const auto take = [&](const std::vector<SampleRange>& ranges) {
            for (const SampleRange& r : ranges)
                if (r.domain == d) all.emplace_back(r.begin, r.end);
        };
        take(l.committed);
        take(l.pooled);
        take(l.quarantined);
        for (const LeaseState& lease : l.leases) take(lease.ranges);
        std::sort(all.begin(), all.end());
        uint64_t end = 0;
        for (const auto& [from, to] : all) {
            if (from != end) {
                fail_("I2", absl::StrCat("domain ", d, ": samples [", std::min(from, end), ", ",
                                         std::max(from, end), ") are ",
                                         from < end ? "in two places" : "nowhere"));
                return;
            }
            end = to;
        }
        if (end != l.highWater[d])
            fail_("I2", absl::StrCat("domain ", d, ": ", l.highWater[d],
                                     " samples were handed out, ", end, " are accounted for"));
    }
}

void Oracle::checkUse(const LedgerState& l, uint64_t step, const std::string& whose) {
    for (uint32_t d = 0; d < samples_.size(); ++d) {
        size_t used = 0;
        for (const Sample& s : samples_[d]) used += s.use != Use::kFree && s.step <= step;
        size_t told = 0;
        const auto compare = [&](const std::vector<SampleRange>& ranges, Use use,
                                 const char* word) {
            for (const SampleRange& r : ranges) {
                if (r.domain != d) continue;
                told += r.end - r.begin;
                for (uint64_t s = r.begin; s < r.end; ++s)
                    if (s >= samples_[d].size() || samples_[d][s].use != use ||
                        samples_[d][s].step > step) {
                        fail_("I2", absl::StrCat(whose, " has sample ", s, " of domain ", d, " ",
                                                 word, ", the records do not"));
                        return;
                    }
            }
        };
        compare(l.committed, Use::kCommitted, "committed");
        compare(l.quarantined, Use::kQuarantined, "quarantined");
        if (told != used)
            fail_("I2", absl::StrCat(whose, " has ", told, " samples of domain ", d,
                                     " committed or quarantined, the records ", used));
    }
}

// ---- ranks

void Oracle::stood(const Process& rank, bool fresh) {
    const Truth* truth = truthAt(rank.now.lineage, rank.now.step);
    if (truth == nullptr || rank.now.tainted) return;
    const auto shard = static_cast<size_t>(rank.id.shard);
    if (rank.now.state != truth->states[shard])
        fail_("I3", absl::StrCat(name(rank), fresh ? " begins with" : " stands with",
                                 " a state that is not that of step ", rank.now.step));
}

void Oracle::computed(const Process& rank) {
    const Quorum& q = rank.work->quorum;
    const Truth* truth = truthAt(q.lineage, q.step - 1);
    if (truth == nullptr) return;
    const auto shard = static_cast<size_t>(rank.id.shard);
    const Sum expected = gradientOf(stateBefore(*truth, shard, q.layout), rank.work->ranges);
    const PartKey key{q.lineage, q.step, rank.id.replica, rank.incarnation, rank.id.shard};
    if (rank.gradient == expected) {
        taints_.erase(key);
        return;
    }
    if (!rank.now.tainted && !rank.flipGradientNext)
        fail_("I3", absl::StrCat(name(rank), " computes step ", q.step,
                                 " from a state that is not that of step ", q.step - 1));
    taints_[key] = difference(rank.gradient, expected);
    while (taints_.size() > kStepsKept) taints_.erase(taints_.begin());
}

void Oracle::completed(const Process& rank, const ExchangeId& id, bool overflow) {
    auto& done = completed_[{rank.id, rank.incarnation}];
    done.insert(id);
    while (done.size() > 16) done.erase(done.begin());
    const Quorum& q = rank.work->quorum;
    if (overflow) overflowed_.insert({q.term, id});
    const Truth* truth = truthAt(q.lineage, q.step - 1);
    if (truth == nullptr) return;
    const auto shard = static_cast<size_t>(rank.id.shard);
    const Sum expected =
        sumOf(broughtBy(q), q.lineage, q.step, shard, stateBefore(*truth, shard, q.layout));
    if (rank.reduced != expected)
        fail_("I5",
              absl::StrCat(name(rank), " completes step ", q.step, " epoch ", q.epoch, " attempt ",
                           q.attempt, " with a sum that is not that of its quorum's ranges"));
}

void Oracle::applied(const Process& rank, const CommitRecord& record, bool replayed) {
    const auto it = records_.find({record.lineage, record.step});
    if (it == records_.end()) {
        fail_("I6", absl::StrCat(name(rank), " applies ", simulation::name(record),
                                 ", which is not durable"));
        return;
    }
    if (it->second != record)
        fail_("I1", absl::StrCat(name(rank), " applies another record of ",
                                 simulation::name(record), " than stands in the log"));
    const Truth* truth = truthAt(record.lineage, record.step);
    if (truth == nullptr || rank.now.tainted) return;
    if (rank.now.state != truth->states[static_cast<size_t>(rank.id.shard)])
        fail_("I3", absl::StrCat(name(rank), replayed ? " replays " : " applies ",
                                 simulation::name(record),
                                 " and comes to another state than its records give"));
}

void Oracle::settled(const Process& rank) {
    stood(rank, false);
}

void Oracle::trim() {
    // Checkpoints may go back far; what they hold stays.
    if (truths_.size() <= kStepsKept) return;
    std::set<StepKey> needed;
    for (const auto& [path, c] : checkpoints_) needed.insert({c.lineage, c.step});
    size_t over = truths_.size() - kStepsKept / 2;
    for (auto it = truths_.begin(); it != truths_.end() && over > 0; --over)
        it = needed.contains(it->first) ? std::next(it) : truths_.erase(it);
}

}  // namespace bulkhead::simulation
