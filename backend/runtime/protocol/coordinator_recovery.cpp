// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/runtime/protocol/coordinator_impl.h"

/// Recovery from the state of the previous coordinator, and the state that the next one needs.
namespace bulkhead::protocol {

void CoordinatorMachine::Impl::restore(const RecoveredState& past) {
    last_ = past.last;
    furthest_ = committed_;
    if (last_) {
        commitEpoch_ = last_->epoch;
        epochOf_[last_->step] = last_->epoch;
    }
    agreed_ = past.agreed;
    disputed_ = past.disputed;
    productiveMs_ = past.productiveMs;
    productiveSum_ = past.productiveSum;
    ranFor_ = past.ranFor;
    lastSign_ = past.lastSign;
    incidents_.resume(past.incidents, past.lastIncident);
    ordered_.policies = options_.policies;
    if (past.orders) obey(*past.orders);
    ordered_ = orders();
}

void CoordinatorMachine::Impl::obey(const LogOrders& orders) {
    options_.policies = orders.policies;
    paused_ = orders.paused;
    stopping_ = orders.stopping;
    stopCheckpoint_ = orders.stopCheckpoint;
    stopWhy_ = orders.stopWhy;
    checkpointWanted_ = orders.checkpoint;
    const auto each = [this](const std::vector<int32_t>& ids, bool Replica::*flag,
                             ReplicaState shown) {
        for (const int32_t id : ids) {
            Replica* r = find(id);
            if (r == nullptr) continue;
            r->*flag = true;
            r->shown = shown;
        }
    };
    each(orders.held, &Replica::hold, ReplicaState::kHeld);
    each(orders.drained, &Replica::drain, ReplicaState::kDrained);
    each(orders.givenUp, &Replica::givenUp, ReplicaState::kFailed);
}

LogOrders CoordinatorMachine::Impl::orders() const {
    LogOrders o;
    o.policies = options_.policies;
    o.paused = paused_;
    o.stopping = stopping_ && !stopThisTermOnly_;
    o.stopCheckpoint = stopCheckpoint_;
    o.stopWhy = stopWhy_;
    o.checkpoint =
        checkpointWanted_ || std::any_of(checkpointPlans_.begin(), checkpointPlans_.end(),
                                         [](const auto& plan) { return plan.second.ordered; });
    for (const Replica& r : replicas_) {
        if (r.hold) o.held.push_back(r.id);
        if (r.drain) o.drained.push_back(r.id);
        if (r.givenUp) o.givenUp.push_back(r.id);
    }
    return o;
}

void CoordinatorMachine::Impl::logOrders() {
    LogOrders now = orders();
    if (now == ordered_) return;
    ordered_ = now;
    log(std::move(now), false);
}

void CoordinatorMachine::Impl::on(const InventoryDone& in) {
    if (!recovering_) return unheardTold(in.unheard);
    recovering_ = false;
    begunAt_ = stopSince_ = now_;
    awaitUnheard(in.unheard);
    const auto alive = std::count_if(replicas_.begin(), replicas_.end(),
                                     [](const Replica& r) { return r.alive(); });
    noteOutage(static_cast<size_t>(alive));
    for (Replica& r : replicas_) {
        if (r.alive()) {
            if (r.running.size() == options_.shards || r.unheardOn) continue;
            if (incidents_.isOpen(r.id))
                startAgain(r, "the coordinator before was starting it");
            else
                expel(r, EvidenceKind::kProcessExit, "some of its ranks are gone", now_, true);
        } else if (!stopping_ && !r.hold && !r.drain && !r.givenUp) {
            noteLostMeanwhile(r, static_cast<size_t>(alive));
            start(r);
        }
    }
}

/// Those who may hold what no checkpoint has are taken for adopted, and are suspects: only a
/// certain end, an order or Timeouts::massPauseMs gives them up.
void CoordinatorMachine::Impl::awaitUnheard(const std::map<int32_t, std::string>& unheard) {
    if (!wantsUnheard()) return;
    for (const auto& [id, node] : unheard) {
        Replica* r = find(id);
        if (r == nullptr || r->incarnation == 0 || r->running.size() == options_.shards) continue;
        if (!r->alive()) adoptRunning(*r, r->incarnation);
        r->unheardOn = node;
        gate_.suspect(now_, id);
    }
}

/// Nobody is known to hold the last commit's state, and it is worth waiting for.
bool CoordinatorMachine::Impl::wantsUnheard() const {
    return !checkpointed() && (!stopping_ || stopCheckpoint_) &&
           std::none_of(replicas_.begin(), replicas_.end(),
                        [this](const Replica& r) { return holdsLast(r); });
}

/// Nodes of which nothing was heard have told, and a replica that may have run there did not.
void CoordinatorMachine::Impl::unheardTold(const std::map<int32_t, std::string>& unheard) {
    for (Replica& r : replicas_)
        if (r.unheardOn && !unheard.contains(r.id))
            condemn(r, EvidenceKind::kProcessExit, "its node's agent is back, and it is gone", now_,
                    true);
}

void CoordinatorMachine::Impl::releaseUnheard() {
    if (wantsUnheard()) return;
    for (Replica& r : replicas_)
        if (r.unheardOn) {
            gate_.clear(r.id);
            expel(r, EvidenceKind::kNodeLost, "it went while no coordinator looked", now_, true);
        }
}

/// The job trained until nobody coordinated it any more.
void CoordinatorMachine::Impl::noteOutage(size_t survivors) {
    if (!last_ || lastSign_ == 0 || paused_ || stopping_) return;
    book([&](auto& out) {
        incidents_.open(
            now_, kWholeJob, 0, committed_, EvidenceKind::kControllerLost,
            absl::StrFormat("no controller for %.1f s", inMs(beganAt_ - lastSign_) / 1000),
            lastSign_, beganAt_, true, survivors, out);
    });
}

/// Half of it runs, for an incident that is open: no new one.
void CoordinatorMachine::Impl::startAgain(Replica& r, const std::string& why) {
    tell(r, Expelled{term_, r.incarnation, why});
    act(StopReplica{r.id, r.incarnation, true, why});
    letGo(r, why);
    scheduleRestart(r, true, why);
}

/// It trained until the end of the coordinator before, others do still, and it is gone.
void CoordinatorMachine::Impl::noteLostMeanwhile(const Replica& r, size_t survivors) {
    const auto isItsLast = [&](const Contribution& c) {
        return c.replica == r.id && c.incarnation == r.incarnation;
    };
    const bool trained =
        last_ && std::any_of(last_->contributors.begin(), last_->contributors.end(), isItsLast);
    if (!trained || survivors == 0 || incidents_.isOpen(r.id)) return;
    book([&](auto& out) {
        incidents_.open(now_, r.id, r.incarnation, committed_, EvidenceKind::kProcessExit,
                        absl::StrCat("r", r.id, " lost: it went while no coordinator looked"), now_,
                        now_, true, survivors, out);
    });
}

/// Survivors of a coordinator hold gradients of the step that was open. Whoever gets the same
/// ranges again only exchanges them again.
void CoordinatorMachine::Impl::leaseRetained(uint64_t step,
                                             const std::vector<int32_t>& contributors) {
    const auto samples = samplesPerContributor(options_, contributors.size());
    for (size_t i = 0; i < contributors.size(); ++i) {
        const auto& retained = find(contributors[i])->retained;
        if (!retained.empty() && sampleCount(retained) == samples[i])
            (void)ledger_.leaseExactly(step, contributors[i], retained);
    }
    for (Replica& r : replicas_) r.retained.clear();
}

}  // namespace bulkhead::protocol
