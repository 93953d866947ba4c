// SPDX-License-Identifier: Apache-2.0
// No end of a job, and no end of everybody in it, costs a step that is in a checkpoint or in
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {
namespace {

using ::testing::IsEmpty;

class CheckpointJobTest : public ::testing::Test {
  protected:
    static Options options(uint32_t replicas) {
        Options o;
        o.replicas = replicas;
        o.policies.checkpointEverySteps = 10;
        o.policies.restartLimit = 0;
        o.timeouts.joinMs = 2000;
        o.timeouts.backoffMaxMs = 500;
        return o;
    }
    static void reach(SimulatedJob& job, uint64_t step) {
        ASSERT_TRUE(job.runUntil([&] { return job.committed() >= step; }, 60 * kSecond))
            << job.standing();
        ASSERT_THAT(job.failures(), IsEmpty());
    }
    static Operation operation(OperationKind kind, int32_t replica = -1) {
        Operation o;
        o.kind = kind;
        o.replica = replica;
        return o;
    }
    /// From now on no checkpoint can be written, as long as `full`.
    static void fillDisk(SimulatedJob& job, const bool& full, size_t& tries) {
        job.onAction = [&](const Action& a) {
            const auto* send = std::get_if<SendReplica>(&a);
            const auto* commit = send ? std::get_if<Commit>(&send->message) : nullptr;
            if (commit == nullptr || !commit->checkpoint || !full) return;
            ++tries;
            Fault f;
            f.kind = FaultKind::kFailCheckpoint;
            f.replica = send->replica;
            job.strike(f);
        };
    }
    static void killAll(SimulatedJob& job, int32_t replicas) {
        for (int32_t r = 0; r < replicas; ++r) job.killReplica(r);
    }
    static std::vector<fact::LineageOpened> lineages(const SimulatedJob& job) {
        std::vector<fact::LineageOpened> found;
        for (const Fact& f : job.facts())
            if (const auto* l = std::get_if<fact::LineageOpened>(&f)) found.push_back(*l);
        return found;
    }
    static size_t checkpointsInLog(const SimulatedJob& job) {
        const auto state = recoverState(job.log(), 8, 1);
        return state.ok() ? state->checkpoints.size() : 0;
    }
};

TEST_F(CheckpointJobTest, WhatOrphansWroteIsWhereTheJobGoesOn) {
    Options o = options(3);
    o.timeouts.orphanMs = 700;
    SimulatedJob job(o, 3);
    job.start();
    reach(job, 45);
    const uint64_t step = job.committed();
    job.killCoordinator();
    job.runFor(5 * kSecond);
    ASSERT_EQ(job.living(), 0u);
    job.startCoordinator();
    reach(job, step + 5);
    ASSERT_EQ(lineages(job).size(), 2u);
    EXPECT_GE(lineages(job)[1].fromStep, step);
}

TEST_F(CheckpointJobTest, AsManyStepsAreKeptAsThePolicySaysAndTheOldestGo) {
    Options o = options(3);
    o.policies.checkpointsKept = 2;
    SimulatedJob job(o, 4);
    job.start();
    reach(job, 75);
    EXPECT_EQ(checkpointsInLog(job), 2u);
}

/// The one checkpoint that is kept lands as everything dies: the older is gone only if the log
/// names the newer.
TEST_F(CheckpointJobTest, EverythingThatDiesAsACheckpointLandsCostsNoOlderOne) {
    for (const bool losingTail : {true, false})
        for (uint64_t seed = 1; seed <= 10; ++seed) {
            Options o = options(2);
            o.policies.checkpointsKept = 1;
            SimulatedJob job(o, seed);
            bool strike = false;
            job.onAction = [&](const Action& a) {
                const auto* append = std::get_if<AppendLog>(&a);
                const auto* c = append ? std::get_if<LogCheckpoint>(&append->entry) : nullptr;
                strike = strike || (c != nullptr && c->step == 20);
            };
            job.start();
            ASSERT_TRUE(job.runUntil([&] { return strike; }, 60 * kSecond)) << job.standing();
            job.onAction = nullptr;
            job.killCoordinator(losingTail);
            killAll(job, 2);
            job.runFor(kSecond);
            job.startCoordinator();
            reach(job, 25);
            ASSERT_GE(lineages(job).size(), 2u);
            EXPECT_GE(lineages(job).back().fromStep, 10u) << seed;
        }
}

TEST_F(CheckpointJobTest, ADamagedCheckpointCostsTheWayToTheOneBeforeIt) {
    SimulatedJob job(options(3), 6);
    job.start();
    reach(job, 35);
    Fault f;
    f.kind = FaultKind::kDamageCheckpoint;
    job.strike(f);
    killAll(job, 3);
    ASSERT_TRUE(job.runUntil([&] { return lineages(job).size() >= 3; }, 30 * kSecond))
        << job.standing();
    EXPECT_EQ(lineages(job)[1].fromStep, 30u);
    EXPECT_EQ(lineages(job)[2].fromStep, 20u);
    EXPECT_THAT(lineages(job)[2].why, ::testing::HasSubstr("damaged"));
    reach(job, 35);
}

TEST_F(CheckpointJobTest, TheLastThatHoldsTheStateIsDrainedWithACheckpoint) {
    SimulatedJob job(options(2), 7);
    job.start();
    reach(job, 13);
    job.operate(operation(OperationKind::kDrain, 0));
    reach(job, 16);
    job.operate(operation(OperationKind::kDrain, 1));
    ASSERT_TRUE(job.runUntil([&] { return job.living() == 0; }, 20 * kSecond)) << job.standing();
    const uint64_t step = job.committed();
    ASSERT_GE(step, 16u);
    job.operate(operation(OperationKind::kReleaseRejoin, 0));
    job.operate(operation(OperationKind::kReleaseRejoin, 1));
    reach(job, step + 3);
    ASSERT_EQ(lineages(job).size(), 2u);
    EXPECT_EQ(lineages(job)[1].fromStep, step);
}

TEST_F(CheckpointJobTest, AStopDuringAMoveLeavesFilesInTheLayoutThatTheLogNames) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        SimulatedJob job(options(3), seed);
        job.start();
        reach(job, 12);
        job.failNextLayoutMove(2);
        Operation move = operation(OperationKind::kChangeLayout);
        move.expertShard = {1, 0};
        job.operate(move);
        job.runFor(static_cast<MonoNs>(job.rng.below(40)) * kMillisecond);
        job.operate(operation(OperationKind::kStop));
        ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 30 * kSecond)) << job.standing();
        EXPECT_THAT(job.failures(), IsEmpty()) << seed;
        EXPECT_EQ(job.oracle().checkpointed(), job.oracle().durableStep()) << seed;
    }
}

TEST_F(CheckpointJobTest, AStopWritesItsCheckpointAlsoWhenOnlyASpareIsLeft) {
    Options o = options(2);
    o.spares = 1;
    SimulatedJob job(o, 9);
    job.start();
    ASSERT_TRUE(job.runUntil([&] { return job.committed() >= 13 && job.whole(); }, 60 * kSecond));
    job.operate(operation(OperationKind::kPause));
    job.runFor(300 * kMillisecond);
    const uint64_t step = job.committed();
    // Neither comes back: only the spare holds the last step.
    for (const int32_t r : {0, 1}) job.operate(operation(OperationKind::kHoldRejoin, r));
    killAll(job, 2);
    job.runFor(300 * kMillisecond);
    job.operate(operation(OperationKind::kStop));
    ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 30 * kSecond)) << job.standing();
    EXPECT_EQ(job.oracle().checkpointed(), step);
    EXPECT_THAT(job.failures(), IsEmpty());
}

/// The disk is full for longer than anybody would call a pause, then somebody makes room.
TEST_F(CheckpointJobTest, AStopWaitsForRoomOnTheDiskAndSaysSo) {
    SimulatedJob job(options(2), 11);
    job.start();
    reach(job, 13);
    bool full = true;
    size_t tries = 0;
    fillDisk(job, full, tries);
    job.operate(operation(OperationKind::kStop));
    job.runFor(120 * kSecond);
    ASSERT_FALSE(job.finished());
    EXPECT_EQ(job.coordinator().phase(), JobPhase::kStopping);
    EXPECT_THAT(job.coordinator().explanation(), ::testing::HasSubstr("disk full"));
    EXPECT_LT(tries, 20u) << "it need not be tried that often";
    EXPECT_EQ(job.living(), 2u * 2u) << "they hold the last step";
    full = false;
    ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 30 * kSecond)) << job.standing();
    EXPECT_EQ(job.oracle().checkpointed(), job.oracle().durableStep());
    EXPECT_THAT(job.failures(), IsEmpty());
}

TEST_F(CheckpointJobTest, AStopThatWaitsForTheDiskEndsWhenAskedToEndWithoutACheckpoint) {
    SimulatedJob job(options(2), 12);
    job.start();
    reach(job, 13);
    const bool full = true;
    size_t tries = 0;
    fillDisk(job, full, tries);
    job.operate(operation(OperationKind::kStop));
    job.runFor(20 * kSecond);
    ASSERT_FALSE(job.finished());
    Operation now = operation(OperationKind::kStop);
    now.checkpoint = false;
    job.operate(now);
    ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 15 * kSecond)) << job.standing();
}

TEST_F(CheckpointJobTest, AStopAsksAgainWhenTheAnswerToItWasLost) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        SimulatedJob job(options(1), seed);
        job.start();
        reach(job, 13);
        bool asked = false;
        job.onAction = [&](const Action& a) {
            const auto* send = std::get_if<SendReplica>(&a);
            const auto* commit = send ? std::get_if<Commit>(&send->message) : nullptr;
            asked = asked || (commit != nullptr && commit->checkpoint);
        };
        job.operate(operation(OperationKind::kStop));
        ASSERT_TRUE(job.runUntil([&] { return asked; }, 10 * kSecond)) << job.standing();
        for (const int32_t shard : {0, 1}) {
            Fault cut;
            cut.kind = FaultKind::kCutControl;
            cut.replica = 0;
            cut.shard = shard;
            cut.duration = 40 * kMillisecond;
            job.strike(cut);
        }
        ASSERT_TRUE(job.runUntil([&] { return job.finished(); }, 60 * kSecond)) << job.standing();
        EXPECT_EQ(job.oracle().checkpointed(), job.oracle().durableStep()) << seed;
        EXPECT_THAT(job.failures(), IsEmpty()) << seed;
    }
}

/// Messages that came meanwhile wait to be read: nobody was silent.
TEST_F(CheckpointJobTest, ACoordinatorThatWasStoppedBlamesNobodyForIt) {
    Options o = options(1);
    SimulatedJob job(o, 10);
    job.start();
    reach(job, 22);
    Fault f;
    f.kind = FaultKind::kHangCoordinator;
    f.duration = 5 * kSecond;
    job.strike(f);
    job.runFor(8 * kSecond);
    EXPECT_EQ(job.coordinator().replicas()[0].incarnation, 1u);
    EXPECT_EQ(lineages(job).size(), 1u);
    reach(job, 30);
}

/// One corrupt replica reports first; two others vouch for the truth.
TEST_F(CheckpointJobTest, WhileTheJobWaitsTheMajoritySaysWhatIsTrue) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        SimulatedJob job(options(4), seed);
        job.start();
        reach(job, 12);
        // The step in flight is applied to it, and no vote tells its hash any more.
        job.flipState(2, 0);
        job.operate(operation(OperationKind::kPause));
        job.runFor(400 * kMillisecond);
        job.killReplica(3);
        Fault cut;
        cut.kind = FaultKind::kCutControl;
        cut.replica = 2;
        cut.duration = 20 * kMillisecond;
        job.strike(cut);
        job.runFor(8 * kSecond);
        EXPECT_EQ(job.coordinator().replicas()[0].incarnation, 1u) << seed;
        EXPECT_EQ(job.coordinator().replicas()[1].incarnation, 1u) << seed;
        EXPECT_EQ(job.coordinator().replicas()[2].incarnation, 2u) << "the corrupt one goes";
        EXPECT_EQ(job.coordinator().replicas()[3].incarnation, 2u) << "the joiner is right";
        EXPECT_THAT(job.failures(), IsEmpty()) << seed;
    }
}

TEST_F(CheckpointJobTest, TheNumberOfALayoutIsNotUsedAgainByTheNextCoordinator) {
    SimulatedJob job(options(3), 11);
    job.start();
    reach(job, 12);
    Operation move = operation(OperationKind::kChangeLayout);
    move.expertShard = {1, 0};
    std::vector<uint64_t> numbers;
    job.onAction = [&](const Action& a) {
        const auto* send = std::get_if<SendReplica>(&a);
        const auto* change = send ? std::get_if<ChangeLayout>(&send->message) : nullptr;
        if (change != nullptr && send->replica == 0) numbers.push_back(change->layout);
    };
    job.failNextLayoutMove(1);
    job.operate(move);
    ASSERT_TRUE(job.runUntil([&] { return numbers.size() == 1; }, 10 * kSecond));
    job.killCoordinator();
    job.runFor(50 * kMillisecond);
    job.startCoordinator();
    reach(job, 20);
    job.operate(move);
    ASSERT_TRUE(job.runUntil([&] { return numbers.size() == 2; }, 10 * kSecond));
    EXPECT_GT(numbers[1], numbers[0]);
}

}  // namespace
}  // namespace bulkhead::simulation
