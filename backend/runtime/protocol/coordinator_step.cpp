// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "backend/runtime/protocol/coordinator_impl.h"

/// Quorums and ballots: who takes part in a step, and what becomes of its exchange.
namespace bulkhead::protocol {
namespace {

/// So many epochs at a time are reserved in the log, so that a redo does not wait for the disk.
constexpr uint64_t kEpochsReserved = 63;

/// Attempts that fail at once, with nobody to blame, are not made in a tight loop: doubled from the
/// second on, up to the limit.
constexpr MonoNs kRedoPause = 20 * kMillisecond;
constexpr MonoNs kRedoPauseMost = kSecond;

/// States are compared so often at least where the coordinator chooses it, and the state before a
/// step is kept for one of so many comparisons.
constexpr uint32_t kStepsPerComparison = 256;
constexpr uint32_t kComparisonsPerKeep = 1024;

MonoNs redoPause(uint32_t noes) {
    return std::min(kRedoPauseMost, kRedoPause << std::min(noes - 2, 10u));
}

}  // namespace

bool CoordinatorMachine::Impl::contributes(int32_t replica) const {
    if (!open_ || open_->ballot.lost.contains(replica)) return false;
    const auto& c = open_->ballot.contributors;
    return std::binary_search(c.begin(), c.end(), replica);
}

bool CoordinatorMachine::Impl::contributesData(int32_t replica) const {
    return contributes(replica) && !open_->ballot.entering.contains(replica);
}

std::map<int32_t, Hashes> CoordinatorMachine::Impl::votedHashes() const {
    std::map<int32_t, Hashes> hashes;
    for (const auto& [replica, vote] : open_->ballot.votes)
        if (contributesData(replica) && vote.shardsIn == options_.shards && !vote.hashes.empty())
            hashes[replica] = vote.hashes;
    return hashes;
}

QuorumDecision CoordinatorMachine::Impl::compute(uint64_t step) {
    QuorumState state;
    state.step = step;
    state.committed = committed_;
    state.begun = begunAt_;
    state.paused = paused_;
    const bool lookingForState = committed_ != lineageFrom_;
    state.first = first_;
    if (!checkpoints_.empty()) state.checkpoint = checkpoints_.newest()->step;
    for (const Replica& r : replicas_) {
        using S = QuorumCandidate::Stage;
        QuorumCandidate c;
        c.replica = r.id;
        c.expected = !(r.givenUp || (r.hold && !r.alive()));
        if (r.givenUp) state.givenUpWhy = givenUpWhy_;
        if (r.leaves()) c.leaving = r.drain ? "drained by the operator" : r.wish->why;
        c.suspected = gate_.suspects().contains(r.id);
        c.lostAt = c.suspected ? suspectLostAt(r) : 0;
        c.alone = (c.suspected || c.leaving) && holdsAlone(r);
        c.unheardOn = r.unheardOn;
        c.proven = r.proven;
        c.exchanges = contributes(r.id);
        c.step = r.step;
        c.awaited = !isSpare(r) && (!lookingForState || r.stage == Stage::kAdopted);
        c.ranks = options_.shards;
        for (const RankPulse& p : r.pulses) {
            if (!p.hello) continue;
            ++c.heard;
            if (c.lastBeat == 0 || p.lastBeat < c.lastBeat) c.lastBeat = p.lastBeat;
        }
        switch (r.stage) {
            case Stage::kOut:
            case Stage::kBackingOff:
                c.stage = S::kGone;
                break;
            case Stage::kAdopted:
            case Stage::kStarting:
            case Stage::kInit:
                c.stage = S::kStarting;
                break;
            case Stage::kSnapshot:
            case Stage::kFetching:
                c.stage = S::kCatchingUp;
                break;
            case Stage::kReplaying:
                c.stage = r.following ? S::kFollowing : S::kCatchingUp;
                break;
            case Stage::kUpToDate:
                // In the step in flight, or it will lack that step's sum.
                c.stage = open_ && !contributes(r.id) ? S::kCatchingUp : S::kUpToDate;
                break;
        }
        state.candidates.push_back(c);
    }
    if (waitFor_) {
        const Replica& r = replicas_[static_cast<size_t>(waitFor_->replica)];
        if (r.incarnation != waitFor_->incarnation || !r.joining() || now_ >= waitFor_->until)
            waitFor_.reset();
        else
            state.waitFor = {r.id, waitFor_->until};
    }
    return quorumCompute(now_, state, options_);
}

bool CoordinatorMachine::Impl::mayOverlap() const {
    return !stopping_ && !paused_ && !move_ &&
           !(options_.steps != 0 && open_->quorum.step >= options_.steps);
}

/// The computation that gives the replica's gradient of the step: the one it was told before where
/// nothing has changed since.
uint64_t CoordinatorMachine::Impl::computationOf(uint64_t step, const Contribution& of) {
    auto& gradients = find(of.replica)->gradients;
    gradients.erase(gradients.begin(), gradients.upper_bound(committed_));
    auto& [layout, ranges, computation] = gradients[step];
    if (computation != 0 && layout == layout_ && ranges == of.ranges) return computation;
    layout = layout_;
    ranges = of.ranges;
    return computation = term_ << 32 | ++computations_;
}

Quorum CoordinatorMachine::Impl::makeQuorum(uint64_t step, uint32_t attempt, uint64_t afterEpoch,
                                            const QuorumDecision& decision) {
    Quorum q;
    std::vector<std::pair<int32_t, uint32_t>> members;
    const auto samples = samplesPerContributor(options_, decision.contributors.size());
    std::vector<int32_t> all;
    std::merge(decision.contributors.begin(), decision.contributors.end(),
               decision.entering.begin(), decision.entering.end(), std::back_inserter(all));
    size_t leases = 0;
    for (const int32_t id : all) {
        const Replica& r = *find(id);
        Member m{{r.id, r.incarnation, {}}, r.endpoints, false};
        if (std::binary_search(decision.entering.begin(), decision.entering.end(), id)) {
            m.entering = true;
        } else if (const auto* held = ledger_.leased(step, r.id)) {
            m.contribution.ranges = *held;
            ++leases;
        } else {
            auto leased = ledger_.lease(step, r.id, samples[leases++]);
            if (leased.ok()) m.contribution.ranges = *std::move(leased);
        }
        members.emplace_back(r.id, r.incarnation);
        if (!m.entering) m.computation = computationOf(step, m.contribution);
        q.contributors.push_back(std::move(m));
    }
    for (Replica& r : replicas_)
        if (!std::binary_search(all.begin(), all.end(), r.id)) r.gradients.erase(step);
    if (members != membership_) {
        nextEpoch();
        membership_ = members;
    }
    q.term = term_;
    q.lineage = lineage_;
    q.step = step;
    q.epoch = epoch_;
    q.attempt = attempt;
    q.afterEpoch = afterEpoch;
    q.layout = layout_;
    q.domainShare = domainShare_;
    q.joiners = decision.joiners;
    q.lrFactor = decision.lrFactor;
    q.exchangeKey = keyFor("exchange", term_, epoch_);
    q.chunkTimeoutMs = limits_.chunkTimeoutMs();
    const uint32_t every = parityEvery();
    q.checkParity = every != 0 && (step % every == 0 || comparesBesides(step));
    // The hashes after a step are compared at the next, among members that are not known yet.
    q.keepBefore = every != 0 && options_.replicas + options_.spares > 1 &&
                   decision.contributors.size() <= kMostThatTie &&
                   (step + 1) % (uint64_t{every} * comparisonsPerKeep_) == 0;
    q.explanation = absl::StrCat(decision.explanation, keepText_);
    return q;
}

uint64_t CoordinatorMachine::Impl::nextEpoch() {
    if (++epoch_ > epochsUpTo_) {
        epochsUpTo_ = epoch_ + kEpochsReserved;
        log(LogEpochs{epochsUpTo_}, false);
    }
    return epoch_;
}

void CoordinatorMachine::Impl::announce(const Quorum& q) {
    fact::QuorumDecided decided{q.step, q.epoch,   q.attempt,  q.layout,
                                {},     q.joiners, q.lrFactor, q.explanation};
    for (const Member& m : q.contributors)
        if (!m.entering) decided.contributors.push_back(m.contribution);
    fact(std::move(decided));
    tellQuorum(q);
}

/// Those who are not in it hear it too: an earlier one of the same step may have named them.
void CoordinatorMachine::Impl::tellQuorum(const Quorum& q) {
    for (const Replica& r : replicas_)
        if (r.formed && r.stage >= Stage::kFetching) tell(r, q);
}

void CoordinatorMachine::Impl::activate(Quorum q) {
    Exchange e;
    e.ballot = ballotOf(q);
    for (int32_t r : e.ballot.contributors) find(r)->accusedByPeer = false;
    explanation_ = q.explanation;
    e.quorum = std::move(q);
    e.openedAt = e.attemptAt = now_;
    open_ = std::move(e);
}

void CoordinatorMachine::Impl::tryOpen() {
    if (stopping_ || move_) return;
    if (options_.steps != 0 && committed_ >= options_.steps) {
        stopping_ = true;
        stopSince_ = now_;
        stopWhy_ = absl::StrCat("all ", options_.steps, " steps are done");
        logOrders();
        return;
    }
    const QuorumDecision d = compute(committed_ + 1);
    decideAgain_ = d.decideAgain;
    if (!d.issue) {
        setPhase(paused_  ? JobPhase::kPaused
                 : first_ ? JobPhase::kStarting
                          : JobPhase::kWaiting,
                 d.explanation);
        return;
    }
    leaseRetained(committed_ + 1, d.contributors);
    Quorum q = makeQuorum(committed_ + 1, 1, commitEpoch_, d);
    announce(q);
    activate(std::move(q));
    setPhase(JobPhase::kTraining, d.explanation);
}

/// The next step's quorum, decided while this one's record is written, so that it costs nobody
/// anything. What no longer fits is replaced before the commit that would make it count.
void CoordinatorMachine::Impl::ensurePending() {
    if (!mayOverlap()) {
        cancelPending();
        return;
    }
    const QuorumDecision d = compute(open_->quorum.step + 1);
    if (pending_) {
        const bool fits =
            d.issue &&
            std::all_of(
                pending_->contributors.begin(), pending_->contributors.end(), [&](const Member& m) {
                    const auto& able = m.entering ? d.entering : d.contributors;
                    return std::binary_search(able.begin(), able.end(), m.contribution.replica) &&
                           find(m.contribution.replica)->incarnation == m.contribution.incarnation;
                });
        if (fits) return;
        if (!d.issue) cancelPending();
        voidPending();
    }
    if (!d.issue) return;
    pending_ = makeQuorum(open_->quorum.step + 1, 1, open_->quorum.epoch, d);
    announce(*pending_);
}

void CoordinatorMachine::Impl::voidPending() {
    if (!pending_) return;
    ledger_.giveBackStep(pending_->step);
    // The same members may come again for the same step with other ranges: not in the same epoch.
    membership_.clear();
    pending_.reset();
}

/// Void with nothing in its place: an empty quorum tells those who hold it, or they would begin.
void CoordinatorMachine::Impl::cancelPending() {
    if (!pending_) return;
    Quorum empty = *pending_;
    voidPending();
    empty.epoch = nextEpoch();
    empty.contributors.clear();
    empty.joiners.clear();
    empty.explanation = "the next step waits";
    tellQuorum(empty);
}

void CoordinatorMachine::Impl::voidOpen(const std::string& why) {
    voidPending();
    if (!open_) return;
    if (!open_->aborted) abortExchange(why);
    const uint64_t returned = ledger_.giveBackStep(open_->quorum.step);
    fact(fact::StepRedone{open_->quorum.step,
                          epoch_,
                          0,
                          {open_->ballot.lost.begin(), open_->ballot.lost.end()},
                          returned,
                          absl::StrCat("its quorum is void: ", why)});
    membership_.clear();
    open_.reset();
}

void CoordinatorMachine::Impl::abortExchange(const std::string& why) {
    if (!open_ || open_->aborted || open_->committing) return;
    open_->aborted = true;
    open_->abortedAt = now_;
    const Quorum& q = open_->quorum;
    for (const Member& m : q.contributors)
        if (contributes(m.contribution.replica))
            tell(*find(m.contribution.replica), Abort{term_, q.step, q.epoch, q.attempt, why});
}

void CoordinatorMachine::Impl::from(RankId, const ReplicaVote& m) {
    if (current(m.replica, m.incarnation) == nullptr || !contributes(m.replica) ||
        open_->committing)
        return;
    const Quorum& q = open_->quorum;
    if (m.term != q.term || m.step != q.step || m.epoch != q.epoch || m.attempt != q.attempt)
        return;
    auto& votes = open_->ballot.votes;
    const auto it = votes.find(m.replica);
    // A first shard's "no" may be followed by the whole replica's; a "yes" is never taken back.
    if (it != votes.end() && it->second.complete) return;
    votes[m.replica] = m;
    open_->voteAt[m.replica] = now_;
    open_->lastVoteAt = now_;
    for (int32_t peer : m.failedPeers)
        if (contributes(peer) && peer != m.replica)
            open_->ballot.failedPairs.insert(std::minmax(peer, m.replica));
}

/// Looks at the open exchange until nothing more follows; a rollback makes it void.
void CoordinatorMachine::Impl::decide() {
    while (open_ && !open_->committing && !rollbackWhy_) {
        if (open_->holding) {
            redo(readBallot(open_->ballot));
            return;
        }
        if (open_->tie) {
            resolveTie();
            if (open_ && open_->tie) return;
            continue;
        }
        const BallotResult result = readBallot(open_->ballot);
        if (result.hopeless) abortExchange("a contributor could not complete its exchange");
        if (result.verdict == BallotVerdict::kWait) return;
        if (result.verdict == BallotVerdict::kNobody) {
            voidOpen("every contributor is gone");
            return;
        }
        if (result.verdict == BallotVerdict::kCommit && !open_->tainted) {
            if (!parityHolds()) continue;
            beginCommit(result);
            return;
        }
        const bool unexplained = open_->ballot.lost.empty() && result.nonFinite.empty();
        if (unexplained && open_->redoAt == 0 && ++open_->noes >= 2) {
            auto worst = result.disagreeing.empty()
                             ? mostBlamed(open_->ballot)
                             : std::optional<int32_t>(result.disagreeing.back());
            // A silent contributor is blamed before one that peers merely accuse.
            for (const Replica& r : replicas_)
                if (contributes(r.id) && silent(r)) worst = r.id;
            if (worst) {
                condemn(*find(*worst), EvidenceKind::kCommitFailed,
                        "two exchanges failed with nobody lost, and most failed pairs share it",
                        open_->aborted ? open_->abortedAt : open_->lastVoteAt, false);
                if (open_ && open_->ballot.lost.empty()) return;  // too many suspects: wait
                continue;
            }
            open_->redoAt = now_ + redoPause(open_->noes);
        }
        if (unexplained && now_ < open_->redoAt) return;
        redo(result);
        if (open_ && open_->holding) return;
    }
}

/// Compares the hashes that came with the votes. False when the exchange cannot be committed for
/// it.
bool CoordinatorMachine::Impl::parityHolds() {
    if (!open_->quorum.checkParity) return true;
    const std::map<int32_t, Hashes> hashes = votedHashes();
    const uint64_t of = open_->quorum.step - 1;
    const ParityResult parity = compareHashes(hashes);
    if (parity.outcome == ParityResult::Outcome::kAgree) {
        if (!hashes.empty()) noteAgreed(of, parity.agreed);
        proveAll();
        return true;
    }
    dispute(of, open_->quorum.attempt, hashes, parity);
    const std::string shards = absl::StrJoin(parity.shards, ", ");
    fact(fact::StepsSuspect{agreed_.lastAgreed(), of,
                            absl::StrCat("states differ in shard ", shards)});
    if (parity.outcome == ParityResult::Outcome::kTie) {
        open_->tie.emplace();
        open_->tieSince = now_;
        for (const auto& [replica, h] : hashes) {
            (*open_->tie)[replica] = std::nullopt;
            tell(*find(replica), ReplayLast{term_, of});
        }
        return false;
    }
    noteAgreed(of, parity.agreed);
    open_->tainted = true;
    for (int32_t replica : parity.odd) {
        const std::string why = absl::StrCat("its state after step ", of, " differs in shard ",
                                             shards, " from the majority's");
        fact(fact::EvidenceSeen{EvidenceKind::kParityMismatch, replica, -1, "coordinator", why});
        condemn(*find(replica), EvidenceKind::kParityMismatch, why, now_, true);
    }
    return false;
}

uint32_t CoordinatorMachine::Impl::parityEvery() const {
    return choosesPace() ? pace_.everySteps : options_.policies.parityEverySteps;
}

/// However seldom states are compared, that of each checkpoint is, and what joiners fetch, and
/// nobody who catches up waits for it.
bool CoordinatorMachine::Impl::comparesBesides(uint64_t step) const {
    return checkpointDue(step - 1) || checkpointPlans_.contains(step - 1) ||
           std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& r) {
               return isUnproven(r) || (r.joining() && r.snapshotStep == step - 1);
           });
}

void CoordinatorMachine::Impl::noteAgreed(uint64_t step, const Hashes& hashes) {
    agreed_.note(step, hashes);
    const auto plan = checkpointPlans_.find(step);
    if (plan != checkpointPlans_.end())
        plan->second.agreed = plan->second.entry.layout == layout_ ? hashes : Hashes{};
}

/// Adjusts how often states are compared, and how often the state before a step is kept, to the
/// measured cost of each.
void CoordinatorMachine::Impl::noteCosts() {
    double keepMs = 0;
    double hashMs = 0;
    for (const auto& [replica, vote] : open_->ballot.votes)
        if (const Replica* r = find(replica))
            for (const RankPulse& pulse : r->pulses) {
                keepMs = std::max(keepMs, pulse.keepMs);
                hashMs = std::max(hashMs, pulse.hashMs);
            }
    const double stepMs = limits_.stepMs();
    if (stepMs <= 0) return;
    if (choosesPace() && hashMs > 0) {
        const uint32_t now =
            occasionsPerTaken(pace_.everySteps, hashMs, stepMs, 1, kStepsPerComparison);
        if (now != pace_.everySteps || pace_.hashMs == 0) fact(pace_ = {now, hashMs, stepMs});
    }
    const uint32_t every = parityEvery();
    if (keepMs <= 0 || every == 0) return;
    const uint32_t now =
        occasionsPerTaken(comparisonsPerKeep_, keepMs, stepMs, every, kComparisonsPerKeep);
    if (now == comparisonsPerKeep_) return;
    comparisonsPerKeep_ = now;
    keepText_ = now == 1 ? ""
                         : absl::StrFormat(
                               "; the state before one step of %d is kept, since that "
                               "takes %.1f ms and a step %.0f",
                               uint64_t{every} * now, keepMs, stepMs);
}

/// While a step is held no commit compares hashes; the votes on it still carry them, and whoever is
/// to help out has to be proven by something.
void CoordinatorMachine::Impl::noteHeldHashes() {
    if (agreed_.find(committed_) != nullptr) return;
    const std::map<int32_t, Hashes> hashes = votedHashes();
    const ParityResult parity = compareHashes(hashes);
    if (hashes.empty() || parity.outcome != ParityResult::Outcome::kAgree) return;
    noteAgreed(committed_, parity.agreed);
    proveAll();
}

void CoordinatorMachine::Impl::from(RankId, const ReplayVerdict& m) {
    if (!open_ || !open_->tie || current(m.replica, m.incarnation) == nullptr) return;
    if (m.step + 1 != open_->quorum.step) return;
    const auto it = open_->tie->find(m.replica);
    if (it != open_->tie->end()) it->second = m;
}

/// A replica that matches its own replay stays. That proves its state right where the state before
/// that step was agreed on. Where it was not, the difference may be older, and only replicas that
/// differ from their replay explain it: all the others have to match theirs. If that leaves none
/// or all of them, the correct state is unknown.
void CoordinatorMachine::Impl::resolveTie() {
    const bool late = now_ - open_->tieSince > limits_.progress();
    const bool agreedBefore = agreed_.find(open_->quorum.step - 2) != nullptr;
    std::vector<int32_t> bad;
    size_t good = 0;
    bool unexplained = false;
    for (const auto& [replica, verdict] : *open_->tie) {
        const bool stays = contributes(replica);
        if (stays && !verdict && !late) return;
        const bool differs = verdict && !verdict->mismatchedShards.empty();
        const bool matches = verdict && verdict->replayed && !differs;
        if (stays && matches)
            ++good;
        else if (stays)
            bad.push_back(replica);
        unexplained = unexplained || !(differs || (stays && matches));
    }
    open_->tie.reset();
    if (good == 0 || (bad.empty() && open_->ballot.lost.empty()) || (unexplained && !agreedBefore))
        return statesDiffer("states differ and no replay tells which is right");
    open_->tainted = true;
    for (int32_t replica : bad) {
        const std::string why = "its state does not match its own replay of the last step";
        fact(fact::EvidenceSeen{EvidenceKind::kParityMismatch, replica, -1, "coordinator", why});
        condemn(*find(replica), EvidenceKind::kParityMismatch, why, now_, true);
    }
}

/// The same step again, from the retained gradients, among those who are left.
void CoordinatorMachine::Impl::redo(const BallotResult& result) {
    Exchange& e = *open_;
    const size_t needed = std::max<size_t>(1, options_.policies.minReplicas);
    const auto bring = std::count_if(e.ballot.contributors.begin(), e.ballot.contributors.end(),
                                     [this](int32_t r) { return contributesData(r); });
    if (static_cast<size_t>(bring) < needed) noteHeldHashes();
    QuorumDecision d;
    std::vector<int32_t> survivors;
    for (int32_t r : e.ballot.contributors) {
        if (e.ballot.lost.contains(r)) continue;
        (e.ballot.entering.contains(r) ? d.entering : survivors).push_back(r);
    }
    if (survivors.empty()) {
        voidOpen("every contributor is gone");
        return;
    }
    std::vector<int32_t>& members = d.contributors = survivors;
    for (const Replica& r : replicas_) {
        if (members.size() >= needed || r.drain) continue;
        const bool able = r.step == committed_ && !contributesData(r.id) &&
                          !e.ballot.lost.contains(r.id) &&
                          (r.stage == Stage::kUpToDate ||
                           (r.stage == Stage::kReplaying && r.following && r.proven));
        if (!able) continue;
        members.push_back(r.id);
        std::erase(d.entering, r.id);
    }
    std::sort(members.begin(), members.end());
    if (members.size() < needed) {
        if (stopping_) {
            voidOpen("the job is stopping");
            return;
        }
        // Samples of lost replicas go back; the replicas may come again as a new incarnation.
        for (int32_t r : e.ballot.lost) ledger_.giveBack(e.quorum.step, r);
        e.ballot.contributors = survivors;
        e.ballot.entering.clear();
        e.ballot.failedPairs.clear();  // they may name the lost
        e.ballot.lost.clear();
        e.holding = true;
        setPhase(JobPhase::kWaiting,
                 explain(absl::StrCat("step ", e.quorum.step, ": ", members.size(), " of at least ",
                                      needed, " contributors are left")));
        return;
    }
    const bool again = moveNonFinite(result.nonFinite);
    if (!again) return;  // somebody else went: look once more
    const std::vector<int32_t> lost(e.ballot.lost.begin(), e.ballot.lost.end());
    uint64_t returned = 0;
    for (int32_t r : lost) returned += ledger_.giveBack(e.quorum.step, r);
    const std::string why =
        !lost.empty() ? absl::StrCat("r", absl::StrJoin(lost, ", r"), " lost")
        : !result.nonFinite.empty()
            ? absl::StrCat("the gradient of r", absl::StrJoin(result.nonFinite, ", r"),
                           " is not finite")
        : !result.disagreeing.empty() ? std::string("contributors hold different sums")
                                      : std::string("the exchange did not complete");
    d.joiners = e.quorum.joiners;
    d.lrFactor = lrFactor(options_, members.size());
    d.explanation = absl::StrCat("step ", e.quorum.step, " again without waiting: ", why);
    Quorum q = makeQuorum(e.quorum.step, e.quorum.attempt + 1, e.quorum.afterEpoch, d);
    q.checkParity = q.checkParity || e.quorum.checkParity;
    fact(fact::StepRedone{q.step, q.epoch, q.attempt, lost, returned, why});
    book([&](auto& out) { incidents_.reformed(now_, lost, returned, out); });
    Exchange next;
    next.openedAt = e.openedAt;
    next.attemptAt = now_;
    next.noes = lost.empty() ? e.noes : 0;
    next.nonFiniteBy = std::move(e.nonFiniteBy);
    next.nonFiniteRanges = std::move(e.nonFiniteRanges);
    next.ballot = ballotOf(q);
    if (lost.empty()) next.ballot.failedPairs = std::move(e.ballot.failedPairs);
    next.quorum = std::move(q);
    open_ = std::move(next);
    for (int32_t r : open_->ballot.contributors) find(r)->accusedByPeer = false;
    announce(open_->quorum);
    setPhase(JobPhase::kTraining, open_->quorum.explanation);
}

/// A range whose gradient is not finite goes to another contributor, whose own comes back in
/// exchange: if it is not finite there either the data is at fault, else the replica was. False
/// when a replica was expelled and the ballot has to be read again.
bool CoordinatorMachine::Impl::moveNonFinite(const std::vector<int32_t>& nonFinite) {
    Exchange& e = *open_;
    for (int32_t id : nonFinite) {
        Replica& r = *find(id);
        fact(fact::EvidenceSeen{
            EvidenceKind::kNonFinite, id, -1, absl::StrCat("r", id),
            absl::StrCat("its gradient of step ", e.quorum.step, " is not finite")});
        const std::vector<SampleRange>* held = ledger_.leased(e.quorum.step, id);
        const std::vector<SampleRange> ranges = held ? *held : std::vector<SampleRange>{};
        bool data = false;
        for (const SampleRange& range : ranges) data = ++e.nonFiniteRanges[range] >= 2 || data;
        if (data) {
            for (const SampleRange& range : ranges) {
                if (!ledger_.quarantine(range).ok()) continue;
                const std::string why = absl::StrCat("two computations of step ", e.quorum.step,
                                                     " gave a gradient that is not finite");
                log(LogQuarantine{range, why}, false);
                fact(fact::RangeQuarantined{range, why, link_});
            }
            ledger_.giveBack(e.quorum.step, id);  // nothing is left of it: a new lease follows
        } else if (++e.nonFiniteBy[id] >= 2) {
            const std::string why = "its gradients are not finite, whatever the data";
            if (mustWriteBeforeLeaving(r)) {
                // Its gradients are wrong; the state they come from is all that the job has.
                r.wish = {EvidenceKind::kNonFinite, why};
                voidOpen(absl::StrCat("r", id, ": ", why));
            } else {
                condemn(r, EvidenceKind::kNonFinite, why, now_, true);
            }
            return false;
        } else {
            int32_t other = -1;
            for (int32_t c : e.ballot.contributors)
                if (contributesData(c) &&
                    std::find(nonFinite.begin(), nonFinite.end(), c) == nonFinite.end()) {
                    if (other < 0 || (other < id && c > id)) other = c;
                }
            if (other >= 0) (void)ledger_.swapLeases(e.quorum.step, id, other);
        }
        r.gradients.erase(e.quorum.step);  // computed anew, whatever its ranges are
    }
    return true;
}

}  // namespace bulkhead::protocol
