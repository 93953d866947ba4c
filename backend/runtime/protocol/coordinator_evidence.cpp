// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/runtime/protocol/coordinator_impl.h"

/// Evidence, and the expulsion of replicas because of it. A process exit is certain; a peer's
/// complaint is not: silence or a second peer must confirm it.
namespace bulkhead::protocol {

size_t CoordinatorMachine::Impl::trainedReplicas() const {
    return static_cast<size_t>(std::count_if(
        replicas_.begin(), replicas_.end(),
        [&](const Replica& r) { return r.stage == Stage::kUpToDate || contributes(r.id); }));
}

/// Some rank of it has not beaten for longer than beats may jitter.
bool CoordinatorMachine::Impl::silent(const Replica& r) const {
    return std::any_of(r.pulses.begin(), r.pulses.end(), [&](const RankPulse& p) {
        return p.hello && now_ - p.lastBeat > limits_.accusedSilence();
    });
}

/// Alive and getting on with something of its own: peers wait for a slow one, not for a dead one.
bool CoordinatorMachine::Impl::progressing(const Replica& r) const {
    if (silent(r)) return false;
    return std::any_of(r.pulses.begin(), r.pulses.end(), [&](const RankPulse& p) {
        return (p.phase == Phase::kCompute || p.phase == Phase::kApply ||
                p.phase == Phase::kReplay) &&
               now_ - p.lastProgress <= limits_.progress();
    });
}

void CoordinatorMachine::Impl::condemn(Replica& r, EvidenceKind kind, const std::string& why,
                                       MonoNs symptomAt, bool confirmed) {
    if (!r.alive()) return;
    if (confirmed) {
        gate_.confirm(r.id);
        expel(r, kind, why, symptomAt);
        return;
    }
    // Only those who train can be too many: a joiner's end costs nobody anything.
    const bool trains = r.stage == Stage::kUpToDate || contributes(r.id);
    const bool only =
        holdsAlone(r) || (r.stage == Stage::kAdopted && (r.unheardOn || wantsUnheard()));
    if (only) gate_.suspect(now_, r.id);
    if (only || (trains && !gate_.allow(now_, r.id, trainedReplicas()))) {
        abortExchange(absl::StrCat("r", r.id, " is suspected: ", why));
        return;
    }
    expel(r, kind, why, symptomAt);
}

void CoordinatorMachine::Impl::from(RankId from, const Evidence& m) {
    Replica* accused = current(m.accused.replica, m.incarnation);
    Replica* reporter = find(from.replica);
    if (accused == nullptr || reporter == nullptr || !reporter->alive()) return;
    fact(fact::EvidenceSeen{m.kind, m.accused.replica, m.accused.shard, m.reporter, m.detail});
    if (from.replica == m.accused.replica) {
        // Inside a replica nothing works without every rank: it can only be replaced as a whole.
        condemn(*accused, m.kind, m.detail, now_, false);
        return;
    }
    const bool ofThis = open_ && !open_->committing && m.step == open_->quorum.step &&
                        m.epoch == open_->quorum.epoch && m.attempt == open_->quorum.attempt;
    if (!ofThis || !contributes(m.accused.replica) || !contributes(from.replica)) return;
    if (!accused->accusedByPeer) accused->accusedOf = m.kind;
    accused->accusedByPeer = true;
    if (accused->nodeLost) {
        condemn(*accused, EvidenceKind::kNodeLost, "its node is gone, and its peers lost it too",
                now_, silenceConfirms(*accused));
        return;
    }
    const bool reset = m.kind == EvidenceKind::kTransportReset;
    if (!reset && progressing(*accused)) return;  // slow, not dead
    open_->ballot.failedPairs.insert(std::minmax(from.replica, m.accused.replica));
    if (reset) open_->resetAccusers[m.accused.replica].insert(from.replica);
    abortExchange(absl::StrCat("r", from.replica, " lost r", m.accused.replica, ": ", m.detail));
    judgeAccused();
}

/// Accused and silent, or accused by two whom nobody else accuses: it goes without another attempt.
/// Whoever is only accused by one and answers gets the second attempt of the protocol.
void CoordinatorMachine::Impl::judgeAccused() {
    if (!open_ || open_->committing || !open_->aborted) return;
    std::vector<int32_t> guilty;
    for (const Member& m : open_->quorum.contributors) {
        const int32_t id = m.contribution.replica;
        if (!contributes(id) || open_->ballot.votes.contains(id)) continue;
        const Replica& r = *find(id);
        if (r.accusedByPeer && silent(r)) guilty.push_back(id);
    }
    for (const auto& [id, by] : open_->resetAccusers) {
        bool others = false;
        for (const auto& [other, accusers] : open_->resetAccusers)
            others = others || (other != id && (accusers.size() > 1 || !accusers.contains(id)));
        if (by.size() >= 2 && !others && contributes(id)) guilty.push_back(id);
    }
    // Accusations come one by one; how many are silent is known at once. Before the first of half
    // of the job is expelled for it, all of them are suspects.
    std::vector<int32_t> quiet;
    for (const Member& m : open_->quorum.contributors)
        if (contributes(m.contribution.replica) && silent(*find(m.contribution.replica)))
            quiet.push_back(m.contribution.replica);
    if (!guilty.empty() && quiet.size() >= 2 && 2 * quiet.size() >= trainedReplicas())
        for (int32_t id : quiet) gate_.suspect(now_, id);
    for (int32_t id : guilty)
        condemn(*find(id), find(id)->accusedOf, "its peers lost it and it does not answer", now_,
                silenceConfirms(*find(id)));
}

/// Found by a new coordinator that some of its ranks have not found for longer than they may take.
/// The inventory is taken within that time.
bool CoordinatorMachine::Impl::missesRanks(const Replica& r) const {
    return r.stage == Stage::kAdopted && r.hellos < options_.shards &&
           now_ - std::max(r.stageSince, begunAt_) > options_.timeouts.joinMs * kMillisecond;
}

/// Its ranks have not told of their state for longer than a start may take.
bool CoordinatorMachine::Impl::startOverdue(const Replica& r) const {
    return (r.stage == Stage::kStarting || r.stage == Stage::kInit || r.stage == Stage::kAdopted) &&
           now_ - r.stageSince > options_.timeouts.startMs * kMillisecond;
}

/// Its exchange was ended longer ago than a rank may take to vote on it, and it did not.
bool CoordinatorMachine::Impl::owesVote(const Replica& r) const {
    return open_ && !open_->committing && open_->aborted && contributes(r.id) &&
           !open_->ballot.votes.contains(r.id) && now_ - open_->abortedAt > limits_.progress() &&
           !progressing(r);
}

/// A stop that is to keep the state waits as it does for a full disk for those who hold it, or may
/// turn out to, as long as nobody who answers does.
bool CoordinatorMachine::Impl::awaitedByStop(const Replica& r) const {
    return stopping_ && stopCheckpoint_ && !checkpointed() && holds(r) &&
           std::none_of(replicas_.begin(), replicas_.end(), [&](const Replica& o) {
               return o.id != r.id && holds(o) && !gate_.suspects().contains(o.id);
           });
}

/// Its agent and its peers have lost it: nobody will ever say that it ended. A stop that waits for
/// it wants to know.
bool CoordinatorMachine::Impl::silenceConfirms(const Replica& r) const {
    return r.nodeLost && r.accusedByPeer && !awaitedByStop(r);
}

/// A suspect that is not heard until then is expelled; 0: it is waited for.
MonoNs CoordinatorMachine::Impl::suspectLostAt(const Replica& r) const {
    if (options_.timeouts.massPauseMs == 0 || awaitedByStop(r)) return 0;
    return gate_.suspects().at(r.id) + options_.timeouts.massPauseMs * kMillisecond;
}

/// Suspects stay until an agent confirms, they are heard again, or an option says it is enough.
void CoordinatorMachine::Impl::judgeSuspects() {
    // First those who are heard again: they must not stand in the way of judging the others.
    for (const auto& [id, since] : std::map(gate_.suspects())) {
        const Replica& r = *find(id);
        const bool heard =
            std::all_of(r.pulses.begin(), r.pulses.end(), [&, at = since](const RankPulse& p) {
                return p.hello && p.lastBeat > at && !missed(now_, p, limits_, options_.timeouts);
            });
        const bool late =
            silent(r) || owesVote(r) || missesRanks(r) || startOverdue(r) || owesSnapshot(r);
        if (r.alive() && heard && !late) suspectHeardAt_ = now_;
        if (!r.alive() || (heard && !late)) gate_.clear(id);
    }
    // A network that is whole again does not bring all of them at once.
    const bool others = suspectHeardAt_ != 0 && now_ - suspectHeardAt_ <= limits_.heartbeat();
    for (const auto& [id, since] : std::map(gate_.suspects())) {
        const MonoNs lostAt = suspectLostAt(*find(id));
        const bool enough = lostAt != 0 && now_ > lostAt;
        if (others && !enough) continue;
        condemn(*find(id), EvidenceKind::kMissedHeartbeat, "suspected, and not heard since", since,
                enough);
    }
    if (gate_.suspects().empty()) return;
    const std::string why = compute(open_ ? open_->quorum.step : committed_ + 1).explanation;
    if (stopping_)
        setPhase(JobPhase::kStopping,
                 absl::StrCat(stopWhy_, "; ", why,
                              "; a stop without a checkpoint waits for nobody, and loses the steps "
                              "since the last one"));
    else if (open_)
        setPhase(JobPhase::kWaiting, why);
}

/// Missed heartbeats and progress, starts that take for ever, votes that do not come.
void CoordinatorMachine::Impl::judgeSilent() {
    // The time of the first may run out while the others have been silent nearly as long.
    std::vector<int32_t> stuck;
    bool one = false;
    for (const Replica& r : replicas_) {
        if (r.stage != Stage::kUpToDate && !contributes(r.id)) continue;
        const bool late = std::any_of(r.pulses.begin(), r.pulses.end(), [&](const RankPulse& p) {
            return missed(now_, p, limits_, options_.timeouts).has_value();
        });
        one = one || late;
        if (late || silent(r)) stuck.push_back(r.id);
    }
    if (one && stuck.size() >= 2 && 2 * stuck.size() >= trainedReplicas())
        for (int32_t id : stuck) gate_.suspect(now_, id);
    for (Replica& r : replicas_) {
        if (!r.alive() || gate_.suspects().contains(r.id)) continue;
        // Its ranks stand at different states, as a fetch leaves them that was not over when the
        // coordinator before ended.
        if (r.stage == Stage::kAdopted && r.formed && !recovering_ &&
            std::any_of(replicas_.begin(), replicas_.end(),
                        [this](const Replica& o) { return holdsLast(o); }) &&
            now_ - std::max(r.stageSince, begunAt_) > options_.timeouts.joinMs * kMillisecond) {
            planFetch(r, "its ranks do not tell of one state");
            continue;
        }
        if (missesRanks(r)) {
            condemn(r, EvidenceKind::kMissedHeartbeat,
                    "some of its ranks did not find the new coordinator", r.stageSince, false);
            continue;
        }
        if (startOverdue(r)) {
            condemn(r, EvidenceKind::kMissedProgress, "it did not come up in time", r.stageSince,
                    false);
            continue;
        }
        for (size_t s = 0; s < r.pulses.size(); ++s) {
            const RankPulse& p = r.pulses[s];
            const auto kind = missed(now_, p, limits_, options_.timeouts);
            if (!kind) continue;
            const bool beat = *kind == EvidenceKind::kMissedHeartbeat;
            const MonoNs since = beat ? p.lastBeat : p.lastProgress;
            const std::string detail = absl::StrCat(
                "r", r.id, "s", s, beat ? " has not beaten for " : " has made no progress for ",
                (now_ - since) / kMillisecond, " ms");
            fact(fact::EvidenceSeen{*kind, r.id, static_cast<int32_t>(s), "coordinator", detail});
            condemn(r, *kind, detail, since, silenceConfirms(r));
            break;
        }
    }
    if (!open_ || open_->committing) return;
    if (open_->aborted) {
        for (const Member& m : open_->quorum.contributors) {
            Replica& r = *find(m.contribution.replica);
            if (gate_.suspects().contains(r.id) || !owesVote(r)) continue;
            condemn(r, EvidenceKind::kMissedProgress,
                    "it did not vote after its exchange was ended", open_->abortedAt, false);
            if (!open_) return;
        }
        return;
    }
    // Everybody beats, nobody gets on, nobody complains: end it, the votes will tell.
    const MonoNs bound = 2 * limits_.progress();
    if (open_->holding || now_ - open_->attemptAt <= bound) return;
    const bool moving = std::any_of(
        open_->quorum.contributors.begin(), open_->quorum.contributors.end(), [&](const Member& m) {
            const Replica& r = *find(m.contribution.replica);
            return contributes(r.id) &&
                   std::any_of(r.pulses.begin(), r.pulses.end(), [&](const RankPulse& p) {
                       return p.phase != Phase::kVote && now_ - p.lastProgress <= bound;
                   });
        });
    if (!moving) abortExchange("the exchange makes no progress");
}

/// Half an accusation: it needs the word of the node's peers, or its own silence and theirs.
void CoordinatorMachine::Impl::on(const NodeLost& in) {
    for (int32_t id : in.replicas) {
        Replica* r = find(id);
        if (r == nullptr || !r->alive()) continue;
        r->nodeLost = true;
        fact(fact::EvidenceSeen{EvidenceKind::kNodeLost, id, -1, "coordinator",
                                absl::StrCat("the agent of ", in.node, " is gone")});
        condemn(*r, EvidenceKind::kNodeLost, absl::StrCat("node ", in.node, " is gone"), now_,
                silenceConfirms(*r));
    }
}

}  // namespace bulkhead::protocol
