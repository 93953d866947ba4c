// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/coordinator_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/protocol/coordinator_impl.h"

namespace bulkhead::protocol {
namespace {

/// So many beat intervals late, a wake-up means that the machine was not run.
constexpr MonoNs kAwayBeats = 2;

RecoveredState fromCheckpoint(const LogCheckpoint& c) {
    RecoveredState s;
    s.step = s.lineageFromStep = c.step;
    s.updates = c.updates;
    s.resumeFrom = c.path;
    s.layout = c.layout;
    s.expertShard = c.expertShard;
    s.domainShare = c.domainShare;
    s.ledger = c.ledger;
    s.checkpoints = {c};
    s.checkpoints.front().borrowed = true;
    return s;
}

DataLedger ledgerOf(const Options& options, const LedgerState& state) {
    if (!state.highWater.empty())
        if (auto ledger = DataLedger::restore(state, options.domainWeights); ledger.ok()) {
            ledger->giveBackAll();
            return *std::move(ledger);
        }
    return DataLedger(options.domains, options.domainWeights);
}

}  // namespace

CoordinatorMachine::Impl::Impl(Options options, uint64_t term, RecoveredState recovered)
    : options_(std::move(options)),
      term_(term),
      ledger_(ledgerOf(options_, recovered.ledger)),
      limits_(options_.timeouts),
      gate_(options_.timeouts.heartbeatMs * kMillisecond),
      lineage_(recovered.lineage),
      lineageUsed_(std::max(recovered.lineage, recovered.lineageUsed)),
      lineageFrom_(recovered.lineageFromStep),
      resumeFrom_(recovered.resumeFrom),
      committed_(recovered.step),
      updates_(recovered.updates),
      epoch_(recovered.epoch),
      layout_(recovered.layout),
      layoutTried_(std::max(recovered.layoutTried, recovered.layout)),
      expertShard_(recovered.expertShard),
      domainShare_(recovered.domainShare),
      checkpoints_(recovered.checkpoints),
      discarded_(recovered.discarded),
      unusable_(recovered.unusable.begin(), recovered.unusable.end()),
      link_(recovered.link),
      corpusHash_(options_.corpusHash),
      recovering_(recovered.lineage != 0),
      finished_(recovered.finished) {
    replicas_.resize(options_.replicas + options_.spares);
    for (size_t i = 0; i < replicas_.size(); ++i) {
        Replica& r = replicas_[i];
        r.id = static_cast<int32_t>(i);
        r.pulses.resize(options_.shards);
        r.endpoints.resize(options_.shards);
        if (i < recovered.incarnations.size()) r.incarnation = recovered.incarnations[i];
    }
    restore(recovered);
    if (recovering_ && !recovered.lost.empty()) rollbackWhy_ = recovered.lost;
}

Actions CoordinatorMachine::Impl::begin(MonoNs now) {
    now_ = beganAt_ = begunAt_ = now;
    ranSince_ = now - ranFor_;
    nextScan_ = now + options_.timeouts.beatMs * kMillisecond;
    if (finished_) {
        act(Finished{true, "the job had ended before"});
        return std::exchange(out_, {});
    }
    log(LogTerm{term_, options_.run, options_.secretId}, false);
    if (recovering_) {
        (void)checker_.lineage(lineage_, ledger_.settledState(), committed_);
        setPhase(JobPhase::kStarting, "a new coordinator looks for what still runs");
    } else {
        openLineage(committed_, committed_ == 0 ? "the job begins" : "resumed from a checkpoint");
        for (Replica& r : replicas_) start(r);
        setPhase(JobPhase::kStarting, "starting the replicas");
    }
    wake();
    return std::exchange(out_, {});
}

Actions CoordinatorMachine::Impl::step(MonoNs now, const Input& input) {
    if (finished_) return {};
    noteAbsence(now);
    now_ = std::max(now_, now);
    std::visit([this](const auto& in) { on(in); }, input);
    // A beat changes nothing by itself; what it might have ended is looked at with the next scan.
    const auto* received = std::get_if<Received>(&input);
    const bool beat = received != nullptr && std::holds_alternative<Beat>(received->message);
    if (now_ >= nextScan_) scan();
    if (!beat || !out_.empty()) advance();
    if (!finished_) wake();
    return std::exchange(out_, {});
}

/// A machine that was not run although it had asked to be (its program was stopped, its host was
/// overloaded) has not read what was said meanwhile: nobody is judged by that time.
void CoordinatorMachine::Impl::noteAbsence(MonoNs now) {
    const MonoNs away = now - std::max(now_, nextScan_);
    if (away <= kAwayBeats * options_.timeouts.beatMs * kMillisecond) return;
    const auto later = [away](MonoNs& at) {
        if (at != 0) at += away;
    };
    for (Replica& r : replicas_) {
        later(r.stageSince);
        later(r.advancedAt);
        later(r.firstReady);
        for (RankPulse& p : r.pulses) {
            later(p.lastBeat);
            later(p.lastProgress);
        }
    }
    gate_.delay(away);
    if (open_) {
        later(open_->attemptAt);
        later(open_->abortedAt);
        later(open_->tieSince);
    }
    if (move_) later(move_->sentAt);
    later(stopSince_);
    later(beganAt_);
    later(begunAt_);
}

/// Everything that follows by itself from the state reached.
void CoordinatorMachine::Impl::advance() {
    if (finished_) return;
    if (recovering_) return;
    releaseUnheard();
    decide();
    settleCheckpoints();
    if (nobodyLeft()) return finish(false, absl::StrCat("no replica can train: ", givenUpWhy_));
    if (!open_) takeFollowers();
    if (!open_) takePlacedOtherwise();
    // First whether it is the checkpoint that is at fault: going back to it again would not help.
    if (!rollbackWhy_ && !stopping_ && nobodyCanLoad()) {
        beginsDamaged_ = true;
        rollbackWhy_ = absl::StrCat(resumeFrom_, " is damaged: ", cannotLoad_.begin()->second);
    }
    if (!rollbackWhy_ && !open_ && !stopping_ && stateLost())
        rollbackWhy_ = "no replica holds the state any more";
    if (rollbackWhy_ && !searching_) seekRollback(*rollbackWhy_);
    if (searching_) return;
    // A replica that was lost just now may be due for its restart at once.
    for (Replica& r : replicas_)
        if (r.stage == Stage::kBackingOff && r.startAt <= now_ && !stopping_) start(r);
    checkLayoutMove();
    if (!open_) tryOpen();
    finishDrains();
    if (stopping_) tryStop();
}

/// Once per beat interval: everything that only time can bring about. O(ranks).
void CoordinatorMachine::Impl::scan() {
    nextScan_ = now_ + options_.timeouts.beatMs * kMillisecond;
    if (recovering_ && now_ - beganAt_ > options_.timeouts.joinMs * kMillisecond) {
        InventoryDone nobodyTold;
        for (const Replica& r : replicas_) nobodyTold.unheard.emplace(r.id, "");
        on(nobodyTold);
    }
    if (!leaving_) {  // ranks that were told to leave fall silent; the stop has its own limit
        judgeSilent();
        judgeAccused();
        judgeSuspects();
        scanJoiners();
    }
    advance();
}

void CoordinatorMachine::Impl::wake() {
    MonoNs at = nextScan_;
    // Nobody is started before the inventory is taken, while checkpoints are looked for, nor when
    // the job ends: waiting for
    // a time that is past would wake it without end.
    for (const Replica& r : replicas_)
        if (r.stage == Stage::kBackingOff && !recovering_ && !stopping_ && !searching_)
            at = std::min(at, r.startAt);
    if (decideAgain_ > now_) at = std::min(at, decideAgain_);
    if (open_ && open_->redoAt > now_) at = std::min(at, open_->redoAt);
    if (toldWake_ > now_ && toldWake_ <= at) return;
    toldWake_ = std::max(at, now_ + 1);
    act(WakeAt{toldWake_});
}

Replica* CoordinatorMachine::Impl::find(int32_t replica) {
    const auto at = static_cast<size_t>(replica);  // of a negative one: beyond all
    return at < replicas_.size() ? &replicas_[at] : nullptr;
}

Replica* CoordinatorMachine::Impl::current(int32_t replica, uint32_t incarnation) {
    Replica* r = find(replica);
    return r != nullptr && r->alive() && r->incarnation == incarnation ? r : nullptr;
}

Secret CoordinatorMachine::Impl::keyFor(const char* use, uint64_t first, uint64_t second) const {
    return options_.secret.derive(std::string(use) + " " + std::to_string(first) + " " +
                                  std::to_string(second));
}

void CoordinatorMachine::Impl::tell(const Replica& r, ToReplica message) {
    act(SendReplica{r.id, r.incarnation, std::move(message)});
}

/// Every entry goes by here, in the order in which the log will have them: the ledger's chain is
/// made in this place alone.
uint64_t CoordinatorMachine::Impl::log(LogEntry entry, bool overlapped) {
    std::visit(
        [this](auto& e) {
            if constexpr (requires { e.link; }) e.link = link_ = chainLink(link_, chained(e));
        },
        entry);
    act(AppendLog{++sequence_, std::move(entry), overlapped});
    return sequence_;
}

std::vector<ParityGroup> CoordinatorMachine::Impl::parityOf(
    const std::map<int32_t, Hashes>& hashes) const {
    std::map<int32_t, uint32_t> incarnations;
    for (const Replica& r : replicas_) incarnations[r.id] = r.incarnation;
    return groupHashes(hashes, incarnations);
}

void CoordinatorMachine::Impl::dispute(uint64_t step, uint32_t attempt,
                                       const std::map<int32_t, Hashes>& hashes,
                                       const ParityResult& parity) {
    ParityDispute dispute{lineage_, step, epoch_, attempt, layout_, parityOf(hashes), parity.odd};
    noteDisputed(step);
    log(LogDispute{dispute}, false);
    fact(fact::ParityDisputed{std::move(dispute), link_});
}

void CoordinatorMachine::Impl::broken(const std::optional<Violation>& v) {
    if (v) fact(fact::InvariantBroken{v->invariant, v->detail});
}

void CoordinatorMachine::Impl::setPhase(JobPhase phase, const std::string& why) {
    explanation_ = why;
    const bool same = phase == phase_ && phaseToldAt_ != 0;
    // Explanations count seconds; once a second is often enough for people.
    if (same && (phase == JobPhase::kTraining || why == phaseWhy_ || now_ - phaseToldAt_ < kSecond))
        return;
    if (!same) ++revision_;
    phase_ = phase;
    phaseToldAt_ = std::max<MonoNs>(1, now_);
    phaseWhy_ = why;
    fact(fact::JobPhaseChanged{phase, why});
}

/// Nothing that waits for a node with room is late. step() does what is due.
void CoordinatorMachine::Impl::on(const Tick& in) {
    for (const int32_t id : in.unplaced)
        if (Replica* r = find(id); r != nullptr && r->stage == Stage::kStarting)
            r->stageSince = now_;
}

void CoordinatorMachine::Impl::on(const Received& in) {
    std::visit([&](const auto& m) { from(in.from, m); }, in.message);
}

void CoordinatorMachine::Impl::on(const RecordDurable& in) {
    if (open_ && open_->committing && open_->committing->sequence <= in.sequence) finishCommit();
}

void CoordinatorMachine::Impl::from(RankId, const Beat& m) {
    Replica* r = current(m.rank.replica, m.incarnation);
    if (r == nullptr || m.rank.shard < 0 || m.rank.shard >= static_cast<int32_t>(options_.shards))
        return;
    const auto shard = static_cast<size_t>(m.rank.shard);
    RankPulse& pulse = r->pulses[shard];
    if (m.gradStep != pulse.gradStep) {
        r->shares.resize(options_.shards);
        if (const auto jump = r->shares[shard].note(m.gradNorm))
            fact(fact::EvidenceSeen{EvidenceKind::kGradientJump, r->id, m.rank.shard, "coordinator",
                                    absl::StrCat("the norm of its own gradient by token is ",
                                                 textOf(*jump, m.gradStep), "; it stays")});
    }
    pulse.beat(now_, m);
}

// ---- the public face
// -----------------------------------------------------------------------------

CoordinatorMachine::CoordinatorMachine(Options options, uint64_t term, RecoveredState recovered)
    : impl_(std::make_unique<Impl>(std::move(options), term, std::move(recovered))) {}
CoordinatorMachine::CoordinatorMachine(Options options, uint64_t term, const LogCheckpoint& resume)
    : impl_(std::make_unique<Impl>(std::move(options), term, fromCheckpoint(resume))) {}
CoordinatorMachine::~CoordinatorMachine() = default;
CoordinatorMachine::CoordinatorMachine(CoordinatorMachine&&) noexcept = default;

Actions CoordinatorMachine::begin(MonoNs now) {
    return impl_->begin(now);
}
Actions CoordinatorMachine::step(MonoNs now, const Input& input) {
    return impl_->step(now, input);
}

uint64_t CoordinatorMachine::term() const {
    return impl_->term_;
}
uint64_t CoordinatorMachine::lineage() const {
    return impl_->lineage_;
}
uint64_t CoordinatorMachine::committedStep() const {
    return impl_->committed_;
}
uint64_t CoordinatorMachine::checkpointStep() const {
    return impl_->checkpoints_.empty() ? 0 : impl_->checkpoints_.newest()->step;
}

uint64_t CoordinatorMachine::openStep() const {
    return impl_->open_ ? impl_->open_->quorum.step : 0;
}
uint64_t CoordinatorMachine::epoch() const {
    return impl_->epoch_;
}
uint64_t CoordinatorMachine::revision() const {
    return impl_->revision_;
}
JobPhase CoordinatorMachine::phase() const {
    return impl_->phase_;
}
bool CoordinatorMachine::pauseOrdered() const {
    return impl_->paused_;
}
const std::string& CoordinatorMachine::explanation() const {
    return impl_->explanation_;
}
const DataLedger& CoordinatorMachine::ledger() const {
    return impl_->ledger_;
}
const Policies& CoordinatorMachine::policies() const {
    return impl_->options_.policies;
}

const std::vector<int32_t>& CoordinatorMachine::expertShard() const {
    return impl_->expertShard_;
}
const std::vector<uint32_t>& CoordinatorMachine::domainShare() const {
    return impl_->domainShare_;
}

double CoordinatorMachine::effectiveTime() const {
    const double wall = static_cast<double>(impl_->lastCommitAt_ - impl_->ranSince_) / kMillisecond;
    return wall > 0 ? std::min(1.0, impl_->productiveSum_ / wall) : 1;
}

std::vector<ReplicaView> CoordinatorMachine::replicas() const {
    std::vector<ReplicaView> out;
    for (const Replica& r : impl_->replicas_) {
        ReplicaView v{r.id,
                      r.incarnation,
                      r.shown,
                      r.step,
                      impl_->contributesData(r.id),
                      0,
                      r.hold || r.drain || r.givenUp,
                      impl_->holdsAlone(r)};
        for (const RankPulse& p : r.pulses)
            if (p.hello && (v.oldestBeat == 0 || p.lastBeat < v.oldestBeat))
                v.oldestBeat = p.lastBeat;
        out.push_back(v);
    }
    return out;
}

}  // namespace bulkhead::protocol
