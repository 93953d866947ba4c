// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/fault_runner.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"

namespace bulkhead::runtime {
namespace {

using model::FaultKind;

constexpr int64_t kMemoryNs = 60 * kSecond;

/// Over as soon as it has happened.
bool isMoment(FaultKind kind) {
    switch (kind) {
        case FaultKind::kKillRank:
        case FaultKind::kKillReplica:
        case FaultKind::kKillNode:
        case FaultKind::kFlipGradient:
        case FaultKind::kNanGradient:
        case FaultKind::kFlipParameter:
            return true;
        default:
            return false;
    }
}

bool isKill(FaultKind kind) {
    return kind == FaultKind::kKillRank || kind == FaultKind::kKillReplica;
}

/// Its rank may be unable to tell of it.
bool silences(FaultKind kind) {
    return isKill(kind) || kind == FaultKind::kHang || kind == FaultKind::kCutNetwork;
}

}  // namespace

bool FaultRunner::isSelfCommitted(const model::FaultSpec& spec) const {
    if (isKill(spec.kind) || spec.kind == FaultKind::kHang) return !spec.atPhase.empty();
    return spec.kind != FaultKind::kKillNode && spec.kind != FaultKind::kFillDisk;
}

bool FaultRunner::isDue(const model::FaultSpec& spec, uint64_t committedStep) const {
    // A rank waits for the step by itself and must know before it begins: the step ahead of it is
    // time enough. From outside the step begins when the one before it is committed.
    const uint64_t ahead = isSelfCommitted(spec) ? 2 : 1;
    return spec.atStep <= committedStep + ahead;
}

uint64_t FaultRunner::add(const model::FaultSpec& spec, const std::string& by,
                          const std::string& requestId) {
    Fault fault;
    fault.spec = spec;
    fault.by = by;
    fault.requestId = requestId;
    open_.emplace(nextId_, std::move(fault));
    return nextId_++;
}

absl::StatusOr<uint64_t> FaultRunner::inject(const model::FaultSpec& spec, const std::string& by,
                                             uint64_t committedStep, const std::string& requestId) {
    const uint64_t id = add(spec, by, requestId);
    if (absl::Status s = hands_.save(saved()); !s.ok()) {
        open_.erase(id);
        return s;
    }
    if (isDue(spec, committedStep)) commit(id, open_.at(id), committedStep);
    return id;
}

absl::Status FaultRunner::plan(const std::vector<model::FaultSpec>& specs, uint64_t committedStep) {
    planned_ = true;
    if (specs.empty()) return absl::OkStatus();
    for (const model::FaultSpec& spec : specs) add(spec, "job file", "");
    absl::Status done = hands_.save(saved());
    stepCommitted(committedStep);
    return done;
}

void FaultRunner::stepCommitted(uint64_t step) {
    step_ = step;
    std::vector<uint64_t> due;
    for (const auto& [id, fault] : open_)
        if (fault.state == State::kWaiting && isDue(fault.spec, step)) due.push_back(id);
    for (const uint64_t id : due)
        if (const auto it = open_.find(id); it != open_.end()) commit(id, it->second, step);
}

void FaultRunner::commit(uint64_t id, Fault& fault, uint64_t committedStep) {
    step_ = std::max(step_, committedStep);
    fault.state = State::kSent;
    fault.self = isSelfCommitted(fault.spec);
    for (const RankId rank : ranksOf(fault.spec))
        if (const auto incarnation = hands_.incarnationOf(rank)) fault.targets[rank] = *incarnation;
    // Before it leaves: whoever comes after us must know that it may have happened.
    (void)hands_.save(saved());
    if (const absl::Status done = carryOut(id, fault); !done.ok())
        finish(id, absl::StrCat("could not be injected: ", std::string(done.message())), true);
}

absl::Status FaultRunner::carryOut(uint64_t id, Fault& fault) {
    const model::FaultSpec& spec = fault.spec;
    if (spec.kind == FaultKind::kFillDisk) return hands_.fillDisk(spec.node, id, spec.durationMs);
    if (spec.kind == FaultKind::kKillNode) {
        for (const int32_t r : hands_.replicasOn(spec.node)) fault.unexplained.insert(r);
        if (absl::Status s = hands_.killNode(spec.node, id); !s.ok()) return s;
        tookEffect(id, fault, hands_.unixNs(), step_ + 1);
        return absl::OkStatus();
    }
    fault.unexplained.insert(spec.replica);
    for (const RankId rank : ranksOf(spec)) fault.ranks.insert(rank);
    absl::Status result;
    // A copy: carrying out may end the fault and take the set with it.
    const std::set<RankId> ranks = fault.ranks;
    for (const RankId rank : ranks) result.Update(carryOutOnRank(id, fault, rank));
    return result;
}

absl::Status FaultRunner::carryOutOnRank(uint64_t id, const Fault& fault, RankId rank) {
    const model::FaultSpec& spec = fault.spec;
    if (!fault.self)
        return hands_.signal(rank, spec.kind == FaultKind::kHang ? SIGSTOP : SIGKILL, id,
                             spec.durationMs);
    protocol::CommitFault message;
    message.fault = id;
    message.kind = std::string(
        enumName(spec.kind == FaultKind::kKillReplica ? FaultKind::kKillRank : spec.kind));
    message.shard = rank.shard;
    message.durationMs = spec.durationMs;
    message.factor = spec.factor;
    message.delayMs = spec.delayMs;
    message.step = spec.atStep;
    message.phase = spec.atPhase;
    return hands_.commit(rank, message);
}

void FaultRunner::tookEffect(uint64_t id, Fault& fault, int64_t unixNs, uint64_t step) {
    if (fault.state == State::kActive) return;
    fault.state = State::kActive;
    fault.effectNs = unixNs;
    hands_.emit(model::FaultInjected{id, fault.spec, step, fault.by}, model::Severity::kWarning);
    // A rank that stopped itself cannot wake itself: its agent does.
    if (fault.self && fault.spec.kind == FaultKind::kHang)
        for (const RankId rank : fault.ranks)
            (void)hands_.signal(rank, 0, id, fault.spec.durationMs);
    if (isMoment(fault.spec.kind)) finish(id, "done", false);
}

void FaultRunner::noted(uint64_t id, bool ended, const std::string& error, int64_t unixNs,
                        uint64_t step) {
    const auto it = open_.find(id);
    if (it == open_.end()) return;
    if (!error.empty()) return finish(id, absl::StrCat("could not be injected: ", error), true);
    if (!ended) return tookEffect(id, it->second, unixNs, step == 0 ? step_ + 1 : step);
    const Fault& fault = it->second;
    if (fault.state != State::kActive) return finish(id, "cancelled before its step", true);
    finish(id, fault.ending ? "ended on request" : "healed", false);
}

void FaultRunner::rankExited(RankId rank, int signal, int64_t unixNs) {
    std::vector<uint64_t> hit;
    for (const auto& [id, fault] : open_)
        if (fault.state != State::kWaiting && fault.ranks.contains(rank)) hit.push_back(id);
    for (const uint64_t id : hit) exited(id, rank, signal, unixNs);
}

void FaultRunner::exited(uint64_t id, RankId rank, int signal, int64_t unixNs) {
    Fault& fault = open_.at(id);
    const bool killed = isKill(fault.spec.kind) && signal == SIGKILL;
    if (killed) tookEffect(id, fault, unixNs, step_ + 1);
    const auto it = open_.find(id);
    if (it == open_.end()) return;
    it->second.ranks.erase(rank);
    if (!it->second.ranks.empty()) return;
    finish(id,
           it->second.state == State::kActive ? "the process is gone"
                                              : "could not be injected: the process ended before",
           it->second.state != State::kActive);
}

absl::Status FaultRunner::end(uint64_t id) {
    const auto it = open_.find(id);
    if (it == open_.end())
        return absl::NotFoundError(absl::StrCat("fault ", id, " is over, or never was"));
    Fault& fault = it->second;
    if (fault.state == State::kWaiting) {
        finish(id, "cancelled before its step", true);
        return absl::OkStatus();
    }
    if (!fault.self && isMoment(fault.spec.kind))
        return absl::FailedPreconditionError(
            absl::StrCat("fault ", id, " cannot be called back: nothing of it lasts"));
    fault.ending = true;
    hands_.end(id, fault.self ? fault.ranks : std::set<RankId>{});
    return absl::OkStatus();
}

void FaultRunner::finish(uint64_t id, const std::string& outcome, bool failed) {
    const auto it = open_.find(id);
    const Fault fault = std::move(it->second);
    open_.erase(it);
    if (fault.effectNs != 0)
        past_.push_back({id, fault.effectNs, hands_.unixNs() + kMemoryNs, fault.unexplained});
    else
        (void)hands_.save(saved());  // the history of a fault that never was cannot end it
    hands_.emit(model::FaultEnded{id, outcome},
                failed ? model::Severity::kWarning : model::Severity::kInfo);
}

uint64_t FaultRunner::acting(FaultKind kind) const {
    uint64_t latest = 0;
    for (const auto& [id, fault] : open_)
        if (fault.spec.kind == kind && fault.state == State::kActive) latest = id;
    return latest;
}

/// Peers may miss a replica before its agent says that it was killed. A rank that strikes itself
/// may be gone, or cut off, before its word of that has left it: it is believed once its step has
/// begun.
bool FaultRunner::mayHaveStruck(const Fault& fault) const {
    if (fault.state != State::kSent) return false;
    if (!fault.self) return isKill(fault.spec.kind);
    return silences(fault.spec.kind) && fault.spec.atStep <= step_ + 1;
}

std::optional<FaultRunner::Cause> FaultRunner::explain(int32_t replica, int64_t unixNs) {
    std::erase_if(past_, [&](const Past& p) { return p.untilNs < unixNs; });
    std::optional<Cause> best;
    std::set<int32_t>* from = nullptr;
    const auto consider = [&](uint64_t id, int64_t effectNs, std::set<int32_t>& unexplained) {
        if (effectNs == 0 || !unexplained.contains(replica)) return;
        if (best && best->effectNs >= effectNs) return;
        best = Cause{id, effectNs};
        from = &unexplained;
    };
    for (auto& [id, fault] : open_) {
        consider(id, mayHaveStruck(fault) ? unixNs : fault.effectNs, fault.unexplained);
    }
    for (Past& p : past_) consider(p.id, p.effectNs, p.unexplained);
    if (from != nullptr) from->erase(replica);
    return best;
}

std::vector<RankId> FaultRunner::ranksOf(const model::FaultSpec& spec) const {
    if (spec.kind == FaultKind::kFillDisk || spec.kind == FaultKind::kKillNode) return {};
    const bool one = spec.shard >= 0 || spec.kind == FaultKind::kFlipGradient ||
                     spec.kind == FaultKind::kNanGradient || spec.kind == FaultKind::kFlipParameter;
    const int32_t first = std::max(0, spec.shard);
    const int32_t last = one ? first : static_cast<int32_t>(shards_) - 1;
    std::vector<RankId> ranks;
    for (int32_t s = first; s <= last; ++s) ranks.push_back({spec.replica, s});
    return ranks;
}

// ---- over the lives of coordinators
// ----------------------------------------------------------------

SavedFaults FaultRunner::saved() const {
    SavedFaults out{planned_, nextId_, {}};
    for (const auto& [id, fault] : open_) {
        SavedFault f{id, fault.spec, fault.by, fault.requestId, fault.state != State::kWaiting, {}};
        for (const auto& [rank, incarnation] : fault.targets)
            f.targets.push_back({rank, incarnation});
        out.faults.push_back(std::move(f));
    }
    return out;
}

std::set<std::string> FaultRunner::requests() const {
    std::set<std::string> ids;
    for (const auto& [id, fault] : open_)
        if (!fault.requestId.empty()) ids.insert(fault.requestId);
    return ids;
}

std::map<uint64_t, std::string> FaultRunner::owners() const {
    std::map<uint64_t, std::string> by;
    for (const auto& [id, fault] : open_) by[id] = fault.by;
    return by;
}

FaultRunner::Fault FaultRunner::restored(const SavedFault& saved, const model::FaultView* seen,
                                         const model::RunState& past) const {
    Fault fault;
    fault.spec = saved.spec;
    fault.by = saved.by;
    fault.requestId = saved.requestId;
    fault.self = isSelfCommitted(saved.spec);
    if (saved.sent) fault.state = State::kSent;
    if (saved.sent && saved.spec.replica >= 0) fault.unexplained.insert(saved.spec.replica);
    for (const FaultTarget& t : saved.targets) {
        fault.targets[t.rank] = t.incarnation;
        fault.ranks.insert(t.rank);
    }
    fault.untold = fault.targets;
    if (seen == nullptr) return fault;
    fault.state = State::kActive;
    fault.effectNs = seen->injectedNs;
    for (const uint64_t id : seen->incidents)
        if (const auto* incident = model::findIncident(past, id))
            fault.unexplained.erase(incident->replica);
    return fault;
}

void FaultRunner::restore(const SavedFaults& saved, const model::RunState& past) {
    planned_ = saved.planned;
    nextId_ = saved.next;
    if (past.lastCommit) step_ = past.lastCommit->record.step;
    for (size_t i = 0; i < past.faults.size(); ++i)
        nextId_ = std::max(nextId_, past.faults[i].fault + 1);
    for (const SavedFault& f : saved.faults) {
        const model::FaultView* seen = model::findFault(past, f.fault);
        if (seen == nullptr || seen->endedNs == 0) open_.emplace(f.fault, restored(f, seen, past));
    }
    // A fault that is over may still cause an incident.
    for (size_t i = 0; i < past.faults.size(); ++i) {
        const model::FaultView& f = past.faults[i];
        if (f.endedNs == 0 || f.spec.replica < 0 || !f.incidents.empty()) continue;
        past_.push_back({f.fault, f.injectedNs, f.endedNs + kMemoryNs, {f.spec.replica}});
    }
}

void FaultRunner::rankBack(RankId rank, uint32_t incarnation) {
    for (auto& [id, fault] : open_) {
        const auto it = fault.untold.find(rank);
        if (it == fault.untold.end() || it->second != incarnation) continue;
        if (carryOutOnRank(id, fault, rank).ok()) fault.untold.erase(it);
    }
}

void FaultRunner::inventoryDone() {
    std::vector<uint64_t> ids;
    for (const auto& [id, fault] : open_)
        if (fault.state != State::kWaiting) ids.push_back(id);
    for (const uint64_t id : ids) {
        Fault& fault = open_.at(id);
        const bool moment = isMoment(fault.spec.kind);
        if (fault.spec.kind == FaultKind::kKillNode) {
            tookEffect(id, fault, hands_.unixNs(), step_ + 1);
        } else if (moment && fault.state == State::kActive) {
            finish(id, "done", false);
        } else {
            const std::map<RankId, uint32_t> targets = fault.targets;
            for (const auto& [rank, incarnation] : targets)
                if (open_.contains(id) && hands_.incarnationOf(rank) != incarnation)
                    exited(id, rank, isKill(open_.at(id).spec.kind) ? SIGKILL : 0, hands_.unixNs());
        }
    }
}

}  // namespace bulkhead::runtime
