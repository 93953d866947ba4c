// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/simulated_job_impl.h"

/// Things go wrong, and are made good again.
namespace bulkhead::simulation {
namespace {

Trigger momentOf(const Action& action) {
    if (const auto* a = std::get_if<AppendLog>(&action)) {
        if (std::holds_alternative<LogCommit>(a->entry)) return Trigger::kAppendCommit;
        if (std::holds_alternative<LogLineage>(a->entry)) return Trigger::kRollback;
    } else if (const auto* s = std::get_if<SendReplica>(&action)) {
        if (std::holds_alternative<Commit>(s->message)) return Trigger::kSendCommit;
        if (std::holds_alternative<Abort>(s->message)) return Trigger::kAbort;
        if (std::holds_alternative<Fetch>(s->message)) return Trigger::kFetch;
        if (std::holds_alternative<ChangeLayout>(s->message)) return Trigger::kLayout;
        if (std::holds_alternative<ReplayLast>(s->message)) return Trigger::kTie;
        const auto* q = std::get_if<Quorum>(&s->message);
        if (q != nullptr && q->attempt > 1) return Trigger::kRedo;
    } else if (std::holds_alternative<StartReplica>(action)) {
        return Trigger::kStart;
    }
    return Trigger::kNone;
}

Trigger momentOf(const RankAction& action) {
    if (const auto* s = std::get_if<SendLeader>(&action)) {
        if (std::holds_alternative<RankVote>(s->message)) return Trigger::kVote;
        if (std::holds_alternative<RankReport>(s->message)) return Trigger::kReport;
    }
    if (std::holds_alternative<ApplyCommit>(action)) return Trigger::kApply;
    if (std::holds_alternative<ReplayCommit>(action)) return Trigger::kReplay;
    if (std::holds_alternative<TakeSnapshot>(action)) return Trigger::kSnapshot;
    if (std::holds_alternative<BeginFetch>(action)) return Trigger::kFetch;
    return Trigger::kNone;
}

/// A share in [0, most), from one byte of a fault's parameter.
double share(uint64_t parameter, int byte, double most) {
    return most * static_cast<double>((parameter >> (8 * byte)) & 0xff) / 256;
}

}  // namespace

void SimulatedJob::strike(const Fault& fault) {
    ++faultCount_;
    if (fault.trigger == Trigger::kNone)
        strikeNow(fault);
    else
        armed_.push_back(fault);
}

void SimulatedJob::disarm() {
    armed_.clear();
    ++disarmed_;
}

/// A fault that names nobody hits whoever the moment is about.
void SimulatedJob::strikeArmed(Trigger moment, RankId about) {
    if (moment == Trigger::kNone) return;
    for (size_t i = 0; i < armed_.size();) {
        if (armed_[i].trigger != moment) {
            ++i;
            continue;
        }
        Fault f = armed_[i];
        armed_.erase(armed_.begin() + static_cast<std::ptrdiff_t>(i));
        if (f.replica < 0) {
            f.replica = std::max(0, about.replica);
            if (about.replica >= 0 && about.shard >= 0) f.shard = about.shard;
        }
        const bool atOnce = f.kind == FaultKind::kKillRank || f.kind == FaultKind::kKillReplica ||
                            f.kind == FaultKind::kKillCoordinator ||
                            f.kind == FaultKind::kKillCoordinatorLosingTail;
        // Others enter between two events, as everything does that a machine has to be told.
        if (atOnce)
            strikeNow(f);
        else
            at(now_, [this, f, disarmed = disarmed_] {
                if (disarmed == disarmed_) strikeNow(f);
            });
    }
}

void SimulatedJob::strikeArmed(const Action& action) {
    RankId about{-1, -1};
    if (const auto* s = std::get_if<SendReplica>(&action)) about.replica = s->replica;
    if (const auto* s = std::get_if<StartReplica>(&action)) about.replica = s->replica;
    strikeArmed(momentOf(action), about);
}

void SimulatedJob::strikeArmed(RankId id, const RankAction& action) {
    strikeArmed(momentOf(action), id);
}

void SimulatedJob::strikeNow(const Fault& f) {
    tell("FAULT", describe(f));
    Process* rank = live({f.replica, f.shard});
    switch (f.kind) {
        case FaultKind::kKillRank:
            return killRank(f.replica, f.shard);
        case FaultKind::kKillReplica:
            return killReplica(f.replica);
        case FaultKind::kCrashNode:
            return crashNode(nodeOf(f.replica), f.duration);
        case FaultKind::kKillAgent:
            return killAgent(nodeOf(f.replica), f.duration, false);
        case FaultKind::kHangRank:
            hangRank(f.replica, f.shard);
            if (rank != nullptr && f.duration > 0)
                at(now_ + f.duration, [this, id = rank->id, inc = rank->incarnation] {
                    if (Process* r = live(id, inc)) wake(*r);
                });
            return;
        case FaultKind::kSlowRank:
            if (rank == nullptr) return;
            rank->slow = static_cast<double>(f.parameter);
            at(now_ + f.duration, [this, id = rank->id, inc = rank->incarnation] {
                if (Process* r = live(id, inc)) r->slow = 1;
            });
            return;
        case FaultKind::kKillCoordinator:
        case FaultKind::kKillCoordinatorLosingTail:
            killCoordinator(f.kind == FaultKind::kKillCoordinatorLosingTail);
            at(now_ + f.duration, [this] { startCoordinator(); });
            return;
        case FaultKind::kDamageCheckpoint:
            return damageCheckpoint();
        case FaultKind::kSlowDisk:
            slowDiskUntil_ = now_ + f.duration;
            return;
        case FaultKind::kFailStart:
            failStart_.insert(f.replica);
            return;
        case FaultKind::kFlipParameter:
            return flipState(f.replica, f.shard);
        case FaultKind::kFlipCopy:
            flipCopy_.insert(f.replica);
            return;
        case FaultKind::kFlipGradient:
            if (rank != nullptr) rank->flipGradientNext = true;
            return;
        case FaultKind::kNanGradient:
            if (rank != nullptr) rank->nanNext = gradientsNotFinite(f);
            return;
        case FaultKind::kPoisonSample: {
            if (!coordinatorUp()) return;
            const auto domain = static_cast<uint32_t>(f.parameter % options_.domains);
            return poison(domain,
                          machine()->ledger().highWater()[domain] + 10 + (f.parameter >> 8) % 40);
        }
        case FaultKind::kOverflow:
            return plane_.overflowNext(true);
        case FaultKind::kFailFetch:
            failFetch_.insert(f.replica);
            return;
        case FaultKind::kLoseDeltas:
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s)
                if (Process* r = live({f.replica, s})) r->deltas.clear();
            return;
        case FaultKind::kFailCheckpoint:
            failCheckpoint_.insert(f.replica);
            return;
        case FaultKind::kFailLayoutMove:
            failMove_.insert(f.replica);
            at(now_ + f.duration, [this, r = f.replica] { failMove_.erase(r); });
            return;
        case FaultKind::kDrain:
        case FaultKind::kHold:
        case FaultKind::kRelease:
        case FaultKind::kRestart:
        case FaultKind::kPause:
        case FaultKind::kCheckpoint:
        case FaultKind::kPolicies:
        case FaultKind::kChangeLayout:
            return strikeOperator(f);
        case FaultKind::kHangCoordinator:
        case FaultKind::kSecondCoordinator:
        case FaultKind::kCutAgent:
        case FaultKind::kFullDisk:
        case FaultKind::kFreezeNode:
        case FaultKind::kLyingDisk:
            return strikeDrivers(f);
        default:
            return strikeNetwork(f);
    }
}

/// Without the real programs there is never a second coordinator.
void SimulatedJob::strikeDrivers(const Fault& f) {
    if (f.kind != FaultKind::kHangCoordinator) return;
    stalledUntil_ = std::max(stalledUntil_, now_ + f.duration);
    struckUntil_ = std::max(struckUntil_, stalledUntil_);
}

void SimulatedJob::strikeNetwork(const Fault& f) {
    const MonoNs until = now_ + f.duration;
    struckUntil_ = std::max(struckUntil_, until);
    const RankId id{f.replica, f.shard};
    const auto longer = [until](MonoNs& t) { t = std::max(t, until); };
    // A connection that loses something does not live on as if nothing had been: it is made anew.
    const auto breakAtEnd = [&](RankId rank) {
        longer(lossy_[rank]);
        at(until, [this, rank] {
            if (const auto it = lossy_.find(rank); it != lossy_.end() && it->second <= now_)
                breakLossy(rank);
        });
    };
    const auto storm = [&](size_t link) {
        Link& l = network_.link(link);
        longer(l.stormUntil);
        l.storm = {share(f.parameter, 0, 0.3), share(f.parameter, 1, 0.5),
                   share(f.parameter, 2, 0.5), share(f.parameter, 3, 400)};
    };
    const auto cutControl = [&](RankId rank) {
        longer(network_.link(linkOf(rank, Wire::kUp)).cutUntil);
        longer(network_.link(linkOf(rank, Wire::kDown)).cutUntil);
        if (const Process* r = live(rank); r != nullptr && r->connected) breakConnection(rank);
    };
    switch (f.kind) {
        case FaultKind::kCutData:
            cutData(f.replica, true);
            at(until, [this, r = f.replica] { cutData(r, false); });
            return;
        case FaultKind::kCutDataOneWay:
            plane_.cut(f.replica, f.other, true);
            at(until, [this, a = f.replica, b = f.other] { plane_.cut(a, b, false); });
            return;
        case FaultKind::kCutControl:
            return cutControl(id);
        case FaultKind::kIsolate:
            cutData(f.replica, true);
            at(until, [this, r = f.replica] { cutData(r, false); });
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s)
                cutControl({f.replica, s});
            return;
        case FaultKind::kLoseUp:
            longer(network_.link(linkOf(id, Wire::kUp)).cutUntil);
            return breakAtEnd(id);
        case FaultKind::kLoseDown:
            longer(network_.link(linkOf(id, Wire::kDown)).cutUntil);
            return breakAtEnd(id);
        case FaultKind::kLoseInner:
            longer(network_.link(linkOf(id, Wire::kInner)).cutUntil);
            return at(until, [this, id] { leaderBack(id); });
        case FaultKind::kStall:
            longer(network_.link(linkOf(id, Wire::kUp)).stallUntil);
            return longer(network_.link(linkOf(id, Wire::kDown)).stallUntil);
        case FaultKind::kStorm:
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
                for (Wire w : {Wire::kUp, Wire::kDown, Wire::kInner})
                    storm(linkOf({f.replica, s}, w));
                breakAtEnd({f.replica, s});
            }
            return;
        case FaultKind::kStormAll:
            for (size_t i = 0; i < 3 * ranks_.size(); ++i) storm(i);
            for (const auto& r : ranks_)
                if (r) breakAtEnd(r->id);
            return;
        default:
            return;
    }
}

/// A bit of the newest one on disk flips; two older ones stay, of which the job may drop one.
void SimulatedJob::damageCheckpoint() {
    std::pair<const std::string, Stored>* newest = nullptr;
    std::set<uint64_t> sound;
    for (auto& entry : checkpoints_) {
        const Stored& s = entry.second;
        if (!s.whole || s.damaged) continue;
        sound.insert(s.parts.at(0).step);
        if (newest == nullptr || s.parts.at(0).step >= newest->second.parts.at(0).step)
            newest = &entry;
    }
    if (sound.size() < 3) return;
    newest->second.damaged = true;
    damaged(newest->first);
}

void SimulatedJob::breakConnection(RankId rank) {
    Process* r = live(rank);
    if (r == nullptr) return;
    disconnect(*r, true);
    suspectLater(rank, r->incarnation);
}

void SimulatedJob::breakLossy(RankId rank) {
    if (lossy_.erase(rank) > 0) breakConnection(rank);
}

void SimulatedJob::leaderBack(RankId rank) {
    const Process* r = live(rank);
    if (r == nullptr || rank.shard == 0) return;
    if (network_.link(linkOf(rank, Wire::kInner)).cutUntil <= now_)
        give(rank, r->incarnation, RankInput(LeaderBack{}));
}

void SimulatedJob::strikeOperator(const Fault& f) {
    Operation o;
    o.replica = f.replica;
    o.requestId = "sim";
    switch (f.kind) {
        case FaultKind::kDrain:
            o.kind = OperationKind::kDrain;
            break;
        case FaultKind::kHold:
            o.kind = OperationKind::kHoldRejoin;
            break;
        case FaultKind::kRelease:
            o.kind = OperationKind::kReleaseRejoin;
            break;
        case FaultKind::kRestart:
            o.kind = OperationKind::kRestartReplica;
            break;
        case FaultKind::kPause:
            o.kind = OperationKind::kPause;
            at(now_ + f.duration, [this] {
                Operation resume;
                resume.kind = OperationKind::kResume;
                operate(resume);
            });
            break;
        case FaultKind::kCheckpoint:
            o.kind = OperationKind::kCheckpoint;
            break;
        case FaultKind::kPolicies:
            o.kind = OperationKind::kSetPolicies;
            o.policies = options_.policies;
            o.policies.batch = f.parameter % 2 ? BatchPolicy::kConstant : BatchPolicy::kShrink;
            o.policies.lr = static_cast<LrPolicy>((f.parameter >> 8) % 3);
            o.policies.minReplicas = static_cast<uint32_t>(
                1 + (f.parameter >> 16) % std::max(1u, options_.replicas / 2));
            o.policies.checkpointEverySteps = static_cast<uint32_t>(3 + (f.parameter >> 24) % 20);
            break;
        default:
            o.kind = OperationKind::kChangeLayout;
            for (uint32_t s = 0; s < options_.shards; ++s)
                o.expertShard.push_back(static_cast<int32_t>((s + f.parameter) % options_.shards));
            if ((f.parameter >> 8) % 3 == 0) break;
            for (uint32_t part = 0; part < options_.domains * options_.shards; ++part)
                o.domainShare.push_back(1 + static_cast<uint32_t>(mix(f.parameter, part) % 4 *
                                                                  (f.parameter >> 16 & 3)));
    }
    operate(o);
}

void SimulatedJob::healAll() {
    tell("FAULT", "no more; everything that lasts is ended");
    network_.heal(now_);
    while (!lossy_.empty()) breakLossy(lossy_.begin()->first);
    plane_.healCuts();
    plane_.overflowNext(false);
    cut_.clear();
    disarm();
    for (auto* set : {&failMove_, &failStart_, &failFetch_, &failCheckpoint_, &flipCopy_})
        set->clear();
    slowDiskUntil_ = 0;
    poisoned_.clear();
    for (const auto& r : ranks_) {
        if (!r) continue;
        r->slow = 1;
        r->nanNext = 0;
        r->flipGradientNext = false;
    }
    for (size_t n = 0; n < agents_.size(); ++n) {
        agents_[n].up = true;
        agentBack(n, agents_[n].life);
    }
    startCoordinator();
    Operation o;
    o.kind = OperationKind::kResume;
    operate(o);
    o.kind = OperationKind::kSetPolicies;
    o.policies = options_.policies;
    o.policies.restartLimit = 0;
    operate(o);
    o.kind = OperationKind::kReleaseRejoin;
    for (o.replica = 0; o.replica < static_cast<int32_t>(places()); ++o.replica) operate(o);
}

// ---- by name, for tests

void SimulatedJob::killRank(int32_t replica, int32_t shard) {
    if (Process* r = live({replica, shard})) die(*r, 9);
}

void SimulatedJob::killReplica(int32_t replica) {
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) killRank(replica, s);
}

void SimulatedJob::hangRank(int32_t replica, int32_t shard) {
    if (Process* r = live({replica, shard})) hang(*r);
}

void SimulatedJob::wakeRank(int32_t replica, int32_t shard) {
    if (Process* r = live({replica, shard})) wake(*r);
}

void SimulatedJob::wake(Process& rank) {
    if (!rank.hung) return;
    rank.hung = false;
    const RankId id = rank.id;
    const uint32_t inc = rank.incarnation;
    for (const auto& part : std::exchange(rank.parts, {})) fold(rank, *part);
    for (const SharedInput& in : std::exchange(rank.inbox, {})) give(id, inc, in);
    if (Process* r = live(id, inc)) workOff(*r);
}

/// Runs postponed faults in order, before any later one.
void SimulatedJob::workOff(Process& rank) {
    if (rank.postponed.empty()) return;
    at(now_ + rank.rng.between(0.1, 5), [this, id = rank.id, inc = rank.incarnation] {
        Process* r = live(id, inc);
        if (r == nullptr || r->hung || r->postponed.empty()) return;
        auto task = std::move(r->postponed.front());
        r->postponed.pop_front();
        task(*r);
        if (Process* still = live(id, inc)) workOff(*still);
    });
}

void SimulatedJob::flipState(int32_t replica, int32_t shard) {
    Process* r = live({replica, shard});
    if (r == nullptr || !r->hasState) return;
    flip(*r);
}

void SimulatedJob::flip(Process& rank) {
    rank.now.state ^= 1u << 9;
    rank.now.tainted = true;
    oracle_.flipped();
}

void SimulatedJob::nextGradientNotFinite(int32_t replica) {
    if (Process* r = live({replica, 0})) r->nanNext = 1;
}

void SimulatedJob::poison(uint32_t domain, uint64_t sample) {
    poisoned_.insert({domain, sample});
    ++badSamples_;
}

void SimulatedJob::cutData(int32_t replica, bool cut) {
    if (cut)
        cut_.insert(replica);
    else
        cut_.erase(replica);
    for (int32_t other = 0; other < static_cast<int32_t>(places()); ++other) {
        if (other == replica || cut_.contains(other)) continue;
        plane_.cut(replica, other, cut);
        plane_.cut(other, replica, cut);
    }
}

}  // namespace bulkhead::simulation
