// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <utility>

#include "backend/runtime/protocol/rank_machine.h"

namespace bulkhead::protocol {
namespace {

/// Invariants of a RankMachine under any input, checked input by input.
class RankLaws {
  public:
    RankActions step(RankMachine& machine, MonoNs now, const RankInput& in) {
        SCOPED_TRACE("what holds of every rank");
        const uint64_t term = machine.term();
        const uint64_t fenced = machine.fenced();
        const bool over = machine.exited();
        RankActions actions = machine.step(now, in);
        if (over) {
            EXPECT_TRUE(actions.empty()) << "it has left";
        }
        if (const auto* from = std::get_if<FromCoordinator>(&in); from != nullptr && !over)
            std::visit(
                [&](const auto& m) {
                    if constexpr (requires { m.term; }) {
                        if (m.term >= term) return;
                        EXPECT_TRUE(actions.empty()) << "of a coordinator that is gone";
                        EXPECT_EQ(machine.fenced(), fenced + 1);
                        EXPECT_EQ(machine.term(), term);
                    }
                },
                from->message);
        if (std::holds_alternative<Applied>(in)) applying_ = false;
        if (std::holds_alternative<Replayed>(in)) replaying_ = false;
        if (std::holds_alternative<LayoutMoveDone>(in)) moving_ = false;
        if (const auto* s = std::get_if<SnapshotTaken>(&in)) there_.insert(s->step);
        for (const RankAction& a : actions) std::visit([&](const auto& x) { did(machine, x); }, a);
        return actions;
    }

  private:
    /// The state is whole, and stands still.
    void stands(const RankMachine& machine, uint64_t step) const {
        EXPECT_TRUE(machine.hasState());
        EXPECT_EQ(step, machine.appliedStep());
        EXPECT_FALSE(applying_ || replaying_ || moving_);
    }
    template <class A>
    void did(const RankMachine&, const A&) {}
    void did(const RankMachine& m, const HashState& a) { stands(m, a.step); }
    void did(const RankMachine& m, const TakeSnapshot& a) { stands(m, a.step); }
    void did(const RankMachine& m, const WriteCheckpoint& a) { stands(m, a.step); }
    void did(const RankMachine& m, const JudgeReplay& a) {
        EXPECT_TRUE(m.hasState());
        EXPECT_EQ(a.step, m.appliedStep());
    }
    void did(const RankMachine&, const DropSnapshot& a) {
        EXPECT_EQ(there_.erase(a.step), 1u) << "there is no snapshot of step " << a.step;
    }
    void did(const RankMachine& m, const ApplyCommit& a) {
        stands(m, a.record.step - 1);
        applying_ = true;
    }
    void did(const RankMachine& m, const ReplayCommit& a) {
        stands(m, a.record.step - 1);
        replaying_ = true;
    }
    void did(const RankMachine&, const MoveLayout&) {
        EXPECT_FALSE(applying_ || replaying_ || moving_);
        moving_ = true;
    }
    void did(const RankMachine&, const BeginFetch& a) { replaying_ = replaying_ && a.sourcesOnly; }
    void did(const RankMachine& m, const BeginStep& a) {
        EXPECT_FALSE(applying_ || moving_);
        EXPECT_EQ(m.exchange(), (ExchangeId{a.quorum.step, a.quorum.epoch, a.quorum.attempt}));
        if (a.enter) return;
        EXPECT_FALSE(replaying_);
        EXPECT_EQ(a.quorum.step, m.appliedStep() + 1);
    }
    void did(const RankMachine& m, const SendLeader& a) {
        std::visit([&](const auto& x) { said(m, x); }, a.message);
    }
    template <class M>
    void said(const RankMachine&, const M& m) {
        if constexpr (requires { m.rank; }) {
            EXPECT_TRUE(one(m.rank, m.incarnation));
        }
    }
    void said(const RankMachine& machine, const RankVote& v) {
        EXPECT_TRUE(one(v.rank, v.incarnation));
        EXPECT_EQ(machine.exchange(), (ExchangeId{v.step, v.epoch, v.attempt}));
        EXPECT_FALSE(v.complete && v.nonFiniteLocal);
    }
    void said(const RankMachine& machine, const RankReport& r) {
        EXPECT_TRUE(one(r.rank, r.incarnation));
        EXPECT_EQ(r.lineage, machine.lineage());
        EXPECT_EQ(r.hasState, machine.hasState());
        EXPECT_EQ(r.step, machine.appliedStep());
        EXPECT_TRUE(r.hasState || !(r.ready || r.following));
        EXPECT_EQ(r.retainedStep == 0, r.retained.empty());
    }
    /// All that it says is said of one rank in one incarnation.
    bool one(RankId rank, uint32_t incarnation) {
        if (!self_) self_ = {rank, incarnation};
        return incarnation != 0 && self_ == std::pair(rank, incarnation);
    }

    bool applying_ = false;
    bool replaying_ = false;
    bool moving_ = false;
    std::set<uint64_t> there_;  ///< snapshots
    std::optional<std::pair<RankId, uint32_t>> self_;
};

/// Rank 1/0 of a job with replicas 0 and 1, up to date at step 0.
class RankMachineTest : public ::testing::Test {
  protected:
    RankMachineTest() : machine_(RankConfig{{1, 0}, 3, 1, 1000}) {
        tell(Welcome{5, 1, "", "", 0, {}});
        tell(ReplicaFormed{5, 3, {}, false});
        give(InitDone{true, 0, 11, 0});
    }
    RankActions give(RankInput in) { return last_ = laws_.step(machine_, now_, in); }
    RankActions tell(ToReplica m) { return give(FromCoordinator{std::move(m)}); }

    static Quorum quorum(uint64_t step, uint64_t epoch, uint32_t attempt = 1,
                         uint64_t afterEpoch = 0) {
        Quorum q;
        q.term = 5;
        q.lineage = 1;
        q.step = step;
        q.epoch = epoch;
        q.attempt = attempt;
        q.afterEpoch = afterEpoch;
        q.contributors = {Member{{0, 1, {{0, 0, 4}}}, {}}, Member{{1, 3, {{0, 4, 8}}}, {}}};
        return q;
    }
    static Commit commit(uint64_t step, uint64_t epoch, uint32_t attempt = 1) {
        Commit c;
        c.term = 5;
        c.record.lineage = 1;
        c.record.term = 5;
        c.record.step = step;
        c.record.epoch = epoch;
        c.record.attempt = attempt;
        return c;
    }
    template <class A>
    const A* did() const {
        for (const RankAction& a : last_)
            if (const A* x = std::get_if<A>(&a)) return x;
        return nullptr;
    }
    const RankVote* voted() const {
        const auto* s = did<SendLeader>();
        return s ? std::get_if<RankVote>(&s->message) : nullptr;
    }
    void sumComplete(uint64_t step, uint64_t epoch, uint32_t attempt = 1) {
        give(ComputeDone{step, false});
        give(ExchangeDone{{step, epoch, attempt}, true, {}});
    }

    MonoNs now_ = kSecond;
    RankLaws laws_;
    RankMachine machine_;
    RankActions last_;
};

TEST_F(RankMachineTest, AStepIsComputedVotedAppliedAndTheNextQuorumCounts) {
    tell(quorum(1, 2));
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_TRUE(did<BeginStep>()->compute);
    sumComplete(1, 2);
    ASSERT_TRUE(voted());
    EXPECT_TRUE(voted()->complete);
    EXPECT_EQ(voted()->hash, 11u);
    tell(quorum(2, 2, 1, 2));
    EXPECT_FALSE(did<BeginStep>());
    tell(commit(1, 2));
    ASSERT_TRUE(did<ApplyCommit>());
    give(Applied{1, 1});
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_EQ(did<BeginStep>()->quorum.step, 2u);
}

TEST_F(RankMachineTest, AStateIsHashedWhereItsHashIsCompared) {
    Quorum first = quorum(1, 2);
    first.checkParity = false;
    tell(first);
    EXPECT_EQ(did<HashState>(), nullptr);
    sumComplete(1, 2);
    Quorum second = quorum(2, 2, 1, 2);
    second.checkParity = false;
    tell(second);
    tell(commit(1, 2));
    give(Applied{1, 1});
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_EQ(did<HashState>(), nullptr);
    sumComplete(2, 2);
    ASSERT_NE(voted(), nullptr);
    EXPECT_FALSE(voted()->hash);
    // Done again, it is to be compared.
    tell(quorum(2, 2, 2, 2));
    ASSERT_NE(did<HashState>(), nullptr);
    EXPECT_EQ(did<HashState>()->step, 1u);
    tell(quorum(2, 2, 3, 2));
    EXPECT_EQ(did<HashState>(), nullptr) << "it is at it";
    give(StateHashed{0, 77, 1});
    give(StateHashed{1, 12, 4});
    give(ExchangeDone{{2, 2, 3}, true, {}});
    ASSERT_NE(voted(), nullptr);
    EXPECT_EQ(voted()->hash, 12u);
    tell(quorum(2, 2, 4, 2));
    EXPECT_EQ(did<HashState>(), nullptr) << "it is known";
}

TEST_F(RankMachineTest, WhoeverAsksIsToldAtOnceAndOnceMoreWithTheHash) {
    Quorum q = quorum(1, 2);
    q.checkParity = false;
    tell(q);
    sumComplete(1, 2);
    q.step = 2;
    q.afterEpoch = 2;
    tell(q);
    tell(commit(1, 2));
    give(Applied{1, 1});
    const auto reports = [this] {
        std::vector<std::optional<uint64_t>> hashes;
        for (const RankAction& a : last_)
            if (const auto* s = std::get_if<SendLeader>(&a))
                if (const auto* r = std::get_if<RankReport>(&s->message)) hashes.push_back(r->hash);
        return hashes;
    };
    EXPECT_THAT(reports(), ::testing::IsEmpty()) << "it trains";
    tell(Welcome{5, 1, "", "", 0, {}});
    EXPECT_THAT(reports(), ::testing::ElementsAre(std::nullopt));
    ASSERT_NE(did<HashState>(), nullptr);
    tell(Welcome{5, 1, "", "", 0, {}});
    EXPECT_EQ(did<HashState>(), nullptr) << "it is at it";
    give(StateHashed{1, 12, 1});
    EXPECT_THAT(reports(), ::testing::ElementsAre(12u));
    tell(Welcome{5, 1, "", "", 0, {}});
    EXPECT_THAT(reports(), ::testing::ElementsAre(12u));
    EXPECT_EQ(did<HashState>(), nullptr);
    sumComplete(2, 2);
    tell(commit(2, 2));
    tell(Welcome{5, 1, "", "", 0, {}});
    EXPECT_EQ(did<HashState>(), nullptr) << "the state changes";
    give(Applied{2, 1});
    EXPECT_THAT(reports(), ::testing::ElementsAre(std::nullopt));
    ASSERT_NE(did<HashState>(), nullptr) << "no step is there that would tell it";
    give(StateHashed{1, 12, 1});
    EXPECT_THAT(reports(), ::testing::IsEmpty()) << "of the state before";
}

TEST_F(RankMachineTest, WhatAHashTakesIsTheShortestOfTheLastTimes) {
    EXPECT_EQ(machine_.hashMs(), 0) << "nothing is known";
    uint64_t step = 0;
    const auto takes = [&](double ms) {
        ++step;
        tell(quorum(step, 2, 1, step == 1 ? 0 : 2));
        sumComplete(step, 2);
        tell(commit(step, 2));
        give(Applied{step, 1});
        give(StateHashed{step, step, ms});
        return machine_.hashMs();
    };
    EXPECT_EQ(takes(5), 5);
    EXPECT_EQ(takes(40), 5);
    EXPECT_EQ(takes(4), 4);
    EXPECT_EQ(takes(9), 4);
    EXPECT_EQ(takes(9), 4);
    EXPECT_EQ(takes(9), 4);
    EXPECT_EQ(takes(9), 9) << "it takes longer since";
}

TEST_F(RankMachineTest, AQuorumThatAssumedAnotherEpochIsVoid) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(quorum(2, 3, 1, /*afterEpoch=*/9));
    tell(commit(1, 2));
    give(Applied{1, 1});
    EXPECT_FALSE(did<BeginStep>());
    EXPECT_FALSE(machine_.exchange().has_value());
}

TEST_F(RankMachineTest, ARedoKeepsTheGradientsWhenTheRangesStay) {
    tell(quorum(1, 2));
    give(ComputeDone{1, false});
    tell(Abort{5, 1, 2, 1, "r0 lost"});
    EXPECT_TRUE(did<AbortExchange>());
    give(ExchangeDone{{1, 2, 1}, false, {}});
    ASSERT_TRUE(voted());
    EXPECT_FALSE(voted()->complete);
    Quorum redo = quorum(1, 3, 2);
    redo.contributors.erase(redo.contributors.begin());
    tell(redo);
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_FALSE(did<BeginStep>()->compute);
    redo.attempt = 3;
    redo.contributors.back().computation = 1;
    tell(redo);
    EXPECT_TRUE(did<BeginStep>()->compute);
}

TEST_F(RankMachineTest, AGradientThatIsNotFiniteIsSaidOnEveryAttemptThatBringsIt) {
    tell(quorum(1, 2));
    give(ComputeDone{1, true});
    ASSERT_TRUE(voted());
    EXPECT_TRUE(voted()->nonFiniteLocal);
    // Somebody else was lost at the same time: the word was for an attempt that is over.
    tell(quorum(1, 3, 2));
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_FALSE(did<BeginStep>()->compute);
    give(ExchangeDone{{1, 3, 2}, false, {}});
    ASSERT_TRUE(voted());
    EXPECT_TRUE(voted()->nonFiniteLocal);
}

/// Part of the gradient is enough to know; the rest may wait for a sibling that has stopped.
TEST_F(RankMachineTest, AnExchangeThatAGradientEndedSaysSoBeforeTheGradientIsWhole) {
    tell(quorum(1, 2));
    give(ExchangeDone{{1, 2, 1}, false, {}, true});
    ASSERT_TRUE(voted());
    EXPECT_FALSE(voted()->complete);
    EXPECT_TRUE(voted()->nonFiniteLocal);
    tell(quorum(1, 3, 2));
    tell(Abort{5, 1, 3, 2, "r0 lost"});
    ASSERT_TRUE(voted());
    EXPECT_TRUE(voted()->nonFiniteLocal) << "the same computation";
    Quorum redo = quorum(1, 4, 3);
    redo.contributors.back().computation = 7;
    tell(redo);
    tell(Abort{5, 1, 4, 3, "r0 lost"});
    ASSERT_TRUE(voted());
    EXPECT_FALSE(voted()->nonFiniteLocal) << "it is computed anew";
}

TEST_F(RankMachineTest, AnAbortWhileComputingIsAnsweredAtOnce) {
    tell(quorum(1, 2));
    tell(Abort{5, 1, 2, 1, "r0 lost"});
    ASSERT_TRUE(voted());
    EXPECT_FALSE(voted()->complete);
}

TEST_F(RankMachineTest, AnAbortThatOvertakesItsQuorumsCommitIsAnsweredWhenItCounts) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(quorum(2, 2, 1, 2));
    tell(commit(1, 2));
    tell(Abort{5, 2, 2, 1, "r0 lost"});
    give(Applied{1, 1});
    ASSERT_TRUE(voted());
    EXPECT_EQ(voted()->step, 2u);
    EXPECT_FALSE(voted()->complete);
}

TEST_F(RankMachineTest, WhatIsStaleIsDroppedAndCounted) {
    tell(quorum(1, 4));
    const uint64_t before = machine_.fenced();
    tell(quorum(1, 3));  // older epoch
    Quorum lower = quorum(1, 9);
    lower.term = 4;
    tell(lower);                              // lower term
    tell(Abort{5, 1, 3, 1, ""});              // another exchange
    give(ExchangeDone{{1, 3, 1}, true, {}});  // of another exchange
    EXPECT_EQ(machine_.fenced(), before + 4);
    EXPECT_EQ(machine_.exchange()->epoch, 4u);
}

TEST_F(RankMachineTest, ACommitOfASumItDoesNotHoldIsNotApplied) {
    tell(quorum(1, 2));
    give(ComputeDone{1, false});
    tell(commit(1, 2));
    EXPECT_FALSE(did<ApplyCommit>());
    const auto* s = did<SendLeader>();
    ASSERT_TRUE(s);
    EXPECT_FALSE(std::get<RankReport>(s->message).ready);
}

TEST_F(RankMachineTest, ExpulsionOfThisIncarnationEndsItAndOfAnotherDoesNot) {
    tell(Expelled{5, 2, "old"});
    EXPECT_FALSE(did<ExitRank>());
    tell(Expelled{5, 3, "you"});
    EXPECT_TRUE(did<ExitRank>());
    EXPECT_TRUE(tell(quorum(1, 2)).empty());
}

TEST_F(RankMachineTest, AnOrphanWritesACheckpointAndLeavesAtItsLimit) {
    give(Disconnected{});
    now_ += 999 * kMillisecond;
    give(RankTick{});
    EXPECT_FALSE(did<ExitRank>());
    now_ += kMillisecond;
    give(RankTick{});
    ASSERT_TRUE(did<ExitRank>());
    EXPECT_TRUE(did<ExitRank>()->checkpoint);
}

TEST_F(RankMachineTest, OnlyACoordinatorThatTakesItEndsItsBeingAnOrphan) {
    give(Connected{});
    give(Disconnected{});
    now_ += 600 * kMillisecond;
    give(Connected{});
    tell(Expelled{0, 0, "another version", true});
    now_ += 400 * kMillisecond;
    give(RankTick{});
    ASSERT_TRUE(did<ExitRank>());
    EXPECT_TRUE(did<ExitRank>()->checkpoint);
}

TEST_F(RankMachineTest, AnOrphanThatIsTakenAgainStays) {
    give(Disconnected{});
    now_ += 600 * kMillisecond;
    give(Connected{});
    tell(Welcome{6, 1, "", "", 0, {}});
    now_ += 600 * kMillisecond;
    give(RankTick{});
    EXPECT_FALSE(did<ExitRank>());
}

TEST(JoinerTest, FetchesReplaysFollowsAndEnters) {
    RankMachine m(RankConfig{{2, 0}, 1, 1, 1000});
    auto give = [&](RankInput in) { return m.step(kSecond, in); };
    auto record = [](uint64_t step) {
        Commit c;
        c.record.lineage = 1;
        c.record.step = step;
        c.record.epoch = 4;
        return FromCoordinator{c};
    };
    give(FromCoordinator{Welcome{0, 1, "", "", 0, {}}});
    give(FromCoordinator{ReplicaFormed{0, 1, {}, true}});
    give(InitDone{false, 0, 0, 0});
    give(record(7));
    Fetch f;
    f.lineage = 1;
    f.snapshotStep = 6;
    f.snapshotEpoch = 4;
    auto did = give(FromCoordinator{f});
    ASSERT_TRUE(std::holds_alternative<BeginFetch>(did.back()));
    did = give(FetchDone{6, 60});
    ASSERT_TRUE(std::holds_alternative<ReplayCommit>(did.back()));
    EXPECT_EQ(std::get<ReplayCommit>(did.back()).record.step, 7u);
    Quorum q;
    q.lineage = 1;
    q.step = 9;
    q.epoch = 5;
    q.afterEpoch = 4;
    q.contributors = {Member{{2, 1, {}}, {}}};
    give(FromCoordinator{q});
    did = give(Replayed{7});
    EXPECT_TRUE(std::get<RankReport>(std::get<SendLeader>(did.front()).message).following);
    // While the job waits it has nothing to get on with: that must not look like standing still.
    EXPECT_EQ(m.phase(), Phase::kIdle);
    give(record(8));
    did = give(Replayed{8});
    EXPECT_TRUE(std::holds_alternative<BeginStep>(did.back()));
    did = give(record(11));
    EXPECT_FALSE(m.exchange().has_value());  // it missed two commits: it has to heal again
}

TEST_F(RankMachineTest, ASnapshotNobodyWantsAnyMoreIsDroppedHoweverEarlyThatIsSaid) {
    tell(KeepSnapshot{5, 0, true, {}});
    ASSERT_TRUE(did<TakeSnapshot>());
    tell(KeepSnapshot{5, 0, false, {}});
    EXPECT_FALSE(did<DropSnapshot>());  // not there yet
    give(SnapshotTaken{0});
    EXPECT_TRUE(did<DropSnapshot>());
    EXPECT_FALSE(did<SendLeader>());
    tell(KeepSnapshot{5, 0, true, {}});
    give(SnapshotTaken{0});
    EXPECT_TRUE(did<SendLeader>());
    tell(KeepSnapshot{5, 0, false, {}});
    EXPECT_TRUE(did<DropSnapshot>());
}

/// A joiner that follows and holds step 6.
class EnteringTest : public ::testing::Test {
  protected:
    EnteringTest() : machine_(RankConfig{{2, 0}, 1, 1, 1000}) {
        give(FromCoordinator{Welcome{0, 1, "", "", 0, {}}});
        give(FromCoordinator{ReplicaFormed{0, 1, {}, true}});
        give(InitDone{false, 0, 0, 0});
        fetch(6);
        give(FetchDone{6, 60});
    }
    RankActions give(RankInput in) { return last_ = laws_.step(machine_, kSecond, in); }
    /// `epoch`: the coordinator's newest when it said so.
    RankActions fetch(uint64_t step, uint64_t epoch = 0) {
        Fetch f;
        f.lineage = 1;
        f.snapshotStep = step;
        f.snapshotEpoch = 4;
        f.epoch = epoch;
        return give(FromCoordinator{f});
    }
    RankActions committed(uint64_t step, uint64_t epoch) {
        Commit c;
        c.record.lineage = 1;
        c.record.step = step;
        c.record.epoch = epoch;
        c.record.attempt = 1;
        return give(FromCoordinator{c});
    }
    RankActions decided(uint64_t step, uint64_t epoch, uint64_t afterEpoch, bool entering,
                        uint32_t attempt = 1) {
        Quorum q;
        q.lineage = 1;
        q.step = step;
        q.epoch = epoch;
        q.attempt = attempt;
        q.afterEpoch = afterEpoch;
        q.contributors = {Member{{0, 1, {{0, 0, 4}}}, {}, false}, Member{{2, 1, {}}, {}, entering}};
        if (!entering) q.contributors[1].contribution.ranges = {{0, 4, 8}};
        return give(FromCoordinator{q});
    }
    template <class A>
    const A* did() const {
        for (const RankAction& a : last_)
            if (const A* x = std::get_if<A>(&a)) return x;
        return nullptr;
    }
    const RankVote* voted() const {
        const auto* s = did<SendLeader>();
        return s ? std::get_if<RankVote>(&s->message) : nullptr;
    }
    RankLaws laws_;
    RankMachine machine_;
    RankActions last_;
};

TEST_F(EnteringTest, ExchangesBeforeTheCommitBeforeIsReplayedAndReplaysItsOwnSum) {
    decided(8, 5, 4, true);
    EXPECT_FALSE(did<BeginStep>());  // not before 7 is committed
    committed(7, 4);
    ASSERT_TRUE(did<ReplayCommit>());
    EXPECT_FALSE(did<ReplayCommit>()->exchanged);
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_TRUE(did<BeginStep>()->enter);
    EXPECT_FALSE(did<BeginStep>()->compute);
    EXPECT_EQ(machine_.exchange(), (ExchangeId{8, 5, 1}));
    give(ExchangeDone{{8, 5, 1}, true, {}});
    ASSERT_TRUE(voted());
    EXPECT_TRUE(voted()->complete);
    give(Replayed{7});
    EXPECT_FALSE(did<BeginStep>());
    decided(9, 5, 5, false);
    committed(8, 5);
    ASSERT_TRUE(did<ReplayCommit>());
    EXPECT_TRUE(did<ReplayCommit>()->exchanged);
    give(Replayed{8});
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_TRUE(did<BeginStep>()->compute);
    EXPECT_EQ(did<BeginStep>()->quorum.step, 9u);
}

TEST_F(EnteringTest, WhatItExchangedInAnAttemptThatWasDoneAgainIsNotReplayed) {
    decided(7, 5, 4, true);
    ASSERT_TRUE(did<BeginStep>());
    give(ExchangeDone{{7, 5, 1}, true, {}});
    Quorum again;  // those who train did it again without it
    again.lineage = 1;
    again.step = 7;
    again.epoch = 6;
    again.attempt = 2;
    again.afterEpoch = 4;
    again.contributors = {Member{{0, 1, {{0, 0, 4}}}, {}, false}};
    give(FromCoordinator{again});
    EXPECT_FALSE(machine_.exchange().has_value());
    committed(7, 6);
    ASSERT_TRUE(did<ReplayCommit>());
    EXPECT_FALSE(did<ReplayCommit>()->exchanged);
}

TEST_F(EnteringTest, AnExchangeThatIsEndedIsVotedAgainstAndBegunAgainWithTheNextAttempt) {
    decided(7, 5, 4, true);
    give(FromCoordinator{Abort{0, 7, 5, 1, "r0 is lost"}});
    ASSERT_TRUE(did<AbortExchange>());
    give(ExchangeDone{{7, 5, 1}, false, {}});
    ASSERT_TRUE(voted());
    EXPECT_FALSE(voted()->complete);
    decided(7, 6, 4, true, 2);
    ASSERT_TRUE(did<BeginStep>());
    EXPECT_TRUE(did<BeginStep>()->enter);
    EXPECT_EQ(machine_.exchange(), (ExchangeId{7, 6, 2}));
}

/// Experts moved, and the order to fetch the state anew is not here yet.
TEST_F(EnteringTest, ACommitOfAnotherLayoutIsNotReplayed) {
    Commit c;
    c.record.lineage = 1;
    c.record.step = 7;
    c.record.epoch = 5;
    c.record.layout = 1;
    give(FromCoordinator{c});
    EXPECT_FALSE(did<ReplayCommit>());
    Fetch f;
    f.lineage = 1;
    f.snapshotStep = 6;
    f.layout = 1;
    give(FromCoordinator{f});
    give(FetchDone{6, 61, 1});
    ASSERT_TRUE(did<ReplayCommit>());
    EXPECT_EQ(did<ReplayCommit>()->record.step, 7u);
}

TEST_F(EnteringTest, AnotherFetchEndsTheExchangeItEnteredBy) {
    decided(7, 5, 4, true);
    fetch(7);
    ASSERT_TRUE(did<AbortExchange>());
    EXPECT_FALSE(machine_.exchange().has_value());
}

/// It named a state that is thrown away; what voided it was told to those who could begin it.
TEST_F(EnteringTest, AQuorumFromBeforeAnotherFetchDoesNotComeToLifeAfterIt) {
    decided(8, 5, 4, false);
    fetch(7);
    give(FetchDone{7, 70});
    EXPECT_FALSE(did<BeginStep>());
    EXPECT_FALSE(machine_.exchange().has_value());
}

/// All who trained moved and are gone: what a follower holds is the job's.
TEST_F(EnteringTest, WhoFollowsMovesExpertsWhenItIsAskedTo) {
    decided(7, 5, 4, true);
    give(FromCoordinator{ChangeLayout{0, 6, 5, 1, {1, 0}}});
    ASSERT_TRUE(did<MoveLayout>());
    EXPECT_TRUE(did<AbortExchange>());
    EXPECT_FALSE(machine_.exchange().has_value());
    give(LayoutMoveDone{1, true, 10, "", 77});
    ASSERT_TRUE(did<SendLeader>());
}

/// It fetched the state for the step that it contributes to now.
TEST_F(EnteringTest, AFetchFromBeforeItContributedDoesNotTakeItOutOfItsStep) {
    committed(7, 4);
    give(Replayed{7});
    decided(8, 5, 4, false);
    ASSERT_TRUE(did<BeginStep>());
    const uint64_t fenced = machine_.fenced();
    fetch(7, 4);
    EXPECT_FALSE(did<BeginFetch>());
    EXPECT_EQ(machine_.exchange(), (ExchangeId{8, 5, 1}));
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    fetch(7, 5);
    EXPECT_TRUE(did<BeginFetch>()) << "an order of that epoch, or of a younger one, counts";
}

TEST_F(EnteringTest, AFetchOfWhatItHasLongPassedDoesNotTakeItOutOfItsStep) {
    committed(7, 4);
    give(Replayed{7});
    decided(8, 5, 4, false);
    ASSERT_TRUE(did<BeginStep>());
    const uint64_t fenced = machine_.fenced();
    fetch(6);
    EXPECT_FALSE(did<BeginFetch>());
    EXPECT_EQ(machine_.exchange(), (ExchangeId{8, 5, 1}));
    EXPECT_EQ(machine_.fenced(), fenced + 1);
}

TEST_F(RankMachineTest, AStepInALayoutItDoesNotHoldIsNotBegun) {
    Quorum q = quorum(1, 2);
    q.layout = 3;
    tell(q);
    EXPECT_FALSE(did<BeginStep>());
    EXPECT_FALSE(machine_.exchange().has_value());
}

/// The joiner may be lost with the coordinator, and then no message would release the snapshot.
TEST_F(RankMachineTest, SnapshotsDoNotOutliveTheCoordinatorThatAskedForThem) {
    tell(KeepSnapshot{5, 0, true, {}, 0});
    give(SnapshotTaken{0});
    tell(Welcome{6, 1, "", "", 0, {}});
    ASSERT_NE(did<DropSnapshot>(), nullptr);
    EXPECT_EQ(did<DropSnapshot>()->step, 0u);
    tell(KeepSnapshot{6, 0, true, {}, 0});
    EXPECT_NE(did<TakeSnapshot>(), nullptr);
}

/// A joiner that is given the state as it lay before the move would replay gradients that do not
/// fit.
TEST_F(RankMachineTest, ASnapshotIsTakenAgainInTheLayoutItIsWantedIn) {
    tell(KeepSnapshot{5, 0, true, {}, 0});
    ASSERT_NE(did<TakeSnapshot>(), nullptr);
    give(SnapshotTaken{0});
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    tell(KeepSnapshot{5, 0, true, {}, 1});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);  // experts are on their way
    EXPECT_NE(did<DropSnapshot>(), nullptr);
    give(LayoutMoveDone{1, true, 10, "", 11});
    EXPECT_NE(did<TakeSnapshot>(), nullptr);
    give(SnapshotTaken{0});
    ASSERT_NE(did<SendLeader>(), nullptr);
    EXPECT_TRUE(std::holds_alternative<RankSnapshotReady>(did<SendLeader>()->message));
}

/// The move failed elsewhere: what a joiner is given must lie as before.
TEST_F(RankMachineTest, ASnapshotOfTheOldLayoutWaitsUntilTheRankHasGoneBack) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 11});
    tell(KeepSnapshot{5, 0, true, {}, 0});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);
    tell(quorum(1, 1));
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_NE(did<TakeSnapshot>(), nullptr);
}

/// Its answer may have gone with the connection that broke.
TEST_F(RankMachineTest, AMoveIsToldAgainUntilItIsSettled) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 77});
    const auto toldAgain = [&] {
        give(LeaderBack{});
        size_t times = 0;
        for (const RankAction& a : last_)
            if (const auto* s = std::get_if<SendLeader>(&a))
                times += std::holds_alternative<RankLayoutMoved>(s->message);
        return times;
    };
    EXPECT_EQ(toldAgain(), 1u);
    Quorum next = quorum(1, 1);
    next.layout = 1;
    tell(next);
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_EQ(toldAgain(), 0u);
}

/// Its siblings hold the sum and go on: the replica never reports as one.
TEST_F(RankMachineTest, ACommitThatItHoldsNoSumOfIsToldToTheCoordinatorUntilAFetch) {
    tell(quorum(1, 1));
    tell(commit(1, 1));
    const auto told = [&] {
        for (const RankAction& a : last_)
            if (const auto* s = std::get_if<SendUp>(&a))
                if (const auto* m = std::get_if<CommitMissed>(&s->message)) return m->step;
        return uint64_t{0};
    };
    EXPECT_EQ(told(), 1u);
    give(LeaderBack{});
    EXPECT_EQ(told(), 1u);
    Fetch f;
    f.term = 5;
    f.lineage = 1;
    f.snapshotStep = 1;
    tell(f);
    EXPECT_TRUE(did<BeginFetch>());
    give(LeaderBack{});
    EXPECT_EQ(told(), 0u);
}

TEST_F(RankMachineTest, AQuorumTakenBackForAMoveDoesNotComeToLifeAfterIt) {
    tell(quorum(1, 1));
    sumComplete(1, 1);
    tell(quorum(2, 1, 1, 1));
    tell(ChangeLayout{5, 1, 1, 1, {1, 0}});
    tell(commit(1, 1));
    give(Applied{1, 1});
    ASSERT_NE(did<MoveLayout>(), nullptr);
    give(LayoutMoveDone{1, true, 10, "", 13});
    EXPECT_EQ(did<SettleLayout>(), nullptr);
    EXPECT_EQ(did<BeginStep>(), nullptr);
}

/// The job waits for the very replicas that want the snapshot: no quorum will come before.
TEST_F(RankMachineTest, ARankGoesBackForASnapshotWhenItsMoveIsKnownToHaveFailed) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 11});
    tell(KeepSnapshot{5, 0, true, {}, 0, 1});
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_NE(did<TakeSnapshot>(), nullptr);
}

/// Another replica could not move, and the coordinator did not wait for this one.
/// Nobody may want a snapshot, and its siblings may not have moved.
TEST_F(RankMachineTest, AnOrderToDropASnapshotSaysWhichMovesAreSettledToo) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 11});
    tell(KeepSnapshot{5, 0, false, {}, 0, 1});
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
}

TEST_F(RankMachineTest, NoStepBeginsWhileExpertsAreOnTheirWay) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    tell(quorum(1, 1));
    EXPECT_EQ(did<BeginStep>(), nullptr);
    give(LayoutMoveDone{1, true, 10, "", 11});
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_NE(did<BeginStep>(), nullptr);
}

/// The other ranks of its replica may never have been told to move.
TEST_F(RankMachineTest, AMoveThatTheJobDoesNotWaitForIsAbandonedOnce) {
    const auto moving = [this] {
        tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
        ASSERT_NE(did<MoveLayout>(), nullptr);
        EXPECT_EQ(did<AbandonMove>(), nullptr);
    };
    moving();
    tell(quorum(1, 1));
    ASSERT_NE(did<AbandonMove>(), nullptr);
    EXPECT_EQ(did<AbandonMove>()->layout, 1u);
    tell(quorum(1, 2));
    EXPECT_EQ(did<AbandonMove>(), nullptr) << "once";
    give(LayoutMoveDone{1, false, 0, "not all were ready", 11});
    EXPECT_EQ(did<SettleLayout>(), nullptr) << "nothing has moved";
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_EQ(did<BeginStep>()->quorum.epoch, 2u);
}

TEST_F(RankMachineTest, AnOrderForJoinersOrAnotherCoordinatorSaysThatAMoveIsNotWaitedForToo) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    tell(KeepSnapshot{5, 0, true, {}, 0, 0});
    EXPECT_EQ(did<AbandonMove>(), nullptr) << "nothing is settled";
    tell(KeepSnapshot{5, 0, true, {}, 0, 1});
    EXPECT_NE(did<AbandonMove>(), nullptr);
    give(LayoutMoveDone{1, false, 0, "", 11});
    tell(ChangeLayout{5, 0, 0, 2, {1, 0}});
    tell(ChangeLayout{6, 0, 0, 3, {1, 0}});
    ASSERT_NE(did<AbandonMove>(), nullptr) << "another move";
    EXPECT_EQ(did<AbandonMove>()->layout, 2u);
    EXPECT_EQ(did<MoveLayout>(), nullptr) << "one at a time";
    give(LayoutMoveDone{2, false, 0, "", 11});
    ASSERT_NE(did<MoveLayout>(), nullptr);
    EXPECT_EQ(did<MoveLayout>()->layout, 3u);
}

/// A coordinator died between the move and the step: its successor asks for the same ranges.
TEST_F(RankMachineTest, AGradientOfTheLayoutBeforeIsNotExchangedInTheNextOne) {
    tell(quorum(1, 1));
    give(ComputeDone{1, false});
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, ""});
    Quorum again = quorum(1, 2);
    again.layout = 1;
    tell(again);
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_TRUE(did<BeginStep>()->compute);
}

/// It overtook nobody on its own connection: a sibling brought it late.
TEST_F(RankMachineTest, AQuorumFromBeforeAMoveIsRefusedAfterIt) {
    tell(ChangeLayout{5, 0, 1, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 11});
    const uint64_t fenced = machine_.fenced();
    tell(quorum(1, 1));
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_EQ(did<SettleLayout>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    Quorum after = quorum(1, 2);
    after.layout = 1;
    tell(after);
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_TRUE(did<SettleLayout>()->adopt);
    EXPECT_NE(did<BeginStep>(), nullptr);
}

TEST_F(RankMachineTest, ACheckpointThatIsWantedWhileItsStepIsAppliedIsWrittenBehindIt) {
    tell(quorum(1, 1));
    sumComplete(1, 1);
    tell(commit(1, 1));
    ASSERT_NE(did<ApplyCommit>(), nullptr);
    Commit again = commit(1, 1);
    again.checkpoint = true;
    tell(again);
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr);
    give(Applied{1, 1});
    ASSERT_NE(did<WriteCheckpoint>(), nullptr);
    EXPECT_EQ(did<WriteCheckpoint>()->step, 1u);
}

TEST_F(RankMachineTest, ACheckpointWaitsForAMoveAndForWhereItLeads) {
    tell(quorum(1, 1));
    sumComplete(1, 1);
    tell(commit(1, 1));
    give(Applied{1, 1});
    tell(ChangeLayout{5, 1, 1, 1, {1, 0}});
    Commit wanted = commit(1, 1);
    wanted.checkpoint = true;
    tell(wanted);
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr);
    // Another replica could not move: said while this one is still at it.
    tell(KeepSnapshot{5, 0, false, {}, 0, 1});
    give(LayoutMoveDone{1, true, 10, "", 13});
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_NE(did<WriteCheckpoint>(), nullptr);
}

/// Its move was of a coordinator that is gone, and the next one has moved on without this rank.
TEST_F(RankMachineTest, ARankInALayoutThatNobodyKnowsGoesBackAndSaysSo) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 13});
    tell(Welcome{6, 1, "", "", 2, {}});
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_EQ(did<SettleLayout>()->countsInstead, 0u);
    ASSERT_NE(did<SendLeader>(), nullptr);
    const auto* report = std::get_if<RankReport>(&did<SendLeader>()->message);
    ASSERT_NE(report, nullptr);
    EXPECT_EQ(report->layout, 0u) << "it does not hold layout 2";
}

TEST_F(RankMachineTest, OnlyALeaderRemovesCheckpointsAndNotForAnOlderCoordinator) {
    tell(DiscardCheckpoints{4, {"a"}});
    EXPECT_EQ(did<RemoveCheckpoints>(), nullptr);
    tell(DiscardCheckpoints{5, {"a"}});
    EXPECT_NE(did<RemoveCheckpoints>(), nullptr);
    RankMachine other(RankConfig{{1, 1}, 3, 2, 1000});
    EXPECT_TRUE(other.step(now_, FromCoordinator{DiscardCheckpoints{5, {"a"}}}).empty());
}

TEST_F(RankMachineTest, AnOrderToMoveThatComesTwiceMovesOnce) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    ASSERT_NE(did<MoveLayout>(), nullptr);
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    EXPECT_EQ(did<MoveLayout>(), nullptr);
    give(LayoutMoveDone{1, true, 10, "", 77});
    EXPECT_EQ(did<MoveLayout>(), nullptr);
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    EXPECT_EQ(did<MoveLayout>(), nullptr) << "it has moved";
}

// ---- what it says it does is what it does: peers wait for a slow rank, not for a dead one

TEST_F(RankMachineTest, ItsPhaseIsThatOfItsWork) {
    EXPECT_EQ(RankMachine(RankConfig{}).phase(), Phase::kStarting);
    EXPECT_EQ(machine_.phase(), Phase::kIdle);
    tell(quorum(1, 2));
    EXPECT_EQ(machine_.phase(), Phase::kCompute);
    give(ComputeDone{1, false});
    EXPECT_EQ(machine_.phase(), Phase::kExchange);
    give(ExchangeDone{{1, 2, 1}, true, {}});
    EXPECT_EQ(machine_.phase(), Phase::kVote);
    tell(commit(1, 2));
    EXPECT_EQ(machine_.phase(), Phase::kApply);
    give(Applied{1, 1});
    EXPECT_EQ(machine_.phase(), Phase::kIdle);
    tell(quorum(2, 2, 1, 2));
    EXPECT_EQ(machine_.phase(), Phase::kCompute) << "the gradient of the step before is gone";
    EXPECT_TRUE(did<BeginStep>()->compute);
    tell(Abort{5, 2, 2, 1, "r0 lost"});
    EXPECT_EQ(machine_.phase(), Phase::kCompute) << "it computes on";
    give(ComputeDone{2, false});
    EXPECT_EQ(machine_.phase(), Phase::kVote) << "it has voted already";
    tell(quorum(2, 3, 2, 2));
    EXPECT_EQ(machine_.phase(), Phase::kExchange) << "the gradient is there";
    tell([] {
        Quorum without = quorum(2, 4, 3, 2);
        without.contributors.pop_back();
        return without;
    }());
    EXPECT_EQ(machine_.phase(), Phase::kIdle);
}

TEST_F(RankMachineTest, WhatItsDriverAnswersTooLateOrTwiceChangesNothing) {
    give(ComputeDone{1, false});
    EXPECT_THAT(last_, ::testing::IsEmpty());
    tell(quorum(1, 2));
    give(ComputeDone{2, false});
    EXPECT_EQ(machine_.phase(), Phase::kCompute);
    const uint64_t fenced = machine_.fenced();
    for (const ExchangeId id : {ExchangeId{1, 2, 2}, ExchangeId{1, 1, 1}, ExchangeId{2, 2, 1}}) {
        give(ExchangeDone{id, true, {}});
        EXPECT_EQ(voted(), nullptr);
    }
    EXPECT_EQ(machine_.fenced(), fenced + 3);
    sumComplete(1, 2);
    ASSERT_NE(voted(), nullptr);
    give(ExchangeDone{{1, 2, 1}, false, {}});
    EXPECT_EQ(voted(), nullptr) << "a yes is never taken back";
    give(ComputeDone{1, true});
    EXPECT_EQ(voted(), nullptr);
    give(Applied{1, 1});
    EXPECT_EQ(machine_.appliedStep(), 0u) << "nobody told it to";
    tell(commit(1, 2));
    give(Applied{2, 1});
    EXPECT_EQ(machine_.appliedStep(), 0u);
    give(Replayed{1});
    give(FetchDone{1, 12});
    give(FetchAdvanced{1, 2});
    EXPECT_THAT(last_, ::testing::IsEmpty());
    EXPECT_EQ(machine_.appliedStep(), 0u);
    give(Applied{1, 1});
    EXPECT_EQ(machine_.appliedStep(), 1u);
}

TEST_F(RankMachineTest, AGradientThatIsNotFiniteEndsItsExchangeUnlessThatHasEnded) {
    tell(quorum(1, 2));
    give(ComputeDone{1, true});
    ASSERT_NE(did<AbortExchange>(), nullptr);
    EXPECT_EQ(did<AbortExchange>()->id, (ExchangeId{1, 2, 1}));
    tell(quorum(1, 3, 2));
    ASSERT_NE(did<BeginStep>(), nullptr);
    Quorum anew = quorum(1, 4, 3);
    anew.contributors.back().computation = 1;
    tell(anew);
    tell(Abort{5, 1, 4, 3, "r0 lost"});
    ASSERT_NE(did<AbortExchange>(), nullptr);
    give(ComputeDone{1, true});
    EXPECT_EQ(did<AbortExchange>(), nullptr);
    ASSERT_NE(voted(), nullptr);
    EXPECT_TRUE(voted()->nonFiniteLocal);
}

TEST_F(RankMachineTest, AnotherCoordinatorLearnsWhatItHoldsAndWhatItHasVoted) {
    const auto reported = [this]() -> const RankReport* {
        for (const RankAction& a : last_)
            if (const auto* s = std::get_if<SendLeader>(&a))
                if (const auto* r = std::get_if<RankReport>(&s->message)) return r;
        return nullptr;
    };
    const auto votedAgain = [this] {
        size_t n = 0;
        for (const RankAction& a : last_)
            if (const auto* s = std::get_if<SendLeader>(&a))
                n += std::holds_alternative<RankVote>(s->message);
        return n;
    };
    tell(quorum(1, 2));
    tell(Welcome{5, 1, "", "", 0, {}});
    ASSERT_NE(reported(), nullptr);
    EXPECT_EQ(reported()->retainedStep, 1u);
    EXPECT_EQ(reported()->retained, (std::vector<SampleRange>{{0, 4, 8}}));
    EXPECT_TRUE(reported()->ready);
    EXPECT_FALSE(reported()->following);
    EXPECT_EQ(votedAgain(), 0u) << "there is none";
    sumComplete(1, 2);
    tell(Welcome{6, 1, "", "", 0, {}});
    EXPECT_EQ(votedAgain(), 1u);
    give(LeaderBack{});
    EXPECT_EQ(votedAgain(), 1u) << "the leader may not have heard of it";
    EXPECT_NE(reported(), nullptr);
    Commit c = commit(1, 2);
    c.term = 6;
    tell(c);
    give(Applied{1, 1});
    ASSERT_NE(reported(), nullptr);
    EXPECT_EQ(reported()->step, 1u);
    EXPECT_FALSE(reported()->hash) << "it tells at once where it stands";
    ASSERT_NE(did<HashState>(), nullptr);
    give(StateHashed{1, 12, 1});
    EXPECT_EQ(reported()->hash, 12u);
    EXPECT_EQ(reported()->retainedStep, 0u);
    ASSERT_TRUE(reported()->last.has_value());
    EXPECT_EQ(reported()->last->step, 1u);
    tell(Welcome{6, 1, "", "", 0, {}});
    EXPECT_EQ(votedAgain(), 0u) << "that step is over";
    RankMachine young(RankConfig{{1, 0}, 3, 1, 1000});
    (void)young.step(now_, FromCoordinator{Welcome{5, 1, "", "", 0, {}}});
    (void)young.step(now_, FromCoordinator{ReplicaFormed{5, 3, {}, false}});
    EXPECT_THAT(young.step(now_, FromCoordinator{Welcome{5, 1, "", "", 0, {}}}),
                ::testing::IsEmpty())
        << "its model does not stand yet";
}

TEST_F(RankMachineTest, WhoMissedTheSumOfACommittedStepSaysThatItCannotGoOn) {
    tell(quorum(1, 2));
    tell(commit(1, 2));
    EXPECT_NE(did<DropStep>(), nullptr);
    EXPECT_NE(did<AbortExchange>(), nullptr);
    EXPECT_EQ(did<ApplyCommit>(), nullptr);
    const auto* report = std::get_if<RankReport>(&did<SendLeader>()->message);
    ASSERT_NE(report, nullptr);
    EXPECT_FALSE(report->ready);
    EXPECT_TRUE(report->hasState);
    EXPECT_EQ(report->step, 0u);
    EXPECT_EQ(machine_.phase(), Phase::kIdle);
    give(FetchBroke{true, {}, "no source"});
    EXPECT_THAT(last_, ::testing::IsEmpty()) << "it fetches nothing yet";
}

TEST_F(RankMachineTest, WhoMissedASumAfterItHadComputedIsAJoinerLikeAnyOther) {
    give(Connected{});
    tell(quorum(1, 2));
    give(ComputeDone{1, false});
    tell(commit(1, 2));
    tell(quorum(1, 3, 2));
    EXPECT_EQ(did<BeginStep>(), nullptr) << "it cannot go on before it has fetched";
    for (const bool orphan : {false, true}) {
        RankMachine behind = machine_;
        if (orphan) (void)behind.step(now_, Disconnected{});
        const auto end =
            orphan ? behind.step(now_ + 3 * kSecond, RankTick{}) : behind.step(now_, Terminate{});
        ASSERT_EQ(end.size(), 1u) << "nobody is asked whether it may leave";
        EXPECT_FALSE(std::get<ExitRank>(end[0]).checkpoint) << "the job is a step ahead";
    }
    Fetch f;
    f.term = 5;
    f.lineage = 1;
    f.snapshotStep = 1;
    f.snapshotEpoch = 2;
    tell(f);
    give(FetchDone{1, 12, 0});
    Quorum next = quorum(2, 4, 1, 2);
    next.contributors[1].entering = true;
    tell(next);
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_TRUE(did<BeginStep>()->enter);
    give(ExchangeDone{{2, 4, 1}, true, {}});
    ASSERT_NE(voted(), nullptr);
    EXPECT_EQ(machine_.phase(), Phase::kIdle) << "no gradient of its own waits for a vote";
}

TEST_F(RankMachineTest, ItsLastStepIsReplayedForItsVerdictAndNoOtherIs) {
    tell(ReplayLast{5, 1});
    EXPECT_EQ(did<JudgeReplay>(), nullptr);
    tell(ReplayLast{4, 0});
    EXPECT_EQ(did<JudgeReplay>(), nullptr);
    tell(ReplayLast{5, 0});
    ASSERT_NE(did<JudgeReplay>(), nullptr);
    give(ReplayJudged{0, true, false});
    const auto* verdict = std::get_if<RankVerdict>(&did<SendLeader>()->message);
    ASSERT_NE(verdict, nullptr);
    EXPECT_FALSE(verdict->matches);
    EXPECT_EQ(verdict->incarnation, 3u);
}

/// A blank rank, as it catches up with a job whose last commit is of step 6.
class JoiningTest : public ::testing::Test {
  protected:
    JoiningTest() {
        tell(Welcome{0, 1, "", "", 0, {}});
        tell(ReplicaFormed{0, 1, {}, true});
        give(InitDone{false, 0, 0, 0});
    }
    void give(RankInput in) { last_ = laws_.step(machine_, kSecond, in); }
    void tell(ToReplica m) { give(FromCoordinator{std::move(m)}); }
    void fetch(uint64_t step, uint64_t layout = 0) {
        Fetch f;
        f.lineage = 1;
        f.snapshotStep = step;
        f.snapshotEpoch = 4;
        f.layout = layout;
        tell(f);
    }
    void committed(uint64_t step, bool checkpoint = false) {
        Commit c;
        c.record.lineage = 1;
        c.record.step = step;
        c.record.epoch = 4;
        c.record.attempt = 1;
        c.checkpoint = checkpoint;
        tell(c);
    }
    template <class A>
    const A* did() const {
        for (const RankAction& a : last_)
            if (const A* x = std::get_if<A>(&a)) return x;
        return nullptr;
    }
    template <class M>
    const M* said() const {
        for (const RankAction& a : last_)
            if (const auto* s = std::get_if<SendLeader>(&a))
                if (const M* m = std::get_if<M>(&s->message)) return m;
        return nullptr;
    }
    const FetchFailed* failed() const {
        const auto* up = did<SendUp>();
        return up ? std::get_if<FetchFailed>(&up->message) : nullptr;
    }
    RankLaws laws_;
    RankMachine machine_{RankConfig{{2, 0}, 1, 1, 1000}};
    RankActions last_;
};

TEST_F(JoiningTest, ItFetchesReplaysFollowsAndTellsHowFarItIs) {
    fetch(6);
    ASSERT_NE(did<BeginFetch>(), nullptr);
    EXPECT_FALSE(did<BeginFetch>()->sourcesOnly);
    EXPECT_EQ(machine_.phase(), Phase::kFetch);
    give(FetchAdvanced{10, 100});
    ASSERT_NE(said<RankFetchProgress>(), nullptr);
    EXPECT_EQ(said<RankFetchProgress>()->snapshotStep, 6u);
    EXPECT_EQ(said<RankFetchProgress>()->bytesDone, 10u);
    EXPECT_EQ(said<RankFetchProgress>()->bytesTotal, 100u);
    EXPECT_EQ(said<RankFetchProgress>()->step, 0u);
    committed(5);
    committed(6);
    committed(7);
    committed(8);
    EXPECT_EQ(did<ReplayCommit>(), nullptr);
    give(FetchDone{5, 50});
    EXPECT_EQ(machine_.appliedStep(), 0u);
    give(FetchDone{6, 61, 1});
    EXPECT_EQ(machine_.appliedStep(), 0u) << "of a layout that it is not wanted in";
    give(FetchDone{6, 60});
    EXPECT_EQ(machine_.appliedStep(), 6u);
    EXPECT_EQ(machine_.phase(), Phase::kReplay);
    ASSERT_NE(did<ReplayCommit>(), nullptr);
    EXPECT_EQ(did<ReplayCommit>()->record.step, 7u);
    EXPECT_EQ(said<RankReport>(), nullptr) << "it does not follow yet";
    give(Replayed{8});
    EXPECT_EQ(machine_.appliedStep(), 6u);
    give(Replayed{7});
    ASSERT_NE(said<RankFetchProgress>(), nullptr);
    EXPECT_EQ(said<RankFetchProgress>()->step, 7u);
    EXPECT_EQ(said<RankReport>(), nullptr);
    ASSERT_NE(did<ReplayCommit>(), nullptr);
    EXPECT_EQ(machine_.phase(), Phase::kReplay);
    EXPECT_EQ(did<HashState>(), nullptr) << "nobody compares that";
    give(Replayed{8});
    ASSERT_NE(said<RankReport>(), nullptr);
    EXPECT_FALSE(said<RankReport>()->hash) << "it is not late for that";
    ASSERT_NE(did<HashState>(), nullptr);
    give(StateHashed{8, 80, 1});
    ASSERT_NE(said<RankReport>(), nullptr);
    EXPECT_TRUE(said<RankReport>()->following);
    EXPECT_TRUE(said<RankReport>()->ready);
    EXPECT_EQ(said<RankReport>()->step, 8u);
    EXPECT_EQ(said<RankReport>()->hash, 80u);
    EXPECT_EQ(said<RankReport>()->snapshotStep, 6u);
    EXPECT_EQ(machine_.phase(), Phase::kIdle) << "there is nothing to get on with";
    committed(8);
    EXPECT_EQ(did<ReplayCommit>(), nullptr);
    committed(9);
    EXPECT_EQ(machine_.phase(), Phase::kReplay);
    give(FetchDone{6, 60});
    EXPECT_EQ(machine_.appliedStep(), 8u) << "that was long ago";
}

/// A new coordinator waits for it: that it follows a state which nobody names may be all there is.
TEST_F(JoiningTest, AHashThatACoordinatorAskedForIsToldOfTheNextStateIfThatComesFirst) {
    fetch(6);
    give(FetchDone{6, 60});
    committed(7);
    give(Replayed{7});
    ASSERT_NE(did<HashState>(), nullptr);
    give(StateHashed{7, 70, 1});
    Quorum seldom;
    seldom.lineage = 1;
    seldom.step = 9;
    seldom.checkParity = false;
    tell(seldom);
    committed(8);
    give(Replayed{8});
    ASSERT_EQ(did<HashState>(), nullptr) << "nobody compares that";
    give(LeaderBack{});
    ASSERT_NE(did<HashState>(), nullptr);
    seldom.step = 10;
    tell(seldom);
    committed(9);
    give(Replayed{9});
    ASSERT_NE(did<HashState>(), nullptr);
    EXPECT_EQ(did<HashState>()->step, 9u);
    give(StateHashed{9, 90, 1});
    ASSERT_NE(said<RankReport>(), nullptr);
    EXPECT_EQ(said<RankReport>()->hash, 90u);
}

TEST_F(JoiningTest, AFetchThatBreaksIsToldToTheCoordinatorWithWhoFailed) {
    give(FetchBroke{false, {1}, "reset"});
    EXPECT_EQ(failed(), nullptr);
    fetch(6);
    give(FetchBroke{true, {0, 1}, "reset"});
    ASSERT_NE(failed(), nullptr);
    EXPECT_EQ(failed()->replica, 2);
    EXPECT_EQ(failed()->incarnation, 1u);
    EXPECT_EQ(failed()->snapshotStep, 6u);
    EXPECT_TRUE(failed()->outOfWindow);
    EXPECT_EQ(failed()->failedSources, (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(failed()->why, "reset");
}

/// That word may be lost with a connection, and the coordinator would wait for the fetch.
TEST_F(JoiningTest, AFetchThatBrokeIsToldAgainUntilAnotherBegins) {
    fetch(6);
    give(FetchBroke{true, {0}, "the sum is gone"});
    give(LeaderBack{});
    ASSERT_NE(failed(), nullptr);
    EXPECT_EQ(failed()->snapshotStep, 6u);
    fetch(6);  // the coordinator, which has not heard of it, says again what it had said
    give(LeaderBack{});
    EXPECT_NE(failed(), nullptr);
    fetch(7);
    give(LeaderBack{});
    EXPECT_EQ(failed(), nullptr);
    give(FetchBroke{false, {0}, "reset"});
    fetch(7);  // from others
    give(LeaderBack{});
    EXPECT_EQ(failed(), nullptr);
}

TEST_F(JoiningTest, TheSameSnapshotFromOtherSourcesKeepsWhatArrivedAndAYoungerOneDoesNot) {
    fetch(6);
    fetch(6);
    ASSERT_NE(did<BeginFetch>(), nullptr);
    EXPECT_TRUE(did<BeginFetch>()->sourcesOnly);
    fetch(6, 1);
    EXPECT_FALSE(did<BeginFetch>()->sourcesOnly) << "it lies otherwise";
    fetch(9, 1);
    EXPECT_FALSE(did<BeginFetch>()->sourcesOnly);
    fetch(6, 1);
    EXPECT_EQ(did<BeginFetch>(), nullptr) << "an order that was overtaken";
    give(FetchDone{9, 90, 1});
    EXPECT_EQ(machine_.phase(), Phase::kIdle);
    fetch(9, 1);
    EXPECT_TRUE(did<BeginFetch>()->sourcesOnly);
    EXPECT_EQ(machine_.phase(), Phase::kIdle) << "the state is there";
    fetch(12, 1);
    EXPECT_FALSE(machine_.hasState());
    EXPECT_EQ(machine_.phase(), Phase::kFetch);
}

TEST_F(JoiningTest, ARecordThatDidNotComeMakesItAskForAYoungerSnapshot) {
    fetch(6);
    committed(8);
    give(FetchDone{6, 60});
    EXPECT_EQ(did<ReplayCommit>(), nullptr);
    ASSERT_NE(failed(), nullptr);
    EXPECT_TRUE(failed()->outOfWindow);
    EXPECT_THAT(failed()->why, ::testing::HasSubstr("step 7 did not come"));
}

/// A drained or stopped job's last state may be a joiner's.
TEST_F(JoiningTest, ACheckpointThatIsWantedWhileItReplaysIsWrittenWhenItIsThere) {
    committed(6, true);
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr) << "it has no state";
    fetch(6);
    give(FetchDone{6, 60});
    committed(7);
    committed(6, true);
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr) << "the state is neither 6's nor 7's";
    give(Replayed{7});
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr) << "6 is past";
    committed(7, true);
    ASSERT_NE(did<WriteCheckpoint>(), nullptr);
    EXPECT_EQ(did<WriteCheckpoint>()->step, 7u);
    give(Replayed{8});
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr);
}

TEST_F(JoiningTest, OfAFollowerAStateIsServedAsItStands) {
    fetch(6);
    tell(KeepSnapshot{0, 6, true, {}, 0});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);
    give(FetchDone{6, 60});
    ASSERT_NE(did<TakeSnapshot>(), nullptr) << "it was wanted of the state that is there now";
    EXPECT_EQ(did<TakeSnapshot>()->step, 6u);
}

TEST_F(RankMachineTest, AMoveThatIsSettledBeforeItEndsIsKeptOrUndoneAtOnce) {
    for (const bool counts : {true, false}) {
        RankMachine m(RankConfig{{1, 0}, 3, 1, 1000});
        const auto tellIt = [&](ToReplica x) { last_ = m.step(now_, FromCoordinator{x}); };
        tellIt(Welcome{5, 1, "", "", 0, {}});
        tellIt(ReplicaFormed{5, 3, {}, false});
        last_ = m.step(now_, InitDone{true, 0, 11, 0});
        tellIt(ChangeLayout{5, 0, 0, 1, {1, 0}});
        tellIt(KeepSnapshot{5, 0, false, {}, counts ? 1u : 0u, 1});
        EXPECT_EQ(did<SettleLayout>(), nullptr) << "experts are on their way";
        last_ = m.step(now_, LayoutMoveDone{1, true, 10, "", 13});
        ASSERT_NE(did<SettleLayout>(), nullptr);
        EXPECT_EQ(did<SettleLayout>()->adopt, counts);
    }
}

/// A layout that an earlier coordinator settled does not settle a later one's moves.
TEST_F(RankMachineTest, AMoveThatNothingWasSaidOfWaitsForItsQuorum) {
    tell(KeepSnapshot{5, 0, false, {}, 0, 3});
    tell(Welcome{6, 1, "", "", 0, {}});
    tell(ChangeLayout{6, 0, 0, 4, {1, 0}});
    give(LayoutMoveDone{4, true, 10, "", 13});
    EXPECT_EQ(did<SettleLayout>(), nullptr);
    Quorum q = quorum(1, 1);
    q.term = 6;
    q.layout = 4;
    tell(q);
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_TRUE(did<SettleLayout>()->adopt);
}

// ---- birth, death, and who is heard

TEST(RankBirthTest, ARankBuildsOnceItsReplicaIsWholeAsItsWelcomeSays) {
    RankMachine m(RankConfig{{1, 0}, 3, 1, 1000});
    RankLaws laws;
    const auto tell = [&](ToReplica x) {
        return laws.step(m, kSecond, FromCoordinator{std::move(x)});
    };
    EXPECT_THAT(tell(ReplicaFormed{5, 3, {}, false}), ::testing::IsEmpty()) << "no Welcome yet";
    EXPECT_THAT(tell(Welcome{5, 7, "job", "/c/4", 2, {1, 0}}), ::testing::IsEmpty());
    EXPECT_THAT(laws.step(m, kSecond, LeaderBack{}), ::testing::IsEmpty());
    EXPECT_THAT(tell(ReplicaFormed{5, 2, {}, false}), ::testing::IsEmpty()) << "another life";
    EXPECT_THAT(tell(ReplicaFormed{4, 3, {}, false}), ::testing::IsEmpty());
    const auto built = tell(ReplicaFormed{5, 3, {}, false});
    ASSERT_EQ(built.size(), 1u);
    const auto& build = std::get<BuildReplica>(built[0]);
    EXPECT_EQ(build.welcome.resumeFrom, "/c/4");
    EXPECT_EQ(build.welcome.layout, 2u);
    EXPECT_THAT(tell(ReplicaFormed{5, 3, {}, false}), ::testing::IsEmpty()) << "it is at it";
    EXPECT_EQ(m.phase(), Phase::kStarting);
    EXPECT_THAT(laws.step(m, kSecond, LeaderBack{}), ::testing::IsEmpty());
    const auto done = laws.step(m, kSecond, InitDone{true, 4, 44, 6});
    ASSERT_EQ(done.size(), 1u);
    const auto& r = std::get<RankReport>(std::get<SendLeader>(done[0]).message);
    EXPECT_EQ(r.rank, (RankId{1, 0}));
    EXPECT_EQ(r.incarnation, 3u);
    EXPECT_EQ(r.lineage, 7u);
    EXPECT_EQ(r.step, 4u);
    EXPECT_EQ(r.hash, 44u);
    EXPECT_TRUE(r.ready);
    EXPECT_FALSE(r.following);
    EXPECT_EQ(r.layout, 6u) << "as the checkpoint lies";
    EXPECT_EQ(r.moved, 6u);
    EXPECT_EQ(m.phase(), Phase::kIdle);
}

TEST(RankBirthTest, ABlankOneLiesAsItWasWelcomedAndHasNothing) {
    RankMachine m(RankConfig{{1, 0}, 3, 1, 1000});
    RankLaws laws;
    (void)laws.step(m, kSecond, FromCoordinator{Welcome{5, 7, "", "", 2, {}}});
    (void)laws.step(m, kSecond, FromCoordinator{ReplicaFormed{5, 3, {}, true}});
    const auto done = laws.step(m, kSecond, InitDone{false, 0, 0, 0});
    ASSERT_EQ(done.size(), 1u);
    const auto& r = std::get<RankReport>(std::get<SendLeader>(done[0]).message);
    EXPECT_FALSE(r.hasState || r.ready || r.following);
    EXPECT_EQ(r.layout, 2u);
    // It has nothing to lose.
    const auto end = laws.step(m, kSecond, Terminate{});
    ASSERT_EQ(end.size(), 1u);
    EXPECT_TRUE(std::get<ExitRank>(end[0]).ok);
    EXPECT_FALSE(std::get<ExitRank>(end[0]).checkpoint);
}

/// In the midst of a step, of a move and at rest: whatever an older coordinator says, nothing is
/// done, and it is counted (the rank's laws look).
TEST_F(RankMachineTest, AnOlderCoordinatorIsNotHeard) {
    const auto hearAll = [this] {
        const uint64_t fenced = machine_.fenced();
        Quorum q = quorum(1, 9);
        q.term = 4;
        Commit c = commit(1, 2);
        c.term = c.record.term = 4;
        Fetch f;
        f.term = 4;
        f.lineage = 1;
        f.snapshotStep = 3;
        const std::vector<ToReplica> all = {Welcome{4, 1, "", "", 1, {}},
                                            ReplicaFormed{4, 3, {}, false},
                                            q,
                                            c,
                                            Abort{4, 1, 2, 1, "old"},
                                            KeepSnapshot{4, 0, true, {}},
                                            f,
                                            ReplayLast{4, 0},
                                            ChangeLayout{4, 0, 0, 9, {}},
                                            Expelled{4, 3, "old"},
                                            Leave{4, "old"},
                                            DiscardCheckpoints{4, {"a"}}};
        for (const ToReplica& m : all) tell(m);
        EXPECT_EQ(machine_.fenced(), fenced + all.size());
        EXPECT_FALSE(machine_.exited());
    };
    hearAll();
    tell(quorum(1, 2));
    hearAll();
    EXPECT_EQ(machine_.exchange(), (ExchangeId{1, 2, 1}));
    sumComplete(1, 2);
    hearAll();
    tell(ChangeLayout{5, 0, 2, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 13});
    hearAll();
}

TEST_F(RankMachineTest, WhatWaitedForACommitIsVoidUnderAnotherCoordinator) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(quorum(2, 2, 1, 2));
    tell(ChangeLayout{5, 1, 1, 1, {1, 0}});
    tell(KeepSnapshot{5, 1, true, {}, 0});
    tell(Welcome{6, 1, "", "", 0, {}});
    Commit c = commit(1, 2);
    c.term = 6;
    tell(c);
    ASSERT_NE(did<ApplyCommit>(), nullptr);
    give(Applied{1, 1});
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_EQ(did<MoveLayout>(), nullptr);
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);
}

TEST_F(RankMachineTest, WhoIsToLeaveEndsItsExchangeFirst) {
    tell(quorum(1, 2));
    tell(Leave{5, "drained"});
    ASSERT_EQ(last_.size(), 3u);
    EXPECT_EQ(std::get<AbortExchange>(last_[0]).id, (ExchangeId{1, 2, 1}));
    EXPECT_EQ(std::get<DropStep>(last_[1]).step, 1u);
    EXPECT_TRUE(std::get<ExitRank>(last_[2]).ok);
    EXPECT_FALSE(std::get<ExitRank>(last_[2]).checkpoint);
    EXPECT_EQ(std::get<ExitRank>(last_[2]).why, "drained");
    EXPECT_TRUE(machine_.exited());
    give(RankTick{});
}

TEST_F(RankMachineTest, APoliteSignalAsksASecondOneEnds) {
    give(Connected{});
    give(Terminate{});
    ASSERT_NE(did<SendUp>(), nullptr);
    EXPECT_TRUE(std::holds_alternative<LeaveAsked>(did<SendUp>()->message));
    EXPECT_FALSE(machine_.exited());
    give(LeaderBack{});
    ASSERT_NE(did<SendUp>(), nullptr) << "it may not have been heard";
    EXPECT_TRUE(std::holds_alternative<LeaveAsked>(did<SendUp>()->message));
    give(Terminate{});
    ASSERT_NE(did<ExitRank>(), nullptr);
    EXPECT_FALSE(did<ExitRank>()->checkpoint);
}

TEST_F(RankMachineTest, ASignalWithoutACoordinatorWritesTheStateFirst) {
    give(Connected{});
    give(Disconnected{});
    give(Terminate{});
    ASSERT_NE(did<ExitRank>(), nullptr);
    EXPECT_TRUE(did<ExitRank>()->checkpoint);
}

/// A controller that cannot take its job up accepts connections, and takes nobody.
TEST_F(RankMachineTest, ASignalUnderACoordinatorThatHasNotTakenItWritesTheStateFirst) {
    give(Connected{});
    give(Disconnected{});
    give(Connected{});
    give(Terminate{});
    ASSERT_NE(did<ExitRank>(), nullptr);
    EXPECT_TRUE(did<ExitRank>()->checkpoint);
}

TEST_F(RankMachineTest, AnOrderedFaultIsCarriedOut) {
    tell(CommitFault{});
    EXPECT_NE(did<InjectFault>(), nullptr);
}

// ---- quorums

TEST_F(RankMachineTest, AQuorumOfAnotherLineageOrOfACommittedStepIsVoid) {
    Quorum other = quorum(1, 2);
    other.lineage = 2;
    const uint64_t fenced = machine_.fenced();
    tell(other);
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(commit(1, 2));
    give(Applied{1, 1});
    tell(quorum(1, 3, 2));
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 2);
}

TEST_F(RankMachineTest, OfTwoQuorumsThatWaitTheYoungerStays) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(quorum(2, 4, 1, 2));
    const uint64_t fenced = machine_.fenced();
    tell(quorum(2, 3, 1, 2));
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    tell(commit(1, 2));
    give(Applied{1, 1});
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_EQ(did<BeginStep>()->quorum.epoch, 4u);
}

TEST_F(RankMachineTest, AnotherLifeOfThisReplicaIsSomebodyElse) {
    Quorum q = quorum(1, 2);
    q.contributors[1].contribution.incarnation = 4;
    tell(q);
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_FALSE(machine_.exchange().has_value());
}

TEST_F(RankMachineTest, AYoungerAttemptEndsTheRunningExchangeAndForgetsItsVote) {
    tell(quorum(1, 2));
    tell(quorum(1, 3, 2));
    ASSERT_NE(did<AbortExchange>(), nullptr);
    EXPECT_EQ(did<AbortExchange>()->id, (ExchangeId{1, 2, 1}));
    sumComplete(1, 3, 2);
    tell(quorum(1, 4, 3));
    EXPECT_EQ(did<AbortExchange>(), nullptr) << "that exchange has ended";
    give(LeaderBack{});
    for (const RankAction& a : last_)
        if (const auto* s = std::get_if<SendLeader>(&a)) {
            EXPECT_FALSE(std::holds_alternative<RankVote>(s->message)) << "it has not voted on it";
        }
    // Its ranges are others': the gradient is not that of the step before.
    Quorum shifted = quorum(1, 5, 4);
    shifted.contributors[1].contribution.ranges = {{0, 8, 12}};
    tell(shifted);
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_TRUE(did<BeginStep>()->compute);
    EXPECT_EQ(did<BeginStep>()->ranges, (std::vector<SampleRange>{{0, 8, 12}}));
}

TEST_F(RankMachineTest, WhoIsLeftOutDropsTheStepAndComputesAnewWhenItIsBack) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    Quorum without = quorum(1, 3, 2);
    without.contributors.pop_back();
    tell(without);
    ASSERT_NE(did<DropStep>(), nullptr);
    EXPECT_NE(did<AbortExchange>(), nullptr);
    EXPECT_FALSE(machine_.exchange().has_value());
    tell(quorum(1, 4, 3));
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_TRUE(did<BeginStep>()->compute);
    EXPECT_EQ(machine_.phase(), Phase::kCompute);
    EXPECT_EQ(did<AbortExchange>(), nullptr);
}

TEST_F(RankMachineTest, AWordOnTheEndThatCameTooLateIsOfNoOtherQuorum) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(quorum(2, 2, 1, 2));
    tell(Abort{5, 2, 2, 1, "r0 lost"});
    tell(quorum(2, 3, 1, 2));
    tell(commit(1, 2));
    give(Applied{1, 7.5, 2.5});
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_EQ(did<AbortExchange>(), nullptr) << "that was another";
    ASSERT_NE(did<HashState>(), nullptr);
    EXPECT_EQ(did<HashState>()->step, 1u);
    give(StateHashed{1, 12, 1.5});
    EXPECT_EQ(machine_.hashMs(), 1.5);
    sumComplete(2, 3);
    ASSERT_NE(voted(), nullptr);
    EXPECT_EQ(voted()->term, 5u);
    EXPECT_EQ(voted()->applyMs, 7.5);
    EXPECT_EQ(machine_.keepMs(), 2.5);
    EXPECT_EQ(voted()->hash, 12u);
    tell(Abort{5, 2, 3, 1, "r0 lost"});
    EXPECT_EQ(did<AbortExchange>(), nullptr) << "it has ended";
    EXPECT_EQ(voted(), nullptr);
}

TEST_F(RankMachineTest, ASumThatIsCompleteIsFiniteWhateverWasSaidBefore) {
    tell(quorum(1, 2));
    give(ComputeDone{1, true});
    tell(quorum(1, 3, 2));
    give(ExchangeDone{{1, 3, 2}, true, {}});
    ASSERT_NE(voted(), nullptr);
    EXPECT_TRUE(voted()->complete);
    EXPECT_FALSE(voted()->nonFiniteLocal);
    Quorum anew = quorum(1, 4, 3);
    anew.contributors[1].computation = 1;
    tell(anew);
    give(ComputeDone{1, false});
    give(ExchangeDone{{1, 4, 3}, false, {}});
    ASSERT_NE(voted(), nullptr);
    EXPECT_FALSE(voted()->nonFiniteLocal) << "it was computed again";
}

TEST_F(RankMachineTest, TheEndOfAnExchangeThatItIsNotInIsCountedAndNoMore) {
    const uint64_t fenced = machine_.fenced();
    tell(Abort{5, 1, 2, 1, "r0 lost"});
    EXPECT_THAT(last_, ::testing::IsEmpty());
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    give(ExchangeDone{{1, 2, 1}, false, {}});
    EXPECT_THAT(last_, ::testing::IsEmpty());
    EXPECT_EQ(machine_.fenced(), fenced + 2);
}

// ---- commits

TEST_F(RankMachineTest, ARecordOfAnotherLineageOrAttemptIsNotApplied) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    const uint64_t fenced = machine_.fenced();
    Commit other = commit(1, 2);
    other.record.lineage = 2;
    tell(other);
    EXPECT_EQ(did<ApplyCommit>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    EXPECT_EQ(machine_.exchange(), (ExchangeId{1, 2, 1})) << "it goes on";
    tell(commit(1, 3, 2));
    EXPECT_EQ(did<ApplyCommit>(), nullptr) << "its sum is another attempt's";
    EXPECT_NE(did<DropStep>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 2);
    // It heals like a joiner, by the record that it has heard.
    Fetch f;
    f.term = 5;
    f.lineage = 1;
    f.snapshotStep = 0;
    tell(f);
    ASSERT_NE(did<BeginFetch>(), nullptr);
    EXPECT_FALSE(did<BeginFetch>()->sourcesOnly);
    EXPECT_FALSE(machine_.hasState());
    give(FetchDone{0, 11});
    ASSERT_NE(did<ReplayCommit>(), nullptr);
    EXPECT_EQ(did<ReplayCommit>()->record.attempt, 2u);
}

TEST_F(RankMachineTest, ACheckpointThatIsWrittenWithItsStepIsNotWrittenAgain) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    Commit c = commit(1, 2);
    c.checkpoint = true;
    c.dataPosition = "here";
    tell(c);
    ASSERT_NE(did<ApplyCommit>(), nullptr);
    EXPECT_TRUE(did<ApplyCommit>()->checkpoint);
    EXPECT_EQ(did<ApplyCommit>()->dataPosition, "here");
    tell(c);  // a new coordinator says it again
    EXPECT_EQ(did<ApplyCommit>(), nullptr);
    give(Applied{1, 1});
    EXPECT_EQ(did<WriteCheckpoint>(), nullptr);
}

// ---- snapshots

/// While several joiners wait for it nobody drops it; one that found it wrong asks for it anew.
TEST_F(RankMachineTest, ASnapshotIsTakenAgainForWhoeverAsksAgainUntilTheStateIsAnother) {
    tell(KeepSnapshot{5, 0, true, {}, 0});
    ASSERT_NE(did<TakeSnapshot>(), nullptr);
    for (int again = 0; again < 2; ++again) {
        tell(KeepSnapshot{5, 0, true, {}, 0});
        EXPECT_THAT(last_, ::testing::IsEmpty()) << "it is told when it is there";
        give(SnapshotTaken{0});
        EXPECT_NE(did<SendLeader>(), nullptr);
        tell(KeepSnapshot{5, 0, true, {}, 0});
        EXPECT_NE(did<TakeSnapshot>(), nullptr) << "its memory may be damaged";
        EXPECT_EQ(did<SendLeader>(), nullptr);
    }
    give(SnapshotTaken{0});
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(commit(1, 2));
    tell(KeepSnapshot{5, 0, true, {}, 0});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr) << "the state is being changed";
    EXPECT_NE(did<SendLeader>(), nullptr);
    give(Applied{1, 1});
    tell(KeepSnapshot{5, 0, true, {}, 0});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);
    ASSERT_NE(did<SendLeader>(), nullptr);
    EXPECT_EQ(std::get<RankSnapshotReady>(did<SendLeader>()->message).step, 0u);
}

TEST_F(RankMachineTest, ASnapshotOfAStateThatIsPastOrNoLongerWantedIsNotTaken) {
    tell(quorum(1, 2));
    sumComplete(1, 2);
    tell(commit(1, 2));
    tell(KeepSnapshot{5, 0, true, {}, 0});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr) << "it is being changed";
    tell(KeepSnapshot{5, 1, true, {}, 0});
    tell(KeepSnapshot{5, 1, false, {}, 0});
    tell(KeepSnapshot{5, 2, true, {}, 0});
    give(Applied{1, 1});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);
    tell(KeepSnapshot{5, 0, true, {}, 0});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr) << "that is past";
    tell(quorum(2, 2, 1, 2));
    sumComplete(2, 2);
    tell(commit(2, 2));
    give(Applied{2, 1});
    ASSERT_NE(did<TakeSnapshot>(), nullptr);
    EXPECT_EQ(did<TakeSnapshot>()->step, 2u);
}

// ---- moves

TEST_F(RankMachineTest, AMoveTellsHowItWentAndWhatTheStateHashesToThen) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    ASSERT_NE(did<MoveLayout>(), nullptr);
    EXPECT_EQ(did<MoveLayout>()->layout, 1u);
    EXPECT_EQ(did<MoveLayout>()->expertShard, (std::vector<int32_t>{1, 0}));
    give(LayoutMoveDone{1, true, 10, "", 77});
    ASSERT_NE(did<SendLeader>(), nullptr);
    const auto told = std::get<RankLayoutMoved>(did<SendLeader>()->message);
    EXPECT_TRUE(told.ok);
    EXPECT_EQ(told.layout, 1u);
    EXPECT_EQ(told.bytesMoved, 10u);
    give(LeaderBack{});
    const auto report = std::get<RankReport>(did<SendLeader>()->message);
    EXPECT_EQ(report.layout, 0u);
    EXPECT_EQ(report.moved, 1u) << "it can go on in either";
    EXPECT_EQ(report.hash, 11u);
    Quorum q = quorum(1, 1);
    q.layout = 1;
    tell(q);
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_EQ(did<SettleLayout>()->layout, 1u);
    sumComplete(1, 1);
    ASSERT_NE(voted(), nullptr);
    EXPECT_EQ(voted()->hash, 77u);
    give(LeaderBack{});
    EXPECT_EQ(std::get<RankReport>(did<SendLeader>()->message).layout, 1u);
}

TEST_F(RankMachineTest, AMoveThatFailsHereLeavesTheStateAsItLies) {
    tell(KeepSnapshot{5, 0, false, {}, 0, 1});
    tell(ChangeLayout{5, 0, 0, 2, {1, 0}});
    give(LayoutMoveDone{2, false, 0, "no room", 0});
    EXPECT_EQ(did<SettleLayout>(), nullptr);
    ASSERT_NE(did<SendLeader>(), nullptr);
    const auto told = std::get<RankLayoutMoved>(did<SendLeader>()->message);
    EXPECT_FALSE(told.ok);
    EXPECT_EQ(told.error, "no room");
    tell(quorum(1, 1));
    EXPECT_EQ(did<SettleLayout>(), nullptr);
    ASSERT_NE(did<BeginStep>(), nullptr);
    sumComplete(1, 1);
    EXPECT_EQ(voted()->hash, 11u);
}

TEST_F(RankMachineTest, TheSameCoordinatorsWelcomeSettlesOnlyWhatCounts) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 13});
    tell(Welcome{5, 1, "", "", 0, {}});
    EXPECT_EQ(did<SettleLayout>(), nullptr) << "others are still at it";
    tell(Welcome{5, 1, "", "", 1, {}});
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_TRUE(did<SettleLayout>()->adopt);
}

TEST_F(RankMachineTest, AnotherCoordinatorsWelcomeSettlesAMoveThatIsStillUnderWay) {
    for (const bool counts : {true, false}) {
        SCOPED_TRACE(counts);
        RankMachine m(RankConfig{{1, 0}, 3, 1, 1000});
        RankLaws laws;
        const auto tellIt = [&](ToReplica x) { last_ = laws.step(m, now_, FromCoordinator{x}); };
        tellIt(Welcome{5, 1, "", "", 0, {}});
        tellIt(ReplicaFormed{5, 3, {}, false});
        last_ = laws.step(m, now_, InitDone{true, 0, 11, 0});
        tellIt(ChangeLayout{5, 0, 0, 1, {1, 0}});
        tellIt(Welcome{6, 1, "", "", counts ? 1u : 0u, {}});
        EXPECT_EQ(did<SettleLayout>(), nullptr);
        last_ = laws.step(m, now_, LayoutMoveDone{1, true, 10, "", 13});
        ASSERT_NE(did<SettleLayout>(), nullptr);
        EXPECT_EQ(did<SettleLayout>()->adopt, counts);
    }
}

TEST_F(RankMachineTest, AMoveEndsTheStepThatWasTakenBackAndTheMoveBefore) {
    tell(quorum(1, 1));
    sumComplete(1, 1);
    tell(ChangeLayout{5, 0, 1, 1, {1, 0}});
    EXPECT_NE(did<AbortExchange>(), nullptr);
    EXPECT_NE(did<DropStep>(), nullptr);
    ASSERT_NE(did<MoveLayout>(), nullptr);
    give(LayoutMoveDone{1, true, 10, "", 13});
    tell(ChangeLayout{6, 0, 1, 2, {0, 1}});
    ASSERT_NE(did<SettleLayout>(), nullptr) << "whose coordinator is gone";
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    ASSERT_NE(did<MoveLayout>(), nullptr);
    give(LayoutMoveDone{2, true, 10, "", 14});
    // Epochs that an earlier coordinator's move withdrew are independent of this one's.
    Quorum q = quorum(1, 9);
    q.term = 7;
    q.layout = 2;
    q.epoch = 1;
    tell(q);
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_TRUE(did<BeginStep>()->compute) << "nothing is left of the gradient";
}

TEST_F(RankMachineTest, CopiesInALayoutThatDoesNotCountAreDropped) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    give(LayoutMoveDone{1, true, 10, "", 13});
    tell(KeepSnapshot{5, 0, true, {}, 1});
    ASSERT_NE(did<TakeSnapshot>(), nullptr);
    give(SnapshotTaken{0});
    tell(quorum(1, 1));
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_NE(did<DropSnapshot>(), nullptr);
    sumComplete(1, 1);
    tell(commit(1, 1));
    give(Applied{1, 1});
    // One that is being taken goes when it is there, one that fits stays.
    tell(KeepSnapshot{5, 1, true, {}, 0});
    ASSERT_NE(did<TakeSnapshot>(), nullptr);
    give(SnapshotTaken{1});
    tell(ChangeLayout{5, 1, 1, 2, {1, 0}});
    give(LayoutMoveDone{2, true, 10, "", 15});
    Quorum q = quorum(2, 2, 1, 1);
    tell(q);
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_EQ(did<DropSnapshot>(), nullptr) << "it lies as the state does again";
}

TEST_F(RankMachineTest, AnOrderToFetchWaitsForAMoveAndTakesItsPlace) {
    tell(ChangeLayout{5, 0, 0, 1, {1, 0}});
    Fetch f;
    f.term = 5;
    f.lineage = 1;
    f.snapshotStep = 4;
    tell(f);
    EXPECT_EQ(did<BeginFetch>(), nullptr) << "experts are on their way";
    give(LayoutMoveDone{1, true, 10, "", 13});
    ASSERT_NE(did<BeginFetch>(), nullptr);
    ASSERT_NE(did<SettleLayout>(), nullptr);
    EXPECT_FALSE(did<SettleLayout>()->adopt);
    EXPECT_EQ(did<SendLeader>(), nullptr) << "how it went is of no use any more";
    f.lineage = 2;
    f.snapshotStep = 9;
    const uint64_t fenced = machine_.fenced();
    tell(f);
    EXPECT_EQ(did<BeginFetch>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 1);
}

TEST_F(RankMachineTest, AnOrderToFetchTakesARankOutOfItsStep) {
    tell(quorum(1, 1));
    Fetch f;
    f.term = 5;
    f.epoch = 1;
    f.lineage = 1;
    f.snapshotStep = 4;
    tell(f);
    EXPECT_NE(did<AbortExchange>(), nullptr);
    EXPECT_NE(did<DropStep>(), nullptr);
    EXPECT_NE(did<BeginFetch>(), nullptr);
    EXPECT_FALSE(machine_.exchange().has_value());
    // A quorum of a step that the state is past by then is void.
    tell(quorum(4, 5));
    const uint64_t fenced = machine_.fenced();
    give(FetchDone{4, 44});
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    const RankReport* report = nullptr;
    for (const RankAction& a : last_)
        if (const auto* s = std::get_if<SendLeader>(&a)) {
            if (const auto* r = std::get_if<RankReport>(&s->message)) report = r;
        }
    ASSERT_NE(report, nullptr) << "it follows at once: nothing was committed meanwhile";
    EXPECT_TRUE(report->following);
    EXPECT_EQ(report->hash, 44u);
    EXPECT_EQ(report->snapshotStep, 4u);
}

// ---- entering

TEST_F(EnteringTest, AQuorumThatAssumesAnotherCommitIsNotEntered) {
    const uint64_t fenced = machine_.fenced();
    decided(7, 5, /*afterEpoch=*/9, true);
    EXPECT_EQ(did<BeginStep>(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 1);
    decided(7, 5, 4, true);
    ASSERT_NE(did<BeginStep>(), nullptr);
    decided(7, 4, 4, true);
    EXPECT_EQ(machine_.fenced(), fenced + 2) << "an older one";
    decided(7, 5, 4, true);
    EXPECT_EQ(machine_.fenced(), fenced + 2) << "the same";
    EXPECT_THAT(last_, ::testing::IsEmpty());
    give(ExchangeDone{{7, 4, 1}, true, {}});
    EXPECT_EQ(voted(), nullptr);
    EXPECT_EQ(machine_.fenced(), fenced + 3);
    give(ExchangeDone{{7, 5, 1}, true, {}});
    ASSERT_NE(voted(), nullptr);
    give(ExchangeDone{{7, 5, 1}, false, {}});
    EXPECT_EQ(voted(), nullptr) << "a yes is never taken back";
    give(FromCoordinator{Abort{0, 7, 5, 1, "too late"}});
    EXPECT_EQ(did<AbortExchange>(), nullptr);
    give(LeaderBack{});
    size_t votes = 0;
    for (const RankAction& a : last_)
        if (const auto* s = std::get_if<SendLeader>(&a))
            votes += std::holds_alternative<RankVote>(s->message);
    EXPECT_EQ(votes, 1u) << "the leader may not have heard of it";
}

TEST_F(EnteringTest, AnExchangeThatEndedBeforeItBeganIsEndedWhenItBegins) {
    decided(8, 5, 4, true);
    give(FromCoordinator{Abort{0, 8, 5, 1, "r0 is lost"}});
    EXPECT_THAT(last_, ::testing::IsEmpty());
    committed(7, 4);
    ASSERT_NE(did<BeginStep>(), nullptr);
    ASSERT_NE(did<AbortExchange>(), nullptr);
    EXPECT_EQ(did<AbortExchange>()->id, (ExchangeId{8, 5, 1}));
    decided(8, 6, 4, true, 2);
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_EQ(machine_.exchange(), (ExchangeId{8, 6, 2}));
    // The word was on the attempt before.
    for (const RankAction& a : last_)
        if (const auto* x = std::get_if<AbortExchange>(&a)) {
            EXPECT_NE(x->id, (ExchangeId{8, 6, 2}));
        }
}

TEST_F(EnteringTest, TheNextExchangeBeginsWhenItsOwnSumIsReplayed) {
    decided(7, 5, 4, true);
    give(ExchangeDone{{7, 5, 1}, true, {}});
    committed(7, 5);
    ASSERT_NE(did<ReplayCommit>(), nullptr);
    EXPECT_TRUE(did<ReplayCommit>()->exchanged);
    decided(8, 5, 5, true);
    EXPECT_EQ(did<BeginStep>(), nullptr) << "it would overwrite the sum";
    give(Replayed{7});
    ASSERT_NE(did<BeginStep>(), nullptr);
    EXPECT_TRUE(did<BeginStep>()->enter);
    give(LeaderBack{});
    for (const RankAction& a : last_)
        if (const auto* s = std::get_if<SendLeader>(&a)) {
            EXPECT_FALSE(std::holds_alternative<RankVote>(s->message)) << "none on this one yet";
        }
    committed(8, 5);
    ASSERT_NE(did<AbortExchange>(), nullptr) << "its step is over";
    ASSERT_NE(did<ReplayCommit>(), nullptr);
    EXPECT_FALSE(did<ReplayCommit>()->exchanged) << "it does not have that sum";
}

TEST_F(EnteringTest, ASnapshotOrAMoveWaitsForTheReplay) {
    committed(7, 4);
    ASSERT_NE(did<ReplayCommit>(), nullptr);
    give(FromCoordinator{KeepSnapshot{0, 6, true, {}, 0}});
    EXPECT_EQ(did<TakeSnapshot>(), nullptr);
    give(FromCoordinator{KeepSnapshot{0, 7, true, {}, 0}});
    give(FromCoordinator{ChangeLayout{0, 6, 0, 1, {}}});
    EXPECT_EQ(did<MoveLayout>(), nullptr) << "a joiner is given the state as it lies then";
    give(Replayed{7});
    ASSERT_NE(did<TakeSnapshot>(), nullptr);
    EXPECT_EQ(did<TakeSnapshot>()->step, 7u);
}

TEST_F(EnteringTest, WhoFollowsAsksBeforeItLeavesAndWhoStillFetchesDoesNot) {
    give(Connected{});
    give(Terminate{});
    EXPECT_EQ(did<ExitRank>(), nullptr) << "it holds the state";
    EXPECT_NE(did<SendUp>(), nullptr);
    fetch(9);
    give(Terminate{});
    EXPECT_NE(did<ExitRank>(), nullptr);
}

TEST_F(EnteringTest, AnOrphanThatFollowsWritesTheStateAndOneThatFetchesHasNone) {
    RankMachine fetching = machine_;
    RankLaws laws;
    Fetch f;
    f.lineage = 1;
    f.snapshotStep = 9;
    (void)laws.step(fetching, kSecond, FromCoordinator{f});
    for (RankMachine* m : {&machine_, &fetching}) {
        (void)m->step(kSecond, Disconnected{});
        const auto end = m->step(3 * kSecond, RankTick{});
        ASSERT_EQ(end.size(), 1u);
        EXPECT_EQ(std::get<ExitRank>(end[0]).checkpoint, m == &machine_);
        EXPECT_FALSE(std::get<ExitRank>(end[0]).ok);
    }
}

}  // namespace
}  // namespace bulkhead::protocol
