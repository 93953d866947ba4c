// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/runtime/protocol/coordinator_machine.h"
#include "tests/protocol/machine_laws.h"

namespace bulkhead::protocol {

/// A CoordinatorMachine alone, told by hand what happens, message by message: for what no whole job
/// can be made to do at will. Three replicas of two shards, and 1 ms between two inputs.
class MachineScript : public ::testing::Test {
  protected:
    MachineScript() {
        options.replicas = 3;
        options.shards = 2;
        options.policies.checkpointEverySteps = 0;
        options.policies.restartLimit = 3;
    }

    // ---- what happens
    void begin(RecoveredState past = {}) {
        const uint64_t term = past.term + 1;
        end();
        laws = MachineLaws(options, past);
        machine = std::make_unique<CoordinatorMachine>(options, term, std::move(past));
        feed(machine->begin(now));
    }
    /// A job that begins from another's checkpoint.
    void resume(const LogCheckpoint& from) {
        end();
        laws = MachineLaws(options);
        machine = std::make_unique<CoordinatorMachine>(options, 1, from);
        feed(machine->begin(now));
    }
    /// Nothing more happens to this machine.
    void end() {
        if (machine != nullptr) laws.readLog(*machine);
    }
    void TearDown() override { end(); }
    void step(const Input& input) {
        if (const auto* d = std::get_if<RecordDurable>(&input)) laws.durable(d->sequence);
        feed(machine->step(now += kMillisecond, input));
    }
    /// Actions of the machine, which are looked at from now on.
    void feed(Actions actions) {
        for (const Action& a : actions) {
            if (const auto* append = std::get_if<AppendLog>(&a)) appended = append->sequence;
            if (const auto* w = std::get_if<WakeAt>(&a)) wakeAt = w->at;
            if (std::holds_alternative<Finished>(a)) wakeAt = std::numeric_limits<MonoNs>::max();
            if (const auto* s = std::get_if<SendReplica>(&a))
                if (const auto* q = std::get_if<Quorum>(&s->message)) quorums[q->step] = *q;
            if (const auto* s = std::get_if<SendReplica>(&a))
                if (const auto* f = std::get_if<Fetch>(&s->message))
                    fetched[s->replica] = f->snapshotStep;
        }
        laws.look(*machine, now, actions);
        everything.insert(everything.end(), actions.begin(), actions.end());
        last = std::move(actions);
    }
    void say(int32_t replica, ToCoordinator message) {
        step(Received{{replica, 0}, std::move(message)});
    }
    void hello(RankId rank, uint32_t incarnation, const std::string& device = "cpu") {
        Hello h;
        h.endpoint.rank = rank;
        h.endpoint.incarnation = incarnation;
        h.endpoint.state = address(rank);
        h.device = device;
        step(Received{rank, std::move(h)});
    }
    static std::string address(RankId rank) {
        return std::to_string(rank.replica) + ":" + std::to_string(rank.shard);
    }
    /// All of its ranks run and say hello.
    void up(int32_t replica) {
        const uint32_t incarnation = view(replica).incarnation;
        for (int32_t s = 0; s < shards(); ++s) step(RankRunning{{replica, s}, incarnation, 1, "n"});
        for (int32_t s = 0; s < shards(); ++s) hello({replica, s}, incarnation);
    }
    Report reportOf(int32_t replica, uint64_t at) const {
        Report r;
        r.replica = replica;
        r.incarnation = view(replica).incarnation;
        r.lineage = machine->lineage();
        r.hasState = r.ready = true;
        r.step = at;
        r.hashes = hashes(at);
        return r;
    }
    Report blank(int32_t replica) const {
        Report r = reportOf(replica, 0);
        r.hasState = r.ready = false;
        r.hashes.clear();
        return r;
    }
    Report following(int32_t replica, uint64_t at) const {
        Report r = reportOf(replica, at);
        r.following = true;
        if (fetched.contains(replica)) r.snapshotStep = fetched.at(replica);
        return r;
    }
    /// Of the state after a step, by shard.
    static std::vector<uint64_t> hashes(uint64_t at) { return {1000 + at, 2000 + at}; }
    ReplicaVote voteOf(int32_t replica) const {
        const Quorum& q = quorum();
        ReplicaVote v;
        v.replica = replica;
        v.incarnation = view(replica).incarnation;
        v.term = q.term;
        v.step = q.step;
        v.epoch = q.epoch;
        v.attempt = q.attempt;
        v.complete = true;
        v.gradSquares = {1, 1};
        v.hashes = hashes(q.step - 1);
        v.shardsIn = options.shards;
        return v;
    }
    ReplicaVote no(int32_t replica, std::vector<int32_t> failedPeers = {}) const {
        ReplicaVote v = voteOf(replica);
        v.complete = false;
        v.failedPeers = std::move(failedPeers);
        return v;
    }
    void vote(int32_t replica) { say(replica, voteOf(replica)); }
    void durable() { step(RecordDurable{appended}); }
    /// All that are in the open step vote for it, except those in `without`.
    void voteAll(const std::set<int32_t>& without = {}) {
        for (const int32_t r : members(quorum()))
            if (!without.contains(r)) vote(r);
    }
    /// The open step is committed. Actions of it alone are in `last` afterwards.
    uint64_t commit() {
        const uint64_t open = machine->openStep();
        voteAll();
        durable();
        EXPECT_EQ(machine->committedStep(), open) << machine->explanation();
        return open;
    }
    /// All replicas train, and `steps` steps are committed.
    void train(uint64_t steps) {
        begin();
        for (int32_t r = 0; r < places(); ++r) up(r);
        for (int32_t r = 0; r < places(); ++r) say(r, reportOf(r, 0));
        while (machine->committedStep() < steps) commit();
    }
    /// While there is no step to work on they tell what they hold after step `at`.
    void tell(const std::vector<int32_t>& who, uint64_t at, uint64_t layout = 0) {
        for (const int32_t r : who) {
            Report report = reportOf(r, at);
            report.layout = report.moved = layout;
            say(r, report);
        }
    }
    void exits(RankId rank, int32_t code = 1) {
        step(RankExited{rank, view(rank.replica).incarnation, code, 0, "n"});
    }
    void operate(OperationKind kind, int32_t replica = -1, bool checkpoint = true) {
        Operation o;
        o.kind = kind;
        o.checkpoint = checkpoint;
        o.replica = replica;
        step(o);
    }
    /// It was lost in the open step, which the others end, and is up again without a state.
    void loseAndReturn(int32_t replica) {
        exits({replica, 0});
        voteAll();
        durable();
        up(replica);
    }
    /// It lacked the state, has fetched it from `sources` and follows.
    void catchUp(int32_t replica) {
        say(replica, blank(replica));
        const uint64_t snapshot = sentTo<KeepSnapshot>(otherThan(replica)).back().step;
        while (machine->committedStep() < snapshot) commit();
        for (int32_t s = 0; s < places(); ++s) {
            const SnapshotReady ready{s, view(s).incarnation, snapshot};
            if (s != replica) say(s, ready);
        }
        say(replica, following(replica, machine->committedStep()));
    }
    /// Time passes. Whoever is not in `mute` beats, all the while in `phase` and getting on with it
    /// unless it is in `stuck`; the machine is woken exactly when it asked to be.
    void pass(MonoNs time, const std::set<int32_t>& mute = {}, const std::set<int32_t>& stuck = {},
              Phase phase = Phase::kIdle) {
        Actions all;
        const MonoNs end = now + time;
        for (MonoNs beat = now; now < end;) {
            const MonoNs next = std::min({end, std::max(wakeAt, now + 1), beat});
            now = next;
            if (now >= beat) {
                beat = now + 50 * kMillisecond;
                for (int32_t r = 0; r < places(); ++r)
                    for (int32_t s = 0; s < shards() && !mute.contains(r); ++s) {
                        if (!stuck.contains(r)) ++progress;
                        const Beat b{{r, s},
                                     view(r).incarnation,
                                     phase,
                                     0,
                                     stuck.contains(r) ? 0 : progress};
                        feed(machine->step(now, Received{{r, s}, b}));
                        all.insert(all.end(), last.begin(), last.end());
                    }
            }
            if (now < wakeAt) continue;
            feed(machine->step(now, Tick{}));
            all.insert(all.end(), last.begin(), last.end());
        }
        last = std::move(all);
    }

    /// The driver found no checkpoint, or these.
    void found(std::vector<LogCheckpoint> checkpoints = {}) {
        step(CheckpointsFound{std::move(checkpoints)});
    }
    /// The coordinator before is gone; `steps` steps were committed by all replicas.
    RecoveredState past(uint64_t steps) {
        train(steps);
        std::vector<LogEntry> entries;
        for (const auto& append : actionsIn<AppendLog>(everything)) entries.push_back(append.entry);
        auto state = recoverState(entries, options.replicas + options.spares, options.domains);
        EXPECT_TRUE(state.ok());
        everything.clear();
        return *std::move(state);
    }
    void runs(int32_t replica) {
        for (int32_t s = 0; s < shards(); ++s)
            step(RankRunning{{replica, s}, view(replica).incarnation, 1, "n"});
    }
    void greets(int32_t replica) {
        for (int32_t s = 0; s < shards(); ++s) hello({replica, s}, view(replica).incarnation);
    }

    // ---- what the machine did
    template <class F>
    static std::vector<F> factsIn(const Actions& actions) {
        std::vector<F> found;
        for (const Action& a : actions)
            if (const auto* emit = std::get_if<Emit>(&a))
                if (const auto* f = std::get_if<F>(&emit->fact)) found.push_back(*f);
        return found;
    }
    template <class F>
    std::vector<F> facts() const {
        return factsIn<F>(everything);
    }
    /// With the input before alone.
    template <class F>
    std::vector<F> factsNow() const {
        return factsIn<F>(last);
    }
    template <class A>
    static std::vector<A> actionsIn(const Actions& actions) {
        std::vector<A> found;
        for (const Action& a : actions)
            if (const auto* x = std::get_if<A>(&a)) found.push_back(*x);
        return found;
    }
    template <class M>
    static std::vector<M> sentIn(const Actions& actions, int32_t replica) {
        std::vector<M> found;
        for (const Action& a : actions) {
            const auto* all = std::get_if<SendReplica>(&a);
            const auto* one = std::get_if<SendRank>(&a);
            if (all != nullptr && all->replica == replica)
                if (const auto* m = std::get_if<M>(&all->message)) found.push_back(*m);
            if (one != nullptr && one->rank.replica == replica)
                if (const auto* m = std::get_if<M>(&one->message)) found.push_back(*m);
        }
        return found;
    }
    template <class M>
    std::vector<M> sentTo(int32_t replica) const {
        return sentIn<M>(everything, replica);
    }
    template <class M>
    std::vector<M> sentNow(int32_t replica) const {
        return sentIn<M>(last, replica);
    }
    template <class E>
    std::vector<E> logged() const {
        std::vector<E> found;
        for (const auto& append : actionsIn<AppendLog>(everything))
            if (const auto* e = std::get_if<E>(&append.entry)) found.push_back(*e);
        return found;
    }
    ReplicaView view(int32_t replica) const {
        return machine->replicas()[static_cast<size_t>(replica)];
    }
    ReplicaState state(int32_t replica) const { return view(replica).state; }
    /// Of the open step, as it was announced last.
    const Quorum& quorum() const { return quorums.at(machine->openStep()); }
    static std::vector<int32_t> members(const Quorum& q) {
        std::vector<int32_t> ids;
        for (const Member& m : q.contributors) ids.push_back(m.contribution.replica);
        return ids;
    }
    std::vector<std::string> evidence() const {
        std::vector<std::string> said;
        for (const auto& e : factsNow<fact::EvidenceSeen>())
            said.push_back("r" + std::to_string(e.replica) + " " + std::string(enumName(e.kind)));
        return said;
    }
    /// Returns the states shown of a replica in the last input's facts, in order.
    std::vector<ReplicaState> shown(int32_t replica) const {
        std::vector<ReplicaState> states;
        for (const auto& c : factsNow<fact::ReplicaChanged>())
            if (c.replica == replica) states.push_back(c.state);
        return states;
    }
    std::vector<std::string> outcomes() const {
        std::vector<std::string> said;
        for (const auto& c : factsNow<fact::IncidentClosed>()) said.push_back(c.outcome);
        return said;
    }
    std::string answer() const {
        const auto answers = factsNow<fact::OperatorAnswered>();
        return answers.size() == 1 ? answers[0].outcome : "no answer";
    }
    size_t startsNow(int32_t replica) const {
        size_t n = 0;
        for (const auto& s : actionsIn<StartReplica>(last)) n += s.replica == replica;
        return n;
    }
    LogCheckpoint checkpoint(uint64_t step, const std::string& path) const {
        LogCheckpoint c;
        c.lineage = 1;
        c.step = c.updates = step;
        c.path = path;
        c.ledger = machine->ledger().settledState();
        return c;
    }
    int32_t shards() const { return static_cast<int32_t>(options.shards); }
    int32_t places() const { return static_cast<int32_t>(options.replicas + options.spares); }
    static int32_t otherThan(int32_t replica) { return replica == 0 ? 1 : 0; }

    Options options;
    MachineLaws laws;
    std::unique_ptr<CoordinatorMachine> machine;
    Actions everything;
    Actions last;
    std::map<uint64_t, Quorum> quorums;   ///< by step, the last that was announced
    std::map<int32_t, uint64_t> fetched;  ///< replica, snapshot step of its last Fetch
    uint64_t appended = 0;
    MonoNs now = kSecond;
    MonoNs wakeAt = 0;
    uint64_t progress = 1;
};

}  // namespace bulkhead::protocol
