// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "backend/runtime/protocol/gradient_watch.h"
#include "backend/runtime/protocol/invariants.h"
#include "backend/runtime/protocol/membership.h"
#include "backend/runtime/protocol/parity.h"
#include "backend/runtime/protocol/quorum.h"
#include "backend/runtime/protocol/replica_fold.h"
#include "backend/runtime/protocol/step_commit.h"

namespace bulkhead::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Stage = QuorumCandidate::Stage;

// ---- quorum
// --------------------------------------------------------------------------------------

QuorumState upToDate(size_t replicas, uint64_t step) {
    QuorumState s;
    s.step = step;
    s.committed = step - 1;
    for (size_t i = 0; i < replicas; ++i) {
        QuorumCandidate c;
        c.replica = static_cast<int32_t>(i);
        c.stage = Stage::kUpToDate;
        c.step = step - 1;
        s.candidates.push_back(c);
    }
    return s;
}

TEST(QuorumTest, AtTheStartEverybodyIsWaitedForUntilTheJoinTimeout) {
    Options o;
    QuorumState s = upToDate(4, 1);
    s.first = true;
    s.begun = kSecond;
    s.candidates[3].stage = Stage::kStarting;
    s.candidates[3].lastBeat = kSecond;
    QuorumDecision d = quorumCompute(3 * kSecond, s, o);
    EXPECT_FALSE(d.issue);
    EXPECT_EQ(d.decideAgain, kSecond + o.timeouts.joinMs * kMillisecond);
    EXPECT_THAT(d.explanation, HasSubstr("waiting for r3 (starting, last beat 2.0 s ago)"));
    EXPECT_THAT(d.explanation, HasSubstr("8.0 s left"));
    d = quorumCompute(d.decideAgain, s, o);
    EXPECT_TRUE(d.issue);
    EXPECT_THAT(d.contributors, ElementsAre(0, 1, 2));
}

TEST(QuorumTest, LaterNobodyIsWaitedFor) {
    QuorumState s = upToDate(4, 9);
    s.candidates[1].stage = Stage::kGone;
    const QuorumDecision d = quorumCompute(kSecond, s, Options());
    EXPECT_TRUE(d.issue);
    EXPECT_THAT(d.contributors, ElementsAre(0, 2, 3));
    EXPECT_NEAR(d.lrFactor, std::sqrt(0.75), 1e-12);
}

/// Step 9 is in flight, 10 is to be decided, r2 follows.
QuorumState withFollower(bool proven, uint64_t holds, bool exchanges) {
    QuorumState s = upToDate(3, 10);
    s.committed = 8;
    s.candidates[2].stage = Stage::kFollowing;
    s.candidates[2].proven = proven;
    s.candidates[2].step = holds;
    s.candidates[2].exchanges = exchanges;
    return s;
}

TEST(QuorumTest, AProvenJoinerThatHoldsTheLastCommitEntersBeforeItContributes) {
    struct Row {
        bool proven;
        uint64_t holds;
        bool in;
    };
    for (const Row& row :
         {Row{true, 8, true}, Row{true, 9, true}, Row{false, 8, false}, Row{true, 7, false}}) {
        const QuorumDecision d =
            quorumCompute(kSecond, withFollower(row.proven, row.holds, false), Options());
        EXPECT_TRUE(d.issue);
        EXPECT_THAT(d.contributors, ElementsAre(0, 1)) << row.holds;
        EXPECT_EQ(d.entering.size(), row.in ? 1u : 0u) << row.holds;
        EXPECT_THAT(d.joiners, ElementsAre(2));
        EXPECT_NEAR(d.lrFactor, std::sqrt(2.0 / 4), 1e-12) << "who brings nothing does not count";
    }
}

TEST(QuorumTest, WhoeverTheJobHasNoPlaceForStaysInReserve) {
    Options o;
    o.replicas = 3;
    o.spares = 2;
    QuorumState s = upToDate(5, 1);
    s.first = true;
    s.candidates[4].stage = Stage::kStarting;
    s.candidates[4].awaited = false;
    QuorumDecision d = quorumCompute(kSecond, s, o);
    EXPECT_TRUE(d.issue) << "nobody waits for a spare";
    EXPECT_THAT(d.contributors, ElementsAre(0, 1, 2));
    EXPECT_THAT(d.reserve, ElementsAre(3));
    EXPECT_EQ(d.lrFactor, 1);
    // r1 is gone: r3, which follows, takes its place. Back again, r1 does not take it away.
    s = upToDate(5, 10);
    s.candidates[1].stage = Stage::kGone;
    for (const size_t spare : {3, 4}) {
        s.candidates[spare].stage = Stage::kFollowing;
        s.candidates[spare].proven = true;
    }
    d = quorumCompute(kSecond, s, o);
    EXPECT_THAT(d.contributors, ElementsAre(0, 2, 3));
    EXPECT_THAT(d.reserve, ElementsAre(4));
    s.candidates[3].stage = Stage::kUpToDate;
    s.candidates[1].stage = Stage::kFollowing;
    s.candidates[1].proven = true;
    d = quorumCompute(kSecond, s, o);
    EXPECT_THAT(d.contributors, ElementsAre(0, 2, 3));
    EXPECT_THAT(d.reserve, ElementsAre(1, 4));
    EXPECT_THAT(d.explanation, HasSubstr("in reserve: r1, r4"));
}

TEST(QuorumTest, WhoeverHasEnteredContributesNextUnlessItIsLate) {
    QuorumDecision d = quorumCompute(kSecond, withFollower(true, 8, true), Options());
    EXPECT_THAT(d.contributors, ElementsAre(0, 1, 2));
    EXPECT_THAT(d.entering, IsEmpty());
    // It has the sum of step 9 by then, but not yet the state that step 9 builds on.
    d = quorumCompute(kSecond, withFollower(true, 7, true), Options());
    EXPECT_THAT(d.contributors, ElementsAre(0, 1));
    EXPECT_THAT(d.entering, IsEmpty());
    EXPECT_THAT(d.explanation, HasSubstr("joining: r2"));
}

TEST(QuorumTest, WithNothingInFlightAJoinerContributesAtOnce) {
    QuorumState s = withFollower(true, 9, false);
    s.committed = 9;
    EXPECT_THAT(quorumCompute(kSecond, s, Options()).contributors, ElementsAre(0, 1, 2));
}

TEST(QuorumTest, ThoseWhoEnterDoNotMakeUpForContributors) {
    Options o;
    o.policies.minReplicas = 3;
    const QuorumDecision d = quorumCompute(kSecond, withFollower(true, 8, false), o);
    EXPECT_FALSE(d.issue);
    EXPECT_THAT(d.explanation, HasSubstr("2 of at least 3"));
}

TEST(QuorumTest, BelowMinReplicasItSaysWhoIsMissing) {
    Options o;
    o.policies.minReplicas = 3;
    QuorumState s = upToDate(4, 5);
    s.candidates[0].stage = Stage::kGone;
    s.candidates[1].leaving = "drained";
    const QuorumDecision d = quorumCompute(kSecond, s, o);
    EXPECT_FALSE(d.issue);
    EXPECT_THAT(d.explanation, HasSubstr("2 of at least 3"));
    EXPECT_THAT(d.explanation, HasSubstr("r0 (not running)"));
}

TEST(QuorumTest, PauseHoldAndSuspicionKeepItFromBeingIssued) {
    QuorumState s = upToDate(2, 5);
    s.paused = true;
    EXPECT_FALSE(quorumCompute(kSecond, s, Options()).issue);
    s.paused = false;
    s.candidates[0].suspected = true;
    QuorumDecision d = quorumCompute(kSecond, s, Options());
    EXPECT_FALSE(d.issue);
    EXPECT_THAT(d.explanation, HasSubstr("r0 (suspected) does not answer"));
    EXPECT_THAT(d.explanation, HasSubstr("waits until it answers"));
    s.candidates[0].lostAt = 5 * kSecond;
    s.candidates[1].suspected = true;
    d = quorumCompute(kSecond, s, Options());
    EXPECT_THAT(d.explanation, HasSubstr("r0 (suspected), r1 (suspected) do not answer"));
    EXPECT_THAT(d.explanation, HasSubstr("taken for lost in 4.0 s"));
    s.candidates[1].suspected = false;
    s.candidates[0].alone = true;
    s.checkpoint = 3;
    d = quorumCompute(kSecond, s, Options());
    EXPECT_THAT(d.explanation, HasSubstr("nobody else holds step " + std::to_string(s.committed)));
    EXPECT_THAT(d.explanation, HasSubstr("goes back to the checkpoint of step 3"));
}

TEST(QuorumTest, NobodyWaitsForWhoIsNotExpectedOrIsLeaving) {
    Options o;
    QuorumState s = upToDate(3, 1);
    s.first = true;
    s.begun = kSecond;
    s.candidates[2].expected = false;
    QuorumDecision d = quorumCompute(kSecond, s, o);
    EXPECT_TRUE(d.issue) << "r2 is held";
    EXPECT_THAT(d.contributors, ElementsAre(0, 1));
    s.candidates[2].stage = Stage::kCatchingUp;
    EXPECT_THAT(quorumCompute(kSecond, s, o).joiners, IsEmpty());
    s.candidates[2].expected = true;
    s.candidates[2].leaving = "drained";
    d = quorumCompute(kSecond, s, o);
    EXPECT_TRUE(d.issue);
    EXPECT_THAT(d.joiners, IsEmpty());
    s.first = false;
    s.candidates[2].leaving.reset();
    EXPECT_THAT(quorumCompute(kSecond, s, o).joiners, ElementsAre(2));
    o.policies.minReplicas = 3;
    s.candidates[2].expected = false;
    EXPECT_THAT(quorumCompute(kSecond, s, o).explanation, HasSubstr("waiting for an operator"));
    s.candidates[2].stage = Stage::kGone;
    s.givenUpWhy = "given up after 10 restarts: r2s0 exited with code 1";
    EXPECT_THAT(quorumCompute(kSecond, s, o).explanation,
                HasSubstr("an operator to release r2, the last one given up after 10 restarts"));
    s.candidates[1].leaving = "its gradients are not finite";
    s.candidates[1].alone = true;
    EXPECT_THAT(quorumCompute(kSecond, s, o).explanation,
                HasSubstr("nobody but r1 holds it, which leaves then (its gradients are not"));
}

TEST(QuorumTest, WhoIsLeavingOrSuspectedIsNamedInNoQuorum) {
    QuorumState s = upToDate(3, 5);
    s.candidates[1].leaving = "drained";
    s.candidates[2].suspected = true;
    EXPECT_THAT(quorumCompute(kSecond, s, Options()).contributors, ElementsAre(0));
    s.candidates[0].expected = false;
    EXPECT_THAT(quorumCompute(kSecond, s, Options()).contributors, IsEmpty());
}

/// A replica that still fetches cannot take part in a step, even if it was proven before.
TEST(QuorumTest, OnlyWhoFollowsMayEnter) {
    QuorumState s = withFollower(true, 8, false);
    s.candidates[2].stage = Stage::kCatchingUp;
    const QuorumDecision d = quorumCompute(kSecond, s, Options());
    EXPECT_THAT(d.contributors, ElementsAre(0, 1));
    EXPECT_THAT(d.entering, IsEmpty());
    EXPECT_THAT(d.joiners, ElementsAre(2));
}

TEST(QuorumTest, PlacesGoFirstToWhoTrainsThenToWhoEntersAndListsAscend) {
    Options o;
    o.replicas = 3;
    QuorumState s = withFollower(true, 8, false);
    s.candidates.push_back(s.candidates[2]);
    s.candidates[3].replica = 3;
    QuorumDecision d = quorumCompute(kSecond, s, o);
    EXPECT_THAT(d.contributors, ElementsAre(0, 1));
    EXPECT_THAT(d.entering, ElementsAre(2)) << "one place is free";
    EXPECT_THAT(d.reserve, ElementsAre(3));
    EXPECT_THAT(d.joiners, ElementsAre(2)) << "who stays in reserve joins nothing";
    // Nothing is in flight: the lowest follows, the others train.
    s = upToDate(4, 10);
    s.candidates[0].stage = Stage::kFollowing;
    s.candidates[0].proven = true;
    d = quorumCompute(kSecond, s, o);
    EXPECT_THAT(d.contributors, ElementsAre(1, 2, 3));
    EXPECT_THAT(d.reserve, ElementsAre(0));
    s.candidates[3].stage = Stage::kGone;
    EXPECT_THAT(quorumCompute(kSecond, s, o).contributors, ElementsAre(0, 1, 2));
    s = upToDate(5, 10);
    s.candidates[0].stage = s.candidates[1].stage = Stage::kFollowing;
    s.candidates[0].proven = s.candidates[1].proven = true;
    o.replicas = 2;
    d = quorumCompute(kSecond, s, o);
    EXPECT_THAT(d.contributors, ElementsAre(2, 3));
    EXPECT_THAT(d.reserve, ElementsAre(0, 1, 4));
}

TEST(QuorumTest, WithoutReplicasTheRateIsAsItIs) {
    Options o;
    o.replicas = 0;
    EXPECT_EQ(lrFactor(o, 1), 1);
    o.policies.batch = BatchPolicy::kConstant;
    EXPECT_THAT(samplesPerContributor(o, 0), IsEmpty());
}

TEST(QuorumTest, ConstantBatchSharesTheWholeBatchOut) {
    Options o;
    o.samplesPerReplica = 4;
    o.policies.batch = BatchPolicy::kConstant;
    EXPECT_THAT(samplesPerContributor(o, 3), ElementsAre(6, 5, 5));
    EXPECT_EQ(lrFactor(o, 3), 1);
    o.policies.batch = BatchPolicy::kShrink;
    EXPECT_THAT(samplesPerContributor(o, 3), ElementsAre(4, 4, 4));
    o.policies.lr = LrPolicy::kLinear;
    EXPECT_EQ(lrFactor(o, 3), 0.75);
}

// ---- ballots
// -------------------------------------------------------------------------------------

ReplicaVote vote(int32_t replica, bool complete, double squares = 4) {
    ReplicaVote v;
    v.replica = replica;
    v.complete = complete;
    v.gradSquares = {squares, squares};
    v.shardsIn = 2;
    return v;
}

Ballot ballotOf(std::vector<ReplicaVote> votes, std::set<int32_t> lost = {}) {
    Ballot b;
    b.contributors = {0, 1, 2};
    b.lost = std::move(lost);
    for (ReplicaVote& v : votes) b.votes[v.replica] = std::move(v);
    return b;
}

TEST(BallotTest, ACompleteSumCommitsWithAContributorThatDiedBeforeItVoted) {
    EXPECT_EQ(readBallot(ballotOf({vote(0, true), vote(1, true)}, {2})).verdict,
              BallotVerdict::kCommit);
}

TEST(BallotTest, ASurvivorWithoutTheSumMeansRedoAndOneWithoutAVoteMeansWaiting) {
    EXPECT_EQ(readBallot(ballotOf({vote(0, true), vote(1, false)}, {2})).verdict,
              BallotVerdict::kRedo);
    const BallotResult r = readBallot(ballotOf({vote(0, false), vote(1, true)}));
    EXPECT_EQ(r.verdict, BallotVerdict::kWait);
    EXPECT_TRUE(r.hopeless);
    EXPECT_THAT(r.waitingFor, ElementsAre(2));
    EXPECT_EQ(readBallot(ballotOf({}, {0, 1, 2})).verdict, BallotVerdict::kNobody);
}

TEST(BallotTest, DifferentSumsAreNoSum) {
    const BallotResult r = readBallot(ballotOf({vote(0, true), vote(1, true, 5), vote(2, true)}));
    EXPECT_EQ(r.verdict, BallotVerdict::kRedo);
    EXPECT_THAT(r.disagreeing, ElementsAre(1));
    EXPECT_THAT(readBallot(ballotOf({vote(0, true, 5), vote(1, true), vote(2, true)})).disagreeing,
                ElementsAre(0))
        << "the larger group is right, not the first";
}

TEST(BallotTest, WhoeverEntersMustCompleteButHasNoSayInTheSum) {
    Ballot b = ballotOf({vote(0, true), vote(1, true), vote(2, true, 0)});
    b.entering = {2};
    EXPECT_EQ(readBallot(b).verdict, BallotVerdict::kCommit);
    b.votes.erase(2);
    EXPECT_THAT(readBallot(b).waitingFor, ElementsAre(2));
    b.votes[2] = vote(2, false);
    EXPECT_EQ(readBallot(b).verdict, BallotVerdict::kRedo);
    b.votes[2] = vote(2, true);
    b.lost = {0, 1};
    EXPECT_EQ(readBallot(b).verdict, BallotVerdict::kNobody) << "it alone carries no step";
}

TEST(BallotTest, ASumThatIsNotFiniteFromFiniteInputsIsSkipped) {
    const double inf = std::numeric_limits<double>::infinity();
    const BallotResult r =
        readBallot(ballotOf({vote(0, true, inf), vote(1, true, inf), vote(2, true, inf)}));
    EXPECT_EQ(r.verdict, BallotVerdict::kCommit);
    EXPECT_TRUE(r.nonFiniteSum);
}

TEST(BallotTest, TheEndpointMostFailedPairsShareIsBlamedAndOnATieTheHighest) {
    Ballot b = ballotOf({});
    b.failedPairs = {{0, 1}, {1, 2}};
    EXPECT_EQ(mostBlamed(b), 1);
    b.failedPairs = {{0, 2}};
    EXPECT_EQ(mostBlamed(b), 2);
    b.failedPairs = {};
    EXPECT_EQ(mostBlamed(b), std::nullopt);
}

TEST(RecordTest, ClipsTheMeanGradientAndFixesEverythingAsFloatBits) {
    Options o;
    o.sequenceLength = 10;
    o.optimizer =
        Optimizer{.learningRate = 1, .minLearningRate = 0.1, .warmupSteps = 4, .decaySteps = 8};
    Quorum q;
    q.step = 3;
    q.lrFactor = 0.5;
    q.contributors = {Member{{0, 1, {{0, 0, 6}}}, {}}, Member{{1, 1, {{0, 6, 10}}}, {}}};
    const std::vector<double> squares = {90000, 70000};  // norm 400, over 100 tokens 4
    CommitRecord r = makeRecord({1, 2, 1, &q, &squares, false}, o);
    EXPECT_EQ(r.samples, 10u);
    EXPECT_EQ(r.tokens, 100u);
    EXPECT_EQ(r.updates, 2u);
    EXPECT_EQ(fromFloatBits(r.divisorBits), 100);
    EXPECT_FLOAT_EQ(static_cast<float>(fromFloatBits(r.gradScaleBits)), 0.25f / 100);
    EXPECT_FLOAT_EQ(static_cast<float>(fromFloatBits(r.learningRateBits)), 0.25f);
    EXPECT_FLOAT_EQ(static_cast<float>(fromFloatBits(r.biasCorrection1Bits)), 1 - 0.81f);
    EXPECT_EQ(r.biasCorrection2Bits, floatBits(1 - std::pow(o.optimizer->beta2, 2)));
    EXPECT_EQ(stepLine(r, {}).learningRate, 0.25);
    r = makeRecord({1, 2, 1, &q, &squares, true}, o);
    EXPECT_TRUE(r.skip);
    EXPECT_EQ(r.updates, 1u);
}

TEST(RecordTest, WithoutAnOptimizerItSaysTheMeanAndTheFactorAlone) {
    Options o;
    o.sequenceLength = 10;
    o.optimizer.reset();
    Quorum q;
    q.lrFactor = 0.5;
    q.contributors = {Member{{0, 1, {{0, 0, 10}}}, {}}};
    const std::vector<double> squares = {160000};  // norm 4: what the default would clip
    CommitRecord r = makeRecord({1, 2, 1, &q, &squares, false}, o);
    EXPECT_FLOAT_EQ(static_cast<float>(fromFloatBits(r.gradScaleBits)), 0.01f);
    o.clipNorm = 2;
    r = makeRecord({1, 2, 1, &q, &squares, false}, o);
    EXPECT_FLOAT_EQ(static_cast<float>(fromFloatBits(r.gradScaleBits)), 0.005f) << "its own limit";
    EXPECT_EQ(fromFloatBits(r.lrFactorBits), 0.5);
    EXPECT_EQ(r.learningRateBits, 0u);
    EXPECT_EQ(r.biasCorrection1Bits, 0u);
    EXPECT_EQ(r.biasCorrection2Bits, 0u);
}

TEST(RecordTest, TheScheduleWarmsUpAndEndsAtTheMinimum) {
    const Optimizer o{.learningRate = 1, .minLearningRate = 0.1, .warmupSteps = 4, .decaySteps = 8};
    EXPECT_DOUBLE_EQ(scheduledLearningRate(o, 1), 0.25);
    EXPECT_DOUBLE_EQ(scheduledLearningRate(o, 4), 1);
    EXPECT_NEAR(scheduledLearningRate(o, 6), 0.55, 1e-12);
    EXPECT_DOUBLE_EQ(scheduledLearningRate(o, 8), 0.1);
    EXPECT_DOUBLE_EQ(scheduledLearningRate(o, 800), 0.1);
    const Optimizer constant{
        .learningRate = 1, .minLearningRate = 0.1, .warmupSteps = 4, .decaySteps = 4};
    EXPECT_DOUBLE_EQ(scheduledLearningRate(constant, 5), 1) << "there is nothing to decay over";
}

TEST(StepLine, WithoutTokensThereIsNoLoss) {
    StepFigures figures;
    figures.votes.resize(2);
    figures.votes[0].domainLossSum = {3, 4};
    figures.votes[0].domainTokens = {6, 0};
    figures.votes[1].domainLossSum = {3, 0, 5};
    figures.votes[1].domainTokens = {6};
    const auto line = stepLine(CommitRecord{}, figures);
    EXPECT_EQ(line.loss, 0);
    EXPECT_EQ(line.tokensPerSecond, 0);
    EXPECT_THAT(line.domainLoss, ElementsAre(0.5, -1, -1));
}

TEST(StepLine, WhatTheLogKeepsOfVotesThatAgreeStandsInTheFirst) {
    StepFigures figures;
    figures.votes.resize(2);
    for (ReplicaVote& v : figures.votes) {
        v.hashes = {1, 2};
        v.gradSquares = {3, 4};
        v.expertCounts = {5};
        v.routed = {{0, 12, {2}}};
    }
    const StepFigures kept = forLog(figures);
    EXPECT_THAT(kept.votes[0].hashes, ElementsAre(1, 2));
    EXPECT_THAT(kept.votes[0].gradSquares, ElementsAre(3, 4));
    EXPECT_THAT(kept.votes[1].hashes, IsEmpty());
    EXPECT_THAT(kept.votes[1].gradSquares, IsEmpty());
    for (const ReplicaVote& v : kept.votes) {
        EXPECT_THAT(v.expertCounts, IsEmpty());
        EXPECT_THAT(v.routed, IsEmpty());
    }
}

// ---- gradients
// -----------------------------------------------------------------------------------

/// Norms as training has them: they fall from 8 to 1 and vary by a third.
std::vector<double> norms(size_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> spread(0, 0.3);
    std::vector<double> all;
    for (size_t i = 0; i < count; ++i)
        all.push_back((1 + 7 * std::exp(-static_cast<double>(i) / 30)) * std::exp(spread(random)));
    return all;
}

TEST(GradientWatchTest, WhatTrainingDoesByItselfIsNoJump) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        GradientWatch watch;
        for (const double norm : norms(2'000, seed)) EXPECT_FALSE(watch.note(norm)) << norm;
    }
}

TEST(GradientWatchTest, AJumpIsToldOnceHoweverLongItLastsAndThenItIsTheLevel) {
    GradientWatch watch;
    for (const double norm : norms(200, 1)) watch.note(norm);
    const auto jump = watch.note(21.7);
    ASSERT_TRUE(jump);
    EXPECT_EQ(jump->value, 21.7);
    EXPECT_NEAR(jump->usual, 1, 0.2);
    EXPECT_GT(jump->score, 8);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(watch.note(21.7));
    EXPECT_TRUE(watch.note(1)) << "back from there is a jump too";
}

TEST(GradientWatchTest, TwoJumpsWithUsualSizesBetweenThemAreToldBoth) {
    GradientWatch watch;
    for (const double norm : norms(200, 2)) watch.note(norm);
    EXPECT_TRUE(watch.note(50));
    EXPECT_FALSE(watch.note(1));
    EXPECT_TRUE(watch.note(0.01));
}

TEST(GradientWatchTest, FewSizesAndThoseThatAreNoneSayNothing) {
    GradientWatch watch;
    for (int i = 0; i < 15; ++i) EXPECT_FALSE(watch.note(1));
    EXPECT_FALSE(watch.note(1000));
    for (const double none : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
        for (int i = 0; i < 20; ++i) EXPECT_FALSE(watch.note(none));
    EXPECT_FALSE(watch.note(1.04)) << "sizes that hardly differ are no ruler";
    EXPECT_TRUE(watch.note(1000));
}

// ---- parity
// --------------------------------------------------------------------------------------

TEST(ParityTest, KeepingTheStateCostsAHundredthOfTheStepsAtMost) {
    EXPECT_EQ(occasionsPerTaken(1, 3, 300, 1, 1024), 1u);
    EXPECT_EQ(occasionsPerTaken(1, 3.1, 300, 1, 1024), 2u);
    EXPECT_EQ(occasionsPerTaken(1, 13, 300, 1, 1024), 8u);
    EXPECT_EQ(occasionsPerTaken(1, 13, 300, 5, 1024), 1u)
        << "what is compared seldom is kept seldom";
    EXPECT_EQ(occasionsPerTaken(2, 1.6, 300, 1, 1024), 2u) << "it would go up again at once";
    EXPECT_EQ(occasionsPerTaken(2, 1.5, 300, 1, 1024), 1u);
    EXPECT_EQ(occasionsPerTaken(8, 0.1, 300, 1, 1024), 1u);
    EXPECT_EQ(occasionsPerTaken(1, 1e9, 1, 1, 1024), 1024u);
}

TEST(ParityTest, AMinorityIsNamedWithItsShardsAndATieIsATie) {
    EXPECT_EQ(compareHashes({{0, {1, 2}}, {1, {1, 2}}}).outcome, ParityResult::Outcome::kAgree);
    const ParityResult minority = compareHashes({{0, {1, 2}}, {1, {1, 3}}, {2, {1, 2}}});
    EXPECT_EQ(minority.outcome, ParityResult::Outcome::kMinority);
    EXPECT_THAT(minority.odd, ElementsAre(1));
    EXPECT_THAT(minority.shards, ElementsAre(1));
    EXPECT_THAT(minority.agreed, ElementsAre(1, 2));
    const ParityResult tie = compareHashes({{0, {1, 2}}, {1, {9, 2}}});
    EXPECT_EQ(tie.outcome, ParityResult::Outcome::kTie);
    EXPECT_THAT(tie.shards, ElementsAre(0));
    EXPECT_EQ(compareHashes({{0, {1}}, {1, {2}}, {2, {3}}}).outcome, ParityResult::Outcome::kTie);
}

TEST(ParityTest, ShardsAreNamedOnceInTheirOrder) {
    const ParityResult r = compareHashes(
        {{0, {1, 2, 3}}, {1, {1, 2, 9}}, {2, {1, 2, 3}}, {3, {8, 2, 9}}, {4, {1, 2, 3}}});
    EXPECT_THAT(r.odd, ElementsAre(1, 3));
    EXPECT_THAT(r.shards, ElementsAre(0, 2));
    const ParityResult none = compareHashes({});
    EXPECT_EQ(none.outcome, ParityResult::Outcome::kAgree);
    EXPECT_THAT(none.agreed, IsEmpty());
}

TEST(ParityTest, ThoseWhoTellTheSameAreOneGroupInTheOrderOfItsFirst) {
    const auto groups = groupHashes({{0, {1}}, {1, {2}}, {2, {1}}}, {{0, 4}, {1, 5}, {2, 6}});
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_THAT(groups[0].hashes, ElementsAre(1));
    EXPECT_THAT(groups[0].replicas, ElementsAre(0, 2));
    EXPECT_THAT(groups[0].incarnations, ElementsAre(4, 6));
    EXPECT_THAT(groups[1].replicas, ElementsAre(1));
    EXPECT_THAT(groups[1].incarnations, ElementsAre(5));
}

TEST(ParityTest, WhatWasAgreedOnIsRememberedForSoManySteps) {
    AgreedHashes agreed(2);
    EXPECT_EQ(agreed.lastAgreed(), 0u);
    for (const uint64_t step : {4, 5}) agreed.note(step, {step});
    ASSERT_NE(agreed.find(4), nullptr);
    EXPECT_THAT(*agreed.find(4), ElementsAre(4));
    agreed.note(6, {6});
    EXPECT_EQ(agreed.find(4), nullptr);
    EXPECT_NE(agreed.find(5), nullptr);
    EXPECT_EQ(agreed.lastAgreed(), 6u);
}

// ---- membership
// ----------------------------------------------------------------------------------

TEST(MembershipTest, ABeatWithoutProgressWhileComputingIsMissedProgressInTheEnd) {
    Timeouts t;
    AdaptiveLimits limits(t);
    RankPulse p;
    p.hello = true;
    Beat b;
    b.phase = Phase::kCompute;
    for (MonoNs now = kSecond; now <= 5 * kSecond; now += kSecond) p.beat(now, b);
    EXPECT_EQ(missed(5 * kSecond, p, limits, t), EvidenceKind::kMissedProgress);
    limits.observe(2000, 100);  // steps of 2 s: eight times that is patience
    EXPECT_EQ(missed(5 * kSecond, p, limits, t), std::nullopt);
    EXPECT_EQ(missed(8 * kSecond, p, limits, t), EvidenceKind::kMissedHeartbeat);
    b.phase = Phase::kExchange;  // waits for others: not its own fault
    p.beat(30 * kSecond, b);
    p.beat(90 * kSecond, b);
    EXPECT_EQ(missed(90 * kSecond, p, limits, t), std::nullopt);
}

TEST(MembershipTest, AnyChangeOfWhatABeatSaysIsProgress) {
    RankPulse p;
    Beat b;
    b.phase = Phase::kStarting;
    p.beat(kSecond, b);
    EXPECT_EQ(p.lastProgress, kSecond) << "the first word";
    p.beat(2 * kSecond, b);
    EXPECT_EQ(p.lastProgress, kSecond);
    EXPECT_EQ(p.lastBeat, 2 * kSecond);
    MonoNs now = 3 * kSecond;
    for (const auto& change : {+[](Beat& x) { x.phase = Phase::kCompute; },
                               +[](Beat& x) { x.step = 7; }, +[](Beat& x) { x.progress = 9; }}) {
        change(b);
        p.beat(now, b);
        EXPECT_EQ(p.lastProgress, now);
        p.beat(now + 1, b);
        EXPECT_EQ(p.lastProgress, now) << "the same once more";
        now += kSecond;
    }
}

TEST(MembershipTest, BoundsFollowWhatIsSeenAndNothingSeenChangesNothing) {
    Timeouts t;
    t.progressFloorMs = t.chunkFloorMs = 1;
    AdaptiveLimits limits(t);
    EXPECT_EQ(limits.chunkTimeoutMs(), 1u);
    limits.observe(100, 50);
    EXPECT_EQ(limits.progress(), 800 * kMillisecond);
    EXPECT_EQ(limits.chunkTimeoutMs(), 100u);
    limits.observe(0, 0);
    EXPECT_EQ(limits.progress(), 800 * kMillisecond);
    EXPECT_EQ(limits.chunkTimeoutMs(), 100u);
    limits.observe(150, 100);
    EXPECT_DOUBLE_EQ(limits.stepMs(), 110);
    EXPECT_EQ(limits.chunkTimeoutMs(), 120u);
    EXPECT_TRUE(limits.disturbed(221));
    EXPECT_FALSE(limits.disturbed(220));
    limits.observe(100'000, 0);
    EXPECT_DOUBLE_EQ(limits.stepMs(), 0.8 * 110 + 0.2 * 220) << "something stood still";
}

TEST(MembershipTest, TheGateForgetsWhatIsLongAgoAndWhoseDeathIsConfirmed) {
    SuspicionGate gate(2 * kSecond);
    EXPECT_TRUE(gate.allow(kSecond, 0, 4));
    EXPECT_TRUE(gate.suspects().empty()) << "who is expelled is no suspect";
    EXPECT_TRUE(gate.allow(4 * kSecond, 1, 3)) << "the first was more than a window ago";
    SuspicionGate many(2 * kSecond);
    EXPECT_TRUE(many.allow(kSecond, 0, 9));
    EXPECT_TRUE(many.allow(kSecond, 1, 8)) << "two of nine are not half";
    SuspicionGate half(2 * kSecond);
    half.suspect(kSecond, 0);
    half.suspect(2 * kSecond, 0);
    EXPECT_EQ(half.suspects().at(0), kSecond) << "since the first time";
    EXPECT_FALSE(half.allow(2 * kSecond, 1, 4));
    half.confirm(0);
    EXPECT_FALSE(half.suspects().contains(0));
    half.delay(kSecond);
    EXPECT_EQ(half.suspects().at(1), 3 * kSecond);
    EXPECT_TRUE(half.allow(3 * kSecond, 1, 3));
}

TEST(MembershipTest, TheFirstRestartIsAtOnceWhateverTheBackOff) {
    Timeouts t;
    t.backoffFirstMs = 101;
    t.backoffMaxMs = 150;
    RestartSchedule s;
    EXPECT_EQ(s.next(kSecond, t, 0), kSecond);
    EXPECT_EQ(s.next(kSecond, t, 0), kSecond + 101 * kMillisecond);
    for (int i = 0; i < 80; ++i) EXPECT_EQ(s.next(kSecond, t, 0), kSecond + 150 * kMillisecond);
    const MonoNs later = kSecond + (MonoNs{t.restartWindowMs} + 1) * kMillisecond;
    EXPECT_EQ(s.next(later, t, 4), later) << "those were long ago";
}

TEST(MembershipTest, UnconfirmedEvidenceNeverTakesHalfOfTheJob) {
    SuspicionGate gate(2 * kSecond);
    EXPECT_TRUE(gate.allow(kSecond, 0, 4));
    EXPECT_FALSE(gate.allow(kSecond, 1, 3));
    EXPECT_TRUE(gate.suspects().contains(1));
    gate.confirm(0);  // its agent saw it end: only one is unexplained
    EXPECT_TRUE(gate.allow(kSecond, 1, 3));
    SuspicionGate other(2 * kSecond);
    EXPECT_TRUE(other.allow(kSecond, 0, 2));  // one of two is not a crowd
}

TEST(MembershipTest, RestartsBackOffDoubleAndGiveUp) {
    Timeouts t;
    RestartSchedule s;
    EXPECT_EQ(s.next(0, t, 4), 0);
    EXPECT_EQ(s.next(0, t, 4), 100 * kMillisecond);
    EXPECT_EQ(s.next(0, t, 4), 200 * kMillisecond);
    EXPECT_EQ(s.next(0, t, 4), 400 * kMillisecond);
    EXPECT_EQ(s.next(0, t, 4), std::nullopt);
    EXPECT_TRUE(s.next(t.restartWindowMs * kMillisecond + 1, t, 4).has_value());
}

// ---- fold
// ----------------------------------------------------------------------------------------

RankVote rankVote(int32_t shard, bool complete, uint32_t attempt = 1) {
    RankVote v;
    v.rank = {3, shard};
    v.incarnation = 2;
    v.step = 7;
    v.attempt = attempt;
    v.complete = complete;
    v.hash = 100 + static_cast<uint64_t>(shard);
    v.tokens = 10;
    return v;
}

TEST(FoldTest, YesNeedsEveryShardAndNoIsSaidAtOnce) {
    ReplicaFold fold(3, 2, 2);
    EXPECT_FALSE(fold.add(rankVote(1, true))->has_value());
    const auto whole = std::get<ReplicaVote>(**fold.add(rankVote(0, true)));
    EXPECT_TRUE(whole.complete);
    EXPECT_EQ(whole.tokens, 20u);
    EXPECT_THAT(whole.hashes, ElementsAre(100, 101));
    const auto no = std::get<ReplicaVote>(**fold.add(rankVote(1, false, 2)));
    EXPECT_FALSE(no.complete);
    EXPECT_EQ(no.shardsIn, 1u);
    EXPECT_FALSE(fold.add(rankVote(0, true, 1))->has_value());  // of an older attempt
}

TEST(FoldTest, AHashThatAShardDoesNotTellIsNoneOfTheReplica) {
    ReplicaFold fold(3, 2, 2);
    RankVote vote = rankVote(0, true);
    vote.hash.reset();
    (void)*fold.add(vote);
    EXPECT_THAT(std::get<ReplicaVote>(**fold.add(rankVote(1, true))).hashes, IsEmpty());
    RankReport report;
    report.rank = {3, 0};
    report.incarnation = 2;
    report.hasState = true;
    report.hash = 1;
    (void)*fold.add(report);
    report.rank.shard = 1;
    report.hash.reset();
    EXPECT_THAT(std::get<Report>(**fold.add(report)).hashes, IsEmpty());
    report.hash = 2;
    EXPECT_THAT(std::get<Report>(**fold.add(report)).hashes, ElementsAre(1, 2));
}

TEST(FoldTest, TheReplicasVoteAddsWhatItsShardsCountAndTakesTheSlowestTimes) {
    RankVote a = rankVote(0, true);
    a.epoch = 4;
    a.gradSquares = 0.5;
    a.lossSum = 1.5;
    a.failedPeers = {2, 1};
    a.domainLossSum = {1, 2};
    a.domainTokens = {3};
    a.expertCounts = {4, 5};
    a.traffic = {{6, 7}, {1, 2}, 8};
    a.routed = {{0, 11, {1}}};
    a.computeMs = 5;
    a.exchangeMs = 1;
    a.exposedMs = 4;
    a.applyMs = 2;
    a.waitedOnMs = 3;
    a.waitedOn = 1;
    a.bytes = 100;
    RankVote b = rankVote(1, true);
    b.epoch = 4;
    b.gradSquares = 0.25;
    b.lossSum = 2;
    b.failedPeers = {1};
    b.domainLossSum = {10, 20};
    b.domainTokens = {30, 40};
    b.expertCounts = {50, 60};
    b.traffic = {{70, 80}, {10, 20}, 90};
    b.routed = {{0, 12, {2}}};
    b.computeMs = 4;
    b.exchangeMs = 6;
    b.exposedMs = 1;
    b.applyMs = 7;
    b.waitedOnMs = 2;
    b.waitedOn = 0;
    b.bytes = 11;
    ReplicaFold fold(3, 2, 2);
    (void)*fold.add(a);
    const auto v = std::get<ReplicaVote>(**fold.add(b));
    EXPECT_EQ(std::tuple(v.replica, v.incarnation, v.step, v.epoch, v.attempt),
              std::tuple(3, 2u, 7u, 4u, 1u));
    EXPECT_TRUE(v.complete);
    EXPECT_FALSE(v.nonFiniteLocal);
    EXPECT_EQ(v.shardsIn, 2u);
    EXPECT_THAT(v.gradSquares, ElementsAre(0.5, 0.25));
    EXPECT_THAT(v.failedPeers, ElementsAre(1, 2));
    EXPECT_EQ(v.lossSum, 3.5);
    EXPECT_THAT(v.domainLossSum, ElementsAre(11, 22));
    EXPECT_THAT(v.domainTokens, ElementsAre(33, 40));
    EXPECT_THAT(v.expertCounts, ElementsAre(54, 65));
    EXPECT_THAT(v.traffic.copies, ElementsAre(76, 87));
    EXPECT_THAT(v.traffic.remote, ElementsAre(11, 22));
    EXPECT_EQ(v.traffic.bytes, 98u);
    EXPECT_THAT(v.routed, ElementsAre(a.routed[0], b.routed[0]));
    EXPECT_EQ(std::tuple(v.computeMs, v.exchangeMs, v.exposedMs, v.applyMs),
              std::tuple(5, 6, 4, 7));
    EXPECT_EQ(v.waitedOnMs, 3);
    EXPECT_EQ(v.waitedOn, 1);
    EXPECT_EQ(v.bytes, 111u);
    b.nonFiniteLocal = true;
    EXPECT_TRUE(std::get<ReplicaVote>(**fold.add(b)).nonFiniteLocal);
}

TEST(FoldTest, AShardThatIsBehindAndCatchesUpFindsTheOthersWhereTheyWere) {
    ReplicaFold fold(3, 2, 2);
    RankReport r;
    r.rank = {3, 0};
    r.incarnation = 2;
    r.hasState = r.ready = true;
    r.step = 12;
    EXPECT_FALSE((*fold.add(r)).has_value());
    r.rank.shard = 1;
    r.step = 11;
    EXPECT_FALSE((*fold.add(r)).has_value());
    r.step = 12;
    const auto out = *fold.add(r);
    ASSERT_TRUE(out.has_value()) << "shard 0 has nothing new to say";
    EXPECT_EQ(std::get<Report>(*out).step, 12u);
}

TEST(FoldTest, AGradientOfWhichAShardKeepsNothingIsComputedAgainByAll) {
    ReplicaFold fold(3, 2, 2);
    RankReport r;
    r.rank = {3, 0};
    r.incarnation = 2;
    r.lineage = 5;
    r.hasState = r.ready = r.following = true;
    r.step = 7;
    r.hash = 1;
    r.layout = 2;
    r.moved = 3;
    r.last = CommitRecord{};
    r.last->step = 7;
    r.retainedStep = 8;
    r.retained = {{0, 0, 4}};
    EXPECT_FALSE((*fold.add(r)).has_value());
    r.rank.shard = 1;
    r.hash = 2;
    auto out = std::get<Report>(**fold.add(r));
    EXPECT_EQ(
        std::tuple(out.replica, out.incarnation, out.lineage, out.step, out.layout, out.moved),
        std::tuple(3, 2u, 5u, 7u, 2u, 3u));
    EXPECT_TRUE(out.hasState && out.ready && out.following);
    EXPECT_EQ(out.last->step, 7u);
    EXPECT_EQ(out.retainedStep, 8u);
    EXPECT_THAT(out.retained, ElementsAre(SampleRange{0, 0, 4}));
    EXPECT_THAT(out.hashes, ElementsAre(1, 2));
    r.retained = {{0, 0, 2}};
    out = std::get<Report>(**fold.add(r));
    EXPECT_EQ(out.retainedStep, 0u) << "of other samples";
    EXPECT_THAT(out.retained, IsEmpty());
}

TEST(FoldTest, AFetchIsAsFarAsItsSlowestShardAndCountsAllBytesOfItsSnapshot) {
    ReplicaFold fold(3, 2, 2);
    (void)*fold.add(RankFetchProgress{{3, 0}, 2, 10, 5, 100, 12});
    auto p = std::get<FetchProgress>(**fold.add(RankFetchProgress{{3, 1}, 2, 10, 7, 200, 11}));
    EXPECT_EQ(std::tuple(p.replica, p.incarnation, p.snapshotStep), std::tuple(3, 2u, 10u));
    EXPECT_EQ(std::tuple(p.bytesDone, p.bytesTotal, p.step), std::tuple(12u, 300u, 11u));
    p = std::get<FetchProgress>(**fold.add(RankFetchProgress{{3, 1}, 2, 20, 1, 200, 20}));
    EXPECT_EQ(std::tuple(p.bytesDone, p.bytesTotal, p.step), std::tuple(1u, 200u, 20u))
        << "what is known of the other shard is of another snapshot";
}

TEST(FoldTest, VerdictsMovesAndSnapshotsAreToldWhenEveryShardHasItsOwn) {
    ReplicaFold fold(3, 2, 2);
    EXPECT_FALSE((*fold.add(RankVerdict{{3, 1}, 2, 9, true, false})).has_value());
    const auto verdict = std::get<ReplayVerdict>(**fold.add(RankVerdict{{3, 0}, 2, 9, true, true}));
    EXPECT_EQ(verdict.step, 9u);
    EXPECT_THAT(verdict.mismatchedShards, ElementsAre(1));
    EXPECT_FALSE((*fold.add(RankVerdict{{3, 0}, 2, 9, true, true})).has_value())
        << "they begin anew";
    const auto unsure =
        std::get<ReplayVerdict>(**fold.add(RankVerdict{{3, 1}, 2, 9, false, false}));
    EXPECT_FALSE(unsure.replayed) << "one could not";
    EXPECT_THAT(unsure.mismatchedShards, IsEmpty());
    EXPECT_FALSE((*fold.add(RankVerdict{{3, 0}, 2, 9, true, false})).has_value());
    const auto sure = std::get<ReplayVerdict>(**fold.add(RankVerdict{{3, 1}, 2, 9, false, false}));
    EXPECT_TRUE(sure.replayed) << "the other one's is enough";
    EXPECT_THAT(sure.mismatchedShards, ElementsAre(0));

    EXPECT_FALSE((*fold.add(RankLayoutMoved{{3, 0}, 2, 9, 4, false, 10, "no room"})).has_value());
    auto moved =
        std::get<LayoutMoved>(**fold.add(RankLayoutMoved{{3, 1}, 2, 9, 4, false, 20, "late"}));
    EXPECT_EQ(std::tuple(moved.step, moved.layout, moved.ok, moved.bytesMoved),
              std::tuple(9u, 4u, false, 30u));
    EXPECT_EQ(moved.error, "no room") << "the first";
    EXPECT_TRUE((*fold.add(RankLayoutMoved{{3, 1}, 2, 9, 4, false, 20, "late"})).has_value())
        << "said again, since the leader's word may have been lost";
    EXPECT_FALSE((*fold.add(RankLayoutMoved{{3, 0}, 2, 9, 5, true, 10, ""})).has_value());
    moved = std::get<LayoutMoved>(**fold.add(RankLayoutMoved{{3, 1}, 2, 9, 5, true, 10, ""}));
    EXPECT_TRUE(moved.ok);

    EXPECT_FALSE((*fold.add(RankSnapshotReady{{3, 0}, 2, 9})).has_value());
    EXPECT_EQ(std::get<SnapshotReady>(**fold.add(RankSnapshotReady{{3, 1}, 2, 9})).step, 9u);
}

/// The shards of a joiner that began anew with another snapshot reach its step one by one.
TEST(ReplicaFoldTest, AReportIsOfOneFetch) {
    ReplicaFold fold(3, 1, 2);
    const auto report = [&](int32_t shard, uint64_t snapshotStep, uint64_t hash) {
        RankReport r;
        r.rank = {3, shard};
        r.incarnation = 1;
        r.hasState = r.ready = r.following = true;
        r.step = 154;
        r.snapshotStep = snapshotStep;
        r.hash = hash;
        return *fold.add(r);
    };
    EXPECT_FALSE(report(1, 152, 66)) << "of a copy that was dropped since";
    EXPECT_FALSE(report(0, 154, 10));
    const auto whole = report(1, 154, 11);
    ASSERT_TRUE(whole);
    EXPECT_THAT(std::get<Report>(*whole).hashes, ::testing::ElementsAre(10, 11));
}

TEST(FoldTest, AnotherIncarnationIsRefused) {
    ReplicaFold fold(3, 1, 2);
    EXPECT_FALSE(fold.add(rankVote(0, true)).ok());
    for (const RankId other : {RankId{2, 0}, RankId{3, 2}, RankId{3, -1}}) {
        RankVote v = rankVote(0, true);
        v.incarnation = 1;
        v.rank = other;
        EXPECT_FALSE(fold.add(v).ok()) << other.replica << "/" << other.shard;
    }
}

// ---- invariants
// ----------------------------------------------------------------------------------

CommitRecord recordOf(uint64_t step, uint64_t begin, uint64_t end) {
    CommitRecord r;
    r.lineage = 1;
    r.step = step;
    r.contributors = {{0, 1, {{0, begin, end}}}};
    return r;
}

TEST(InvariantsTest, EachBrokenOneIsNamed) {
    InvariantChecker c;
    EXPECT_FALSE(c.lineage(1, LedgerState{}, 0));
    EXPECT_FALSE(c.committed(recordOf(1, 0, 4)));
    EXPECT_FALSE(c.committed(recordOf(2, 4, 8)));
    EXPECT_EQ(c.committed(recordOf(2, 4, 8))->invariant, "I6");
    EXPECT_EQ(c.committed(recordOf(2, 8, 9))->invariant, "I1");
    EXPECT_EQ(c.committed(recordOf(4, 8, 9))->invariant, "I6");
    EXPECT_EQ(c.committed(recordOf(3, 7, 9))->invariant, "I2");
    EXPECT_FALSE(c.applied(0, 1, recordOf(1, 0, 4), {1, 2}));
    EXPECT_EQ(c.applied(0, 1, recordOf(1, 0, 4), {})->invariant, "I5");
    const auto differs = c.applied(1, 1, recordOf(1, 0, 4), {1, 3});
    EXPECT_EQ(differs->invariant, "I3");
    EXPECT_THAT(differs->detail, HasSubstr("r1 and r0 differ"));
    EXPECT_EQ(c.applied(2, 1, recordOf(2, 4, 9), {})->invariant, "I1");
    EXPECT_EQ(c.applied(3, 1, recordOf(9, 4, 9), {})->invariant, "I5");
}

TEST(InvariantsTest, ALineageGoesOnFromItsStepWithWhatWasConsumedUntilThen) {
    InvariantChecker c;
    EXPECT_FALSE(c.lineage(1, LedgerState{}, 0));
    EXPECT_FALSE(c.committed(recordOf(1, 0, 4)));
    EXPECT_FALSE(c.committed(recordOf(2, 4, 8)));
    EXPECT_EQ(c.lineage(1, LedgerState{}, 1)->invariant, "I6") << "its number is used up";
    LedgerState twice;
    twice.committed = {{0, 0, 4}, {0, 2, 6}};
    EXPECT_EQ(c.lineage(2, twice, 1)->invariant, "I2");
    LedgerState first;
    first.committed = {{0, 0, 4}};
    EXPECT_FALSE(c.lineage(3, first, 1)) << "what was counted of the one before is forgotten";
    CommitRecord r = recordOf(3, 4, 8);
    r.lineage = 3;
    EXPECT_EQ(c.committed(r)->invariant, "I6") << "it goes on from step 1";
    r = recordOf(2, 3, 8);
    r.lineage = 3;
    EXPECT_EQ(c.committed(r)->invariant, "I2") << "sample 3 came with the lineage";
    InvariantChecker other;
    EXPECT_FALSE(other.lineage(3, first, 1));
    r = recordOf(2, 4, 8);
    EXPECT_EQ(other.committed(r)->invariant, "I6") << "of another lineage";
    r.lineage = 3;
    EXPECT_FALSE(other.committed(r)) << "step 2's samples were given back";
}

TEST(InvariantsTest, WhoAppliesIsComparedAsFarBackAsStepsAreRemembered) {
    InvariantChecker c(/*window=*/2);
    EXPECT_EQ(c.applied(0, 1, recordOf(1, 0, 4), {})->invariant, "I5") << "nothing is durable";
    EXPECT_FALSE(c.lineage(1, LedgerState{}, 0));
    for (uint64_t step = 1; step <= 3; ++step)
        EXPECT_FALSE(c.committed(recordOf(step, 4 * step, 4 * step + 4)));
    EXPECT_FALSE(c.applied(0, 1, recordOf(1, 9, 9), {1})) << "too long ago to tell";
    EXPECT_EQ(c.applied(0, 1, recordOf(2, 9, 9), {1})->invariant, "I1");
    EXPECT_FALSE(c.hashes(1, 9, 0, {1})) << "of a step that nobody knows";
    EXPECT_FALSE(c.hashes(1, 3, 0, {}));
    EXPECT_FALSE(c.hashes(1, 3, 1, {5, 6})) << "who tells none says nothing";
    EXPECT_FALSE(c.hashes(1, 3, 2, {}));
    EXPECT_EQ(c.hashes(1, 3, 0, {5, 7})->invariant, "I3");
    // Each goes forwards, and another lineage may go back.
    EXPECT_FALSE(c.applied(0, 1, recordOf(3, 12, 16), {}));
    EXPECT_EQ(c.applied(0, 1, recordOf(2, 8, 12), {})->invariant, "I5");
    EXPECT_FALSE(c.applied(0, 2, recordOf(2, 8, 12), {})) << "a new incarnation";
    EXPECT_FALSE(c.applied(0, 2, recordOf(3, 12, 16), {}));
    EXPECT_FALSE(c.lineage(2, LedgerState{}, 1));
    CommitRecord again = recordOf(2, 8, 12);
    again.lineage = 2;
    EXPECT_FALSE(c.committed(again));
    EXPECT_FALSE(c.applied(0, 2, again, {}));
}

TEST(InvariantsTest, TheLedgersPartitionIsLookedAt) {
    DataLedger ledger(1, {});
    EXPECT_TRUE(ledger.lease(1, 0, 4).ok());
    EXPECT_FALSE(InvariantChecker::ledger(ledger));
}

TEST(StepLine, FiguresOfTheUsersOwnAreMeansOverTheTokensOfThoseThatToldThem) {
    StepFigures figures;
    figures.votes.resize(3);
    figures.votes[0].tokens = 30;
    figures.votes[0].scalars = {{"accuracy", 0.5}, {"depth", 4}};
    figures.votes[1].tokens = 10;
    figures.votes[1].scalars = {{"accuracy", 0.9}};
    figures.votes[2].tokens = 60;
    EXPECT_THAT(stepLine(CommitRecord{}, figures).scalars,
                ElementsAre(Scalar{"accuracy", 0.6}, Scalar{"depth", 4}));
    for (int i = 0; i < 100; ++i)
        figures.votes[2].scalars.push_back({"name" + std::to_string(i), 0});
    EXPECT_EQ(stepLine(CommitRecord{}, figures).scalars.size(), Scalar::kMost);
    figures.votes.resize(4);
    figures.votes[3].tokens = 60;
    figures.votes[3].scalars = {{"accuracy", 0.6}, {"one too many", 1}};
    const auto line = stepLine(CommitRecord{}, figures);
    EXPECT_EQ(line.scalars.size(), Scalar::kMost);
    EXPECT_THAT(line.scalars, ::testing::Contains(Scalar{"accuracy", 0.6}));
    figures.votes[3].scalars[0].value = 1;
    EXPECT_THAT(stepLine(CommitRecord{}, figures).scalars,
                ::testing::Contains(Scalar{"accuracy", 0.84}))
        << "a figure that is told already counts of all";
}

}  // namespace
}  // namespace bulkhead::protocol
