// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/oracle.h"

/// Rules for a quorum: whom it may name, what each of them computes, when there may be one.
namespace bulkhead::simulation {
namespace {

constexpr size_t kAnnouncedKept = 64;

std::string which(const Quorum& q) {
    return absl::StrCat("the quorum of step ", q.step, " (epoch ", q.epoch, ", attempt ", q.attempt,
                        ")");
}

std::string who(const Contribution& c) {
    return absl::StrCat("r", c.replica, " #", c.incarnation);
}

size_t bringing(const Quorum& q) {
    return static_cast<size_t>(std::count_if(q.contributors.begin(), q.contributors.end(),
                                             [](const Member& m) { return !m.entering; }));
}

}  // namespace

void Oracle::announced(const Quorum& q, const Policies& policies, const Living& process) {
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
    if (q.lineage == lineage_ && q.step <= step_)
        fail_("I6", absl::StrCat(which(q), " is of a committed step"));
    if (q.lineage == lineage_ && q.step > step_ + 2)
        fail_("I6", absl::StrCat(which(q), ", but only ", step_, " is committed"));
    if (q.attempt > 1 && redone_ != key.id)
        fail_("told", absl::StrCat(which(q), " was not told of"));
    checkOrders(q, policies);
    // A replica that trained before may have vouched for a state that was wrong by then.
    const bool tainted =
        anyTainted(q, process) || (newest_ && anyTainted(announced_.at(*newest_).quorum, process));
    for (size_t i = 0; i < q.contributors.size(); ++i) {
        const Contribution& c = q.contributors[i].contribution;
        if (i > 0 && q.contributors[i - 1].contribution.replica >= c.replica)
            fail_("I5", absl::StrCat(which(q), " names r", c.replica, " twice or out of order"));
        for (const RankEndpoint& e : q.contributors[i].ranks)
            if (e.incarnation != c.incarnation)
                fail_("I5",
                      absl::StrCat(which(q), " sends others to r", c.replica, " #", e.incarnation));
        checkMember(q, c, tainted);
    }
    checkShares(q, policies);
    const double share = static_cast<double>(bringing(q)) / static_cast<double>(options_.replicas);
    const uint32_t every = policies.parityEverySteps;
    const bool due = every != 0 && every != kParityAuto && q.step % every == 0;
    Announcement a{q, 1, due || q.checkParity};
    if (policies.batch == BatchPolicy::kShrink && policies.lr == LrPolicy::kLinear)
        a.factor = share;
    if (policies.batch == BatchPolicy::kShrink && policies.lr == LrPolicy::kSqrt)
        a.factor = std::sqrt(share);
    announced_.emplace(key, std::move(a));
    newest_ = key;
    announcedOrder_.push_back(key);
    if (announcedOrder_.size() < 2 * kAnnouncedKept) return;
    for (size_t i = 0; i < kAnnouncedKept; ++i) announced_.erase(announcedOrder_[i]);
    announcedOrder_.erase(announcedOrder_.begin(), announcedOrder_.begin() + kAnnouncedKept);
}

/// Requests of operators and policies.
void Oracle::checkOrders(const Quorum& q, const Policies& policies) {
    if (policies_ && policies != *policies_)
        fail_("orders", absl::StrCat(which(q), " is made under other policies than were ordered"));
    const size_t least = std::max<size_t>(1, policies.minReplicas);
    if (bringing(q) < least || bringing(q) > options_.replicas)
        fail_("orders", absl::StrCat(which(q), " has ", bringing(q), " contributors of ",
                                     options_.replicas, " replicas and at least ", least));
    if (q.attempt > 1) return;  // the exchange begun before is ended
    if (paused_) fail_("orders", absl::StrCat(which(q), " begins a step of a paused job"));
    for (const Member& m : q.contributors)
        if (drained_.contains(m.contribution.replica))
            fail_("orders", absl::StrCat(which(q), " begins a step with r", m.contribution.replica,
                                         ", which is to be drained"));
}

/// A named replica has told that it holds the state; a joiner, that it follows closely, and by
/// hashes that are those of its step.
void Oracle::checkMember(const Quorum& q, const Contribution& c, bool tainted) {
    const std::pair<int32_t, uint32_t> key{c.replica, c.incarnation};
    const auto newest = incarnations_.find(c.replica);
    if (newest != incarnations_.end() && newest->second > c.incarnation)
        fail_("I5",
              absl::StrCat(which(q), " names ", who(c), ", but #", newest->second, " was started"));
    const auto expelled = expelled_.find(key);
    // A coordinator that is gone may have been the only one to hear of that.
    if (expelled != expelled_.end() && expelled->second == term_)
        fail_("I5", absl::StrCat(which(q), " names ", who(c), ", which was told to go"));
    if (!reported_.contains(key))
        fail_("I5", absl::StrCat(which(q), " names ", who(c), ", which told of no state"));
    const auto follower = followers_.find(key);
    if (follower == followers_.end() || q.lineage != lineage_) return;
    if (follower->second.step + 2 < q.step)
        fail_("I5", absl::StrCat(which(q), " names ", who(c), ", which is known to hold step ",
                                 follower->second.step, " only"));
    if (follower->second.wrong && q.attempt == 1 && !tainted && policiesCheckParity())
        fail_("I3", absl::StrCat(which(q), " names ", who(c), ", whose state after step ",
                                 follower->second.step, " is not that of its records"));
}

bool Oracle::policiesCheckParity() const {
    return (policies_ ? *policies_ : options_.policies).parityEverySteps != 0;
}

/// Nobody in it can be known to hold the true state.
bool Oracle::anyTainted(const Quorum& q, const Living& process) const {
    bool trained = false;
    for (const Member& m : q.contributors) {
        const Contribution& c = m.contribution;
        if (followers_.contains({c.replica, c.incarnation})) continue;
        trained = true;
        for (uint32_t s = 0; s < options_.shards; ++s) {
            const Process* p = process({c.replica, static_cast<int32_t>(s)}, c.incarnation);
            if (p == nullptr || p->now.tainted) return true;
        }
    }
    return !trained;
}

/// No sample twice, none that is used up, and to each the share that the policy gives it.
void Oracle::checkShares(const Quorum& q, const Policies& policies) {
    const uint64_t whole = uint64_t{options_.samplesPerReplica} * options_.replicas;
    const size_t n = bringing(q);
    size_t nth = 0;
    std::map<uint32_t, std::map<uint64_t, uint64_t>> taken;
    for (const Member& m : q.contributors) {
        const Contribution& c = m.contribution;
        uint64_t samples = 0;
        for (const SampleRange& r : c.ranges) {
            samples += r.end - r.begin;
            for (const auto& [begin, end] : taken[r.domain])
                if (begin < r.end && r.begin < end)
                    fail_("I2", absl::StrCat(which(q), " leases samples of domain ", r.domain,
                                             " from ", r.begin, " twice"));
            taken[r.domain][r.begin] = r.end;
            if (q.lineage != lineage_ || r.domain >= samples_.size()) continue;
            const auto& domain = samples_[r.domain];
            for (uint64_t s = r.begin; s < std::min(r.end, uint64_t{domain.size()}); ++s)
                if (domain[s].use != Use::kFree)
                    fail_("I2", absl::StrCat(which(q), " leases sample ", s, " of domain ",
                                             r.domain, ", which is used up"));
        }
        if (m.entering) {
            if (samples != 0)
                fail_("I2", absl::StrCat(which(q), " leases samples to r", c.replica,
                                         ", which brings nothing"));
            continue;
        }
        uint64_t share = options_.samplesPerReplica;
        if (policies.batch == BatchPolicy::kConstant) share = whole / n + (nth < whole % n ? 1 : 0);
        ++nth;
        // Done again, those who are left keep what they had.
        if (q.attempt == 1 ? samples != share : samples == 0)
            fail_("I2", absl::StrCat(which(q), " gives r", c.replica, " ", samples,
                                     " samples instead of ", share));
    }
}

}  // namespace bulkhead::simulation
