// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/training_queue.h"

#include <gmock/gmock.h>

namespace bulkhead::runtime {
namespace {

using protocol::GroupTask;
using ::testing::ElementsAre;
using ::testing::SizeIs;

GroupTask computing(uint64_t step, uint64_t computation) {
    GroupTask task;
    task.step = step;
    task.computation = computation;
    task.ranges = {{0, step, step + 1}};
    return task;
}

GroupTask moving(uint64_t layout) {
    GroupTask task;
    task.moves = true;
    task.layout = layout;
    return task;
}

class TrainingQueueTest : public ::testing::Test {
  protected:
    void pushWork(const std::optional<GroupTask>& group, uint64_t step, uint64_t generation) {
        Work work;
        work.step = step;
        work.generation = generation;
        queue_.push({nullptr, work, group});
    }
    void pushRun(int code, std::optional<GroupTask> group = std::nullopt) {
        queue_.push({[code] { return absl::InternalError(std::to_string(code)); }, std::nullopt,
                     std::move(group)});
    }
    /// The generation of the work that comes next, or the code of the task, negative.
    int64_t next() {
        const TrainingTask task = queue_.pop();
        if (task.work) return static_cast<int64_t>(task.work->generation);
        return -std::stoll(std::string(task.run().message()));
    }
    TrainingQueue queue_;
};

TEST_F(TrainingQueueTest, WorkWaitsForTheOtherRanksAndKeepsNothingElseWaiting) {
    pushWork(computing(5, 0), 5, 1);
    pushRun(7);
    EXPECT_EQ(next(), -7);
    pushRun(8);
    queue_.go({computing(5, 0)});
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(next(), -8);
}

TEST_F(TrainingQueueTest, WorkOfARankAloneIsDroppedWhenNobodyHasBegunIt) {
    pushWork(std::nullopt, 5, 1);
    queue_.dropWork(5);
    pushWork(std::nullopt, 5, 2);
    EXPECT_EQ(next(), 2);
}

/// The connection to the leader broke, and with it the word on what the others have begun.
TEST_F(TrainingQueueTest, WhatWasNotHeardIsDoneBeforeWhatFollows) {
    pushWork(computing(5, 0), 5, 1);
    queue_.dropWork(5);
    pushWork(computing(5, 1), 5, 2);
    queue_.dropWork(5);
    pushWork(computing(5, 2), 5, 3);
    pushRun(4);
    queue_.go({computing(4, 0), computing(5, 0), computing(5, 1), computing(5, 2)});
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(next(), 2);
    EXPECT_EQ(next(), 3);
    EXPECT_EQ(next(), -4);
}

/// The others may have begun what this rank has given up meanwhile.
TEST_F(TrainingQueueTest, WhatAllWereReadyForIsDoneThoughItWasDropped) {
    pushWork(computing(5, 0), 5, 1);
    queue_.dropWork(5);
    pushWork(computing(5, 1), 5, 2);
    queue_.go({computing(5, 0)});
    queue_.go({computing(5, 1)});
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(next(), 2);
}

TEST_F(TrainingQueueTest, WhatMayBeginIsNotDroppedAnyMore) {
    pushWork(computing(5, 0), 5, 1);
    queue_.go({computing(5, 0)});
    queue_.dropWork(5);
    EXPECT_EQ(next(), 1);
}

TEST_F(TrainingQueueTest, NothingIsDoneTwiceOrOutOfOrder) {
    pushWork(computing(5, 0), 5, 1);
    queue_.dropWork(5);
    pushWork(computing(5, 1), 5, 2);
    queue_.go({computing(5, 1)});
    queue_.go({computing(5, 0)});  // the others are past it
    queue_.go({computing(5, 1)});  // said again
    queue_.go({computing(9, 0)});  // never pushed
    pushRun(3);
    EXPECT_EQ(next(), 2);
    EXPECT_EQ(next(), -3);
}

TEST_F(TrainingQueueTest, WhatFollowsAMoveOfExpertsWaitsForIt) {
    pushRun(1, moving(4));
    pushRun(2);
    queue_.go({moving(4)});
    EXPECT_EQ(next(), -1);
    EXPECT_EQ(next(), -2);
}

TEST_F(TrainingQueueTest, AMoveThatNeverBeginsIsTakenBack) {
    pushRun(1, moving(4));
    pushRun(2);
    EXPECT_TRUE(queue_.cancel(moving(4)));
    EXPECT_FALSE(queue_.cancel(moving(4)));
    EXPECT_EQ(next(), -2);
    pushRun(3, moving(5));
    queue_.go({moving(5)});
    EXPECT_FALSE(queue_.cancel(moving(5))) << "the others do it";
    EXPECT_EQ(next(), -3);
}

TEST_F(TrainingQueueTest, AMoveGivesWayToALaterOneThatAllAreReadyFor) {
    pushRun(1, moving(4));
    pushRun(2, moving(5));
    queue_.go({moving(5)});
    EXPECT_EQ(next(), -2);
}

TEST_F(TrainingQueueTest, TheEndOvertakesWhatWaits) {
    pushRun(1, moving(4));
    pushWork(computing(5, 0), 5, 1);
    queue_.finishWith({[] { return absl::InternalError("9"); }, std::nullopt});
    EXPECT_EQ(next(), -9);
}

TEST(GroupAgreementTest, ATaskBeginsWhenAllAreReadyForTheSame) {
    GroupAgreement agreement(3);
    EXPECT_FALSE(agreement.ready(0, computing(5, 0)));
    EXPECT_FALSE(agreement.ready(1, computing(5, 1)));
    EXPECT_FALSE(agreement.ready(2, computing(5, 0)));
    EXPECT_FALSE(agreement.ready(0, computing(5, 1)));
    EXPECT_FALSE(agreement.ready(7, computing(5, 1)));
    EXPECT_FALSE(agreement.ready(-1, computing(5, 1)));
    EXPECT_TRUE(agreement.ready(2, computing(5, 1)));
    EXPECT_TRUE(agreement.ready(1, computing(5, 1))) << "it did not hear the answer";
    EXPECT_FALSE(agreement.ready(1, computing(6, 0)));
    for (const int32_t shard : {0, 1, 2}) (void)agreement.ready(shard, computing(6, 1));
    EXPECT_THAT(agreement.begun(), ElementsAre(computing(5, 1), computing(6, 1)));
    for (uint64_t step = 7; step < 99; ++step)
        for (const int32_t shard : {0, 1, 2}) (void)agreement.ready(shard, computing(step, 0));
    EXPECT_THAT(agreement.begun(), SizeIs(protocol::GroupGo::kMost));
    EXPECT_EQ(agreement.begun().back(), computing(98, 0));
}

TEST(GroupAgreementTest, WhoeverWithdrawsInTimeIsNotWaitedForAndWhatHasBegunGoesOn) {
    GroupAgreement agreement(2);
    EXPECT_FALSE(agreement.ready(0, moving(4)));
    EXPECT_TRUE(agreement.withdraw(0, moving(4)));
    EXPECT_FALSE(agreement.ready(1, moving(4))) << "nor by the other's word alone";
    EXPECT_TRUE(agreement.ready(0, moving(4)));
    EXPECT_FALSE(agreement.withdraw(1, moving(4)));
    EXPECT_TRUE(agreement.withdraw(7, moving(9)));
}

}  // namespace
}  // namespace bulkhead::runtime
