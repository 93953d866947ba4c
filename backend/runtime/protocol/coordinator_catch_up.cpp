// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/runtime/protocol/coordinator_impl.h"

/// Joiners: which snapshot, whose, and when their state is proven. Nobody who trains waits here.
namespace bulkhead::protocol {
namespace {

/// After the first source is ready the others get so long before the fetch begins without them.
constexpr MonoNs kSourcePatience = 200 * kMillisecond;
constexpr size_t kClaimsKept = 16;
constexpr size_t kDropsKept = 8;
constexpr uint32_t kDisprovedAreTooMany = 3;
/// A joiner's pace is measured over so long and so many steps.
constexpr MonoNs kGainTime = kSecond;
constexpr int64_t kGainSteps = 10;
/// ... or until it has lost so many.
constexpr int64_t kLosesSteps = 3;
/// The others wait for one that does not gain as long as its fetch took at most, or this and four
/// of their steps, and then train at least so many times as long.
constexpr MonoNs kWaitMost = kSecond;
constexpr int64_t kTrainBetweenWaits = 50;

}  // namespace

KeepSnapshot CoordinatorMachine::Impl::snapshotOrder(const Replica& r, bool keep) const {
    return {term_,   r.snapshotStep,
            keep,    keep ? keyFor("fetch", lineage_, r.snapshotStep) : Secret{},
            layout_, move_ ? layoutTried_ - 1 : layoutTried_};
}

/// Has the last commit's state and gives it to others. While the job waits that may be a
/// joiner too: the job may be waiting for just those whom only it can serve.
bool CoordinatorMachine::Impl::serves(const Replica& r) const {
    return r.stage == Stage::kUpToDate ||
           ((!open_ || open_->holding) && r.stage == Stage::kReplaying && r.following && r.proven &&
            r.step == committed_);
}

/// Asks everybody who trains to keep the state after the step now in flight: the order of messages
/// guarantees that they hear it before they apply that step.
void CoordinatorMachine::Impl::planFetch(Replica& r, const std::string& why) {
    forgetSnapshot(r);
    // It was let in too early: it is late, and costs the others one new quorum.
    if (contributes(r.id)) {
        open_->ballot.lost.insert(r.id);
        abortExchange(absl::StrCat("r", r.id, " has to catch up: ", why));
    }
    static_cast<CatchUp&>(r) = CatchUp();
    r.plannedAt = now_;
    enter(r, Stage::kSnapshot);
    show(r, ReplicaState::kFetching, why);
    r.snapshotStep = open_ && !open_->holding ? open_->quorum.step : committed_;
    if (keepsItsOwn(r)) return;
    for (Replica& source : replicas_)
        if (serves(source) && !source.leaves()) keepSnapshot(source, r);
}

/// Nobody waits for it: it need not give up a state that the others' end could make the only one.
bool CoordinatorMachine::Impl::keepsItsOwn(const Replica& r) const {
    return paused_ && !open_ && holdsOtherwise(r);
}

void CoordinatorMachine::Impl::keepSnapshot(Replica& source, Replica& r) {
    r.kept.insert(source.id);
    source.dropped.erase(r.snapshotStep);
    tell(source, snapshotOrder(r, true));
}

void CoordinatorMachine::Impl::from(RankId, const SnapshotReady& m) {
    if (current(m.replica, m.incarnation) == nullptr) return;
    for (Replica& r : replicas_) {
        if (!r.joining() || r.snapshotStep != m.step || !r.kept.contains(m.replica)) continue;
        r.ready.insert(m.replica);
        if (r.firstReady == 0) r.firstReady = now_;
        maybeFetch(r);
    }
}

void CoordinatorMachine::Impl::maybeFetch(Replica& r) {
    if (r.ready.empty() || r.snapshotStep > committed_) return;
    const bool all = r.ready.size() == r.kept.size();
    if (r.stage == Stage::kSnapshot) {
        if (!all && now_ - r.firstReady < kSourcePatience) return;
        enter(r, Stage::kFetching);
        sendFetch(r);
    } else if (r.ready.size() != r.sources.size()) {
        sendFetch(r);  // a late source still speeds it up
    }
}

void CoordinatorMachine::Impl::sendFetch(Replica& r) {
    r.sources.assign(r.ready.begin(), r.ready.end());
    r.followsWith.reset();
    r.placedOtherwise = false;
    r.sentFetch = true;
    r.gradients.clear();
    tell(r, fetchOf(r));
}

Fetch CoordinatorMachine::Impl::fetchOf(const Replica& r) const {
    Fetch f;
    f.term = term_;
    f.epoch = epoch_;
    f.lineage = lineage_;
    f.snapshotStep = r.snapshotStep;
    const auto epoch = epochOf_.find(r.snapshotStep);
    f.snapshotEpoch = epoch == epochOf_.end() ? 0 : epoch->second;
    for (int32_t id : r.sources) {
        const Replica& source = replicas_[static_cast<size_t>(id)];
        f.sources.push_back(Member{{source.id, source.incarnation, {}}, source.endpoints});
    }
    f.key = keyFor("fetch", lineage_, r.snapshotStep);
    f.bytesPerSecond = options_.policies.fetchBytesPerSecond;
    f.layout = layout_;
    f.expertShard = expertShard_;
    return f;
}

void CoordinatorMachine::Impl::from(RankId, const FetchProgress& m) {
    Replica* r = current(m.replica, m.incarnation);
    if (r == nullptr || !r->joining() || m.snapshotStep != r->snapshotStep) return;
    const bool moved = m.bytesDone != r->bytesDone || m.step != r->step;
    if (m.bytesTotal != 0) r->bytesDone = m.bytesDone;
    if (m.step >= r->snapshotStep) r->step = m.step;
    if (moved) r->advancedAt = now_;
    if (r->stage == Stage::kFetching && m.step >= r->snapshotStep && m.bytesTotal == 0) {
        r->fetchTook = std::max<MonoNs>(now_ - r->plannedAt, 1);
        enter(*r, Stage::kReplaying);
        show(*r, ReplicaState::kReplaying, "");
    }
    fact(fact::CatchUpProgress{m.replica, m.incarnation, m.snapshotStep, r->bytesDone, m.bytesTotal,
                               m.step, r->sources});
}

void CoordinatorMachine::Impl::from(RankId, const FetchFailed& m) {
    Replica* r = current(m.replica, m.incarnation);
    if (r == nullptr || !r->joining() || m.snapshotStep != r->snapshotStep) return;
    for (int32_t source : m.failedSources) {
        r->ready.erase(source);
        if (r->kept.erase(source) > 0) dropSnapshot(*find(source), *r);
    }
    if (!m.outOfWindow && !r->ready.empty()) return sendFetch(*r);
    const std::string why = absl::StrCat("a younger snapshot is needed: ", m.why);
    // The steps after the state that it fetched are no longer kept when it has it, and will not be
    // the next time.
    if (m.outOfWindow) return fetchWhileOthersWait(*r, why);
    planFetch(*r, why);
}

/// The others go on training where they may not wait for it.
void CoordinatorMachine::Impl::fetchWhileOthersWait(Replica& r, const std::string& why) {
    const MonoNs took = r.fetchTook != 0 ? r.fetchTook : now_ - r.plannedAt;
    planFetch(r, why);
    if (!isSpare(r) && mayWaitFor(r)) letCatchUp(r, took);
}

bool CoordinatorMachine::Impl::mayWaitFor(const Replica& r) const {
    // One that was let in too early is not among them.
    const auto stays = [&](int32_t id) { return id != r.id && !open_->ballot.lost.contains(id); };
    const bool full = open_ && std::ranges::count_if(open_->ballot.contributors, stays) >=
                                   static_cast<std::ptrdiff_t>(options_.replicas);
    return !full && !r.leaves() && !waitFor_ && now_ >= waitAgainFrom_;
}

/// The next quorum waits for a joiner that would not catch up otherwise, about as long as it needs.
void CoordinatorMachine::Impl::letCatchUp(const Replica& r, MonoNs needs) {
    const MonoNs wait = 2 * needs + 4 * options_.timeouts.beatMs * kMillisecond;
    waitFor_ = {r.id, r.incarnation, now_ + wait};
    waitAgainFrom_ = now_ + (1 + kTrainBetweenWaits) * wait;
}

/// The joiner goes on with the other sources, or with another snapshot when none is left.
void CoordinatorMachine::Impl::sourceLost(int32_t replica) {
    for (Replica& r : replicas_) {
        if (!r.joining() || r.kept.erase(replica) == 0) continue;
        const bool had = r.ready.erase(replica) > 0;
        if (contributesData(r.id)) continue;  // it holds all it fetched for, and trains by now
        if (r.stage == Stage::kSnapshot) {
            maybeFetch(r);
        } else if (had && r.ready.empty() && r.stage == Stage::kReplaying) {
            addDeltaSources(r);
        } else if (had && r.ready.empty()) {
            planFetch(r, absl::StrCat("its last source r", replica, " is gone"));
        } else if (had) {
            sendFetch(r);
        }
    }
}

/// Its state is there; deltas alone may come from anybody who trains.
void CoordinatorMachine::Impl::addDeltaSources(Replica& r) {
    for (Replica& source : replicas_) {
        if (!serves(source) || source.id == r.id) continue;
        keepSnapshot(source, r);  // too late for that; it carries the token
        r.ready.insert(source.id);
    }
    if (!r.ready.empty()) sendFetch(r);
}

/// A snapshot is as large as the state: it must not outlive the catch-up it was taken for.
void CoordinatorMachine::Impl::dropSnapshot(Replica& source, const Replica& r) {
    const bool needed = std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& o) {
        return o.id != r.id && o.joining() && !o.proven && o.snapshotStep == r.snapshotStep &&
               o.kept.contains(source.id);
    });
    if (needed || !source.alive()) return;
    tell(source, snapshotOrder(r, false));
    source.dropped.insert(r.snapshotStep);
    if (source.dropped.size() > kDropsKept) source.dropped.erase(source.dropped.begin());
}

/// It holds the state: sources may forget the snapshot, and go on serving deltas.
void CoordinatorMachine::Impl::forgetSnapshot(const Replica& r) {
    for (int32_t id : r.kept) dropSnapshot(*find(id), r);
}

/// Its fetch is over, one way or another.
void CoordinatorMachine::Impl::releaseSnapshot(Replica& r) {
    forgetSnapshot(r);
    r.kept.clear();
    r.ready.clear();
    r.sources.clear();
}

/// Compares what a joiner claims with what contributors agreed on; the newest comparable step
/// counts. Whoever waits in reserve is compared as long as it follows.
void CoordinatorMachine::Impl::prove(Replica& r) {
    if (!r.following) return;
    const bool before = r.proven;
    const bool compared = options_.policies.parityEverySteps != 0;
    if (!compared) r.proven = true;
    for (auto it = r.claims.rbegin(); compared && it != r.claims.rend(); ++it) {
        const Hashes* agreed = agreed_.find(it->first);
        if (agreed == nullptr) continue;
        if (*agreed != it->second) {
            const std::string why =
                absl::StrCat("its state after step ", it->first, " is not the contributors'");
            fact(fact::EvidenceSeen{EvidenceKind::kParityMismatch, r.id, -1, "coordinator", why});
            expel(r, EvidenceKind::kParityMismatch, why, now_);
            doubtSources();
            return;
        }
        r.proven = true;
        disproved_ = 0;
        break;
    }
    while (r.claims.size() > kClaimsKept) r.claims.erase(r.claims.begin());
    if (!r.proven || before) return;
    forgetSnapshot(r);
    show(r, ReplicaState::kProven, "");
    book([&](auto& out) { incidents_.phase(now_, r.id, IncidentPhaseKind::kJoin, out); });
}

/// A joiner's state is wrong. While steps go on votes tell whether the sources' is, too. While the
/// job waits only this does: one joiner may be bad itself, but when one after the other is and none
/// is good, those who serve hold something else than they vouched for. Which of them cannot be
/// told, nor does anybody hold the state that was vouched for.
void CoordinatorMachine::Impl::doubtSources() {
    if (open_ && !open_->holding) return;
    if (++disproved_ >= kDisprovedAreTooMany)
        statesDiffer("joiners do not come to the state that those who train vouch for");
}

void CoordinatorMachine::Impl::proveAll() {
    for (Replica& r : replicas_)
        if (r.stage == Stage::kReplaying) prove(r);
}

/// Returns whether the replica's hash of the last commit's state counts while there is no vote:
/// replicas that train count, and if there are none, those that serve that state in their place.
bool CoordinatorMachine::Impl::vouches(const Replica& r) const {
    const bool trained = std::any_of(replicas_.begin(), replicas_.end(),
                                     [](const Replica& o) { return o.stage == Stage::kUpToDate; });
    return trained ? r.stage == Stage::kUpToDate : serves(r);
}

/// While the job waits no vote tells what joiners have to hold, and what a checkpoint has; those
/// who vouch for it are asked, and joiners that did not tell theirs.
void CoordinatorMachine::Impl::askForHashes() {
    judgeReported();
    if (open_ && !open_->holding) return;
    const bool agreed = agreed_.find(committed_) != nullptr;
    const auto plan = checkpointPlans_.find(committed_);
    const bool wanted = std::any_of(replicas_.begin(), replicas_.end(), isUnproven) ||
                        (plan != checkpointPlans_.end() && plan->second.done);
    for (const Replica& r : replicas_) {
        const bool owes = isUnproven(r) && r.step == committed_ && !r.claims.contains(committed_);
        if (!owes && (!wanted || agreed || !vouches(r))) continue;
        // KeepSnapshot names the layout: after a failed move, ranks of a replica may differ in it.
        if (!move_) tell(r, KeepSnapshot{term_, 0, false, {}, layout_, layoutTried_});
        tell(r, welcome());
    }
}

/// While the job waits for those who catch up nobody votes: whoever does not give the snapshot that
/// they need is seen by that alone.
void CoordinatorMachine::Impl::judgeSources() {
    for (Replica& source : replicas_) {
        const bool owes = (!open_ || open_->holding) && serves(source) &&
                          std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& r) {
                              return r.stage == Stage::kSnapshot && r.snapshotStep == committed_ &&
                                     r.kept.contains(source.id) && !r.ready.contains(source.id);
                          });
        if (!owes || source.owesSnapshotSince == 0) source.owesSnapshotSince = owes ? now_ : 0;
        if (owesSnapshot(source) && !gate_.suspects().contains(source.id))
            condemn(source, EvidenceKind::kMissedProgress,
                    "it does not give the state that others wait for", source.owesSnapshotSince,
                    false);
    }
}

bool CoordinatorMachine::Impl::owesSnapshot(const Replica& r) const {
    return r.owesSnapshotSince != 0 &&
           now_ - r.owesSnapshotSince > options_.timeouts.fetchMs * kMillisecond;
}

/// A joiner that replays a step no faster than the others make one would never be one of them.
/// The next quorum waits, so that it replays what it lacks while nothing new comes; or fetches the
/// whole state once more, where it lacks so much that this is sooner done.
void CoordinatorMachine::Impl::seeWhetherItGains(Replica& r) {
    const auto before = r.lookedAt;
    if (before.at == 0 && r.step <= r.snapshotStep) return;  // it has not begun
    const MonoNs took = now_ - before.at;
    const auto since = [](uint64_t now, uint64_t then) {  // a late report may name less
        return static_cast<int64_t>(now) - static_cast<int64_t>(then);
    };
    const int64_t made = since(committed_, before.committed), replayed = since(r.step, before.step);
    const bool loses = replayed > 1 && made >= replayed + kLosesSteps;
    if (before.at != 0 && (took < kGainTime || (made < kGainSteps && !loses))) return;
    r.lookedAt = {now_, committed_, r.step};
    if (before.at == 0 || replayed <= 0 || replayed > made || r.step >= committed_) return;
    if (!mayWaitFor(r)) return;
    const MonoNs needs = since(committed_, r.step) * (took / replayed);
    const MonoNs steps = 4 * took / made;
    if (needs <= std::max(kWaitMost + steps, r.fetchTook)) return letCatchUp(r, needs);
    fetchWhileOthersWait(r, "it replays no faster than the others train");
}

/// Snapshots that never come, and joiners that stand still.
void CoordinatorMachine::Impl::scanJoiners() {
    askForHashes();
    judgeSources();
    for (Replica& r : replicas_) {
        if (!r.joining() || contributes(r.id) || keepsItsOwn(r)) continue;
        maybeFetch(r);
        if (r.stage == Stage::kSnapshot) {
            // The step it was planned for may never come, or its sources may be gone.
            const bool coming = open_ && !open_->holding && open_->quorum.step == r.snapshotStep;
            const bool stale = (r.snapshotStep > committed_ && !coming) || r.kept.empty() ||
                               now_ - r.stageSince > 2 * limits_.progress();
            const bool served =
                std::any_of(replicas_.begin(), replicas_.end(),
                            [&](const Replica& o) { return !o.leaves() && serves(o); });
            if (stale && served) planFetch(r, "its snapshot did not come");
            continue;
        }
        if (r.stage == Stage::kReplaying && !isSpare(r)) seeWhetherItGains(r);
        // A follower has nothing to get on with before the next commit.
        if (r.following && r.step >= committed_) continue;
        const MonoNs since = r.following ? std::max(r.advancedAt, lastCommitAt_) : r.advancedAt;
        if (now_ - since > options_.timeouts.fetchMs * kMillisecond)
            condemn(r, EvidenceKind::kMissedProgress, "its catch-up stands still", since, false);
    }
}

}  // namespace bulkhead::protocol
