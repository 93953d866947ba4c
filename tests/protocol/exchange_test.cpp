// SPDX-License-Identifier: Apache-2.0
// One step's exchange as the coordinator machine decides it: what is done again and by whom, whose
// word ends it, what becomes of the leases, and what an operator is told of it.
#include <functional>

#include "tests/protocol/machine_script.h"

namespace bulkhead::protocol {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Ne;
using ::testing::Not;
using ::testing::SizeIs;

class ExchangeTest : public MachineScript {
  protected:
    void accuse(int32_t by, int32_t whom, EvidenceKind kind = EvidenceKind::kTransportReset) {
        const Quorum& q = quorum();
        say(by, Evidence{kind, RankId{whom, 0}, view(whom).incarnation, "r" + std::to_string(by),
                         "no chunk", q.step, q.epoch, q.attempt});
    }
    /// Returns the computation number of each contributor of the quorum.
    std::vector<uint64_t> computations() const {
        std::vector<uint64_t> out;
        for (const Member& member : quorum().contributors) out.push_back(member.computation);
        return out;
    }
    std::vector<SampleRange> leaseOf(int32_t replica) const {
        for (const Member& m : quorum().contributors)
            if (m.contribution.replica == replica) return m.contribution.ranges;
        return {};
    }
    uint64_t leased(uint64_t step) const {
        uint64_t samples = 0;
        for (const LeaseState& l : machine->ledger().state().leases)
            if (l.step == step)
                for (const SampleRange& r : l.ranges) samples += r.end - r.begin;
        return samples;
    }
    ReplicaVote notFinite(int32_t replica) const {
        ReplicaVote v = no(replica);
        v.nonFiniteLocal = true;
        return v;
    }
    ReplicaVote otherHash(int32_t replica) const {
        ReplicaVote v = voteOf(replica);
        v.hashes[1] ^= 1;
        return v;
    }
};

TEST_F(ExchangeTest, TheSurvivorsDoTheStepAgainAndTheLostOnesSamplesComeBack) {
    train(2);
    const uint64_t epoch = quorum().epoch;
    const auto kept = leaseOf(0);
    const auto lost = leaseOf(2);
    exits({2, 1}, 9);
    for (const int32_t r : {0, 1}) {
        ASSERT_THAT(sentNow<Abort>(r), SizeIs(1));
        EXPECT_EQ(sentNow<Abort>(r)[0].epoch, epoch);
        EXPECT_EQ(sentNow<Abort>(r)[0].attempt, 1u);
    }
    EXPECT_THAT(factsNow<fact::StepRedone>(), IsEmpty()) << "the survivors have yet to say no";
    say(0, no(0, {2}));
    say(1, no(1, {2}));
    const auto redone = factsNow<fact::StepRedone>();
    ASSERT_THAT(redone, SizeIs(1));
    EXPECT_EQ(redone[0].step, 3u);
    EXPECT_EQ(redone[0].attempt, 2u);
    EXPECT_GT(redone[0].epoch, epoch);
    EXPECT_THAT(redone[0].lost, ElementsAre(2));
    EXPECT_EQ(redone[0].samplesReturned, options.samplesPerReplica);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1));
    EXPECT_EQ(quorum().attempt, 2u);
    EXPECT_EQ(leaseOf(0), kept) << "gradients of these are kept";
    EXPECT_THAT(factsNow<fact::IncidentPhase>(), SizeIs(1)) << "re-formed";
    EXPECT_EQ(factsNow<fact::IncidentPhase>()[0].phase, IncidentPhaseKind::kReform);
    commit();
    EXPECT_EQ(factsNow<fact::IncidentPhase>().at(0).phase, IncidentPhaseKind::kReexchange);
    // Its samples go to the contributors of the next step.
    std::vector<SampleRange> again;
    for (const int32_t r : {0, 1})
        for (const SampleRange& range : leaseOf(r)) again.push_back(range);
    EXPECT_THAT(again, ::testing::Contains(lost.front()));
}

TEST_F(ExchangeTest, ASumThatIsCompleteWithoutTheLostOneIsCommittedAsItIs) {
    train(2);
    vote(2);
    vote(0);
    exits({2, 0});
    EXPECT_THAT(sentNow<Abort>(1), SizeIs(1));
    vote(1);
    durable();
    EXPECT_THAT(facts<fact::StepRedone>(), IsEmpty());
    EXPECT_THAT(facts<fact::StepCommitted>().back().record.contributors, SizeIs(3));
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1));
}

TEST_F(ExchangeTest, WithNobodyLeftTheStepIsVoidAndSaysSo) {
    options.policies.recovery = RecoveryPolicy::kFt;
    train(2);
    exits({0, 0});
    exits({1, 0});
    EXPECT_EQ(machine->openStep(), 3u);
    exits({2, 0});
    const auto redone = factsNow<fact::StepRedone>();
    ASSERT_THAT(redone, SizeIs(1));
    EXPECT_EQ(redone[0].step, 3u);
    EXPECT_THAT(redone[0].lost, ElementsAre(0, 1, 2));
    EXPECT_EQ(redone[0].samplesReturned, 3 * options.samplesPerReplica);
    EXPECT_THAT(redone[0].why, HasSubstr("every contributor is gone"));
    EXPECT_EQ(machine->openStep(), 0u);
    EXPECT_EQ(machine->ledger().state().leases.size(), 0u);
    EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
}

TEST_F(ExchangeTest, VotesOfAnotherExchangeOrAnOlderIncarnationCountForNothing) {
    train(2);
    for (const auto& spoil : std::vector<std::function<void(ReplicaVote&)>>{
             [](ReplicaVote& v) { --v.step; }, [](ReplicaVote& v) { ++v.epoch; },
             [](ReplicaVote& v) { ++v.attempt; }, [](ReplicaVote& v) { ++v.incarnation; },
             [](ReplicaVote& v) { v.replica = 9; }, [](ReplicaVote& v) { --v.term; }}) {
        ReplicaVote v = voteOf(0);
        v.complete = false;
        spoil(v);
        say(0, v);
        EXPECT_THAT(sentNow<Abort>(1), IsEmpty());
    }
    vote(0);
    say(0, no(0, {1}));  // a yes is never taken back
    EXPECT_THAT(sentNow<Abort>(1), IsEmpty());
    vote(1);
    vote(2);
    durable();
    EXPECT_EQ(machine->committedStep(), 3u);
}

TEST_F(ExchangeTest, ANoWithNobodyLostIsTriedAgainByAllAndTheSecondEndsWhoIsMostBlamed) {
    train(2);
    const uint64_t epoch = quorum().epoch;
    say(0, no(0, {1}));
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentNow<Abort>(r), SizeIs(1)) << r;
    say(1, no(1, {0}));
    vote(2);
    auto redone = factsNow<fact::StepRedone>();
    ASSERT_THAT(redone, SizeIs(1));
    EXPECT_THAT(redone[0].lost, IsEmpty());
    EXPECT_EQ(redone[0].samplesReturned, 0u);
    ASSERT_THAT(members(quorum()), ElementsAre(0, 1, 2));
    EXPECT_EQ(quorum().attempt, 2u);
    EXPECT_EQ(quorum().epoch, epoch) << "the same members keep their connections";
    vote(0);
    say(2, no(2, {1}));
    EXPECT_THAT(sentNow<Expelled>(1), IsEmpty());
    say(1, no(1));
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1)) << "two pairs share it, also that of before";
    ASSERT_THAT(factsNow<fact::IncidentOpened>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::IncidentOpened>()[0].cause, EvidenceKind::kCommitFailed);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
    // Accusations of the lost replica are forgotten: the next no is a first one.
    say(0, no(0, {2}));
    say(2, no(2, {0}));
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
    EXPECT_EQ(quorum().attempt, 4u);
}

TEST_F(ExchangeTest, SumsThatDifferStallTheJobFromTheVotesOnAndNotSinceTheMachineWasStarted) {
    train(2);
    const MonoNs began = now;
    for (int time = 0; time < 2; ++time)
        for (const int32_t r : {0, 1, 2}) {
            ReplicaVote other = voteOf(r);
            if (r == 2) other.gradSquares = {5, 5};
            say(r, other);
        }
    ASSERT_THAT(factsNow<fact::IncidentOpened>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::IncidentOpened>()[0].cause, EvidenceKind::kCommitFailed);
    const auto phases = factsNow<fact::IncidentPhase>();
    ASSERT_FALSE(phases.empty());
    for (const fact::IncidentPhase& phase : phases) EXPECT_GE(phase.begin, began);
}

TEST_F(ExchangeTest, AGradientThatJumpsIsSaidAndNobodyIsExpelledForIt) {
    train(20);
    for (const int32_t r : {0, 1, 2}) {
        ReplicaVote poisoned = voteOf(r);
        poisoned.gradSquares = {400, 400};
        say(r, poisoned);
    }
    durable();
    auto seen = factsNow<fact::EvidenceSeen>();
    ASSERT_THAT(seen, SizeIs(1));
    EXPECT_EQ(seen[0].kind, EvidenceKind::kGradientJump);
    EXPECT_EQ(seen[0].replica, -1);
    EXPECT_THAT(seen[0].detail, HasSubstr("20 times the usual"));
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));

    // A replica's own, of one step in several beats.
    const auto beat = [&](int32_t r, uint64_t at, double norm) {
        say(r, Beat{{r, 1}, 1, Phase::kCompute, at, at, 0, 0, norm, at});
        return factsNow<fact::EvidenceSeen>();
    };
    for (uint64_t at = 1; at <= 20; ++at)
        for (const int32_t r : {0, 1}) EXPECT_THAT(beat(r, at, 0.5), IsEmpty());
    EXPECT_THAT(beat(0, 21, 0.5), IsEmpty());
    seen = beat(1, 21, 5);
    ASSERT_THAT(seen, SizeIs(1));
    EXPECT_EQ(seen[0].kind, EvidenceKind::kGradientJump);
    EXPECT_EQ(seen[0].replica, 1);
    EXPECT_EQ(seen[0].shard, 1);
    EXPECT_THAT(seen[0].detail, HasSubstr("10 times the usual"));
    EXPECT_THAT(beat(1, 21, 5), IsEmpty());
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
    EXPECT_THAT(factsNow<fact::IncidentOpened>(), IsEmpty());
}

TEST_F(ExchangeTest, AContributorThatDoesNotEvenVoteAfterTheEndOfItsExchangeGoes) {
    train(2);
    say(0, no(0));
    vote(1);
    pass(2500 * kMillisecond, {}, {}, Phase::kVote);
    EXPECT_THAT(sentNow<Expelled>(2), IsEmpty());
    pass(1000 * kMillisecond, {}, {}, Phase::kVote);
    EXPECT_THAT(sentNow<Expelled>(2), SizeIs(1));
    EXPECT_THAT(sentNow<Expelled>(0), IsEmpty());
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1));
}

TEST_F(ExchangeTest, AnExchangeInWhichNobodyGetsOnIsEndedAndOneThatMovesIsNot) {
    for (const bool moves : {false, true}) {
        now = kSecond;
        everything.clear();
        train(2);
        pass(5500 * kMillisecond, {}, moves ? std::set<int32_t>{} : std::set<int32_t>{0, 1, 2},
             Phase::kExchange);
        EXPECT_THAT(sentTo<Abort>(0), IsEmpty());
        pass(kSecond, {}, moves ? std::set<int32_t>{} : std::set<int32_t>{0, 1, 2},
             Phase::kExchange);
        EXPECT_THAT(sentTo<Abort>(0), SizeIs(moves ? 0 : 1));
    }
}

// ---- the quorum that is made before it is needed

TEST_F(ExchangeTest, TheNextQuorumIsAnnouncedWithTheDecisionAndReplacedWhenSomebodyGoesMeanwhile) {
    train(2);
    voteAll();
    ASSERT_EQ(machine->committedStep(), 2u) << "not yet durable";
    ASSERT_THAT(members(quorums.at(4)), ElementsAre(0, 1, 2));
    EXPECT_EQ(quorums.at(4).afterEpoch, quorums.at(3).epoch);
    EXPECT_EQ(leased(4), 3 * options.samplesPerReplica);
    const uint64_t epoch = quorums.at(4).epoch;
    exits({1, 0});
    durable();
    EXPECT_EQ(machine->committedStep(), 3u);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
    EXPECT_GT(quorum().epoch, epoch);
    EXPECT_EQ(leased(4), 2 * options.samplesPerReplica);
    commit();
}

TEST_F(ExchangeTest, AQuorumThatStillFitsIsNotMadeTwice) {
    train(2);
    voteAll();
    const uint64_t epoch = quorums.at(4).epoch;
    durable();
    EXPECT_THAT(factsNow<fact::QuorumDecided>(), IsEmpty());
    EXPECT_EQ(quorum().epoch, epoch);
    EXPECT_EQ(quorum().epoch, quorums.at(3).epoch) << "the same members, the same connections";
}

TEST_F(ExchangeTest, AJobThatIsPausedWhileItsStepIsWrittenTakesTheNextQuorumBack) {
    train(2);
    voteAll();
    const Quorum before = quorums.at(4);
    operate(OperationKind::kPause);
    durable();
    EXPECT_EQ(machine->openStep(), 0u);
    EXPECT_THAT(machine->ledger().state().leases, IsEmpty());
    EXPECT_THAT(quorums.at(4).contributors, IsEmpty());
    EXPECT_THAT(quorums.at(4).joiners, IsEmpty());
    EXPECT_GT(quorums.at(4).epoch, before.epoch);
    EXPECT_EQ(machine->phase(), JobPhase::kPaused);
    const uint64_t empty = quorums.at(4).epoch;
    operate(OperationKind::kResume);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
    EXPECT_GT(quorum().epoch, empty);
    commit();
}

/// The survivors hold the quorum of a step that nobody may begin.
TEST_F(ExchangeTest, ALossThatLeavesTooFewWhileAStepIsWrittenTakesTheNextQuorumBack) {
    options.policies.minReplicas = 3;
    train(2);
    voteAll();
    ASSERT_THAT(members(quorums.at(4)), ElementsAre(0, 1, 2));
    exits({1, 0});
    durable();
    EXPECT_EQ(machine->committedStep(), 3u);
    ASSERT_THAT(sentNow<Quorum>(0), SizeIs(1));
    EXPECT_THAT(sentNow<Quorum>(0)[0].contributors, IsEmpty());
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
    EXPECT_THAT(machine->ledger().state().leases, IsEmpty());
}

TEST_F(ExchangeTest, WithRestartAllALossMakesTheOpenStepVoidAndNobodyBeginsAnotherAttempt) {
    options.policies.recovery = RecoveryPolicy::kRestartAll;
    train(2);
    vote(0);
    vote(1);
    exits({2, 0});
    EXPECT_THAT(factsNow<fact::QuorumDecided>(), IsEmpty());
    EXPECT_THAT(actionsIn<AppendLog>(last), IsEmpty())
        << "the sum was complete, and counts no more";
    EXPECT_THAT(factsNow<fact::StepRedone>(), SizeIs(1));
    step(CheckpointsFound{});
    EXPECT_EQ(machine->lineage(), 2u);
    EXPECT_EQ(machine->committedStep(), 0u);
    for (const int32_t r : {0, 1}) EXPECT_THAT(sentNow<Expelled>(r), SizeIs(1));
}

TEST_F(ExchangeTest, WhoIsDrainedWhileAStepIsWrittenIsNotInTheNext) {
    train(2);
    voteAll();
    operate(OperationKind::kDrain, 1);
    EXPECT_THAT(members(quorums.at(4)), ElementsAre(0, 2));
    EXPECT_THAT(sentNow<Leave>(1), IsEmpty()) << "it has a step to end";
    durable();
    ASSERT_THAT(sentNow<Leave>(1), SizeIs(1));
    EXPECT_THAT(shown(1), ElementsAre(ReplicaState::kDrained));
    EXPECT_THAT(facts<fact::StepRedone>(), IsEmpty());
    ASSERT_THAT(actionsIn<StopReplica>(last), SizeIs(1));
    EXPECT_FALSE(actionsIn<StopReplica>(last)[0].kill);
}

// ---- too few

TEST_F(ExchangeTest, AStepIsHeldUntilSomebodyWhoHoldsTheStateHelpsOut) {
    options.policies.minReplicas = 3;
    train(2);
    exits({2, 0});
    say(0, no(0, {2}));
    say(1, no(1, {2}));
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
    EXPECT_THAT(machine->explanation(), HasSubstr("2 of at least 3"));
    EXPECT_THAT(machine->explanation(), HasSubstr("r2 is starting"));
    EXPECT_EQ(machine->openStep(), 3u);
    EXPECT_EQ(leased(3), 2 * options.samplesPerReplica) << "what the lost had went back";
    up(2);
    say(2, blank(2));
    // Nothing is in flight: the state of the last commit is fetched, and proven by those who hold.
    EXPECT_EQ(sentTo<KeepSnapshot>(0).back().step, 2u);
    say(0, SnapshotReady{0, 1, 2});
    say(1, SnapshotReady{1, 1, 2});
    ASSERT_THAT(sentNow<Fetch>(2), SizeIs(1));
    say(2, following(2, 2));
    EXPECT_EQ(state(2), ReplicaState::kProven);
    EXPECT_EQ(machine->phase(), JobPhase::kTraining);
    EXPECT_THAT(members(quorum()), ElementsAre(0, 1, 2));
    EXPECT_EQ(quorum().attempt, 2u);
    const auto redone = facts<fact::StepRedone>();
    ASSERT_THAT(redone, SizeIs(1));
    commit();
    EXPECT_EQ(state(2), ReplicaState::kTraining);
}

TEST_F(ExchangeTest, AJobThatIsStoppedWhileItsStepIsHeldEndsWithTheLastOneThatCounts) {
    options.policies.minReplicas = 3;
    train(2);
    exits({2, 0});
    say(0, no(0, {2}));
    say(1, no(1, {2}));
    ASSERT_EQ(machine->openStep(), 3u);
    operate(OperationKind::kStop);
    EXPECT_EQ(machine->openStep(), 0u);
    ASSERT_THAT(factsNow<fact::StepRedone>(), SizeIs(1));
    EXPECT_THAT(factsNow<fact::StepRedone>()[0].why, HasSubstr("the job is stopping"));
    size_t asked = 0;
    for (const int32_t r : {0, 1})
        for (const Commit& c : sentNow<Commit>(r)) asked += c.checkpoint && c.record.step == 2;
    EXPECT_EQ(asked, 1u);
}

// ---- gradients that are not finite

TEST_F(ExchangeTest, ARangeThatIsNotFiniteIsExchangedForAnothersAndBothComputeAnew) {
    train(2);
    const auto own = leaseOf(1);
    const auto others = leaseOf(2);
    const auto before = computations();
    EXPECT_THAT(before, Each(Ne(0u)));
    say(1, notFinite(1));
    say(0, no(0));
    say(2, no(2));
    EXPECT_THAT(evidence(), ElementsAre("r1 non_finite"));
    EXPECT_EQ(leaseOf(1), others);
    EXPECT_EQ(leaseOf(2), own);
    EXPECT_EQ(computations()[0], before[0]) << "it keeps its own";
    EXPECT_THAT(before, Not(Contains(computations()[1])));
    EXPECT_THAT(before, Not(Contains(computations()[2])));
    // There it is finite: the replica was at fault. A second time is once too often.
    say(1, notFinite(1));
    say(0, no(0));
    say(2, no(2));
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2)) << "the others need not wait for anything";
    EXPECT_EQ(quorum().attempt, 3u);
    EXPECT_THAT(facts<fact::RangeQuarantined>(), IsEmpty());
    EXPECT_EQ(machine->ledger().quarantinedSamples(), 0u);
}

TEST_F(ExchangeTest, ARangeThatIsNotFiniteForTwoIsQuarantinedAndReplaced) {
    train(2);
    const auto own = leaseOf(1);
    say(1, notFinite(1));
    say(0, no(0));
    say(2, no(2));
    const auto before = computations();
    say(2, notFinite(2));
    say(0, no(0));
    say(1, no(1));
    const auto told = factsNow<fact::RangeQuarantined>();
    ASSERT_THAT(told, SizeIs(own.size()));
    EXPECT_EQ(told[0].range, own[0]);
    EXPECT_EQ(told[0].link, logged<LogQuarantine>().at(0).link);
    EXPECT_EQ(machine->ledger().quarantinedSamples(), options.samplesPerReplica);
    EXPECT_NE(leaseOf(2), own);
    EXPECT_EQ(leased(3), 3 * options.samplesPerReplica);
    EXPECT_EQ(computations()[1], before[1]);
    EXPECT_NE(computations()[2], before[2]);
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
    const auto last = computations();
    commit();
    for (const uint64_t next : computations()) EXPECT_THAT(last, Not(Contains(next)));
}

// ---- states that differ

TEST_F(ExchangeTest, TheMinorityOfStatesGoesAndTheStepsSinceTheLastAgreementAreSuspect) {
    train(4);
    vote(0);
    say(1, otherHash(1));
    EXPECT_THAT(evidence(), IsEmpty());
    vote(2);
    EXPECT_THAT(evidence(), ElementsAre("r1 parity_mismatch"));
    ASSERT_THAT(factsNow<fact::StepsSuspect>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::StepsSuspect>()[0].first, 3u);
    EXPECT_EQ(factsNow<fact::StepsSuspect>()[0].last, 4u);
    ASSERT_THAT(factsNow<fact::ParityDisputed>(), SizeIs(1));
    EXPECT_THAT(factsNow<fact::ParityDisputed>()[0].dispute.expelled, ElementsAre(1));
    EXPECT_EQ(factsNow<fact::ParityDisputed>()[0].link, logged<LogDispute>().at(0).link);
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_EQ(machine->committedStep(), 4u) << "a wrong state's part is in the sum";
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
    EXPECT_EQ(quorum().attempt, 2u);
    commit();
}

class TieTest : public ExchangeTest {
  protected:
    TieTest() { options.replicas = 2; }
    void differ() {
        train(4);
        vote(0);
        say(1, otherHash(1));
        for (const int32_t r : {0, 1}) {
            ASSERT_THAT(sentNow<ReplayLast>(r), SizeIs(1));
            EXPECT_EQ(sentNow<ReplayLast>(r)[0].step, 4u);
        }
        EXPECT_EQ(machine->committedStep(), 4u);
    }
    void verdict(int32_t replica, bool matches, uint64_t step = 4, uint32_t incarnation = 1) {
        say(replica, ReplayVerdict{replica, incarnation, step,
                                   matches ? std::vector<int32_t>{} : std::vector<int32_t>{1}});
    }
};

TEST_F(TieTest, WhoDoesNotMatchItsOwnReplayGoes) {
    differ();
    verdict(0, false, 3);
    verdict(0, false, 4, 9);
    verdict(7, false);
    verdict(0, true);
    EXPECT_THAT(evidence(), IsEmpty());
    verdict(1, false);
    EXPECT_THAT(evidence(), ElementsAre("r1 parity_mismatch"));
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_THAT(members(quorum()), ElementsAre(0));
    EXPECT_EQ(machine->lineage(), 1u);
    commit();
}

TEST_F(TieTest, WhoDoesNotAnswerInTimeGoes) {
    differ();
    verdict(0, true);
    pass(2500 * kMillisecond, {}, {}, Phase::kVote);
    EXPECT_THAT(sentNow<Expelled>(1), IsEmpty());
    pass(kSecond, {}, {}, Phase::kVote);
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_EQ(machine->lineage(), 1u);
}

TEST_F(TieTest, WhenBothMatchOrNeitherDoesTheJobGoesBack) {
    for (const bool matches : {false, true}) {
        now = kSecond;
        differ();
        verdict(0, matches);
        verdict(1, matches);
        EXPECT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1));
        ASSERT_THAT(factsNow<fact::StepRedone>(), SizeIs(1)) << "its quorum is void";
        step(CheckpointsFound{});
        EXPECT_EQ(machine->lineage(), 2u);
        for (const int32_t r : {0, 1}) {
            EXPECT_THAT(sentNow<Expelled>(r), SizeIs(1));
            EXPECT_THAT(shown(r), ElementsAre(ReplicaState::kBackingOff, ReplicaState::kStarting));
        }
    }
}

/// Programs that build another model on each replica never come to a first step.
TEST_F(TieTest, AJobThatNeverHasOneStateIsGivenUp) {
    options.policies.restartLimit = 3;
    begin();
    for (uint32_t start = 1; start <= 4; ++start) {
        for (const int32_t r : {0, 1}) up(r);
        for (const int32_t r : {0, 1}) say(r, reportOf(r, 0));
        vote(0);
        say(1, otherHash(1));
        for (const int32_t r : {0, 1}) verdict(r, true, 0, start);
        ASSERT_THAT(actionsIn<FindCheckpoints>(last), SizeIs(1)) << start;
        step(CheckpointsFound{});
        now += 2 * kSecond;
        step(Tick{});
    }
    for (const int32_t r : {0, 1}) EXPECT_EQ(state(r), ReplicaState::kFailed);
    EXPECT_THAT(machine->explanation(), HasSubstr("the job went back 4 times and came no further "
                                                  "than step 0: states differ"));
    EXPECT_THAT(machine->explanation(), HasSubstr("begin with the same model on each replica?"));
}

TEST_F(TieTest, WhoIsLostWhileTheOtherReplaysLeavesItTheJob) {
    differ();
    exits({1, 0});
    verdict(0, true);
    EXPECT_EQ(machine->lineage(), 1u);
    EXPECT_THAT(members(quorum()), ElementsAre(0));
    commit();
}

// ---- what peers say

TEST_F(ExchangeTest, WhoIsAccusedAndSilentGoesAtOnceAndWhoAnswersGetsAnotherAttempt) {
    train(2);
    pass(200 * kMillisecond, {1});
    accuse(0, 1);
    EXPECT_THAT(evidence(), ElementsAre("r1 transport_reset"));
    EXPECT_THAT(sentNow<Expelled>(1), IsEmpty());
    pass(250 * kMillisecond, {1});
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_EQ(factsNow<fact::IncidentOpened>().at(0).cause, EvidenceKind::kTransportReset);
    say(0, no(0, {1}));
    say(2, no(2, {1}));
    ASSERT_THAT(members(quorum()), ElementsAre(0, 2));
    pass(100 * kMillisecond);
    accuse(0, 2);
    EXPECT_THAT(sentNow<Abort>(2), SizeIs(1));
    pass(400 * kMillisecond);
    EXPECT_THAT(sentNow<Expelled>(2), IsEmpty());
    say(0, no(0, {2}));
    say(2, no(2, {0}));
    EXPECT_EQ(quorum().attempt, 3u);
}

TEST_F(ExchangeTest, TwoWhoLostTheSameOneAreEnoughUnlessTheyLostEachOther) {
    options.replicas = 4;
    train(2);
    accuse(0, 1);
    EXPECT_THAT(sentNow<Expelled>(1), IsEmpty());
    accuse(2, 1);
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_EQ(factsNow<fact::IncidentOpened>().at(0).title,
              "r1 lost: its peers lost it and it does not answer");
}

TEST_F(ExchangeTest, WhoAccusesBackIsNotBelievedMoreThanThoseWhoAccuseIt) {
    options.replicas = 4;
    train(2);
    accuse(1, 0);
    accuse(1, 2);
    accuse(0, 1);
    accuse(2, 1);
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1)) << "each of the others is lost to r1 alone";
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
}

TEST_F(ExchangeTest, TwoOfWhomEachLostTwoOthersAreBothGivenAnotherAttempt) {
    options.replicas = 4;
    train(2);
    accuse(0, 1);
    accuse(0, 2);
    accuse(3, 2);
    accuse(3, 1);
    // Both were lost by two who cannot be told from the guilty.
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
}

TEST_F(ExchangeTest, ASlowOneIsWaitedForAndAResetConnectionIsNot) {
    train(2);
    pass(100 * kMillisecond, {}, {}, Phase::kCompute);
    accuse(0, 1, EvidenceKind::kChunkTimeout);
    EXPECT_THAT(evidence(), ElementsAre("r1 chunk_timeout"));
    EXPECT_THAT(sentNow<Abort>(0), IsEmpty());
    accuse(2, 1, EvidenceKind::kTransportReset);
    EXPECT_THAT(sentNow<Abort>(0), SizeIs(1));
}

TEST_F(ExchangeTest, EvidenceOfAnotherExchangeOrAboutAnOlderIncarnationEndsNothing) {
    train(2);
    const Quorum q = quorum();
    const auto told = [&](int32_t by, uint32_t incarnation, uint64_t at, uint64_t epoch,
                          uint32_t attempt) {
        say(by, Evidence{EvidenceKind::kTransportReset, RankId{1, 0}, incarnation, "x", "y", at,
                         epoch, attempt});
        return !sentNow<Abort>(0).empty();
    };
    EXPECT_FALSE(told(0, 7, q.step, q.epoch, q.attempt));
    EXPECT_THAT(evidence(), IsEmpty()) << "stale";
    EXPECT_FALSE(told(9, 1, q.step, q.epoch, q.attempt));
    EXPECT_THAT(evidence(), IsEmpty()) << "nobody said it";
    EXPECT_FALSE(told(0, 1, q.step + 1, q.epoch, q.attempt));
    EXPECT_THAT(evidence(), SizeIs(1)) << "told, and no more";
    EXPECT_FALSE(told(0, 1, q.step, q.epoch + 1, q.attempt));
    EXPECT_FALSE(told(0, 1, q.step, q.epoch, q.attempt + 1));
    EXPECT_TRUE(told(0, 1, q.step, q.epoch, q.attempt));
}

TEST_F(ExchangeTest, ALostNodeTakesItsReplicaWhenThePeersLostItToo) {
    train(2);
    accuse(0, 1, EvidenceKind::kChunkTimeout);
    step(NodeLost{"node1", {1, 9}});
    EXPECT_THAT(evidence(), ElementsAre("r1 node_lost"));
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_THAT(factsNow<fact::IncidentOpened>().at(0).title, HasSubstr("node node1 is gone"));
}

TEST_F(ExchangeTest, TheNodeOfAReplicaThatIsOutIsNobodysLoss) {
    options.policies.restartLimit = 1;
    train(2);
    exits({2, 0});
    exits({2, 0});
    ASSERT_EQ(state(2), ReplicaState::kFailed);
    step(NodeLost{"node2", {2}});
    EXPECT_THAT(evidence(), IsEmpty());
    // A rank of it that is found there after all is ended.
    step(RankRunning{{2, 0}, view(2).incarnation, 7, "node2"});
    ASSERT_THAT(actionsIn<StopReplica>(last), SizeIs(1));
    EXPECT_TRUE(actionsIn<StopReplica>(last)[0].kill);
}

TEST_F(ExchangeTest, TwoLostNodesOfThreePauseTheJobUntilAPeerSaysTheSame) {
    train(2);
    step(NodeLost{"node1", {1}});
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1)) << "one of three may go on one word";
    step(NodeLost{"node2", {2}});
    EXPECT_THAT(sentNow<Expelled>(2), IsEmpty());
    say(0, no(0, {1, 2}));
    pass(150 * kMillisecond);
    EXPECT_EQ(machine->phase(), JobPhase::kTraining) << "it beats: no suspect any more";
}

TEST_F(ExchangeTest, TheOnlyOneThatHoldsTheStateIsWaitedForAsHalfTheJobIs) {
    options.timeouts.massPauseMs = 5000;
    const auto alone = [this](const std::string& why) {
        SCOPED_TRACE(why);
        now = kSecond;
        everything.clear();
        train(2);
        exits({1, 0});
        exits({2, 0});
        while (machine->committedStep() < 3) commit();
    };
    alone("frozen");
    pass(4 * kSecond, {0}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
    EXPECT_THAT(machine->explanation(), HasSubstr("nobody else holds step 3"));
    say(0, no(0));
    pass(2 * kSecond, {}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty()) << "it woke";
    EXPECT_EQ(commit(), 4u);

    alone("frozen for good");
    pass(9 * kSecond, {0}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(0), SizeIs(1));

    alone("it beats, and owes its vote for good");
    pass(8 * kSecond, {}, {0}, Phase::kVote);
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
    pass(8 * kSecond, {}, {0}, Phase::kVote);
    EXPECT_THAT(sentTo<Expelled>(0), SizeIs(1));

    alone("a stop waits for it");
    operate(OperationKind::kStop);
    pass(15 * kSecond, {0}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
    EXPECT_EQ(machine->phase(), JobPhase::kStopping);
    EXPECT_THAT(machine->explanation(), HasSubstr("the job waits until it answers"));
    step(NodeLost{"node0", {0}});
    pass(60 * kSecond, {0}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty()) << "that its host is silent proves nothing";
    exits({0, 0});
    EXPECT_THAT(sentTo<Expelled>(0), SizeIs(1));

    alone("a stop without a checkpoint waits for nobody");
    operate(OperationKind::kStop);
    step(NodeLost{"node0", {0}});
    pass(kSecond, {0}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Leave>(0), IsEmpty());
    operate(OperationKind::kStop, -1, /*checkpoint=*/false);
    pass(5 * kSecond, {0}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Leave>(0), SizeIs(1));

    alone("its agent confirms");
    exits({0, 0});
    EXPECT_THAT(sentTo<Expelled>(0), SizeIs(1));
}

/// A network that is cut does not take everybody's last heartbeat at the same moment, nor bring the
/// first one behind it.
TEST_F(ExchangeTest, HeartbeatsThatRunOutOneAfterTheOtherAreOneSilence) {
    train(2);
    pass(100 * kMillisecond, {2}, {}, Phase::kExchange);
    pass(100 * kMillisecond, {1, 2}, {}, Phase::kExchange);
    pass(6 * kSecond, {0, 1, 2}, {}, Phase::kExchange);
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentTo<Expelled>(r), IsEmpty()) << r;
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
    pass(500 * kMillisecond, {0, 2}, {}, Phase::kExchange);
    pass(500 * kMillisecond, {2}, {}, Phase::kExchange);
    pass(500 * kMillisecond, {}, {}, Phase::kExchange);
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentTo<Expelled>(r), IsEmpty()) << r;
    EXPECT_EQ(commit(), 3u);

    // One that stays away is lost a heartbeat's time after the others are back.
    pass(4 * kSecond, {0, 1, 2}, {}, Phase::kExchange);
    pass(100 * kMillisecond, {2}, {}, Phase::kExchange);
    for (const int32_t r : {0, 1}) say(r, no(r));
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
    pass(3 * kSecond, {2}, {}, Phase::kVote);
    EXPECT_THAT(sentTo<Expelled>(2), SizeIs(1));
    for (const int32_t r : {0, 1}) EXPECT_THAT(sentTo<Expelled>(r), IsEmpty()) << r;
}

TEST_F(ExchangeTest, HalfTheJobSilentPausesItAndSoLongAsAnOperatorAllows) {
    for (const uint32_t pause : {0u, 5000u}) {
        now = kSecond;
        everything.clear();
        options.timeouts.massPauseMs = pause;
        train(2);
        pass(4 * kSecond, {1, 2}, {}, Phase::kExchange);
        EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
        EXPECT_THAT(machine->explanation(), HasSubstr("do not answer, half of the job"));
        EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
        pass(5 * kSecond, {1, 2}, {}, Phase::kExchange);
        EXPECT_THAT(sentTo<Expelled>(1), SizeIs(pause == 0 ? 0 : 1));
        EXPECT_THAT(sentTo<Expelled>(2), SizeIs(pause == 0 ? 0 : 1));
        if (pause == 0) {
            exits({1, 0});  // its agent confirms; the other is one of two that are left
            EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
        }
    }
}

// ---- who is believed, and who is waited for

TEST_F(ExchangeTest, ARankThatLostItsOwnSiblingEndsItsReplicaAtOnce) {
    train(2);
    say(1, Evidence{EvidenceKind::kTransportReset, RankId{1, 1}, 1, "r1s0", "lost its sibling", 0,
                    0, 0});
    EXPECT_THAT(evidence(), ElementsAre("r1 transport_reset"));
    EXPECT_THAT(sentNow<Expelled>(1), SizeIs(1));
    EXPECT_THAT(factsNow<fact::IncidentOpened>().at(0).title, HasSubstr("lost its sibling"));
}

TEST_F(ExchangeTest, WhoIsOutOrNotInTheExchangeEndsNobodys) {
    options.policies.restartLimit = 1;
    train(2);
    const Quorum q = quorum();
    const auto told = [&](int32_t by, int32_t whom) {
        say(by, Evidence{EvidenceKind::kTransportReset, RankId{whom, 0}, view(whom).incarnation,
                         "x", "y", machine->openStep(), quorum().epoch, quorum().attempt});
    };
    loseAndReturn(2);
    everything.clear();
    told(2, 0);
    EXPECT_THAT(evidence(), SizeIs(1)) << "told, and no more";
    told(0, 2);
    EXPECT_THAT(sentTo<Abort>(0), IsEmpty());
    exits({2, 0});
    ASSERT_EQ(state(2), ReplicaState::kFailed);
    told(2, 0);
    EXPECT_THAT(evidence(), IsEmpty());
    // Nor of a step that only waits for the log, or when there is none.
    const Quorum open = quorum();
    voteAll();
    told(0, 1);
    EXPECT_THAT(sentTo<Abort>(0), IsEmpty());
    operate(OperationKind::kPause);
    durable();
    ASSERT_EQ(machine->openStep(), 0u);
    say(0, Evidence{EvidenceKind::kTransportReset, RankId{1, 0}, 1, "x", "y", open.step, open.epoch,
                    open.attempt});
    EXPECT_THAT(sentTo<Abort>(0), IsEmpty());
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
}

TEST_F(ExchangeTest, ALostNodeGoesWithItsPeersWordThoughHalfTheJobIsMissed) {
    train(2);
    step(NodeLost{"node1", {1}});
    step(NodeLost{"node2", {2}});
    ASSERT_THAT(sentTo<Expelled>(2), IsEmpty());
    accuse(0, 2, EvidenceKind::kChunkTimeout);
    EXPECT_THAT(sentNow<Expelled>(2), SizeIs(1));
    EXPECT_THAT(factsNow<fact::IncidentOpened>().at(0).title,
                HasSubstr("its node is gone, and its peers lost it too"));
}

TEST_F(ExchangeTest, TheFirstComplaintNamesTheCause) {
    train(2);
    pass(100 * kMillisecond, {1}, {}, Phase::kExchange);
    accuse(0, 1, EvidenceKind::kChunkTimeout);
    accuse(0, 1, EvidenceKind::kTransportReset);
    pass(450 * kMillisecond, {1}, {}, Phase::kExchange);
    ASSERT_THAT(factsNow<fact::IncidentOpened>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::IncidentOpened>()[0].cause, EvidenceKind::kChunkTimeout);
}

TEST_F(ExchangeTest, WhoeverGetsOnWithItsOwnWorkIsSlowAndWhoDoesNotIsEnded) {
    for (const Phase phase : {Phase::kCompute, Phase::kApply, Phase::kReplay}) {
        now = kSecond;
        everything.clear();
        train(2);
        pass(100 * kMillisecond, {}, {}, phase);
        accuse(0, 1, EvidenceKind::kChunkTimeout);
        EXPECT_THAT(sentTo<Abort>(0), IsEmpty());
        // It stands still within its work; that alone is no reason yet.
        pass(2900 * kMillisecond, {}, {1}, phase == Phase::kReplay ? phase : Phase::kExchange);
        everything.clear();
        if (phase == Phase::kReplay) pass(200 * kMillisecond, {}, {1}, phase);
        accuse(0, 1, EvidenceKind::kChunkTimeout);
        EXPECT_THAT(sentTo<Abort>(0), SizeIs(1)) << static_cast<int>(phase);
    }
    now = kSecond;
    everything.clear();
    train(2);
    pass(100 * kMillisecond, {}, {}, Phase::kCompute);
    pass(400 * kMillisecond, {1}, {}, Phase::kCompute);
    accuse(0, 1, EvidenceKind::kChunkTimeout);
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1)) << "who is silent gets on with nothing";
}

TEST_F(ExchangeTest, ComplaintsCountAgainstWhomTwoFailedExchangesAreBlamed) {
    train(2);
    accuse(0, 1);
    for (const int32_t r : {0, 1, 2}) say(r, no(r));
    ASSERT_EQ(quorum().attempt, 2u);
    accuse(2, 1);
    for (const int32_t r : {0, 1, 2}) say(r, no(r));
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
}

TEST_F(ExchangeTest, WhoNamesItselfOrNobodyOfTheExchangeBlamesNobody) {
    train(2);
    for (int i = 0; i < 3; ++i) {
        for (const int32_t r : {0, 1, 2}) say(r, no(r, {9, r, -1}));
        pass(100 * kMillisecond);
    }
    for (const int32_t r : {0, 1, 2}) EXPECT_THAT(sentTo<Expelled>(r), IsEmpty());
    EXPECT_EQ(quorum().attempt, 4u);
}

TEST_F(ExchangeTest, ASilentOneHasABetterClaimThanOneThatIsComplainedOf) {
    train(2);
    say(0, no(0, {2}));
    vote(1);
    vote(2);
    ASSERT_EQ(quorum().attempt, 2u);
    vote(1);
    pass(400 * kMillisecond, {1}, {}, Phase::kVote);
    say(0, no(0, {2}));
    say(2, no(2, {0}));
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
}

TEST_F(ExchangeTest, WhoHasVotedForTheSumIsNotGoneForAComplaint) {
    train(2);
    vote(1);
    pass(400 * kMillisecond, {1}, {}, Phase::kExchange);
    accuse(0, 1);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty()) << "its part is there";
    vote(0);
    vote(2);
    durable();
    EXPECT_EQ(machine->committedStep(), 3u);
}

TEST_F(ExchangeTest, AComplaintIsOfItsAttemptAlone) {
    train(2);
    accuse(0, 1);
    for (const int32_t r : {0, 1, 2}) say(r, no(r));
    say(0, no(0));
    pass(450 * kMillisecond, {1}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty()) << "of this one nobody complained";
    // Nor does it outlive its step.
    now = kSecond;
    everything.clear();
    train(2);
    accuse(0, 1);
    voteAll();
    durable();
    say(0, no(0));
    pass(450 * kMillisecond, {1}, {}, Phase::kExchange);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
}

TEST_F(ExchangeTest, OfManyOneSilentHalfIsSuspectedTogetherAndAMinorityGoes) {
    for (const uint32_t replicas : {4u, 5u}) {
        now = kSecond;
        everything.clear();
        options.replicas = replicas;
        train(2);
        pass(400 * kMillisecond, {1, 2}, {}, Phase::kExchange);
        accuse(0, 1);
        EXPECT_THAT(sentTo<Expelled>(1), SizeIs(replicas == 4 ? 0 : 1)) << replicas;
        EXPECT_THAT(sentTo<Expelled>(2), IsEmpty()) << "nobody complained of it";
    }
}

TEST_F(ExchangeTest, WhatTheCoordinatorMissesItselfIsToldWithRankAndTime) {
    train(2);
    pass(2300 * kMillisecond, {1}, {}, Phase::kExchange);
    ASSERT_THAT(factsNow<fact::EvidenceSeen>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::EvidenceSeen>()[0].kind, EvidenceKind::kMissedHeartbeat);
    EXPECT_EQ(factsNow<fact::EvidenceSeen>()[0].shard, 0);
    EXPECT_THAT(factsNow<fact::EvidenceSeen>()[0].detail, HasSubstr("r1s0 has not beaten for 2"));
    now = kSecond;
    everything.clear();
    train(2);
    pass(100 * kMillisecond, {}, {}, Phase::kCompute);
    pass(3300 * kMillisecond, {}, {1}, Phase::kCompute);
    ASSERT_THAT(factsNow<fact::EvidenceSeen>(), SizeIs(1));
    EXPECT_EQ(factsNow<fact::EvidenceSeen>()[0].kind, EvidenceKind::kMissedProgress);
    EXPECT_THAT(factsNow<fact::EvidenceSeen>()[0].detail,
                HasSubstr("r1s0 has made no progress for 3"));
    EXPECT_THAT(sentTo<Expelled>(1), SizeIs(1));
}

TEST_F(ExchangeTest, HalfTheJobStandingStillPausesItAndEndsTheExchange) {
    train(2);
    pass(100 * kMillisecond, {}, {}, Phase::kCompute);
    pass(4 * kSecond, {}, {1, 2}, Phase::kCompute);
    EXPECT_THAT(sentTo<Expelled>(1), IsEmpty());
    EXPECT_THAT(sentTo<Expelled>(2), IsEmpty());
    EXPECT_EQ(machine->phase(), JobPhase::kWaiting);
    EXPECT_THAT(sentTo<Abort>(0), SizeIs(1)) << "r0 need not wait for a sum";
}

/// Joiners cost nobody anything: however many go at once, nobody suspects a fault of the observer.
TEST_F(ExchangeTest, StartsThatTakeTooLongEndTogetherWhateverTheirNumber) {
    options.replicas = 4;
    options.timeouts.startMs = 3000;
    train(2);
    exits({2, 0});
    exits({3, 0});
    voteAll();
    durable();
    up(3);  // it is up, and never tells of its state
    pass(3300 * kMillisecond, {2}, {}, Phase::kExchange);
    for (const int32_t r : {2, 3}) EXPECT_THAT(sentNow<Expelled>(r), SizeIs(1)) << r;
    EXPECT_EQ(machine->phase(), JobPhase::kTraining);
    EXPECT_THAT(sentNow<Abort>(0), IsEmpty());
}

TEST_F(ExchangeTest, VerdictsThatNobodyAskedForSayNothing) {
    train(2);
    say(0, ReplayVerdict{0, 1, 2, {1}});
    operate(OperationKind::kPause);
    commit();
    say(0, ReplayVerdict{0, 1, 3, {1}});
    EXPECT_THAT(sentTo<Expelled>(0), IsEmpty());
    operate(OperationKind::kResume);
    commit();
}

// ---- what a quorum says

TEST_F(ExchangeTest, EachQuorumIsToldOnceAndToWhoeverCanUseIt) {
    train(2);
    EXPECT_THAT(facts<fact::QuorumDecided>(), SizeIs(3));
    everything.clear();
    exits({2, 0});
    voteAll();
    durable();
    up(2);
    EXPECT_THAT(sentTo<Quorum>(2), IsEmpty()) << "it has no groups yet, nor a state";
    catchUp(2);
    commit();
    EXPECT_FALSE(sentTo<Quorum>(2).empty()) << "it follows";
    EXPECT_THAT(quorum().joiners, ElementsAre(2));
    const std::vector<int32_t> all = members(quorum());
    for (const int32_t r : all) say(r, no(r));
    EXPECT_EQ(quorum().attempt, 2u);
    EXPECT_THAT(quorum().joiners, ElementsAre(2));
}

TEST_F(ExchangeTest, AConstantBatchIsSharedOutAmongThoseWhoAreLeft) {
    options.policies.batch = BatchPolicy::kConstant;
    options.samplesPerReplica = 5;
    train(2);
    exits({1, 0});
    commit();
    EXPECT_THAT(members(quorum()), ElementsAre(0, 2));
    EXPECT_EQ(sampleCount(leaseOf(0)), 8u);
    EXPECT_EQ(sampleCount(leaseOf(2)), 7u);
}

TEST_F(ExchangeTest, TheHighestHasNobodyAboveItAndTheOnlyOneNobodyAtAll) {
    options.replicas = 4;
    train(2);
    const auto own = leaseOf(3);
    const auto others = leaseOf(0);
    say(3, notFinite(3));
    for (const int32_t r : {0, 1, 2}) say(r, no(r));
    EXPECT_EQ(leaseOf(3), others);
    EXPECT_EQ(leaseOf(0), own);
    now = kSecond;
    train(2);
    const auto first = leaseOf(1);
    const auto last = leaseOf(3);
    for (const int32_t r : {1, 2}) say(r, notFinite(r));
    for (const int32_t r : {0, 3}) say(r, no(r));
    EXPECT_NE(leaseOf(1), first) << "not with the other that is at fault";
    EXPECT_NE(leaseOf(3), last);
    options.replicas = 1;
    now = kSecond;
    train(2);
    const auto before = computations();
    say(0, notFinite(0));
    EXPECT_NE(computations(), before) << "it computes again";
    say(0, notFinite(0));
    EXPECT_EQ(machine->ledger().quarantinedSamples(), options.samplesPerReplica);
    commit();
}

}  // namespace
}  // namespace bulkhead::protocol
