// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/oracle.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/protocol/sample_deal.h"
#include "backend/runtime/simulation/describe.h"

namespace bulkhead::simulation {
namespace {

constexpr size_t kStepsKept = 600;
constexpr size_t kVotesKept = 64;

/// An entering replica brings nothing, and no record names it.
std::vector<Contribution> broughtBy(const Quorum& quorum) {
    std::vector<Contribution> out;
    for (const Member& m : quorum.contributors)
        if (!m.entering) out.push_back(m.contribution);
    return out;
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
        const PartKey key{lineage, step, c.replica, c.incarnation, static_cast<int32_t>(shard)};
        const auto taint = taints_.find({key, encode(c.ranges)});
        if (taint != taints_.end()) add(sum, taint->second);
    }
    return sum;
}

// ---- records

const Oracle::Announcement* Oracle::announcementOf(const CommitRecord& record) const {
    const auto it =
        announced_.find({record.term, {record.step, record.epoch, record.attempt}, 0, 0});
    return it == announced_.end() ? nullptr : &it->second;
}

void Oracle::voted(const ReplicaVote& vote, uint64_t term) {
    if (!vote.complete || vote.term != term) return;
    const ExchangeId id{vote.step, vote.epoch, vote.attempt};
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
        const auto done = completed_.find({RankId{vote.replica, s}, vote.incarnation});
        if (done == completed_.end() || !done->second.contains({term, id}))
            fail_("I5", absl::StrCat("r", vote.replica, " #", vote.incarnation,
                                     " votes for a sum of step ", vote.step, " epoch ", vote.epoch,
                                     " attempt ", vote.attempt, " that its shard ", s,
                                     " has not completed in term ", term));
    }
    votes_[{id, vote.replica}] = vote;
    while (votes_.size() > kVotesKept) votes_.erase(votes_.begin());
}

void Oracle::decided(const CommitRecord& record, const Living& process) {
    const Announcement* a = announcementOf(record);
    if (a == nullptr) {
        fail_("I1", absl::StrCat(stepName(record), " was never announced"));
        return;
    }
    if (record.contributors != broughtBy(a->quorum))
        fail_("I1", absl::StrCat("the record of ", stepName(record),
                                 " names other contributors or ranges than were summed"));
    const ExchangeId id{record.step, record.epoch, record.attempt};
    for (const Member& m : a->quorum.contributors) {
        const Contribution& c = m.contribution;
        // An entering replica brings nothing; nobody waits for one that has to fetch again.
        if (m.entering || expelled_.contains({c.replica, c.incarnation})) continue;
        for (uint32_t s = 0; s < options_.shards; ++s) {
            const RankId rank{c.replica, static_cast<int32_t>(s)};
            const Process* p = process(rank, c.incarnation);
            if (p == nullptr || p->rules().exchange() != id) continue;
            const auto done = completed_.find({rank, c.incarnation});
            if (done == completed_.end() || !done->second.contains({record.term, id}))
                fail_("I1", absl::StrCat(stepName(record), " is committed, but ", name(*p),
                                         " has not completed its sum"));
        }
    }
    checkParity(record);
}

void Oracle::checkParity(const CommitRecord& record) {
    const Announcement* a = announcementOf(record);
    if (a == nullptr || !a->checkParity) return;
    const ReplicaVote* first = nullptr;
    for (const Contribution& c : record.contributors) {
        if (expelled_.contains({c.replica, c.incarnation})) continue;
        const auto it =
            votes_.find({ExchangeId{record.step, record.epoch, record.attempt}, c.replica});
        if (it == votes_.end() || it->second.shardsIn != options_.shards) continue;
        if (it->second.hashes.empty())
            fail_("I3", absl::StrCat(stepName(record), " is committed although r", c.replica,
                                     " told no hash of the state before"));
        else if (first == nullptr)
            first = &it->second;
        else if (first->hashes != it->second.hashes)
            fail_("I3",
                  absl::StrCat(stepName(record), " is committed although r", first->replica,
                               " and r", c.replica, " told different hashes of the state before"));
    }
}

void Oracle::appended(const LogEntry& entry) {
    if (const auto* l = std::get_if<LogLineage>(&entry)) openLineage(*l);
}

void Oracle::durable(const LogEntry& entry) {
    std::visit(
        [this](const auto& e) {
            if constexpr (requires { e.link; }) {
                if (e.link != chainLink(link_, chained(e)))
                    fail_("I6", absl::StrCat("the ledger's chain breaks behind step ", step_));
                link_ = e.link;
            }
        },
        entry);
    if (const auto* t = std::get_if<LogTerm>(&entry)) {
        if (t->term <= term_) fail_("I5", absl::StrCat("term ", t->term, " follows term ", term_));
        term_ = t->term;
    } else if (const auto* l = std::get_if<LogLineage>(&entry)) {
        restoredFrom_.reset();
        if (l->lineage <= lineage_)
            fail_("I6", absl::StrCat("lineage ", l->lineage, " follows lineage ", lineage_));
        if (samples_.empty()) samples_.resize(options_.domains);
        for (auto& domain : samples_)
            for (Sample& s : domain) {
                // A sample found bad stays out, in every lineage.
                if (s.use == Use::kQuarantined)
                    s.step = 0;
                else if (s.step > l->fromStep)
                    s = {};
            }
        lineage_ = l->lineage;
        beganAt_[l->lineage] = l->fromStep;
        compared_ = 0;
        step_ = l->fromStep;
        layout_ = l->layout;
        expertShard_ = l->expertShard;
        domainShare_ = l->domainShare;
        followers_.clear();
        ready_.clear();
        checkpointed_ = l->fromStep;
        if (const Truth* truth = truthAt(lineage_, step_)) updates_ = truth->updates;
        checkUse(l->ledger, l->fromStep, absl::StrCat("lineage ", l->lineage));
    } else if (const auto* c = std::get_if<LogCommit>(&entry)) {
        commit(c->record);
        if (!c->figures.parity.empty()) compared(*c);
    } else if (const auto* disputed = std::get_if<LogDispute>(&entry)) {
        DisputedSteps& steps =
            disputed_.try_emplace(lineage_, compared_, disputed->dispute.step).first->second;
        steps.upTo = std::max(steps.upTo, disputed->dispute.step);
    } else if (const auto* q = std::get_if<LogQuarantine>(&entry)) {
        auto& domain = samples_[q->range.domain];
        if (domain.size() < q->range.end) domain.resize(q->range.end);
        for (uint64_t s = q->range.begin; s < q->range.end; ++s)
            domain[s] = {Use::kQuarantined, step_ + 1};
    } else if (const auto* k = std::get_if<LogCheckpoint>(&entry)) {
        checkpoints_[k->path] = *k;
        checkpointed_ = std::max(checkpointed_, k->step);
        checkAgreed(*k);
        if (k->lineage != lineage_) return;
        checkUse(k->ledger, k->step, absl::StrCat("the checkpoint of step ", k->step));
    } else if (const auto* d = std::get_if<LogCheckpointsDropped>(&entry)) {
        for (const std::string& path : d->paths) checkpoints_.erase(path);
        if (d->unusable) dropped_.insert(d->paths.begin(), d->paths.end());
    } else if (const auto* y = std::get_if<LogLayout>(&entry)) {
        layout_ = y->layout;
        expertShard_ = y->expertShard;
        domainShare_ = y->domainShare;
    } else if (const auto* o = std::get_if<LogOrders>(&entry)) {
        orders_ = *o;
    }
}

/// Its contributors voted on the state before it, and agreed.
void Oracle::compared(const LogCommit& commit) {
    compared_ = commit.record.step - 1;
    const ParityGroup& group = commit.figures.parity.front();
    votedOn_[{lineage_, compared_}] = {commit.record.layout, group.hashes, group.replicas.size()};
    for (const auto& [path, checkpoint] : checkpoints_)
        if (checkpoint.lineage == lineage_ && checkpoint.step == compared_) checkAgreed(checkpoint);
}

/// A job goes back to what its contributors agreed on, where several were there to agree.
void Oracle::checkAgreed(const LogCheckpoint& checkpoint) {
    const auto vote = votedOn_.find({checkpoint.lineage, checkpoint.step});
    if (vote == votedOn_.end() || vote->second.contributors < 2 || rewound_) return;
    if (isContradicted(checkpoint.lineage, checkpoint.step, checkpoint.layout, checkpoint.hashes))
        fail_("I3", absl::StrCat("the checkpoint of step ", checkpoint.step,
                                 " counts, and is not the state that contributors agreed on"));
}

bool Oracle::isContradicted(uint64_t lineage, uint64_t step, uint64_t layout,
                            const Hashes& hashes) const {
    const auto vote = votedOn_.find({lineage, step});
    return vote != votedOn_.end() && vote->second.layout == layout && !hashes.empty() &&
           vote->second.hashes != hashes;
}

bool Oracle::isDenied(uint64_t lineage, uint64_t step, uint64_t layout,
                      const Hashes& hashes) const {
    const auto told = toldStates_.find({lineage, step, layout});
    return told != toldStates_.end() && !hashes.empty() &&
           std::ranges::none_of(told->second,
                                [&](const auto& word) { return word.second == hashes; });
}

void Oracle::rewind(const std::vector<LogEntry>& entries) {
    Oracle again(options_, fail_);
    again.completed_ = std::move(completed_);
    again.overflowed_ = std::move(overflowed_);
    again.taints_ = std::move(taints_);
    again.dealt_ = std::move(dealt_);
    again.incidents_ = std::move(incidents_);
    again.newestIncident_ = newestIncident_;
    again.flipped_ = flipped_;
    again.announced_ = std::move(announced_);
    again.announcedOrder_ = std::move(announcedOrder_);
    again.rewound_ = true;
    // A step that was judged when it became durable stays as it was judged.
    again.judged_ = std::move(truths_);
    for (const LogEntry& entry : entries) {
        again.appended(entry);
        again.durable(entry);
    }
    again.lost_ = std::exchange(again.judged_, {});
    again.commits_ = commits_;
    // The numbers of terms that are lost may be given out again.
    std::erase_if(again.announced_, [&](const auto& a) { return a.first.term > again.term_; });
    std::erase_if(again.announcedOrder_, [&](const FrameKey& k) { return k.term > again.term_; });
    if (again.orders_) {
        // The operator finds it as the log has it.
        const LogOrders& o = *again.orders_;
        again.paused_ = o.paused;
        again.held_ = {o.held.begin(), o.held.end()};
        again.drained_ = {o.drained.begin(), o.drained.end()};
        again.policies_ = o.policies;
    }
    std::destroy_at(this);
    std::construct_at(this, std::move(again));
}

void Oracle::restore(const std::vector<LogEntry>& entries) {
    const std::string link = link_;
    const auto from = restoredFrom_.value_or(std::pair(lineage_, step_));
    if (!lostLink_.empty()) link_ = lostLink_;
    judged_ = lost_;
    for (const LogEntry& entry : entries) {
        const bool ofStep = std::holds_alternative<LogLineage>(entry) ||
                            std::holds_alternative<LogCommit>(entry) ||
                            std::holds_alternative<LogQuarantine>(entry) ||
                            std::holds_alternative<LogLayout>(entry);
        if (!ofStep) continue;
        appended(entry);
        durable(entry);
    }
    judged_.clear();
    lostLink_ = std::exchange(link_, link);  // the log goes on from what it has
    restoredFrom_ = from;
}

void Oracle::commitSent(const Commit& commit) {
    const CommitRecord& r = commit.record;
    const auto it = records_.find({r.lineage, r.step});
    if (it == records_.end())
        fail_("I6", absl::StrCat("the commit of ", stepName(r), " is sent before it is durable"));
    else if (it->second != r)
        fail_("I1",
              absl::StrCat("another record of ", stepName(r), " is sent than stands in the log"));
    if (!commit.checkpoint) return;
    const auto position = decode<LedgerState>(commit.dataPosition);
    if (!position.ok())
        fail_("I2", absl::StrCat("the data position sent with ", stepName(r),
                                 " cannot be read: ", position.status().message()));
    else if (r.lineage == lineage_)
        checkUse(*position, r.step, absl::StrCat("the data position sent with ", stepName(r)));
}

/// A manifest refers to one committed step, whole and in one layout.
void Oracle::stored(const LogCheckpoint& e, const std::map<int32_t, StateCopy>& parts) {
    const std::string which = absl::StrCat("the checkpoint of step ", e.step);
    const Truth* truth = truthAt(e.lineage, e.step);
    if (truth == nullptr && e.step + kStepsKept / 2 < step_) return;  // of which no more is known
    if (truth == nullptr || e.lineage > lineage_ || e.step > step_)
        return fail_("I6", absl::StrCat(which, " in lineage ", e.lineage,
                                        " is of no step that is committed"));
    if (e.updates != truth->updates)
        fail_("I1",
              absl::StrCat(which, " counts ", e.updates, " updates instead of ", truth->updates));
    for (const auto& [shard, copy] : parts) {
        if (copy.step != e.step || copy.lineage != e.lineage || copy.layout != e.layout)
            fail_("I1", absl::StrCat(which, " in layout ", e.layout, " holds, of shard ", shard,
                                     ", step ", copy.step, " in layout ", copy.layout));
        else if (!copy.tainted && copy.state != truth->states[static_cast<size_t>(shard)])
            fail_("I3", absl::StrCat(which, " holds another state of shard ", shard,
                                     " than its records give"));
    }
    if (parts.size() != options_.shards)
        fail_("I1", absl::StrCat(which, " has ", parts.size(), " of ", options_.shards, " shards"));
}

/// The log said first that nobody goes back to it.
void Oracle::removed(const std::string& path) {
    if (const auto it = checkpoints_.find(path); it != checkpoints_.end())
        fail_("I6", absl::StrCat("the checkpoint of step ", it->second.step,
                                 " is removed, and the log still names it"));
}

bool Oracle::isDescent(uint64_t lineage, uint64_t step) const {
    if (!records_.contains({lineage, step})) return false;
    return std::none_of(beganAt_.begin(), beganAt_.end(), [&](const auto& began) {
        return began.first > lineage && began.second < step;
    });
}

void Oracle::expelled(int32_t replica, uint32_t incarnation) {
    expelled_[{replica, incarnation}] = term_;
    if (drained_.contains(replica)) drainedOut_.insert({replica, incarnation});
}

void Oracle::started(int32_t replica, uint32_t incarnation) {
    uint32_t& newest = incarnations_[replica];
    if (incarnation <= newest)
        fail_("I5", absl::StrCat("r", replica, " #", incarnation, " is started after #", newest));
    if (newest != 0 && startedBy_[replica] == term_ && !expelled_.contains({replica, newest}))
        fail_("I5", absl::StrCat("r", replica, " #", incarnation, " is started and #", newest,
                                 " was not told to stop"));
    const bool givenUp = orders_ && std::find(orders_->givenUp.begin(), orders_->givenUp.end(),
                                              replica) != orders_->givenUp.end();
    if (held_.contains(replica) || drained_.contains(replica) || givenUp)
        fail_("orders", absl::StrCat("r", replica, " is started although it is ",
                                     givenUp                      ? "given up"
                                     : drained_.contains(replica) ? "drained"
                                                                  : "held"));
    newest = incarnation;
    startedBy_[replica] = term_;
}

// ---- ranks

/// A quorum holds only if the step before it was committed as it assumed.
void Oracle::began(const Process& rank, const Quorum& q) {
    if (rank.ofLostPast) return;
    const auto before = records_.find({q.lineage, q.step - 1});
    const bool first = truthAt(q.lineage, q.step - 1) != nullptr && before == records_.end();
    const uint64_t epoch = before == records_.end() ? 0 : before->second.epoch;
    if ((before == records_.end() && !first) || q.afterEpoch != epoch)
        fail_("I5", absl::StrCat(name(rank), " begins step ", q.step,
                                 " by a quorum that is void: ", "it assumes step ", q.step - 1,
                                 " in epoch ", q.afterEpoch, ", not ", epoch));
}

void Oracle::stood(const Process& rank, bool fresh) {
    const Truth* truth = truthAt(rank.now.lineage, rank.now.step);
    if (truth == nullptr || rank.now.tainted || rank.ofLostPast) return;
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
    Sum own{};
    const auto dealt = dealSamples(rank.work->ranges, options_.shards, q.domainShare);
    for (const auto& [domain, sample] : dealt[shard])
        add(own, gradientOf(0, {{domain, sample, sample + 1}}));
    dealt_[key] = own;
    while (dealt_.size() > kStepsKept) dealt_.erase(dealt_.begin());
    if (rank.gradient == expected) {
        taints_.erase({key, encode(rank.work->ranges)});
        return;
    }
    if (!rank.now.tainted && !rank.flipGradientNext && !rank.ofLostPast)
        fail_("I3", absl::StrCat(name(rank), " computes step ", q.step,
                                 " from a state that is not that of step ", q.step - 1));
    taints_[{key, encode(rank.work->ranges)}] = difference(rank.gradient, expected);
    while (taints_.size() > kStepsKept) taints_.erase(taints_.begin());
}

void Oracle::completed(const Process& rank, const ExchangeId& id, bool overflow) {
    auto& done = completed_[{rank.id, rank.incarnation}];
    const Quorum& q = rank.work->quorum;
    done.insert({q.term, id});
    while (done.size() > 16) done.erase(done.begin());
    if (overflow) overflowed_.insert({q.term, id});
    const Truth* truth = truthAt(q.lineage, q.step - 1);
    if (truth == nullptr || rank.ofLostPast) return;
    const auto shard = static_cast<size_t>(rank.id.shard);
    const Sum expected =
        sumOf(broughtBy(q), q.lineage, q.step, shard, stateBefore(*truth, shard, q.layout));
    if (rank.reduced != expected)
        fail_("I5",
              absl::StrCat(name(rank), " completes step ", q.step, " epoch ", q.epoch, " attempt ",
                           q.attempt, " with a sum that is not that of its quorum's ranges"));
}

void Oracle::applied(const Process& rank, const CommitRecord& record, bool replayed) {
    if (rank.ofLostPast) return;
    const auto it = records_.find({record.lineage, record.step});
    if (it == records_.end()) {
        fail_("I6",
              absl::StrCat(name(rank), " applies ", stepName(record), ", which is not durable"));
        return;
    }
    if (it->second != record)
        fail_("I1", absl::StrCat(name(rank), " applies another record of ", stepName(record),
                                 " than stands in the log"));
    const Truth* truth = truthAt(record.lineage, record.step);
    if (truth == nullptr || rank.now.tainted) return;
    if (rank.now.state != truth->states[static_cast<size_t>(rank.id.shard)])
        fail_("I3", absl::StrCat(name(rank), replayed ? " replays " : " applies ", stepName(record),
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
