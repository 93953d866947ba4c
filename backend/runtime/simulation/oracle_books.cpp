// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/oracle.h"

/// The coordinator's own books: its ledger of data, what it found in the log, what it was told and
/// whom it blames.
namespace bulkhead::simulation {
namespace {

constexpr uint64_t kWholeLookEvery = 64;

}  // namespace

void Oracle::recovered(const CoordinatorMachine& c) {
    for (auto& [replica, incident] : incidents_) incident.inherited = true;
    inheritedUpTo_ = newestIncident_;
    toldStates_.clear();
    if (c.term() <= term_)
        fail_("I5", absl::StrCat("a coordinator of term ", c.term(), " follows term ", term_));
    if (policies_ && c.policies() != *policies_)
        fail_("I6", "the new coordinator has forgotten the policies the operator set");
    if (restoredFrom_ == std::pair(c.lineage(), c.committedStep())) return;
    if (lineage_ != 0 && c.expertShard() != expertShard_)
        fail_("I6", "the new coordinator has forgotten where the experts lie");
    if (lineage_ != 0 && c.domainShare() != domainShare_)
        fail_("I6", "the new coordinator has forgotten which shard computes what");
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
    for (const ReplicaView& v : c.replicas()) {
        const auto open = incidents_.find(v.replica);
        const bool settled = v.state == ReplicaState::kTraining ||
                             v.state == ReplicaState::kDrained || v.state == ReplicaState::kHeld ||
                             v.state == ReplicaState::kFailed;
        if (settled && open != incidents_.end() && !open->second.inherited)
            fail_("told", absl::StrCat("r", v.replica, " is ", std::string(enumName(v.state)),
                                       ", and incident ", open->second.id, " of its loss is open"));
    }
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
        // A sample that an attempt at a later step showed to be bad stays out, also before that
        // step.
        const auto compare = [&](const std::vector<SampleRange>& ranges, Use use,
                                 const char* word) {
            for (const SampleRange& r : ranges) {
                if (r.domain != d) continue;
                told += r.end - r.begin;
                for (uint64_t s = r.begin; s < r.end; ++s) {
                    const bool later = s < samples_[d].size() && samples_[d][s].step > step;
                    told -= later && use == Use::kQuarantined;
                    if (s >= samples_[d].size() || samples_[d][s].use != use ||
                        (later && use != Use::kQuarantined)) {
                        fail_("I2", absl::StrCat(whose, " has sample ", s, " of domain ", d, " ",
                                                 word, ", the records do not"));
                        return;
                    }
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

// ---- what it is told

void Oracle::reported(const Report& m) {
    const std::pair<int32_t, uint32_t> who{m.replica, m.incarnation};
    if (!m.hasState || m.lineage != lineage_) return;
    if (!m.hashes.empty()) toldStates_[{m.lineage, m.step, m.layout}][m.replica] = m.hashes;
    const auto contributed = contributed_.find(who);
    if (!m.following) {
        if (!m.ready) return;
        reported_.insert(who);
        ready_[who] = m.step;
        const auto follower = followers_.find(who);
        if (follower != followers_.end() && follower->second.step <= m.step)
            followers_.erase(follower);  // it has begun to contribute
        return;
    }
    // Overtaken by its own contribution.
    if (contributed != contributed_.end() && m.step <= contributed->second) return;
    const Truth* truth = truthAt(m.lineage, m.step);
    bool wrong = truth == nullptr || m.hashes.size() != options_.shards;
    for (size_t s = 0; !wrong && s < m.hashes.size(); ++s)
        wrong = m.hashes[s] != stateBefore(*truth, s, m.layout);
    // Overtaken by the word that it has begun to contribute, unless it was sent for the state
    // since: then its hashes are right.
    const auto ready = ready_.find(who);
    if (wrong && ready != ready_.end() && m.step <= ready->second) return;
    reported_.insert(who);
    const auto [known, fresh] =
        followers_.try_emplace(who, Follower{m.step, wrong, m.snapshotStep});
    if (fresh) return;
    Follower& f = known->second;
    if (m.step >= f.step)
        f = {m.step, wrong && f.wrong, m.snapshotStep};
    else if (m.snapshotStep == f.snapshotStep)  // overtaken; the later state comes from this one
        f.wrong = f.wrong && wrong;
}

void Oracle::told(const Fact& fact) {
    if (const auto* seen = std::get_if<fact::EvidenceSeen>(&fact)) {
        evidence_[seen->replica].insert(seen->kind);
    } else if (const auto* changed = std::get_if<fact::ReplicaChanged>(&fact)) {
        if (changed->state == ReplicaState::kStarting) evidence_.erase(changed->replica);
        // Its later messages describe another state than the one it contributed from.
        if (changed->state == ReplicaState::kFetching)
            contributed_.erase({changed->replica, changed->incarnation});
    } else if (const auto* redone = std::get_if<fact::StepRedone>(&fact)) {
        redone_ = {redone->step, redone->epoch, redone->attempt};
    } else if (const auto* opened = std::get_if<fact::IncidentOpened>(&fact)) {
        const auto open = incidents_.find(opened->replica);
        if (open != incidents_.end() && !open->second.inherited)
            fail_("told", absl::StrCat("incident ", opened->incident, " of r", opened->replica,
                                       " opens while ", open->second.id, " is open"));
        incidents_[opened->replica] = {opened->incident, false};
        newestIncident_ = std::max(newestIncident_, opened->incident);
        const bool wrong = opened->cause == EvidenceKind::kParityMismatch ||
                           opened->cause == EvidenceKind::kNonFinite;
        if (wrong && !evidence_[opened->replica].contains(opened->cause))
            fail_("told", absl::StrCat("r", opened->replica, " is lost for ",
                                       std::string(enumName(opened->cause)),
                                       ", of which nothing was told"));
    } else if (const auto* closed = std::get_if<fact::IncidentClosed>(&fact)) {
        const size_t ended = std::erase_if(
            incidents_, [&](const auto& i) { return i.second.id == closed->incident; });
        if (ended == 0 && closed->incident > inheritedUpTo_)
            fail_("told", absl::StrCat("incident ", closed->incident, " ends and was not open"));
    }
}

/// An order is in the log before it is acknowledged.
void Oracle::ordered(const Operation& o) {
    switch (o.kind) {
        case OperationKind::kPause:
        case OperationKind::kResume:
            paused_ = o.kind == OperationKind::kPause;
            break;
        case OperationKind::kDrain:
            drained_.insert(o.replica);
            break;
        case OperationKind::kHoldRejoin:
            held_.insert(o.replica);
            break;
        case OperationKind::kReleaseRejoin:
            drained_.erase(o.replica);
            held_.erase(o.replica);
            break;
        case OperationKind::kSetPolicies:
            policies_ = o.policies;
            break;
        default:
            return;
    }
    const auto lists = [](const std::vector<int32_t>& logged, const std::set<int32_t>& told) {
        return std::set<int32_t>(logged.begin(), logged.end()) == told;
    };
    LogOrders logged;
    logged.policies = options_.policies;
    if (orders_) logged = *orders_;
    if (logged.paused != paused_ || !lists(logged.held, held_) ||
        !lists(logged.drained, drained_) || (policies_ && logged.policies != *policies_))
        fail_("I6", absl::StrCat("an operator was told that an order about r", o.replica,
                                 " is carried out, and the log does not say so"));
}

void Oracle::judged(const ReplayVerdict& m) {
    if (m.replayed && m.mismatchedShards.empty()) matched_[{m.replica, m.incarnation}] = m.step;
}

/// Somebody is expelled for its state. Nobody's differs unless somebody flipped a bit.
void Oracle::blamed(int32_t replica, uint32_t incarnation, const Living& process) {
    if (!newest_) return;
    if (!flipped_ && !rewound_)
        return fail_("I3", absl::StrCat("r", replica,
                                        " is blamed for its state, and nothing ever "
                                        "happened to anybody's"));
    const Quorum& q = announced_.at(*newest_).quorum;
    size_t right = 0;
    size_t wrong = 0;
    bool isRight = false;
    bool matches = false;
    const bool tie = tieAt_ + 1 == q.step;
    const auto clean = [&](int32_t r, uint32_t inc) {
        for (uint32_t s = 0; s < options_.shards; ++s) {
            const Process* p = process({r, static_cast<int32_t>(s)}, inc);
            if (p == nullptr || p->now.tainted) return false;
        }
        return true;
    };
    bool member = false;
    for (const Member& m : q.contributors) {
        if (m.entering) continue;
        const Contribution& c = m.contribution;
        const bool blamed = c.replica == replica && c.incarnation == incarnation;
        const auto matched = matched_.find({c.replica, c.incarnation});
        matches = matches || (blamed && matched != matched_.end() && matched->second == tieAt_);
        ++(clean(c.replica, c.incarnation) ? right : wrong);
        isRight = isRight || (blamed && clean(c.replica, c.incarnation));
        member = member || blamed;
    }
    if (!member && wrong == 0 && clean(replica, incarnation))
        fail_("I3", absl::StrCat("r", replica, " #", incarnation,
                                 " is blamed for its state, which is right as that of all ", right,
                                 " who train"));
    if (tie && matches && right == wrong)
        fail_("I3", absl::StrCat("r", replica, " is blamed for its state after step ", tieAt_,
                                 ", which is that of its own replay"));
    // Of one who trains and one who has yet to begin, the word of the former counts.
    const bool follows = followers_.contains({replica, incarnation});
    if (isRight && (right > wrong || (right == wrong && !tie && !follows)))
        fail_("I3",
              absl::StrCat("r", replica, " is blamed for its state, which is right as that of ",
                           right - 1, " others; that of ", wrong, " is not"));
}

}  // namespace bulkhead::simulation
