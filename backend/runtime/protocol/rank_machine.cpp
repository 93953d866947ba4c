// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/rank_machine.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::protocol {
namespace {

/// The shortest of so many measurements counts: the rest of a longer one is noise of the machine.
constexpr size_t kHashTimes = 4;

ExchangeId idOf(const Quorum& q) {
    return {q.step, q.epoch, q.attempt};
}

/// Later quorums of one step supersede earlier ones.
auto age(const Quorum& q) {
    return std::tuple(q.term, q.epoch, q.attempt);
}

const Member* memberOf(const Quorum& q, const RankConfig& config) {
    for (const Member& m : q.contributors)
        if (m.contribution.replica == config.rank.replica &&
            m.contribution.incarnation == config.incarnation)
            return &m;
    return nullptr;
}

}  // namespace

RankMachine::RankMachine(RankConfig config) : config_(config) {}

std::optional<ExchangeId> RankMachine::exchange() const {
    if (current_) return idOf(*current_);
    if (entering_) return idOf(*entering_);
    return std::nullopt;
}

RankActions RankMachine::step(MonoNs now, const RankInput& input) {
    if (exited_) return {};
    std::visit([&](const auto& in) { on(now, in); }, input);
    return std::exchange(out_, {});
}

void RankMachine::on(MonoNs, const FromCoordinator& in) {
    std::visit([this](const auto& m) { receive(m); }, in.message);
}

/// Lower terms are refused everywhere. A higher one voids what only waited for a commit: the new
/// coordinator knows nothing of it. What is in work goes on until it is told otherwise.
bool RankMachine::accept(uint64_t term) {
    if (term < term_) {
        ++fenced_;
        return false;
    }
    if (term > term_) {
        term_ = term;
        pending_.reset();
        layoutChange_.reset();
        // Nor whom these were for; whoever wants one asks again.
        snapshotsWanted_.clear();
        while (!snapshots_.empty()) forgetSnapshot(snapshots_.begin()->first);
    }
    // Only a coordinator that takes it ends its being an orphan; whoever refuses it may be another.
    if (connected_) orphanSince_.reset();
    return true;
}

void RankMachine::leave(bool ok, bool checkpoint, std::string why) {
    if (current_) dropCurrent("leaving");
    exited_ = true;
    act(ExitRank{ok, checkpoint, std::move(why)});
}

// ---- birth
// ---------------------------------------------------------------------------------------

void RankMachine::receive(const Welcome& m) {
    if (!accept(m.term)) return;
    if (!formed_) {
        welcome_ = m;
        return;
    }
    // A coordinator, perhaps another one, that has to learn where this rank stands.
    if (phase_ == Phase::kStarting) return;
    // Of a move by a coordinator that is gone, this one knows what there is to know.
    noteSettled(m.term, m.layout, m.layout);
    if (layoutMoved_ && (layoutMoved_->layout == m.layout || moveTerm_ < m.term))
        settleLayout(m.layout);
    tellAgain();
}

/// Earlier messages may not have arrived.
void RankMachine::tellAgain() {
    if (phase_ == Phase::kStarting) return;
    if (terminating_) act(SendUp{LeaveAsked{config_.rank, config_.incarnation}});
    report();
    wantHash(true);
    if (vote_ != Vote::kNone) act(SendLeader{lastVote_});
    if (lastMoved_) act(SendLeader{*lastMoved_});
    if (fetchFailed_) act(SendUp{*fetchFailed_});
    if (missed_) act(SendUp{*missed_});
}

void RankMachine::receive(const ReplicaFormed& m) {
    if (!accept(m.term)) return;
    if (formed_ || m.incarnation != config_.incarnation || !welcome_) return;
    formed_ = true;
    joiner_ = m.blank;
    lineage_ = welcome_->lineage;
    layout_ = welcome_->layout;
    act(BuildReplica{m, *welcome_});
}

void RankMachine::on(MonoNs, const InitDone& in) {
    hasState_ = in.hasState;
    applied_ = in.step;
    if (in.hasState) {
        hash_ = in.hash;
        layout_ = in.layout;
    }
    phase_ = Phase::kIdle;
    report();
}

double RankMachine::hashMs() const {
    const auto least = std::min_element(hashTimes_.begin(), hashTimes_.end());
    return least == hashTimes_.end() ? 0 : *least;
}

void RankMachine::stateChanged() {
    hash_.reset();
    hashWanted_ = hashing_ = reportsHash_ = false;
}

/// A hash takes time, so it is computed when somebody compares it.
void RankMachine::wantHash(bool toReport) {
    if (hash_) return;
    hashWanted_ = !hashing_;
    reportsHash_ = reportsHash_ || toReport;
    hashWanted();
}

/// While a move of experts is unsettled the state lies otherwise than the job's.
void RankMachine::hashWanted() {
    if (!hashWanted_ || !mayCopy() || layoutMoved_) return;
    hashWanted_ = false;
    if (!hash_) {
        hashing_ = true;
        act(HashState{applied_});
    } else if (std::exchange(reportsHash_, false)) {
        report();
    }
}

void RankMachine::on(MonoNs, const StateHashed& in) {
    if (!hashing_ || in.step != applied_) return;
    hashing_ = false;
    hash_ = in.hash;
    hashTimes_.push_back(in.ms);
    if (hashTimes_.size() > kHashTimes) hashTimes_.pop_front();
    if (std::exchange(reportsHash_, false)) report();
}

/// The votes on the step after this state may be compared, or there may be none.
bool RankMachine::nextMayCompare() const {
    const std::optional<Quorum>& next = entering_ ? entering_ : pending_;
    return !next || next->step != applied_ + 1 || next->checkParity;
}

void RankMachine::report() {
    RankReport r;
    r.rank = config_.rank;
    r.incarnation = config_.incarnation;
    r.lineage = lineage_;
    r.hasState = hasState_;
    r.step = applied_;
    r.hash = hash_;
    if (fetch_) r.snapshotStep = fetch_->snapshotStep;
    r.ready = holds();
    r.following = following_;
    r.layout = layout_;
    r.moved = placement();
    r.last = last_;
    r.retainedStep = retainedStep_;
    if (retainedStep_ != 0) {
        r.retained = ranges_;
        r.computation = computation_;
    }
    act(SendLeader{r});
}

// ---- a step
// --------------------------------------------------------------------------------------

void RankMachine::receive(const Quorum& q) {
    if (!accept(q.term)) return;
    const bool beforeMove = q.term == moveTerm_ && q.step == moveStep_ + 1 && q.epoch <= moveEpoch_;
    if (q.lineage != lineage_ || q.step <= applied_ || beforeMove) {
        ++fenced_;
        return;
    }
    if (current_ && current_->step == q.step) {
        if (age(q) > age(*current_))
            adopt(q);
        else if (age(q) < age(*current_))
            ++fenced_;
        return;
    }
    if (entering_ && entering_->step == q.step) {
        if (age(q) <= age(*entering_)) {
            fenced_ += age(q) < age(*entering_) ? 1 : 0;
            return;
        }
        leaveExchange("another quorum took its place");
    }
    if (pending_ && std::tuple(pending_->step, age(*pending_)) > std::tuple(q.step, age(q))) {
        ++fenced_;
        return;
    }
    pending_ = q;
    abandonMove();
    tryEnter();
    tryAdopt();
}

/// A joiner's part of an exchange is ready from the start: it begins when the quorum
/// counts, whether or not the commit before it is replayed by then.
void RankMachine::tryEnter() {
    if (!pending_ || !following_ || replayingSum_) return;
    const Member* me = memberOf(*pending_, config_);
    if (me == nullptr || !me->entering) return;
    const CommitRecord* newest = replay_.empty() ? nullptr : &replay_.rbegin()->second.record;
    if (pending_->step != (newest ? newest->step : applied_) + 1) return;
    Quorum q = *std::exchange(pending_, std::nullopt);
    if (q.afterEpoch != (newest ? newest->epoch : appliedEpoch_)) {
        ++fenced_;
        return;
    }
    entering_ = q;
    sum_.reset();
    vote_ = Vote::kNone;
    const ExchangeId id = idOf(q);
    act(BeginStep{std::move(q), false, {}, true});
    if (abortedPending_ == id) act(AbortExchange{id, "ended before it began"});
    abortedPending_.reset();
}

void RankMachine::leaveExchange(const char* why) {
    if (!entering_) return;
    if (vote_ == Vote::kNone) act(AbortExchange{idOf(*entering_), why});
    entering_.reset();
    sum_.reset();
    vote_ = Vote::kNone;
}

/// The pending quorum becomes the one in work when the step before it was committed as it assumed.
void RankMachine::tryAdopt() {
    if (!pending_ || !mayCopy()) return;
    if (joiner_ && !following_) return;
    if (pending_->step > applied_ + 1) return;
    const Member* me = memberOf(*pending_, config_);
    if (me != nullptr && me->entering) return;
    const Quorum q = *std::exchange(pending_, std::nullopt);
    const bool fits = q.layout == layout_ || q.layout == placement();
    if (q.step <= applied_ || q.afterEpoch != appliedEpoch_ || !fits) {
        ++fenced_;
        return;
    }
    adopt(q);
}

void RankMachine::forgetGradient() {
    retainedStep_ = 0;
    computed_ = false;
}

void RankMachine::dropCurrent(const char* why) {
    act(AbortExchange{idOf(*current_), why});
    act(DropStep{current_->step});
    current_.reset();
    vote_ = Vote::kNone;
    forgetGradient();
}

/// As which layout the state lies, whether or not that counts yet.
uint64_t RankMachine::placement() const {
    return layoutMoved_ ? layoutMoved_->layout : layout_;
}

void RankMachine::moveLayout(const ChangeLayout& change) {
    // A quorum that the coordinator took back for the move.
    if (current_) dropCurrent("experts move first");
    leaveExchange("experts move first");
    if (layoutMoved_) settleLayout(layout_);  // a move of a coordinator that is gone
    forgetGradient();
    moving_ = true;
    abandoned_ = false;
    movingTo_ = change.layout;
    act(MoveLayout{change.layout, change.expertShard});
}

/// The coordinator has gone on without this rank's word on the move: other ranks of the replica may
/// not have been told to move at all.
void RankMachine::abandonMove() {
    if (moving_ && !std::exchange(abandoned_, true)) act(AbandonMove{movingTo_});
}

bool RankMachine::isSettled(uint64_t layout) const {
    return settled_.term > moveTerm_ || (settled_.term == moveTerm_ && layout <= settled_.upTo);
}

void RankMachine::noteSettled(uint64_t term, uint64_t upTo, uint64_t layout) {
    if (term > settled_.term) settled_ = {term, upTo, layout};
    settled_.upTo = std::max(settled_.upTo, upTo);
    settled_.layout = layout;
    if (isSettled(movingTo_)) abandonMove();
}

/// Keeps the layout moved to, or the one before, whichever `counts` names. If it names neither, the
/// state goes back and the report says so. Copies in another layout are of no use any more.
void RankMachine::settleLayout(uint64_t counts) {
    lastMoved_.reset();
    if (!layoutMoved_) return;
    const LayoutMoveDone moved = *std::exchange(layoutMoved_, std::nullopt);
    const bool adopt = counts == moved.layout;
    if (adopt) layout_ = moved.layout;
    act(SettleLayout{moved.layout, adopt, layout_});
    if (adopt) hash_ = moved.hash;
    for (auto it = snapshots_.begin(); it != snapshots_.end();) {
        const auto& [step, kept] = *it;
        if (kept.layout != layout_ && kept.taken) act(DropSnapshot{step});
        it = kept.layout != layout_ ? snapshots_.erase(it) : std::next(it);
    }
    takeWanted();
}

void RankMachine::adopt(const Quorum& q) {
    const Member* me = memberOf(q, config_);
    if (me == nullptr) {
        if (current_) dropCurrent("not in the new quorum");
        if (!joiner_) phase_ = Phase::kIdle;
        return;
    }
    if (current_ && vote_ == Vote::kNone)
        act(AbortExchange{idOf(*current_), "another quorum took its place"});
    settleLayout(q.layout);
    if (joiner_) {
        leaveExchange("it contributes");
        joiner_ = following_ = fetched_ = false;
        sum_.reset();
        fetch_.reset();
        fetchFailed_.reset();
        replay_.clear();
    }
    const bool retained = retainedStep_ == q.step && retainedLayout_ == q.layout &&
                          computation_ == me->computation && ranges_ == me->contribution.ranges;
    if (!retained) {
        ranges_ = me->contribution.ranges;
        retainedStep_ = q.step;
        retainedLayout_ = q.layout;
        computation_ = me->computation;
        computed_ = nonFinite_ = false;
    }
    current_ = q;
    reportsHash_ = false;  // its vote tells it
    if (q.checkParity) wantHash(false);
    vote_ = Vote::kNone;
    phase_ = computed_ ? Phase::kExchange : Phase::kCompute;
    act(BeginStep{q, !retained, ranges_});
    if (abortedPending_ == idOf(q)) {
        act(AbortExchange{idOf(q), "ended before it began"});
        if (!computed_) castVote({}, false);
    }
    abortedPending_.reset();
}

void RankMachine::on(MonoNs, const ComputeDone& in) {
    if (!current_ || in.step != current_->step || computed_) return;
    computed_ = true;
    phase_ = vote_ == Vote::kNone ? Phase::kExchange : Phase::kVote;
    nonFinite_ = nonFinite_ || in.nonFinite;
    if (!in.nonFinite) return;
    // Said before the exchange, so that nobody waits for a sum that cannot be good.
    if (vote_ == Vote::kNone) act(AbortExchange{idOf(*current_), "the own gradient is not finite"});
    castVote({}, false);
}

void RankMachine::on(MonoNs, const ExchangeDone& in) {
    if (entering_ && in.id == idOf(*entering_)) {
        if (vote_ != Vote::kNone) return;
        if (in.complete) sum_ = in.id;
        castVote(in.vote, in.complete);
        return;
    }
    if (!current_ || in.id != idOf(*current_)) {
        ++fenced_;
        return;
    }
    nonFinite_ = nonFinite_ || in.nonFinite;
    if (vote_ != Vote::kNone) return;
    castVote(in.vote, in.complete);
}

/// Every "no" tells that the gradient is not finite once that is known: the word on the attempt
/// before may have come too late for it.
void RankMachine::castVote(RankVote vote, bool complete) {
    vote.rank = config_.rank;
    vote.incarnation = config_.incarnation;
    const Quorum& of = current_ ? *current_ : *entering_;
    vote.term = of.term;
    vote.step = of.step;
    vote.epoch = of.epoch;
    vote.attempt = of.attempt;
    vote.complete = complete;
    vote.nonFiniteLocal = current_ && !complete && nonFinite_;
    vote.hash = hash_;
    vote.applyMs = applyMs_;
    vote_ = complete ? Vote::kYes : Vote::kNo;
    if (computed_) phase_ = Phase::kVote;
    lastVote_ = vote;
    act(SendLeader{std::move(vote)});
}

void RankMachine::receive(const Abort& m) {
    if (!accept(m.term)) return;
    const ExchangeId id{m.step, m.epoch, m.attempt};
    if (pending_ && id == idOf(*pending_)) {
        abortedPending_ = id;  // answered as soon as the quorum counts
        return;
    }
    if (entering_ && id == idOf(*entering_)) {
        if (vote_ == Vote::kNone) act(AbortExchange{id, m.why});
        return;
    }
    if (!current_ || id != idOf(*current_)) {
        ++fenced_;
        return;
    }
    if (vote_ != Vote::kNone) return;
    act(AbortExchange{id, m.why});
    // Without the gradient the sum cannot have been complete: no need to wait for the driver.
    if (!computed_) castVote({}, false);
}

void RankMachine::receive(const Commit& m) {
    if (!accept(std::max(m.term, m.record.term))) return;
    const CommitRecord& r = m.record;
    if (r.lineage != lineage_) {
        ++fenced_;
        return;
    }
    if (joiner_ && (!hasState_ || r.step > applied_)) {
        replay_.emplace(r.step, m);
        if (entering_ && entering_->step <= r.step) {
            const std::optional<ExchangeId> sum = sum_;
            leaveExchange("its step is committed");
            sum_ = sum;
        }
        pumpReplay();
        tryEnter();
        return;
    }
    if (r.step <= applied_ || (applying_ && applying_->record.step == r.step)) {
        // Sent again by a new coordinator, or once more with the wish for a checkpoint.
        if (m.checkpoint) checkpointWanted_ = m;
        writeWanted();
        return;
    }
    const ExchangeId id{r.step, r.epoch, r.attempt};
    if (current_ && idOf(*current_) == id && vote_ == Vote::kYes) {
        applying_ = m;
        phase_ = Phase::kApply;
        act(ApplyCommit{r, m.checkpoint, m.dataPosition});
        return;
    }
    // Committed without this rank holding the sum: it can only heal like a joiner.
    ++fenced_;
    if (current_) dropCurrent("the step was committed without this replica");
    joiner_ = true;
    following_ = fetched_ = false;
    phase_ = Phase::kIdle;
    replay_.emplace(r.step, m);
    report();
    missed_ = CommitMissed{config_.rank, config_.incarnation, r.step};
    act(SendUp{*missed_});
}

void RankMachine::on(MonoNs, const Applied& in) {
    if (!applying_ || in.step != applying_->record.step) return;
    if (applying_->checkpoint) checkpointWanted_.reset();  // written with it
    last_ = applying_->record;
    applying_.reset();
    applied_ = in.step;
    appliedEpoch_ = last_->epoch;
    stateChanged();
    applyMs_ = in.applyMs;
    if (in.keepMs > 0) keepMs_ = in.keepMs;
    current_.reset();
    vote_ = Vote::kNone;
    forgetGradient();
    phase_ = Phase::kIdle;
    afterState();
    tryAdopt();
    if (current_) return;
    report();
    wantHash(true);
}

/// The state stands at applied_: what waited for that is due.
void RankMachine::afterState() {
    takeWanted();
    writeWanted();
    if (layoutChange_ && layoutChange_->step <= applied_) {
        const ChangeLayout change = *std::exchange(layoutChange_, std::nullopt);
        if (change.step == applied_) moveLayout(change);
    }
}

// ---- state for others, and from them
// -------------------------------------------------------------

void RankMachine::receive(const KeepSnapshot& m) {
    if (!accept(m.term)) return;
    // No quorum may come that says so: the job waits for those who catch up.
    noteSettled(m.term, m.settled, m.layout);
    if (layoutMoved_ && moveTerm_ == m.term && layoutMoved_->layout <= m.settled)
        settleLayout(m.layout);
    if (!m.keep) {
        snapshotsWanted_.erase(m.step);
        forgetSnapshot(m.step);
        return;
    }
    const auto kept = snapshots_.find(m.step);
    if (kept != snapshots_.end() && kept->second.layout == m.layout) {
        if (!kept->second.taken) return;  // told when it is
        // A joiner may have found that it is not what its hash says: a snapshot of the state as it
        // stands is taken again, and looked at. No step waits for that, the job waits for its
        // joiners.
        if (m.step != applied_ || !mayCopy() || placement() != m.layout) {
            act(SendLeader{RankSnapshotReady{config_.rank, config_.incarnation, m.step}});
            return;
        }
    } else {
        forgetSnapshot(m.step);
        if (m.step < applied_) return;
    }
    snapshotsWanted_[m.step] = m.layout;
    if (m.step == applied_) takeWanted();
}

/// One that is still being taken goes when it is there.
void RankMachine::forgetSnapshot(uint64_t step) {
    const auto kept = snapshots_.find(step);
    if (kept == snapshots_.end()) return;
    if (kept->second.taken) act(DropSnapshot{step});
    snapshots_.erase(kept);
}

/// Serves requests on the present state in the layout that they name: a move that is not over
/// may bring it to that one, or back.
void RankMachine::takeWanted() {
    hashWanted();
    if (!mayCopy()) return;
    std::erase_if(snapshotsWanted_, [&](const auto& w) { return w.first < applied_; });
    const auto wanted = snapshotsWanted_.find(applied_);
    if (wanted == snapshotsWanted_.end() || wanted->second != placement()) return;
    snapshotsWanted_.erase(wanted);
    snapshots_[applied_] = {placement(), false};
    act(TakeSnapshot{applied_});
}

/// A checkpoint that is wanted of the state as it is, as soon as that is whole.
void RankMachine::writeWanted() {
    if (!checkpointWanted_ || !mayCopy()) return;
    const Commit wanted = *std::exchange(checkpointWanted_, std::nullopt);
    if (wanted.record.step == applied_) act(WriteCheckpoint{applied_, wanted.dataPosition});
}

void RankMachine::on(MonoNs, const SnapshotTaken& in) {
    const auto kept = snapshots_.find(in.step);
    if (kept == snapshots_.end()) {
        act(DropSnapshot{in.step});  // nobody wants it any more
        return;
    }
    kept->second.taken = true;
    act(SendLeader{RankSnapshotReady{config_.rank, config_.incarnation, in.step}});
}

void RankMachine::receive(const Fetch& m) {
    if (!accept(m.term)) return;
    // Overtaken by a younger order, or by what this rank has come to since.
    const uint64_t reached = fetch_ ? fetch_->snapshotStep : applied_;
    const bool contributedSince =
        !fetch_ && current_ && m.term == current_->term && m.epoch < current_->epoch;
    if (m.lineage != lineage_ || m.snapshotStep < reached || contributedSince) {
        ++fenced_;
        return;
    }
    if (moving_) {
        fetchAfterMove_ = m;
        return abandonMove();
    }
    if (layoutMoved_) settleLayout(m.layout);
    const bool again =
        fetch_ && fetch_->snapshotStep == m.snapshotStep && m.layout == fetch_->layout;
    fetch_ = m;
    missed_.reset();
    // Other sources may do where one broke, not where none has the sums any more.
    if (fetchFailed_ && (!again || !fetchFailed_->outOfWindow)) fetchFailed_.reset();
    if (!again) {
        if (current_) dropCurrent("fetching state");
        leaveExchange("fetching state");
        sum_.reset();
        pending_.reset();  // of a rank with another state; what took its place was not told here
        abortedPending_.reset();
        joiner_ = true;
        hasState_ = fetched_ = following_ = replaying_ = replayingSum_ = false;
        stateChanged();
        applied_ = 0;
        phase_ = Phase::kFetch;
    }
    replay_.erase(replay_.begin(), replay_.upper_bound(m.snapshotStep));
    act(BeginFetch{m, again});
}

void RankMachine::reportProgress() {
    act(SendLeader{RankFetchProgress{config_.rank, config_.incarnation,
                                     fetch_ ? fetch_->snapshotStep : 0, 0, 0, applied_}});
}

void RankMachine::on(MonoNs, const FetchAdvanced& in) {
    if (!fetch_) return;
    act(SendLeader{RankFetchProgress{config_.rank, config_.incarnation, fetch_->snapshotStep,
                                     in.bytesDone, in.bytesTotal, applied_}});
}

void RankMachine::on(MonoNs, const FetchDone& in) {
    // Experts may have moved since, and the same step is fetched again as it lies now.
    if (!fetch_ || fetched_ || in.snapshotStep != fetch_->snapshotStep ||
        in.layout != fetch_->layout)
        return;
    fetched_ = hasState_ = true;
    fetchFailed_.reset();
    applied_ = in.snapshotStep;
    appliedEpoch_ = fetch_->snapshotEpoch;
    layout_ = fetch_->layout;
    hash_ = in.hash;
    phase_ = Phase::kReplay;
    following_ = replay_.empty();
    if (following_) {
        phase_ = Phase::kIdle;
        report();
    }
    afterState();
    pumpReplay();
    tryEnter();
    tryAdopt();
}

void RankMachine::on(MonoNs, const FetchBroke& in) {
    if (fetch_) fetchFailed(in.outOfWindow, in.failedSources, in.why);
}

void RankMachine::fetchFailed(bool outOfWindow, std::vector<int32_t> failedSources,
                              std::string why) {
    fetchFailed_ = FetchFailed{config_.rank.replica, config_.incarnation,      fetch_->snapshotStep,
                               outOfWindow,          std::move(failedSources), std::move(why)};
    act(SendUp{*fetchFailed_});
}

void RankMachine::pumpReplay() {
    if (!fetched_ || replaying_) return;
    replay_.erase(replay_.begin(), replay_.upper_bound(applied_));
    if (replay_.empty()) return;
    const CommitRecord& next = replay_.begin()->second.record;
    if (next.step != applied_ + 1) {
        replay_.clear();
        return fetchFailed(true, {},
                           absl::StrCat("the record of step ", applied_ + 1, " did not come"));
    }
    if (next.layout != layout_) {
        following_ = false;  // the state will come anew, as it lies in that layout
        return;
    }
    replaying_ = true;
    replayingSum_ = sum_ == ExchangeId{next.step, next.epoch, next.attempt};
    phase_ = Phase::kReplay;
    act(ReplayCommit{next, replayingSum_});
}

void RankMachine::on(MonoNs, const Replayed& in) {
    if (!replaying_ || in.step != applied_ + 1 || replay_.empty()) return;
    replaying_ = replayingSum_ = false;
    fetchFailed_.reset();
    last_ = replay_.begin()->second.record;
    replay_.erase(replay_.begin());
    applied_ = in.step;
    appliedEpoch_ = last_->epoch;
    const bool owesHash = reportsHash_;  // a coordinator asked, of the state before
    stateChanged();
    if (replay_.empty()) {
        following_ = true;
        phase_ = Phase::kIdle;  // nothing to get on with until the next commit
    }
    following_ ? report() : reportProgress();
    if (following_ && (owesHash || nextMayCompare())) wantHash(true);
    afterState();
    tryEnter();
    tryAdopt();
    pumpReplay();
}

// ---- everything else
// -----------------------------------------------------------------------------

void RankMachine::receive(const ReplayLast& m) {
    if (!accept(m.term)) return;
    if (m.step == applied_ && hasState_) act(JudgeReplay{m.step});
}

void RankMachine::on(MonoNs, const ReplayJudged& in) {
    act(SendLeader{
        RankVerdict{config_.rank, config_.incarnation, in.step, in.replayed, in.matches}});
}

void RankMachine::receive(const ChangeLayout& m) {
    if (!accept(m.term)) return;
    if (m.layout <= layoutAsked_) {  // its number is used up
        ++fenced_;
        return;
    }
    layoutAsked_ = m.layout;
    moveTerm_ = m.term;
    moveStep_ = m.step;
    moveEpoch_ = m.epoch;
    abandonMove();  // one by a coordinator that is gone
    // The coordinator took this back for the move.
    if (pending_ && pending_->step == m.step + 1) pending_.reset();
    if (m.step == applied_ && holds() && !applying_ && !replaying_ && !moving_)
        moveLayout(m);
    else if (m.step > applied_ || moving_)
        layoutChange_ = m;
}

void RankMachine::on(MonoNs, const LayoutMoveDone& in) {
    moving_ = false;
    if (in.ok) layoutMoved_ = in;
    if (in.ok && isSettled(in.layout)) settleLayout(settled_.layout);
    if (fetchAfterMove_) return receive(*std::exchange(fetchAfterMove_, std::nullopt));
    takeWanted();
    writeWanted();
    lastMoved_ = RankLayoutMoved{config_.rank, config_.incarnation, applied_, in.layout,
                                 in.ok,        in.bytesMoved,       in.error};
    act(SendLeader{*lastMoved_});
    if (layoutChange_ && layoutChange_->step == applied_)
        return moveLayout(*std::exchange(layoutChange_, std::nullopt));
    tryAdopt();
}

void RankMachine::receive(const Expelled& m) {
    if (!accept(m.term)) return;
    if (m.incarnation != config_.incarnation) return;
    leave(false, false, m.why);
}

void RankMachine::receive(const Leave& m) {
    if (!accept(m.term)) return;
    leave(true, false, m.why);
}

void RankMachine::receive(const CommitFault& m) {
    act(InjectFault{m});
}

void RankMachine::receive(const DiscardCheckpoints& m) {
    if (!accept(m.term)) return;
    if (config_.rank.shard == 0) act(RemoveCheckpoints{m.paths});
}

void RankMachine::on(MonoNs, const Connected&) {
    connected_ = true;
}

/// A polite signal loses no step: the coordinator lets it go when somebody else, or a checkpoint,
/// has what it holds; without one that has taken it, it does what an orphan does. A second signal
/// ends it at once.
void RankMachine::on(MonoNs, const Terminate&) {
    if (!holds() || std::exchange(terminating_, true))
        return leave(true, false, "terminated by a signal");
    if (!connected_ || orphanSince_)
        return leave(true, true, "terminated by a signal, and there is no coordinator");
    act(SendUp{LeaveAsked{config_.rank, config_.incarnation}});
}

void RankMachine::on(MonoNs now, const Disconnected&) {
    connected_ = false;
    if (!orphanSince_) orphanSince_ = now;
}

void RankMachine::on(MonoNs, const LeaderBack&) {
    tellAgain();
}

void RankMachine::on(MonoNs now, const RankTick&) {
    if (orphanSince_ && now - *orphanSince_ >= config_.orphanMs * kMillisecond)
        leave(false, holds(), absl::StrCat("no coordinator for ", config_.orphanMs, " ms"));
}

}  // namespace bulkhead::protocol
