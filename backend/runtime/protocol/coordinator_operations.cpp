// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/protocol/coordinator_impl.h"
#include "backend/runtime/protocol/sample_deal.h"

/// Operator requests, the end of the job, and moves of experts.
namespace bulkhead::protocol {

std::string CoordinatorMachine::Impl::explain(const std::string& why) const {
    std::string text = why;
    for (const Replica& r : replicas_) {
        const bool suspected = gate_.suspects().contains(r.id);
        if (suspected || (r.stage != Stage::kUpToDate && !r.drain && !r.givenUp))
            absl::StrAppend(&text, "; r", r.id, " is ",
                            suspected ? "suspected" : std::string(enumName(r.shown)));
    }
    return text;
}

void CoordinatorMachine::Impl::on(const Operation& in) {
    const std::string refusal = operate(in);
    if (refusal.empty()) logOrders();
    fact(fact::OperatorAnswered{in.requestId, refusal.empty(), refusal.empty() ? "done" : refusal});
    if (refusal.empty()) ++revision_;
}

/// Empty when done, else why it was refused.
std::string CoordinatorMachine::Impl::operate(const Operation& in) {
    if (stopping_ && in.kind != OperationKind::kStop) return "the job is stopping";
    Replica* r = find(in.replica);
    switch (in.kind) {
        case OperationKind::kDrain:
        case OperationKind::kHoldRejoin:
        case OperationKind::kReleaseRejoin:
        case OperationKind::kRestartReplica:
            if (r == nullptr) return absl::StrCat("there is no replica ", in.replica);
            break;
        default:
            break;
    }
    const std::string why = in.why.empty() ? "the operator asked for it" : in.why;
    switch (in.kind) {
        case OperationKind::kDrain:
            if (r->drain) return absl::StrCat("r", r->id, " is drained already");
            r->drain = true;
            // A step that only waits for the log can still get another successor.
            if (open_ && open_->committing) ensurePending();
            if (!r->alive()) stayOut(*r, why);
            return "";
        case OperationKind::kHoldRejoin:
            r->hold = true;
            if (!r->alive()) stayOut(*r, why);
            return "";
        case OperationKind::kReleaseRejoin:
            if (!r->hold && !r->drain && !r->givenUp)
                return absl::StrCat("r", r->id, " is neither held nor drained nor given up");
            r->hold = r->drain = r->givenUp = r->hopeless = false;
            r->schedule.reset();
            if (r->stage == Stage::kOut) {
                r->stage = Stage::kBackingOff;
                r->startAt = now_;
            }
            return "";
        case OperationKind::kRestartReplica:
            if (!r->alive()) {
                if (r->stage != Stage::kBackingOff)
                    return absl::StrCat("r", r->id, " is out; release it first");
                r->startAt = now_;
                return "";
            }
            if (holdsAlone(*r))
                return absl::StrCat(
                    "r", r->id, " alone holds step ", committed_,
                    ", which is in no checkpoint; pause the job, write a checkpoint, restart then");
            expel(*r, EvidenceKind::kOperator, absl::StrCat("restart: ", why), now_, true);
            return "";
        case OperationKind::kPause:
            if (paused_) return "the job is paused already";
            paused_ = true;
            return "";
        case OperationKind::kResume:
            if (!paused_) return "the job is not paused";
            paused_ = false;
            return "";
        case OperationKind::kCheckpoint:
            checkpointWanted_ = true;
            return "";
        case OperationKind::kStop:
            if (stopping_ && (in.checkpoint || !stopCheckpoint_)) return "the job is stopping";
            if (!stopping_) stopSince_ = now_;
            stopping_ = true;
            stopCheckpoint_ = in.checkpoint;
            stopThisTermOnly_ = in.thisTermOnly;
            stopWhy_ = why;
            setPhase(JobPhase::kStopping, why);
            if (move_ && !move_->sent) settleLayoutMove(false, "the job is stopping");
            return "";
        case OperationKind::kSetPolicies:
            if (in.policies.minReplicas > options_.replicas)
                return absl::StrCat("min_replicas = ", in.policies.minReplicas,
                                    " is more than the job's ", options_.replicas, " replicas");
            options_.policies = in.policies;
            logOrders();
            fact(fact::PoliciesChanged{in.policies, why});
            return "";
        case OperationKind::kChangeLayout:
            if (const absl::Status s =
                    checkDomainShare(in.domainShare, options_.domains, options_.shards);
                !s.ok())
                return std::string(s.message());
            if (move_) return "experts are being moved already; wait until that is done";
            if (movedAfter_ == committed_)
                return "the last move is not part of a step yet; wait for the next one";
            // A restart now begins at the lineage's start, with the expert layout of that time.
            if (committed_ == lineageFrom_)
                return "no step is committed yet; move experts after the first one";
            move_ = LayoutMove{};
            move_->layout = ++layoutTried_;
            log(LogLayoutTried{layoutTried_}, false);
            move_->expertShard = in.expertShard;
            move_->domainShare = in.domainShare;
            move_->predictedRemote = in.predictedRemote;
            // Not overlapped here: the next quorum waits for the move.
            cancelPending();
            if (!open_) startLayoutMove();
            return "";
    }
    return "unknown";
}

// ---- the end
// -------------------------------------------------------------------------------------

/// Lets the open step end, sees a checkpoint of the last step written, says goodbye.
void CoordinatorMachine::Impl::tryStop() {
    if (finished_) return;
    if (phase_ != JobPhase::kStopping) setPhase(JobPhase::kStopping, stopWhy_);
    if (open_ && open_->holding) voidOpen("the job is stopping");
    const MonoNs patience =
        std::max<MonoNs>(2 * limits_.progress(), options_.timeouts.stopMs * kMillisecond);
    const bool hangs = now_ - stopSince_ > 2 * patience;
    if (open_ && !open_->committing && (hangs || (!stopCheckpoint_ && !gate_.suspects().empty())))
        voidOpen("the job is stopping and its last step does not end");
    if (open_ || searching_) return;
    if (leaving_) {
        const bool gone = std::none_of(replicas_.begin(), replicas_.end(),
                                       [](const Replica& r) { return r.alive(); });
        if (gone || now_ - stopSince_ > options_.timeouts.stopMs * kMillisecond) {
            for (const Replica& r : replicas_)
                if (r.alive()) act(StopReplica{r.id, r.incarnation, true, "the job has ended"});
            finish(stopOk_, stopWhy_);
        }
        return;
    }
    if (stopCheckpoint_ && !checkpointed()) {
        // Files written while experts move would lie partly in one layout, partly in the other.
        if (move_) return;
        const bool unheard = std::any_of(replicas_.begin(), replicas_.end(), [](const Replica& r) {
            return r.stage == Stage::kAdopted;
        });
        // A full disk is no reason to lose what somebody holds. Who wants the end more than the
        // state says so, by a stop without a checkpoint.
        const int32_t writer = last_ ? checkpointWriter(*last_) : -1;
        if (writer >= 0) pursueCheckpoint(writer);
        if (writer >= 0 || unheard) return;
        stopOk_ = false;
        absl::StrAppend(&stopWhy_, "; nobody is left who holds the state of step ", committed_,
                        ", the last checkpoint is of step ",
                        checkpoints_.empty() ? 0 : checkpoints_.newest()->step);
    }
    leaving_ = true;
    stopSince_ = now_;
    for (const Replica& r : replicas_) {
        if (!r.alive()) continue;
        tell(r, Leave{term_, stopWhy_});
        act(StopReplica{r.id, r.incarnation, false, stopWhy_});
    }
    tryStop();
}

void CoordinatorMachine::Impl::finish(bool ok, const std::string& why) {
    log(LogFinished{ok, why}, false);
    book([&](auto& out) { incidents_.closeAll(now_, "the run ended first", out); });
    setPhase(ok ? JobPhase::kFinished : JobPhase::kFailed, why);
    fact(fact::RunFinished{ok, why, committed_});
    finished_ = true;
    act(Finished{ok, why});
}

// ---- moving experts
// ------------------------------------------------------------------------------

void CoordinatorMachine::Impl::startLayoutMove() {
    move_->sent = true;
    move_->sentAt = now_;
    move_->step = committed_;
    movedAfter_ = committed_;
    membership_.clear();  // quorums from before the move and after it differ by their epoch
    for (Replica& r : replicas_) {
        if (r.stage == Stage::kUpToDate) askToMove(r);
    }
    if (move_->waiting.empty()) settleLayoutMove(false, "no replica holds the state");
}

void CoordinatorMachine::Impl::askToMove(Replica& r) {
    r.gradients.clear();  // each of its ranks gives them up when it hears this
    move_->waiting.insert(r.id);
    tell(r, orderOfMove());
}

ChangeLayout CoordinatorMachine::Impl::orderOfMove() const {
    return {term_, committed_, epoch_, move_->layout, move_->expertShard};
}

void CoordinatorMachine::Impl::from(RankId, const LayoutMoved& m) {
    if (!move_ || !move_->sent || m.layout != move_->layout ||
        current(m.replica, m.incarnation) == nullptr)
        return;
    if (!m.ok) return settleLayoutMove(false, absl::StrCat("r", m.replica, ": ", m.error));
    if (move_->waiting.erase(m.replica) > 0) move_->bytesMoved += m.bytesMoved;  // said once more
}

void CoordinatorMachine::Impl::checkLayoutMove() {
    if (move_ && !move_->sent && !open_) startLayoutMove();  // the step it waited for is void
    if (!move_ || !move_->sent) return;
    if (move_->waiting.empty())
        settleLayoutMove(true, "");
    else if (now_ - move_->sentAt > options_.timeouts.fetchMs * kMillisecond)
        settleLayoutMove(false, "not every replica moved in time");
}

/// All or nobody: the next quorum names the layout that counts.
/// `others`: it failed for one that left, and may succeed with the others.
void CoordinatorMachine::Impl::settleLayoutMove(bool ok, const std::string& why, bool others) {
    const LayoutMove move = *std::exchange(move_, std::nullopt);
    if (ok) {
        layout_ = move.layout;
        expertShard_ = move.expertShard;
        domainShare_ = move.domainShare;
        log(LogLayout{layout_, move.step + 1, expertShard_, domainShare_, move.predictedRemote},
            false);
        // The same state lies otherwise now, and its shards hash to something else.
        agreed_.clear();
        for (Replica& r : replicas_) r.followsWith.reset();
    }
    fact(fact::LayoutChanged{move.step, layout_, ok, move.bytesMoved, expertShard_, why,
                             domainShare_, move.predictedRemote});
    if (!ok) {
        // Ranks that have moved go back now, not with the next quorum: none may come before a
        // checkpoint is written.
        for (const Replica& r : replicas_)
            if (r.formed) tell(r, KeepSnapshot{term_, 0, false, {}, layout_, layoutTried_});
        for (Replica& r : replicas_) {
            if (!move.takesUp || r.stage != Stage::kUpToDate) continue;
            planFetch(r, "experts moved without it");
            r.placedOtherwise = others;
        }
        return;
    }
    // Windows never cross a layout change, and none of them serves another what it holds.
    for (Replica& r : replicas_) {
        if (!r.joining()) continue;
        r.placedOtherwise = r.placedOtherwise || (r.stage == Stage::kReplaying && holds(r));
        r.proven = false;
    }
    for (Replica& r : replicas_)
        if (r.joining()) planFetch(r, "experts have moved");
}

}  // namespace bulkhead::protocol
