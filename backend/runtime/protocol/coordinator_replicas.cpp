// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/runtime/protocol/coordinator_impl.h"

/// Processes come and go: starts, hellos, reports, expulsion, and the ways back to a checkpoint.
namespace bulkhead::protocol {
namespace {

IncidentPhaseKind phaseOf(Stage stage) {
    switch (stage) {
        case Stage::kInit:
            return IncidentPhaseKind::kInit;
        case Stage::kSnapshot:
        case Stage::kFetching:
            return IncidentPhaseKind::kFetch;
        case Stage::kReplaying:
            return IncidentPhaseKind::kReplay;
        case Stage::kUpToDate:
            return IncidentPhaseKind::kJoin;
        default:
            return IncidentPhaseKind::kRestart;
    }
}

}  // namespace

void CoordinatorMachine::Impl::enter(Replica& r, Stage stage) {
    r.stage = stage;
    r.stageSince = r.advancedAt = now_;
    ++revision_;
    if (r.alive()) book([&](auto& out) { incidents_.phase(now_, r.id, phaseOf(stage), out); });
}

void CoordinatorMachine::Impl::show(Replica& r, ReplicaState state, const std::string& why) {
    if (r.shown == state && why.empty()) return;
    r.shown = state;
    fact(fact::ReplicaChanged{r.id, r.incarnation, state, r.step, why});
}

/// It is not to begin from the lineage's checkpoint, because steps were committed since or because
/// it cannot read it: it gets the state from whoever holds it.
bool CoordinatorMachine::Impl::beginsBlank(const Replica& r) const {
    return committed_ != lineageFrom_ || cannotLoad_.contains(r.id);
}

Welcome CoordinatorMachine::Impl::welcome() const {
    Welcome welcome{term_, lineage_, "", resumeFrom_, layout_, expertShard_};
    if (const LogCheckpoint* from = checkpoints_.find(resumeFrom_)) {
        welcome.resumeStep = from->step;
        welcome.resumeHashes = from->hashes;
    }
    return welcome;
}

/// A new incarnation: its number is used up in the log, whatever becomes of the start.
void CoordinatorMachine::Impl::start(Replica& r) {
    r.incarnation = std::max(r.incarnation, r.heard) + 1;
    log(LogIncarnation{r.id, r.incarnation}, false);
    adoptRunning(r, r.incarnation);
    enter(r, Stage::kStarting);
    act(StartReplica{r.id, r.incarnation});
    show(r, ReplicaState::kStarting, "");
}

/// Fresh bookkeeping for an incarnation that is not known yet.
void CoordinatorMachine::Impl::adoptRunning(Replica& r, uint32_t incarnation) {
    r.incarnation = incarnation;
    static_cast<Life&>(r) = Life();
    r.pulses.resize(options_.shards);
    r.endpoints.resize(options_.shards);
    reported_.erase(r.id);
    gate_.clear(r.id);
    enter(r, Stage::kAdopted);
}

/// Found by a new coordinator, which has not let it go itself.
bool CoordinatorMachine::Impl::adoptable(const Replica& r, uint32_t incarnation) const {
    return recovering_ && !r.alive() && incarnation >= r.incarnation && incarnation > r.gone;
}

void CoordinatorMachine::Impl::on(const RankRunning& in) {
    Replica* r = find(in.rank.replica);
    if (r == nullptr) return;
    r->heard = std::max(r->heard, in.incarnation);
    if (adoptable(*r, in.incarnation)) adoptRunning(*r, in.incarnation);
    if (r->alive() && in.incarnation == r->incarnation)
        heardOf(*r, in.rank.shard);
    else if (in.incarnation < r->incarnation || (!r->alive() && in.incarnation == r->incarnation))
        act(StopReplica{r->id, in.incarnation, true, "an older incarnation"});
}

/// One of its ranks runs. If it was waited for, all of them are due now.
void CoordinatorMachine::Impl::heardOf(Replica& r, int32_t shard) {
    r.running.insert(shard);
    if (!r.unheardOn) return;
    r.unheardOn.reset();
    r.stageSince = now_;
    gate_.clear(r.id);
}

void CoordinatorMachine::Impl::from(RankId, const Hello& m) {
    const RankEndpoint& e = m.endpoint;
    Replica* r = find(e.rank.replica);
    if (r == nullptr || e.rank.shard < 0 || e.rank.shard >= static_cast<int32_t>(options_.shards)) {
        act(SendRank{e.rank, e.incarnation,
                     Expelled{term_, e.incarnation, "there is no such rank"}});
        return;
    }
    r->heard = std::max(r->heard, e.incarnation);
    if (adoptable(*r, e.incarnation)) adoptRunning(*r, e.incarnation);
    if (!r->alive() || e.incarnation != r->incarnation) {
        act(SendRank{e.rank, e.incarnation,
                     Expelled{term_, e.incarnation, "another incarnation took its place"}});
        return;
    }
    if (corpusHash_ == 0) corpusHash_ = m.corpusHash;
    if (m.corpusHash != corpusHash_) {
        expel(
            *r, EvidenceKind::kOperator,
            absl::StrCat("r", r->id, "s", e.rank.shard, " reads a training text of hash ",
                         absl::Hex(m.corpusHash, absl::kZeroPad16), ", the job's has ",
                         absl::Hex(corpusHash_, absl::kZeroPad16), "; put back what changed last: ",
                         m.corpusNewest.empty() ? "unknown" : m.corpusNewest),
            now_);
        return;
    }
    // Others would add in other places, and update to other bits.
    if (!device_) device_ = m.device;
    if (m.device != *device_) {
        expel(*r, EvidenceKind::kOperator,
              absl::StrCat("r", r->id, "s", e.rank.shard, " computes on ", m.device,
                           ", the rest of the job on ", *device_,
                           "; set the job's `device` to one that all its nodes have"),
              now_);
        return;
    }
    RankPulse& pulse = r->pulses[static_cast<size_t>(e.rank.shard)];
    if (r->hellos == 0) r->greetedIn = layout_;
    if (!pulse.hello) ++r->hellos;
    pulse.hello = true;
    heardOf(*r, e.rank.shard);
    pulse.lastBeat = pulse.lastProgress = now_;
    r->endpoints[static_cast<size_t>(e.rank.shard)] = e;
    act(SendRank{e.rank, e.incarnation, welcome()});
    if (r->hellos < options_.shards) return;
    if (!r->formed) {
        form(*r);
        return;
    }
    // A connection that broke and came back: what was said meanwhile is said again.
    if ((r->stage == Stage::kFetching || r->stage == Stage::kReplaying) && !contributesData(r->id))
        act(SendRank{e.rank, e.incarnation, fetchOf(*r)});
    for (const uint64_t step : r->dropped)
        act(SendRank{e.rank, e.incarnation, KeepSnapshot{term_, step, false, {}, layout_, 0}});
    if (last_) act(SendRank{e.rank, e.incarnation, Commit{*last_, term_, false, ""}});
    if (open_ && !open_->committing) {
        const Quorum& q = open_->quorum;
        act(SendRank{e.rank, e.incarnation, q});
        if (open_->aborted)
            act(SendRank{e.rank, e.incarnation,
                         Abort{term_, q.step, q.epoch, q.attempt, "ended while it was away"}});
    }
    if (pending_) act(SendRank{e.rank, e.incarnation, *pending_});
    if (move_ && move_->sent && move_->waiting.contains(r->id))
        act(SendRank{e.rank, e.incarnation, orderOfMove()});
}

void CoordinatorMachine::Impl::form(Replica& r) {
    r.formed = true;
    // Experts may have moved between its ranks' hellos: all of them build the same model.
    if (r.greetedIn != layout_) tell(r, welcome());
    tell(r, ReplicaFormed{term_, r.incarnation, r.endpoints, beginsBlank(r)});
    if (r.stage == Stage::kStarting) enter(r, Stage::kInit);
    if (r.stage != Stage::kAdopted || !last_) return;
    // The coordinator before may have ended when only some of its ranks had heard of the commit;
    // those at different steps never report as one replica.
    r.toldAgain = last_->step;
    tell(r, Commit{*last_, term_, false, ""});
}

void CoordinatorMachine::Impl::upToDate(Replica& r) {
    enter(r, Stage::kUpToDate);
    r.step = committed_;
    r.proven = true;
    show(r, ReplicaState::kProven, "");
    if (move_ && move_->sent) askToMove(r);
}

void CoordinatorMachine::Impl::from(RankId, const Report& m) {
    Replica* r = current(m.replica, m.incarnation);
    if (r == nullptr) return;
    if (m.lineage != lineage_) {
        expel(*r, EvidenceKind::kOperator, "its state belongs to an abandoned lineage", now_);
        return;
    }
    if (m.hasState && m.step > committed_ && !(open_ && open_->committing)) {
        const std::string why = absl::StrCat("r", r->id, " applied step ", m.step, ", but only ",
                                             committed_, " is committed");
        broken(Violation{"I6", why});
        fact(fact::EvidenceSeen{EvidenceKind::kParityMismatch, r->id, -1, "coordinator", why});
        expel(*r, EvidenceKind::kParityMismatch, "it is ahead of the commit log", now_);
        return;
    }
    if (m.ready && m.following && m.step == committed_ && m.layout == layout_ && !r->sentFetch &&
        !m.hashes.empty())
        r->followsWith = m.hashes;
    if (r->stage == Stage::kUpToDate) {
        // Idle contributors tell their hashes: no vote would while the job waits.
        if (m.ready) noteReported(m);
        if (!m.ready && m.hasState && m.step < committed_) {
            r->step = m.step;
            planFetch(*r, "it could not apply the last commit");
        }
        return;
    }
    if (r->joining()) {
        // It helps out in a step that is held, and tells of no fetch any more.
        if (m.ready && !m.following && contributesData(r->id) && vouches(*r)) noteReported(m);
        // It may still tell of the state that it is to replace.
        if (!m.hasState || m.snapshotStep != r->snapshotStep || m.layout != layout_) return;
        if (r->stage == Stage::kFetching) {
            enter(*r, Stage::kReplaying);
            show(*r, ReplicaState::kReplaying, "");
        }
        if (r->stage != Stage::kReplaying || !m.following) return;
        r->step = m.step;
        r->following = true;
        r->advancedAt = now_;
        if (!m.hashes.empty()) r->claims[m.step] = m.hashes;
        prove(*r);
        if (vouches(*r)) noteReported(m);
        return;
    }
    if (r->stage != Stage::kInit && r->stage != Stage::kAdopted) return;
    // A replica is as good as all its ranks; each reports again when it has said hello.
    if (r->hellos < options_.shards) return;
    // If nobody else is left its state may be the job's, by its hash: that is told next.
    if (m.following && m.hashes.empty()) return;
    r->step = m.step;
    if (m.hasState)
        cannotLoad_.erase(r->id);
    else if (committed_ == lineageFrom_)  // as the coordinator before told it to be
        cannotLoad_.try_emplace(r->id, "a replica could not begin from it");
    const bool placed = m.layout == layout_ || m.moved == layout_;
    if (m.ready && m.step == committed_ && !m.following && placed) {
        if (m.retainedStep == committed_ + 1) {
            r->retained = m.retained;
            if (m.layout == layout_)
                r->gradients[m.retainedStep] = {m.layout, m.retained, m.computation};
        }
        upToDate(*r);
        noteReported(m);
    } else if (!m.ready || m.step + 1 != committed_ || r->toldAgain != committed_) {
        r->placedOtherwise = m.ready && m.step == committed_ && !placed;
        planFetch(*r, !m.hasState ? "it has no state yet"
                      : placed    ? "it is behind"
                                  : "experts moved without it");
    }
}

/// Collects the hashes that those who vouch for the last commit's state report.
void CoordinatorMachine::Impl::noteReported(const Report& m) {
    if (m.step != committed_ || m.layout != layout_ || m.hashes.empty()) return;
    if (reportedOf_ != std::pair(committed_, layout_)) reported_.clear();
    reportedOf_ = {committed_, layout_};
    reported_[m.replica] = m.hashes;
    judgeReported();
}

/// While the job waits no vote tells what joiners have to hold; the reports of all who vouch do,
/// compared as votes are. One alone may be the one that is wrong.
void CoordinatorMachine::Impl::judgeReported() {
    if ((open_ && !open_->holding) || agreed_.find(committed_) != nullptr || rollbackWhy_) return;
    if (recovering_) return;  // nor is it known who runs
    if (reportedOf_ != std::pair(committed_, layout_)) return;
    std::map<int32_t, Hashes> told;
    for (const Replica& r : replicas_) {
        if (r.stage == Stage::kAdopted && !r.nodeLost) return;  // its report may still come
        if (!vouches(r)) continue;
        const auto it = reported_.find(r.id);
        if (it == reported_.end()) return;
        told.insert(*it);
    }
    if (told.empty()) return;
    const ParityResult parity = compareHashes(told);
    if (parity.outcome != ParityResult::Outcome::kAgree) dispute(committed_, 0, told, parity);
    if (parity.outcome == ParityResult::Outcome::kTie)
        return statesDiffer(
            "states differ while the job waits, and nobody can tell which is right");
    noteAgreed(committed_, parity.agreed);
    for (const int32_t odd : parity.odd) {
        const std::string why =
            absl::StrCat("its state after step ", committed_, " differs from the majority's");
        fact(fact::EvidenceSeen{EvidenceKind::kParityMismatch, odd, -1, "coordinator", why});
        condemn(*find(odd), EvidenceKind::kParityMismatch, why, now_, true);
    }
    proveAll();
}

void CoordinatorMachine::Impl::on(const RankExited& in) {
    const std::string name = absl::StrCat("r", in.rank.replica, "s", in.rank.shard);
    const MonoNs at = in.at == 0 ? now_ : in.at;
    if (in.signal == 0 && in.exitCode == kExitHopeless && !leaving_) {
        Replica* r = find(in.rank.replica);
        if (r == nullptr || in.incarnation != r->incarnation || r->hopeless) return;
        const std::string why =
            absl::StrCat(name, " cannot run this job: ",
                         in.words.empty() ? "it did not say why; look at its output" : in.words);
        fact(fact::EvidenceSeen{EvidenceKind::kProcessExit, r->id, in.rank.shard,
                                absl::StrCat("agent ", in.node), why});
        return hopeless(*r, why, at);
    }
    Replica* r = current(in.rank.replica, in.incarnation);
    if (r == nullptr) return;
    if (leaving_) return left(*r);
    std::string how = in.signal != 0 ? absl::StrCat(" ended on signal ", in.signal)
                      : !in.known    ? " is gone, and nobody saw how it ended"
                                     : absl::StrCat(" exited with code ", in.exitCode);
    if (!in.words.empty()) absl::StrAppend(&how, ": ", in.words);
    fact(fact::EvidenceSeen{EvidenceKind::kProcessExit, r->id, in.rank.shard,
                            absl::StrCat("agent ", in.node), name + how});
    condemn(*r, EvidenceKind::kProcessExit, name + how, at, true);
}

void CoordinatorMachine::Impl::from(RankId, const RankHopeless& m) {
    Replica* r = find(m.rank.replica);
    if (r == nullptr || m.incarnation != r->incarnation || r->hopeless || leaving_) return;
    const std::string name = absl::StrCat("r", r->id, "s", m.rank.shard);
    const std::string why = absl::StrCat(name, " cannot run this job: ", m.why);
    fact(fact::EvidenceSeen{EvidenceKind::kProcessExit, r->id, m.rank.shard, name, why});
    hopeless(*r, why, now_);
}

void CoordinatorMachine::Impl::from(RankId, const LeaveAsked& m) {
    Replica* r = current(m.rank.replica, m.incarnation);
    if (r == nullptr || r->wish) return;
    r->wish = {EvidenceKind::kProcessExit, "asked to end by a signal"};
    const std::string name = absl::StrCat("r", r->id, "s", m.rank.shard);
    fact(fact::EvidenceSeen{EvidenceKind::kProcessExit, r->id, m.rank.shard, name,
                            absl::StrCat(name, " was asked to end by a signal")});
    // A step that only waits for the log can still get another successor.
    if (open_ && open_->committing) ensurePending();
}

/// The word on an earlier commit comes late: its replica has fetched since.
void CoordinatorMachine::Impl::from(RankId, const CommitMissed& m) {
    Replica* r = current(m.rank.replica, m.incarnation);
    if (r == nullptr || r->stage != Stage::kUpToDate || m.step != committed_) return;
    r->step = committed_ - 1;
    planFetch(*r, absl::StrCat("r", r->id, "s", m.rank.shard, " could not apply the last commit"));
}

/// Given up at once. The rank's own reason replaces whatever the replica was lost for just before.
void CoordinatorMachine::Impl::hopeless(Replica& r, const std::string& why, MonoNs symptomAt) {
    r.hopeless = true;
    if (r.alive()) {
        gate_.confirm(r.id);
        return expel(r, EvidenceKind::kProcessExit, why, symptomAt);
    }
    book([&](auto& out) {
        incidents_.open(now_, r.id, r.incarnation, committed_, EvidenceKind::kProcessExit,
                        absl::StrCat("r", r.id, " lost: ", why), symptomAt, now_, false, 0, out);
    });
    scheduleRestart(r, false, why);
}

void CoordinatorMachine::Impl::on(const StartFailed& in) {
    Replica* r = current(in.replica, in.incarnation);
    if (r == nullptr) return;
    if (leaving_) return left(*r);
    expel(*r, EvidenceKind::kProcessExit, absl::StrCat("it could not be started: ", in.why), now_);
}

/// Records an orderly exit: it counts as no loss, and no restart follows.
void CoordinatorMachine::Impl::left(Replica& r) {
    letGo(r, "the job ends");
    show(r, ReplicaState::kAbsent, "it left");
}

/// Out, for good as this incarnation: fenced, killed, and its part in what is open settled. The
/// caller's advance() draws the conclusions.
void CoordinatorMachine::Impl::expel(Replica& r, EvidenceKind kind, const std::string& why,
                                     MonoNs symptomAt, bool atOnce) {
    if (!r.alive()) return;
    const bool contributed = contributes(r.id);
    const bool hadState = r.stage == Stage::kUpToDate;
    if (kind == EvidenceKind::kParityMismatch) distrustCheckpoints(r);
    size_t survivors = 0;
    for (const Replica& other : replicas_) survivors += other.id != r.id && contributes(other.id);
    tell(r, Expelled{term_, r.incarnation, why});
    act(StopReplica{r.id, r.incarnation, true, why});
    book([&](auto& out) {
        incidents_.open(now_, r.id, r.incarnation, open_ ? open_->quorum.step : committed_, kind,
                        absl::StrCat("r", r.id, " lost: ", why), symptomAt, now_, contributed,
                        survivors, out);
    });
    letGo(r, why);
    scheduleRestart(r, atOnce, why);
    if (hadState || contributed) restartAll(r, why);
}

/// Where the policy says so, it does not go alone.
void CoordinatorMachine::Impl::restartAll(const Replica& lost, const std::string& why) {
    if (options_.policies.recovery == RecoveryPolicy::kRestartAll)
        rollbackWhy_ = absl::StrCat("recovery = restart_all: r", lost.id, " lost: ", why);
}

/// Does what an expulsion and an orderly exit have in common.
void CoordinatorMachine::Impl::letGo(Replica& r, const std::string& why) {
    releaseSnapshot(r);
    const bool moved = r.stage == Stage::kUpToDate;
    r.stage = Stage::kOut;
    r.gone = r.incarnation;
    r.unheardOn.reset();
    ++revision_;
    if (move_ && move_->sent && (moved || !move_->takesUp))
        settleLayoutMove(false, absl::StrCat("r", r.id, " left meanwhile"), true);
    for (auto it = checkpointPlans_.begin(); it != checkpointPlans_.end();) {
        const bool lost = it->second.writer == r.id;
        if (lost && !stopping_) checkpointWanted_ = true;
        it = lost ? checkpointPlans_.erase(it) : std::next(it);
    }
    if (contributes(r.id)) {
        open_->ballot.lost.insert(r.id);
        if (!open_->committing) abortExchange(why);
    }
    sourceLost(r.id);
}

void CoordinatorMachine::Impl::scheduleRestart(Replica& r, bool atOnce, const std::string& why) {
    if (r.drain || r.hold) return stayOut(r, why);
    if (stopping_) {
        show(r, ReplicaState::kAbsent, why);
        return;
    }
    // A coordinator may adopt what still runs of one that was given up before.
    if (r.hopeless || r.givenUp) return giveUp(r, why);
    const auto at = r.schedule.next(now_, options_.timeouts, options_.policies.restartLimit);
    if (!at)
        return giveUp(
            r, absl::StrCat("given up after ", options_.policies.restartLimit, " restarts: ", why));
    r.stage = Stage::kBackingOff;
    r.startAt = atOnce ? now_ : *at;
    show(r, ReplicaState::kBackingOff, why);
}

/// It stays out by an order: drained or held. The incident of its loss is over.
void CoordinatorMachine::Impl::stayOut(Replica& r, const std::string& why) {
    r.stage = Stage::kOut;
    show(r, r.drain ? ReplicaState::kDrained : ReplicaState::kHeld, why);
    book([&](auto& out) {
        incidents_.close(now_, r.id, false, r.drain ? "drained" : "held back", out);
    });
}

void CoordinatorMachine::Impl::giveUp(Replica& r, const std::string& why) {
    r.stage = Stage::kOut;
    r.givenUp = true;
    givenUpWhy_ = why;
    logOrders();
    show(r, ReplicaState::kFailed, why);
    book([&](auto& out) { incidents_.close(now_, r.id, false, "given up", out); });
}

bool CoordinatorMachine::Impl::nobodyLeft() const {
    return !stopping_ && std::all_of(replicas_.begin(), replicas_.end(),
                                     [](const Replica& r) { return r.hopeless; });
}

void CoordinatorMachine::Impl::finishDrains() {
    for (Replica& r : replicas_) {
        if (!r.leaves() || !r.alive() || contributes(r.id)) continue;
        if (!r.drain && stopping_) continue;  // all leave then
        if (!stopping_ && mustWriteBeforeLeaving(r)) continue;
        const std::string why = r.drain ? "drained" : r.wish->why;
        tell(r, Leave{term_, why});
        act(StopReplica{r.id, r.incarnation, false, why});
        if (!r.drain)
            book([&](auto& out) {
                incidents_.open(now_, r.id, r.incarnation, committed_, r.wish->kind,
                                absl::StrCat("r", r.id, " left: ", why), now_, now_, false, 0, out);
            });
        if (!r.drain && r.wish->kind == EvidenceKind::kNonFinite) restartAll(r, why);
        letGo(r, why);
        if (r.drain)
            stayOut(r, "drained by the operator");
        else
            scheduleRestart(r, false, why);
    }
}

/// Nobody else holds what was committed last: its state is written first, however long that takes.
bool CoordinatorMachine::Impl::mustWriteBeforeLeaving(const Replica& r) {
    const bool trains = std::any_of(replicas_.begin(), replicas_.end(),
                                    [](const Replica& o) { return o.stage == Stage::kUpToDate; });
    // It has not told what it holds, or may turn out to hold what nobody else does.
    const bool unknown =
        r.stage == Stage::kAdopted || ((r.followsWith || holdsOtherwise(r)) && !trains);
    if (unknown && committed_ != lineageFrom_ && !holdsLast(r)) return true;
    if (!holdsLast(r) || checkpointed() || !last_) return false;
    const bool last = std::none_of(replicas_.begin(), replicas_.end(), [&](const Replica& o) {
        return o.id != r.id && !o.leaves() && holdsLast(o);
    });
    if (!last) return false;
    if (!move_ && !open_) pursueCheckpoint(r.id);
    return true;
}

// ---- lineages
// ------------------------------------------------------------------------------------

void CoordinatorMachine::Impl::openLineage(uint64_t fromStep, const std::string& why,
                                           uint64_t undone) {
    lineage_ = ++lineageUsed_;
    lineageFrom_ = committed_ = fromStep;
    static_cast<Lineage&>(*this) = Lineage();
    begunAt_ = now_;
    LogLineage entry{lineage_, fromStep,     updates_,     resumeFrom_,
                     layout_,  expertShard_, domainShare_, ledger_.settledState(),
                     why};
    broken(checker_.lineage(lineage_, entry.ledger, fromStep));
    log(std::move(entry), false);
    fact(fact::LineageOpened{lineage_, fromStep, term_, why, link_, undone});
}

/// Nobody knows which is right.
void CoordinatorMachine::Impl::statesDiffer(const std::string& why) {
    rollbackWhy_ = why;
    noteDisputed(committed_);
}

void CoordinatorMachine::Impl::noteDisputed(uint64_t step) {
    DisputedSteps& steps =
        disputed_.try_emplace(lineage_, DisputedSteps{agreed_.lastAgreed(), step}).first->second;
    steps.upTo = std::max(steps.upTo, step);
}

/// It is of another state than was agreed on; or nobody compared it before states of its time were
/// found to differ.
bool CoordinatorMachine::Impl::isDisputed(const LogCheckpoint& found) const {
    const bool comparable = found.lineage == lineage_ && found.layout == layout_;
    const Hashes* agreed = comparable ? agreed_.find(found.step) : nullptr;
    if (agreed != nullptr && !found.hashes.empty()) return found.hashes != *agreed;
    const auto steps = disputed_.find(found.lineage);
    return steps != disputed_.end() && steps->second.contains(found.step);
}

/// Nothing goes on until it is known which checkpoints there are: ranks that had no coordinator
/// leave some that the log does not name.
void CoordinatorMachine::Impl::seekRollback(const std::string& why) {
    voidOpen(why);
    searching_ = true;
    act(FindCheckpoints{});
}

void CoordinatorMachine::Impl::on(const CheckpointsFound& in) {
    if (!searching_) return;
    searching_ = false;
    for (const LogCheckpoint& c : in.checkpoints) {
        const bool dropped =
            unusable_.contains(c.path) || isDisputed(c) ||
            std::find(discarded_.begin(), discarded_.end(), c.path) != discarded_.end();
        if (dropped || checkpoints_.find(c.path) != nullptr) continue;
        log(c, false);
        layoutTried_ = std::max(layoutTried_, c.layout);
        lineageUsed_ = std::max(lineageUsed_, c.lineage);
        checkpoints_.add(c);
    }
    if (!rollbackWhy_) return;
    const std::string why = *std::exchange(rollbackWhy_, std::nullopt);
    rollback(why);
}

/// The files of the checkpoint that this lineage begins from cannot be read.
void CoordinatorMachine::Impl::from(RankId, const CheckpointUnusable& m) {
    Replica* r = current(m.replica, m.incarnation);
    if (r == nullptr || m.path != resumeFrom_ || committed_ != lineageFrom_) return;
    cannotLoad_[r->id] = m.why;
    fact(fact::EvidenceSeen{EvidenceKind::kProcessExit, r->id, -1, absl::StrCat("r", r->id),
                            absl::StrCat("it cannot begin from its checkpoint: ", m.why)});
}

/// None of those who may come has begun from the checkpoint, or will.
bool CoordinatorMachine::Impl::nobodyCanLoad() const {
    if (cannotLoad_.empty() || committed_ != lineageFrom_) return false;
    const bool late = now_ - begunAt_ > options_.timeouts.joinMs * kMillisecond;
    return std::none_of(replicas_.begin(), replicas_.end(), [&](const Replica& r) {
        if (r.hold || r.drain || r.givenUp || cannotLoad_.contains(r.id)) return false;
        return !late || r.stage >= Stage::kInit;
    });
}

/// Nobody can hold the last commit's state any more. At the begin of a lineage: nobody will load it
/// either, and some wait for it.
bool CoordinatorMachine::Impl::stateLost() const {
    if (someoneHolds()) return false;
    if (committed_ != lineageFrom_) return true;
    bool waits = false;
    for (const Replica& r : replicas_) {
        const bool comes =
            r.stage == Stage::kBackingOff || r.stage == Stage::kStarting || r.stage == Stage::kInit;
        if (comes && !cannotLoad_.contains(r.id)) return false;  // it begins from the checkpoint
        waits = waits || r.joining();
    }
    return waits;
}

/// The last commit's state, or may turn out to.
bool CoordinatorMachine::Impl::holds(const Replica& r) const {
    return r.stage == Stage::kUpToDate || r.stage == Stage::kAdopted ||
           (r.stage == Stage::kReplaying && r.proven && r.step == committed_);
}

bool CoordinatorMachine::Impl::someoneHolds(int32_t but) const {
    return std::any_of(replicas_.begin(), replicas_.end(),
                       [&](const Replica& r) { return r.id != but && holds(r); });
}

/// With it would go what was committed since the last checkpoint. One that may turn out to hold it
/// does not stand in for one that does.
bool CoordinatorMachine::Impl::holdsAlone(const Replica& r) const {
    if (!holds(r) || checkpointed()) return false;
    if (r.stage == Stage::kAdopted) return !someoneHolds(r.id);
    return std::none_of(replicas_.begin(), replicas_.end(), [&](const Replica& o) {
        return o.id != r.id && o.stage != Stage::kAdopted && holds(o);
    });
}

/// Joiners and spares that followed a coordinator before fetch anew from those who train. If none
/// of these is left, the state that most of them agree on is the job's.
void CoordinatorMachine::Impl::takeFollowers() {
    std::map<int32_t, Hashes> told;
    for (const Replica& r : replicas_)
        if (r.stage == Stage::kSnapshot && r.followsWith) told[r.id] = *r.followsWith;
    if (told.empty() || someoneHolds()) return;
    const ParityResult parity = compareHashes(told);
    if (parity.outcome == ParityResult::Outcome::kTie) return;
    noteAgreed(committed_, parity.agreed);
    for (const auto& [id, hashes] : told) {
        if (hashes != parity.agreed) continue;
        Replica& r = *find(id);
        releaseSnapshot(r);
        enter(r, Stage::kReplaying);
        r.following = r.proven = true;
        r.step = committed_;
        show(r, ReplicaState::kProven, "nobody who trained is left");
    }
}

/// It has the last commit's state, placed as before experts moved.
bool CoordinatorMachine::Impl::holdsOtherwise(const Replica& r) const {
    return r.stage == Stage::kSnapshot && r.placedOtherwise && r.step == committed_;
}

/// Experts moved while nobody heard of these, and all who moved are gone: they move after them.
void CoordinatorMachine::Impl::takePlacedOtherwise() {
    if (someoneHolds() || searching_ || (move_ && move_->sent)) return;
    bool any = false;
    for (Replica& r : replicas_) {
        if (!holdsOtherwise(r)) continue;
        any = true;
        r.placedOtherwise = false;
        releaseSnapshot(r);
        enter(r, Stage::kUpToDate);
        r.proven = true;
        show(r, ReplicaState::kProven, "nobody is left who moved experts; it moves them now");
    }
    if (!any) return;
    if (!move_) {
        move_.emplace();
        move_->layout = ++layoutTried_;
        log(LogLayoutTried{layoutTried_}, false);
        move_->expertShard = expertShard_;
        move_->domainShare = domainShare_;
    }
    move_->takesUp = true;
    startLayoutMove();
}

/// Everybody back to the last checkpoint, in a new lineage.
void CoordinatorMachine::Impl::rollback(const std::string& why) {
    voidOpen(why);
    if (move_) settleLayoutMove(false, why);
    // A damaged checkpoint leads to the one before it, which is another try.
    fruitless_ = undoneAt_ == furthest_ && !beginsDamaged_ ? fruitless_ + 1 : 0;
    undoneAt_ = furthest_;
    const uint32_t limit = options_.policies.restartLimit;
    const bool hopeless = limit > 0 && fruitless_ >= limit;
    for (Replica& r : replicas_) {
        if (!r.alive() || (r.stage == Stage::kStarting && r.hellos == 0)) continue;
        tell(r, Expelled{term_, r.incarnation, why});
        act(StopReplica{r.id, r.incarnation, true, why});
        letGo(r, why);
        if (r.hold || r.drain) {
            stayOut(r, why);
            continue;
        }
        if (hopeless) {
            giveUp(r, absl::StrCat("given up after the job went back ", fruitless_ + 1,
                                   " times and came no further than step ", furthest_, ": ", why,
                                   furthest_ == 0 ? "; does the program begin with the same "
                                                    "model on each replica?"
                                                  : ""));
            continue;
        }
        r.stage = Stage::kBackingOff;
        r.startAt = now_;
        show(r, ReplicaState::kBackingOff, why);
    }
    if (hopeless) fruitless_ = 0;  // released replicas are tried as often again
    gate_.forget();
    if (std::exchange(beginsDamaged_, false)) {
        unusable_.insert(resumeFrom_);
        checkpoints_.remove(resumeFrom_);
        log(LogCheckpointsDropped{{resumeFrom_}, true}, false);
        // Nobody wants a job that begins at step 0 because its disk is bad.
        if (checkpoints_.empty()) {
            stopping_ = true;
            stopCheckpoint_ = stopOk_ = false;
            stopSince_ = now_;
            stopWhy_ = absl::StrCat(why,
                                    "; there is no other checkpoint: put a whole one "
                                    "back, and go on from it with --resume and this run");
            return;
        }
    }
    const uint64_t undone = committed_;
    const uint64_t layout = layout_;
    const std::vector<SampleRange> quarantined = ledger_.state().quarantined;
    if (checkpoints_.empty()) {
        resumeFrom_.clear();
        updates_ = 0;
        ledger_ = DataLedger(options_.domains, options_.domainWeights);
        committed_ = 0;
    } else {
        const LogCheckpoint& c = *checkpoints_.newest();
        resumeFrom_ = c.path;
        updates_ = c.updates;
        layout_ = c.layout;
        expertShard_ = c.expertShard;
        domainShare_ = c.domainShare;
        if (auto ledger = DataLedger::restore(c.ledger, options_.domainWeights); ledger.ok())
            ledger_ = *std::move(ledger);
        else
            broken(Violation{"I4", absl::StrCat(c.path, ": ", ledger.status().message())});
        committed_ = c.step;
    }
    for (const SampleRange& range : quarantined) ledger_.withhold(range);
    for (auto it = productiveMs_.upper_bound(committed_); it != productiveMs_.end();
         it = productiveMs_.erase(it))
        productiveSum_ -= it->second;
    openLineage(committed_, absl::StrCat(why, "; back from step ", undone, " to ", committed_),
                undone - committed_);
    if (layout != layout_)
        fact(fact::LayoutChanged{committed_, layout_, true, 0, expertShard_,
                                 "experts lie as in the checkpoint", domainShare_});
}

}  // namespace bulkhead::protocol
