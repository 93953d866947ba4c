// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/protocol/coordinator_impl.h"

/// Commit of a step, from its complete ballot: the record, its durability, what follows from it.
namespace bulkhead::protocol {
namespace {

/// A checkpoint that failed is tried again after so long: a full disk fails at once, every time.
/// Doubled with each failure that follows, up to the second.
constexpr MonoNs kCheckpointRetry = 500 * kMillisecond;
constexpr MonoNs kCheckpointRetryMost = 16 * kSecond;
constexpr MonoNs kCheckpointAskAgain = 20 * kSecond;

}  // namespace

/// The record goes to the log; the next quorum travels while it becomes durable.
void CoordinatorMachine::Impl::beginCommit(const BallotResult& result) {
    Exchange& e = *open_;
    const ReplicaVote* vote = nullptr;
    for (const auto& [replica, v] : e.ballot.votes)
        if (contributesData(replica)) vote = &v;
    RecordInputs in{lineage_, term_, updates_, &e.quorum, &vote->gradSquares, result.nonFiniteSum};
    CommitRecord record = makeRecord(in, options_);
    StepFigures figures = figuresOf(e, record, vote->gradSquares);
    const uint64_t sequence = log(LogCommit{record, forLog(figures)}, true);
    double exchangeMs = 0;
    for (const ReplicaVote& v : figures.votes) exchangeMs = std::max(exchangeMs, v.exchangeMs);
    if (e.quorum.attempt == 1) limits_.observe(inMs(stepTook(e)), exchangeMs);
    noteCosts();
    e.committing =
        Exchange::Committing{sequence, now_, std::move(record), std::move(figures), link_};
    ensurePending();
}

bool CoordinatorMachine::Impl::checkpointDue(uint64_t step) const {
    const uint32_t every = options_.policies.checkpointEverySteps;
    return checkpointWanted_ || (every != 0 && step % every == 0) ||
           (stopping_ && stopCheckpoint_) || (options_.steps != 0 && step >= options_.steps);
}

/// Contributors take turns, so that the same replica does not pay every time, nor fail. Between
/// steps whoever else holds the state may write it: a replica that is to be drained, at last a
/// proven spare.
int32_t CoordinatorMachine::Impl::checkpointWriter(const CommitRecord& record) const {
    std::vector<int32_t> able;
    for (const Contribution& c : record.contributors) {
        const Replica& r = replicas_[static_cast<size_t>(c.replica)];
        if (r.stage == Stage::kUpToDate && r.incarnation == c.incarnation && !r.leaves())
            able.push_back(c.replica);
    }
    const uint32_t every = std::max(1u, options_.policies.checkpointEverySteps);
    if (!able.empty()) return able[(record.step / every + checkpointFailures_) % able.size()];
    if (open_) return -1;
    for (const Replica& r : replicas_)
        if (r.stage == Stage::kUpToDate && r.step == committed_) return r.id;
    for (const Replica& r : replicas_)
        if (holdsLast(r)) return r.id;
    return -1;
}

/// Its state is that of the last commit.
bool CoordinatorMachine::Impl::holdsLast(const Replica& r) const {
    return r.step == committed_ &&
           (r.stage == Stage::kUpToDate || (r.stage == Stage::kReplaying && r.proven));
}

/// The last commit's state is to be written, however long that takes: by `writer`, which has
/// applied it, unless somebody writes it already. It is told the same record again, with the wish
/// for a checkpoint; told once more when no answer comes, which a broken connection may have taken.
void CoordinatorMachine::Impl::pursueCheckpoint(int32_t writer) {
    const auto plan = checkpointPlans_.find(committed_);
    if (plan != checkpointPlans_.end()) {
        if (now_ - plan->second.askedAt < kCheckpointAskAgain) return;
        writer = plan->second.writer;
    } else if (now_ < checkpointRetryAt_) {
        return;
    }
    planCheckpoint(writer, committed_);
    tell(*find(writer),
         Commit{*last_, term_, true, encode(checkpointPlans_[committed_].entry.ledger)});
}

void CoordinatorMachine::Impl::planCheckpoint(int32_t writer, uint64_t step) {
    LogCheckpoint entry{lineage_, step, updates_, "", layout_, {}, {}, ledger_.settledState()};
    entry.expertShard = expertShard_;
    entry.domainShare = domainShare_;
    CheckpointPlan& plan = checkpointPlans_[step] =
        CheckpointPlan{std::move(entry), writer, find(writer)->incarnation, now_, {}, {}};
    if (const Hashes* agreed = agreed_.find(step)) plan.agreed = *agreed;
    plan.ordered = std::exchange(checkpointWanted_, false);
}

/// The record is durable: this step happened.
void CoordinatorMachine::Impl::finishCommit() {
    const CommitRecord record = open_->committing->record;
    if (const absl::Status s = ledger_.commit(record); !s.ok())
        broken(Violation{"I2", std::string(s.message())});
    broken(checker_.committed(record));
    // Before the commit leaves: whoever was lost or too late since is not in the quorum it makes
    // count. Leases of this step are settled, the votes still tell who contributes.
    ensurePending();
    committed_ = record.step;
    commitEpoch_ = record.epoch;
    updates_ = record.updates;
    epochOf_[record.step] = record.epoch;
    if (epochOf_.size() > 1024) epochOf_.erase(epochOf_.begin());
    last_ = record;
    for (Replica& r : replicas_) r.followsWith.reset();
    first_ = false;
    disproved_ = 0;
    std::vector<int32_t> back;
    for (Replica& r : replicas_) {
        if (!contributesData(r.id)) continue;  // an entering replica replays this step's sum
        if (r.stage != Stage::kUpToDate) {
            releaseSnapshot(r);
            enter(r, Stage::kUpToDate);
            r.following = false;
        }
        r.step = record.step;
        // A step that was undone is no progress: the program may fail behind it every time.
        if (record.step > furthest_) r.schedule.reset();
        if (r.shown != ReplicaState::kTraining || incidents_.isOpen(r.id)) back.push_back(r.id);
    }
    furthest_ = std::max(furthest_, record.step);
    sendCommit(record);
    fact(ledgerLine(*open_));
    if (const auto jump = norms_.note(open_->committing->figures.gradNorm))
        fact(fact::EvidenceSeen{EvidenceKind::kGradientJump, -1, -1, "coordinator",
                                absl::StrCat("the gradient's norm, before clipping, is ",
                                             textOf(*jump, record.step), "; the step counts")});
    double exchangeMs = 0;
    for (const auto& [replica, vote] : open_->ballot.votes)
        exchangeMs = std::max(exchangeMs, vote.exchangeMs);
    book([&](auto& out) { incidents_.committed(now_, exchangeMs, out); });
    book([&](auto& out) {
        incidents_.close(now_, kWholeJob, false, absl::StrCat("went on at step ", record.step),
                         out);
    });
    for (int32_t id : back) {
        Replica& r = *find(id);
        book([&](auto& out) {
            incidents_.close(now_, id, true, absl::StrCat("rejoined at step ", record.step), out);
        });
        show(r, ReplicaState::kTraining, "");
    }
    lastCommitAt_ = open_->committing->decidedAt;
    open_.reset();
    afterCommit(record);
}

/// To those who hold the sum, and to joiners, who replay it.
void CoordinatorMachine::Impl::sendCommit(const CommitRecord& record) {
    const bool due = checkpointDue(record.step);
    // It was ordered when the next quorum had been made: that of the next step will be compared.
    const bool late = due && comparesStates() && pending_ && !pending_->checkParity;
    checkpointWanted_ = checkpointWanted_ || late;
    const int32_t writer = due && !late ? checkpointWriter(record) : -1;
    if (writer >= 0) planCheckpoint(writer, record.step);
    for (const Replica& r : replicas_) {
        if (!contributes(r.id) && !r.joining()) continue;
        Commit commit{record, term_, r.id == writer, ""};
        if (commit.checkpoint)
            commit.dataPosition = encode(checkpointPlans_[record.step].entry.ledger);
        tell(r, std::move(commit));
    }
}

/// A step lasts from the decision on the one before, or from when it was opened if it did not
/// follow at once, to its own: what is told of it is known before its record is written.
MonoNs CoordinatorMachine::Impl::stepTook(const Exchange& e) const {
    return now_ - std::max(e.openedAt, lastCommitAt_);
}

StepFigures CoordinatorMachine::Impl::figuresOf(const Exchange& e, const CommitRecord& record,
                                                const std::vector<double>& gradSquares) const {
    StepFigures f;
    f.gradNorm = gradientNorm(gradSquares, std::max<double>(1, static_cast<double>(record.tokens)));
    f.stepMs = inMs(now_ - (lastCommitAt_ != 0 ? lastCommitAt_ : e.openedAt));
    f.productiveMs = productive(e, record);
    const double wall = inMs(now_ - ranSince_);
    f.effectiveTime = wall > 0 ? std::min(1.0, (productiveSum_ + f.productiveMs) / wall) : 1;
    for (const auto& [replica, vote] : e.ballot.votes)
        if (vote.complete && !e.ballot.entering.contains(replica)) f.votes.push_back(vote);
    if (e.quorum.checkParity) f.parity = parityOf(votedHashes());
    return f;
}

/// The step's productive time (docs/protocol.md, "Effective training time"). A step that was done
/// again, or in which the job stood still, counts as long as an undisturbed one.
double CoordinatorMachine::Impl::productive(const Exchange& e, const CommitRecord& record) const {
    double worth = inMs(stepTook(e));
    if (limits_.stepMs() > 0 && (e.quorum.attempt != 1 || limits_.disturbed(worth)))
        worth = std::min(worth, limits_.stepMs());
    return worth * static_cast<double>(record.contributors.size()) / options_.replicas;
}

fact::StepCommitted CoordinatorMachine::Impl::ledgerLine(const Exchange& e) {
    const Exchange::Committing& committing = *e.committing;
    const StepFigures& figures = committing.figures;
    productiveMs_[committing.record.step] = figures.productiveMs;
    productiveSum_ += figures.productiveMs;
    fact::StepCommitted line = stepLine(committing.record, figures);
    line.link = committing.link;
    line.commitMs = inMs(now_ - e.lastVoteAt);
    for (const ReplicaVote& vote : line.votes) {
        const auto at = e.voteAt.find(vote.replica);
        line.voteMs.push_back(at == e.voteAt.end() ? 0 : inMs(now_ - at->second));
    }
    return line;
}

void CoordinatorMachine::Impl::afterCommit(const CommitRecord& record) {
    if (pending_) {
        Quorum next = *std::exchange(pending_, std::nullopt);
        activate(std::move(next));
        open_->openedAt = lastCommitAt_;
        setPhase(JobPhase::kTraining, open_->quorum.explanation);
    }
    // Holds the step before, had no part in this one: it heals like a joiner.
    for (Replica& r : replicas_)
        if (r.stage == Stage::kUpToDate && r.step < record.step)
            planFetch(r, "the step went on without it");
    // Back, and its place is taken.
    for (const Replica& r : replicas_) {
        const bool back = r.stage == Stage::kReplaying && r.proven && r.step + 1 >= record.step;
        if (back && record.contributors.size() >= options_.replicas && incidents_.isOpen(r.id))
            book([&](auto& out) {
                incidents_.close(now_, r.id, true,
                                 absl::StrCat("in reserve from step ", record.step), out);
            });
    }
    if (move_ && !move_->sent) startLayoutMove();
}

void CoordinatorMachine::Impl::from(RankId, const CheckpointDone& m) {
    const auto it = checkpointPlans_.find(m.step);
    if (it == checkpointPlans_.end() || it->second.writer != m.replica ||
        it->second.incarnation != m.incarnation)
        return;
    it->second.done = m;
    it->second.doneAt = now_;
    settleCheckpoints();
}

/// Its state is compared with the next step, or with what is reported while the job waits. An end
/// that somebody asked for does not wait for whoever tells nothing, nor does the last that holds
/// the state and has to leave.
bool CoordinatorMachine::Impl::awaitsComparison(uint64_t step, const CheckpointPlan& plan) const {
    const bool good = plan.done->ok && plan.done->layout == plan.entry.layout;
    if (!comparesStates() || !good || plan.agreed || step != committed_) return false;
    const bool ends = stopping_ || replicas_[static_cast<size_t>(plan.writer)].leaves();
    return !ends || (open_ && open_->tie) || now_ - plan.doneAt <= limits_.progress();
}

void CoordinatorMachine::Impl::settleCheckpoints() {
    for (auto it = checkpointPlans_.begin(); it != checkpointPlans_.end() && !rollbackWhy_;) {
        if (!it->second.done || awaitsComparison(it->first, it->second)) {
            ++it;
            continue;
        }
        CheckpointPlan plan = std::move(it->second);
        it = checkpointPlans_.erase(it);
        checkpointEnded(std::move(plan));
    }
}

/// Its state is wrong: nobody goes back to what it wrote of it.
void CoordinatorMachine::Impl::distrustCheckpoints(const Replica& writer) {
    for (const auto& [step, plan] : checkpointPlans_)
        if (plan.writer == writer.id && plan.done && plan.done->ok) {
            unusable_.insert(plan.done->path);
            log(LogCheckpointsDropped{{plan.done->path}, true}, false);
        }
}

void CoordinatorMachine::Impl::checkpointEnded(CheckpointPlan plan) {
    CheckpointDone done = *std::move(plan.done);
    LogCheckpoint entry = std::move(plan.entry);
    // A shard that had moved its experts for a move that does not count.
    if (done.ok && done.layout != entry.layout) {
        done.ok = false;
        done.error = absl::StrCat("its files lie in layout ", done.layout,
                                  ", the job is in layout ", entry.layout);
    }
    if (done.ok && comparesStates() && plan.agreed && !plan.agreed->empty() &&
        !done.hashes.empty() && done.hashes != *plan.agreed) {
        done.ok = false;
        done.error = "its state is not the one that the contributors agreed on";
        unusable_.insert(done.path);
        log(LogCheckpointsDropped{{done.path}, true}, false);
    }
    if (done.ok && comparesStates() && !plan.agreed && done.step != committed_) {
        done.ok = false;
        done.error = "its state was not compared";
        checkpointWanted_ = true;
    }
    fact(fact::CheckpointWritten{done});
    if (done.ok) {
        entry.path = done.path;
        entry.hashes = done.hashes;
        log(entry, false);
        ordered_.checkpoint = false;  // to whoever reads the log this answers the order
        checkpoints_.add(std::move(entry));
        discardSurplus(*find(done.replica));
        // A rollback may go behind the newest, when that is damaged.
        productiveMs_.erase(productiveMs_.begin(),
                            productiveMs_.upper_bound(checkpoints_.oldest()));
        checkpointFailures_ = 0;
    } else {
        checkpointRetryAt_ = now_ + std::min(kCheckpointRetry << std::min(checkpointFailures_, 8u),
                                             kCheckpointRetryMost);
        ++checkpointFailures_;
        if (stopping_ && !leaving_)
            setPhase(JobPhase::kStopping,
                     absl::StrCat(stopWhy_, "; waits for the checkpoint of step ", done.step,
                                  ", which is tried again: ", done.error,
                                  "; or stop the job without a checkpoint"));
    }
    logOrders();
}

/// The log says first which checkpoints are not gone back to any more; then a rank may remove them.
/// Those before are named again: whoever was told may have died.
void CoordinatorMachine::Impl::discardSurplus(const Replica& remover) {
    std::vector<std::string> paths = checkpoints_.surplus(options_.policies.checkpointsKept);
    if (paths.empty()) return;
    for (const std::string& path : paths) checkpoints_.remove(path);
    discarded_.insert(discarded_.end(), paths.begin(), paths.end());
    if (discarded_.size() > kDiscardedKept)
        discarded_.erase(discarded_.begin(), discarded_.end() - ptrdiff_t{kDiscardedKept});
    log(LogCheckpointsDropped{std::move(paths), false}, false);
    tell(remover, DiscardCheckpoints{term_, discarded_});
}

/// The last step is in a checkpoint, or nothing was committed since one was begun from.
bool CoordinatorMachine::Impl::checkpointed() const {
    const LogCheckpoint* newest = checkpoints_.newest();
    return committed_ == lineageFrom_ || (newest != nullptr && newest->step == committed_);
}

}  // namespace bulkhead::protocol
