// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/common/codec.h"
#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/quorum.h"

namespace bulkhead::protocol {

/// Invariants of a CoordinatorMachine under any input: every script that drives one is checked
/// against them, input by input. They see the machine by its actions alone.
class MachineLaws {
  public:
    MachineLaws() = default;
    /// `past`: what the machine was made from.
    MachineLaws(const Options& options, const RecoveredState& past)
        : options_(options),
          whole_(past.lineage == 0),
          link_(past.link),
          layout_(past.layout),
          resumed_(past.last) {
        for (const OpenIncident& i : past.incidents) open_[i.id] = i.replica;
        newestIncident_ = inheritedUpTo_ = past.lastIncident;
    }
    /// Nothing is known of what it was made from.
    explicit MachineLaws(const Options& options) : options_(options), knowsPast_(false) {}

    void durable(uint64_t sequence) { durable_ = std::max(durable_, sequence); }

    void look(const CoordinatorMachine& machine, MonoNs now, const Actions& actions) {
        SCOPED_TRACE("what holds of every machine");
        const uint64_t revision = std::exchange(revision_, machine.revision());
        const JobPhase phase = std::exchange(phase_, machine.phase());
        if (knowsPhase_ && phase != phase_) {
            EXPECT_GT(revision_, revision) << "another phase";
        }
        std::map<uint64_t, fact::QuorumDecided> decided;
        for (const Action& a : actions) {
            EXPECT_FALSE(finished_) << "nothing comes after the end";
            if (const auto* append = std::get_if<AppendLog>(&a)) logged(machine, *append);
            if (const auto* to = std::get_if<SendReplica>(&a)) sent(machine, to->message);
            if (const auto* to = std::get_if<SendRank>(&a)) sent(machine, to->message);
            if (const auto* wake = std::get_if<WakeAt>(&a)) wakeAt_ = wake->at;
            finished_ = finished_ || std::holds_alternative<Finished>(a);
            if (const auto* emit = std::get_if<Emit>(&a)) {
                EXPECT_EQ(emit->at, now);
                std::visit([&](const auto& f) { told(machine, now, f); }, emit->fact);
                if (const auto* q = std::get_if<fact::QuorumDecided>(&emit->fact))
                    decided[q->step] = *q;
                if (const auto* o = std::get_if<fact::OperatorAnswered>(&emit->fact); o && o->ok) {
                    EXPECT_GT(revision_, revision) << "what an operator knew holds no more";
                }
            }
        }
        for (const auto& [step, q] : decided) heard(machine, actions, q);
        stopped(actions);
        if (toldPhase_) {
            EXPECT_EQ(*toldPhase_, machine.phase());
        }
        knowsPhase_ = true;
        for (const ReplicaView& v : machine.replicas()) {
            if (const auto it = shown_.find(v.replica); it != shown_.end()) {
                EXPECT_EQ(it->second, v.state);
            }
            const bool settled = v.state == ReplicaState::kTraining ||
                                 v.state == ReplicaState::kDrained ||
                                 v.state == ReplicaState::kHeld || v.state == ReplicaState::kFailed;
            for (const auto& [incident, replica] : open_)
                EXPECT_FALSE(settled && replica == v.replica && !inherited(incident))
                    << "r" << replica << " is settled, and its incident is open";
        }
        if (finished_) {
            EXPECT_TRUE(open_.empty()) << "an incident outlives the run";
        } else {
            // Time alone can bring about what is looked at once per beat interval.
            EXPECT_GT(wakeAt_, now);
            EXPECT_LE(wakeAt_, now + options_.timeouts.beatMs * kMillisecond);
        }
    }

    /// The log alone tells another coordinator where this one stands.
    void readLog(const CoordinatorMachine& machine) const {
        if (!whole_ || entries_.empty()) return;
        SCOPED_TRACE("the log of every machine");
        const auto state =
            recoverState(entries_, options_.replicas + options_.spares, options_.domains);
        ASSERT_TRUE(state.ok()) << state.status();
        EXPECT_EQ(state->term, machine.term());
        EXPECT_EQ(state->lineage, machine.lineage());
        EXPECT_EQ(state->step, machine.committedStep() + (undurable() ? 1 : 0));
        EXPECT_EQ(state->expertShard, machine.expertShard());
        EXPECT_EQ(state->domainShare, machine.domainShare());
        EXPECT_EQ(state->layout, layout_);
        EXPECT_GE(state->epoch, machine.epoch());
        EXPECT_EQ(state->updates, updates_);
        EXPECT_EQ(state->finished, finished_);
        if (!undurable()) {
            const LedgerState now = machine.ledger().settledState();
            EXPECT_TRUE(state->ledger.committed == now.committed);
            EXPECT_TRUE(state->ledger.quarantined == now.quarantined);
        }
        const auto replicas = machine.replicas();
        for (size_t r = 0; r < replicas.size(); ++r)
            EXPECT_EQ(state->incarnations.at(r), replicas[r].incarnation);
        EXPECT_EQ(state->orders ? state->orders->paused : false, machine.pauseOrdered());
        EXPECT_TRUE((state->orders ? state->orders->policies : options_.policies) ==
                    machine.policies());
        EXPECT_EQ(state->checkpoints.empty() ? 0 : state->checkpoints.back().step,
                  machine.checkpointStep());
    }

  private:
    bool undurable() const { return !commits_.empty() && commits_.rbegin()->first > durable_; }
    bool inherited(uint64_t incident) const { return incident <= inheritedUpTo_; }

    void logged(const CoordinatorMachine& machine, const AppendLog& append) {
        EXPECT_EQ(append.sequence, ++sequence_);
        entries_.push_back(append.entry);
        std::visit(
            [&](const auto& e) {
                if constexpr (requires { e.link; }) {
                    if (knowsPast_) {
                        EXPECT_EQ(e.link, chainLink(link_, chained(e)));
                    }
                    link_ = e.link;
                    knowsPast_ = true;
                }
            },
            append.entry);
        if (const auto* e = std::get_if<LogEpochs>(&append.entry)) reserved_ = e->upTo;
        if (const auto* e = std::get_if<LogTerm>(&append.entry)) {
            EXPECT_EQ(e->term, machine.term());
        }
        if (const auto* e = std::get_if<LogLayout>(&append.entry)) layout_ = e->layout;
        if (const auto* e = std::get_if<LogLineage>(&append.entry)) {
            layout_ = e->layout;
            updates_ = e->updates;
            resumed_.reset();
        }
        if (const auto* e = std::get_if<LogCommit>(&append.entry)) {
            EXPECT_TRUE(append.overlapped);
            commits_[append.sequence] = *e;
            updates_ = e->record.updates;
        }
        if (const auto* e = std::get_if<LogOrders>(&append.entry)) {
            EXPECT_FALSE(orders_ == *e) << "they are in the log already";
            orders_ = *e;
        }
        if (std::holds_alternative<LogCheckpoint>(append.entry) && orders_)
            orders_->checkpoint = false;  // the answer
    }

    void sent(const CoordinatorMachine& machine, const ToReplica& message) {
        std::visit(
            [&](const auto& m) {
                if constexpr (requires { m.term; }) {
                    EXPECT_EQ(m.term, machine.term());
                }
            },
            message);
        if (const auto* q = std::get_if<Quorum>(&message)) check(machine, *q);
        if (const auto* w = std::get_if<Welcome>(&message)) {
            EXPECT_EQ(w->lineage, machine.lineage());
            EXPECT_EQ(w->layout, layout_);
            EXPECT_EQ(w->expertShard, machine.expertShard());
        }
        if (const auto* f = std::get_if<Fetch>(&message)) {
            EXPECT_EQ(f->lineage, machine.lineage());
            EXPECT_EQ(f->layout, layout_);
            EXPECT_EQ(f->expertShard, machine.expertShard());
            EXPECT_EQ(f->bytesPerSecond, machine.policies().fetchBytesPerSecond);
            EXPECT_FALSE(f->sources.empty());
            EXPECT_LE(f->snapshotStep, machine.committedStep());
        }
        if (const auto* k = std::get_if<KeepSnapshot>(&message)) {
            EXPECT_EQ(k->layout, layout_);
        }
        if (const auto* c = std::get_if<Commit>(&message)) {
            EXPECT_EQ(c->checkpoint, !c->dataPosition.empty());
            EXPECT_TRUE(isDurable(c->record)) << "step " << c->record.step;
        }
    }

    /// It stands in the log before anybody hears of it.
    bool isDurable(const CommitRecord& record) const {
        if (resumed_ == record || !whole_) return true;
        return std::any_of(commits_.begin(), commits_.end(), [&](const auto& c) {
            return c.first <= durable_ && c.second.record == record;
        });
    }

    void check(const CoordinatorMachine& machine, const Quorum& q) {
        EXPECT_EQ(q.lineage, machine.lineage());
        EXPECT_EQ(q.layout, layout_);
        EXPECT_EQ(q.domainShare, machine.domainShare());
        EXPECT_LE(q.epoch, reserved_) << "the next coordinator may give it out again";
        EXPECT_GE(q.chunkTimeoutMs, options_.timeouts.chunkFloorMs);
        if (q.contributors.empty()) {  // it takes back another; nobody begins it
            EXPECT_TRUE(q.joiners.empty());
            return;
        }
        const auto [key, fresh] = keys_.try_emplace(q.epoch, q.exchangeKey);
        EXPECT_EQ(key->second, q.exchangeKey);
        for (const auto& [epoch, other] : keys_)
            EXPECT_TRUE(epoch == q.epoch || other != q.exchangeKey) << "each epoch has its own";
        std::vector<int32_t> bring;
        for (const Member& m : q.contributors)
            if (!m.entering) bring.push_back(m.contribution.replica);
        EXPECT_TRUE(std::is_sorted(bring.begin(), bring.end()));
        Options now = options_;
        now.policies = machine.policies();
        EXPECT_EQ(q.lrFactor, lrFactor(now, bring.size()));
        const uint32_t every = now.policies.parityEverySteps;
        if (every == 0) {
            EXPECT_FALSE(q.checkParity);
        } else if (q.step % every == 0) {
            EXPECT_TRUE(q.checkParity);
        }
        // The same quorum whoever hears it, and however often.
        const auto id = std::tuple(q.step, q.epoch, q.attempt);
        const auto [known, first] = quorums_.try_emplace(id, q);
        EXPECT_TRUE(first || encode(known->second) == encode(q));
    }

    /// Every member hears what people are told of the quorum.
    void heard(const CoordinatorMachine& machine, const Actions& actions,
               const fact::QuorumDecided& told) {
        std::set<int32_t> who;
        const Quorum* said = nullptr;
        for (const Action& a : actions) {
            const auto* to = std::get_if<SendReplica>(&a);
            const auto* q = to == nullptr ? nullptr : std::get_if<Quorum>(&to->message);
            if (q == nullptr || q->step != told.step || q->epoch != told.epoch ||
                q->attempt != told.attempt)
                continue;
            EXPECT_TRUE(who.insert(to->replica).second) << "twice to r" << to->replica;
            said = q;
        }
        ASSERT_NE(said, nullptr);
        std::vector<Contribution> brought;
        for (const Member& m : said->contributors) {
            EXPECT_TRUE(who.contains(m.contribution.replica));
            if (!m.entering) brought.push_back(m.contribution);
        }
        EXPECT_TRUE(told.contributors == brought);
        EXPECT_EQ(told.joiners, said->joiners);
        EXPECT_EQ(told.lrFactor, said->lrFactor);
        EXPECT_EQ(told.layout, said->layout);
        EXPECT_EQ(told.explanation, said->explanation);
        if (machine.openStep() == told.step && told.attempt > 1 &&
            machine.phase() == JobPhase::kTraining) {  // a stop says what it waits for
            EXPECT_EQ(machine.explanation(), told.explanation);
        }
    }

    /// A fenced replica is also killed, not only notified.
    static void stopped(const Actions& actions) {
        std::set<std::pair<int32_t, uint32_t>> fenced, killed;
        for (const Action& a : actions) {
            if (const auto* to = std::get_if<SendReplica>(&a))
                if (std::holds_alternative<Expelled>(to->message))
                    fenced.emplace(to->replica, to->incarnation);
            if (const auto* stop = std::get_if<StopReplica>(&a))
                if (stop->kill) killed.emplace(stop->replica, stop->incarnation);
        }
        for (const auto& who : fenced) EXPECT_TRUE(killed.contains(who)) << "r" << who.first;
    }

    // ---- what people are told
    template <class F>
    void told(const CoordinatorMachine&, MonoNs, const F&) {}
    void told(const CoordinatorMachine&, MonoNs, const fact::InvariantBroken& f) {
        EXPECT_EQ(f.detail.substr(0, 1), "r")
            << "a replica may; the machine breaks none itself: " << f.detail;
    }
    void told(const CoordinatorMachine&, MonoNs now, const fact::JobPhaseChanged& f) {
        if (toldPhase_ == f.phase) {
            EXPECT_NE(f.phase, JobPhase::kTraining) << "steps say that it goes on";
            EXPECT_GE(now - phaseToldAt_, kSecond) << "the same phase again";
        }
        toldPhase_ = f.phase;
        phaseToldAt_ = now;
    }
    void told(const CoordinatorMachine&, MonoNs, const fact::ReplicaChanged& f) {
        const auto it = shown_.find(f.replica);
        EXPECT_TRUE(it == shown_.end() || it->second != f.state || !f.why.empty())
            << "nothing has changed of r" << f.replica;
        shown_[f.replica] = f.state;
    }
    void told(const CoordinatorMachine&, MonoNs, const fact::EvidenceSeen& f) {
        EXPECT_FALSE(f.reporter.empty());
        EXPECT_FALSE(f.detail.empty());
    }
    void told(const CoordinatorMachine& machine, MonoNs, const fact::IncidentOpened& f) {
        for (const auto& [incident, replica] : open_)
            EXPECT_NE(replica, f.replica) << "one incident of a replica at a time";
        EXPECT_GT(f.incident, newestIncident_);
        if (f.replica >= 0) {
            EXPECT_GT(f.incarnation, 0u);
        }
        EXPECT_LE(f.step, machine.committedStep() + 2);
        newestIncident_ = f.incident;
        open_[f.incident] = f.replica;
    }
    void told(const CoordinatorMachine&, MonoNs now, const fact::IncidentPhase& f) {
        EXPECT_TRUE(open_.contains(f.incident)) << f.incident;
        EXPECT_LE(f.begin, f.end);
        EXPECT_LE(f.end, now);
    }
    void told(const CoordinatorMachine&, MonoNs, const fact::IncidentClosed& f) {
        EXPECT_EQ(open_.erase(f.incident), 1u) << f.incident;
    }
    void told(const CoordinatorMachine&, MonoNs, const fact::LineageOpened& f) {
        EXPECT_EQ(f.link, link_);
    }
    void told(const CoordinatorMachine& machine, MonoNs, const fact::StepCommitted& f) {
        EXPECT_EQ(f.record.lineage, machine.lineage());
        for (const auto& [sequence, commit] : commits_)
            if (commit.record == f.record) {
                EXPECT_EQ(f.link, commit.link);
            }
        EXPECT_EQ(f.votes.size(), f.voteMs.size());
        EXPECT_GE(f.effectiveTime, 0);
        EXPECT_LE(f.effectiveTime, 1);
    }
    void told(const CoordinatorMachine&, MonoNs, const fact::RunFinished&) {
        EXPECT_TRUE(open_.empty());
        const auto* end = entries_.empty() ? nullptr : std::get_if<LogFinished>(&entries_.back());
        EXPECT_NE(end, nullptr) << "the log says so first";
    }

    Options options_;
    bool whole_ = false;  ///< it began a job: its entries are the whole log
    bool knowsPast_ = true;
    std::string link_;
    uint64_t layout_ = 0;
    std::optional<CommitRecord> resumed_;
    uint64_t durable_ = 0;
    uint64_t sequence_ = 0;
    uint64_t reserved_ = 0;
    uint64_t updates_ = 0;
    MonoNs wakeAt_ = 0;
    bool finished_ = false;
    bool knowsPhase_ = false;
    uint64_t revision_ = 0;
    JobPhase phase_ = JobPhase::kStarting;
    std::optional<JobPhase> toldPhase_;
    MonoNs phaseToldAt_ = 0;
    std::optional<LogOrders> orders_;
    std::vector<LogEntry> entries_;
    std::map<uint64_t, LogCommit> commits_;  ///< by sequence
    std::map<uint64_t, Secret> keys_;        ///< by epoch
    std::map<std::tuple<uint64_t, uint64_t, uint32_t>, Quorum> quorums_;
    std::map<int32_t, ReplicaState> shown_;
    std::map<uint64_t, int32_t> open_;  ///< incidents
    uint64_t newestIncident_ = 0;
    uint64_t inheritedUpTo_ = 0;
};

}  // namespace bulkhead::protocol
