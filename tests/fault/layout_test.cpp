// SPDX-License-Identifier: Apache-2.0
// Experts move between the shards of every replica while the job trains.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/fault/training_job.h"

namespace bulkhead::fault {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class LayoutTest : public TrainingJob {
  protected:
    /// The placement the model began with, every expert on the other of two shards.
    std::vector<int32_t> swapped() {
        std::vector<int32_t> placement = host_->tape().state(run_).model.expertShard;
        EXPECT_FALSE(placement.empty());
        for (int32_t& shard : placement) shard = 1 - shard;
        return placement;
    }
    model::Action moveTo(std::vector<int32_t> placement) {
        model::Action action;
        action.kind = model::ActionKind::kChangeLayout;
        action.expertShard = std::move(placement);
        return action;
    }
    absl::Status move(const std::vector<int32_t>& placement) {
        return host_->controller().act(run_, moveTo(placement), 0, "", "test");
    }
    std::map<uint64_t, double> losses() const {
        std::map<uint64_t, double> losses;
        for (const model::StepCommitted& c : all<model::StepCommitted>())
            losses[c.record.step] = c.loss;
        return losses;
    }
    int32_t pidOf(RankId rank) const {
        int32_t pid = 0;
        for (const model::RankStarted& r : all<model::RankStarted>())
            if (r.rank == rank) pid = r.pid;
        return pid;
    }
};

TEST_F(LayoutTest, AllReplicasMoveAtOneStepAndTheLossGoesOnAsWithoutIt) {
    host();
    start(spec(40, 2, 2));
    expectFinishedWell();
    const auto quiet = losses();

    start(spec(40, 2, 2));
    awaitStep(5);
    const std::vector<int32_t> placement = swapped();
    const auto preview = host_->controller().preflight(run_, moveTo(placement));
    ASSERT_TRUE(preview.ok()) << preview.status();
    EXPECT_TRUE(preview->allowed) << preview->refusal;
    EXPECT_EQ(preview->expertsMoved, placement.size());
    ASSERT_TRUE(move(placement).ok());
    const auto changed = await<model::LayoutChanged>();
    ASSERT_TRUE(changed.has_value());
    EXPECT_TRUE(changed->ok) << changed->why;
    EXPECT_EQ(changed->bytesMoved, 2 * preview->bytesMoved) << "in each of two replicas";
    EXPECT_EQ(changed->expertShard, placement);
    expectFinishedWell();

    for (const model::StepCommitted& c : all<model::StepCommitted>())
        EXPECT_EQ(c.record.layout, c.record.step > changed->step ? changed->layout : 0u)
            << "step " << c.record.step;
    const auto moved = losses();
    ASSERT_EQ(moved.size(), quiet.size());
    for (const auto& [step, loss] : quiet) EXPECT_NEAR(moved.at(step), loss, 1e-3) << step;
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
}

TEST_F(LayoutTest, WhoReturnsAfterAMoveFetchesTheMovedState) {
    host();
    start(spec(0, 3, 2));
    awaitStep(3);
    ASSERT_TRUE(move(swapped()).ok());
    const auto changed = await<model::LayoutChanged>();
    ASSERT_TRUE(changed->ok) << changed->why;
    awaitStep(changed->step + 2);
    inject(model::FaultKind::kKillReplica, 1);
    expectRejoined(1);
    stopAndAudit();
    EXPECT_EQ(all<model::StepCommitted>().back().record.layout, changed->layout);
}

/// Its sibling waits for its experts: the move cannot be over when it is killed.
TEST_F(LayoutTest, AKillInTheMiddleOfTheMoveLeavesTheOldPlacementAndTheNextMoveSucceeds) {
    host();
    start(spec(0, 3, 2));
    awaitStep(3);
    const std::vector<int32_t> placement = swapped();
    ASSERT_TRUE(act(model::ActionKind::kPause).ok());
    await<model::JobPhaseChanged>(
        [](const model::JobPhaseChanged& p) { return p.phase == model::JobPhase::kPaused; });
    const int32_t victim = pidOf({1, 1});
    ASSERT_GT(victim, 0);
    ASSERT_EQ(::kill(victim, SIGSTOP), 0);
    ASSERT_TRUE(move(placement).ok());
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    const auto failed = await<model::LayoutChanged>();
    ASSERT_TRUE(failed.has_value());
    EXPECT_FALSE(failed->ok);
    EXPECT_THAT(failed->why, HasSubstr("r1"));
    EXPECT_FALSE(move(placement).ok()) << "the ranks have not gone back yet";
    ASSERT_TRUE(act(model::ActionKind::kResume).ok());
    expectRejoined(1);
    EXPECT_EQ(all<model::StepCommitted>().back().record.layout, 0u);

    ASSERT_TRUE(move(placement).ok());
    const auto changed = await<model::LayoutChanged>();
    EXPECT_TRUE(changed->ok) << changed->why;
    awaitStep(changed->step + 3);
    EXPECT_EQ(all<model::StepCommitted>().back().record.layout, changed->layout);
    stopAndAudit();
}

TEST_F(LayoutTest, WhatCannotBeAPlacementIsRefused) {
    host();
    start(spec(0, 2, 2));
    awaitStep(2);
    std::vector<int32_t> placement = swapped();
    const auto refusal = [&](const std::vector<int32_t>& p) {
        const auto preview = host_->controller().preflight(run_, moveTo(p));
        EXPECT_TRUE(preview.ok()) << preview.status();
        EXPECT_FALSE(preview->allowed);
        EXPECT_FALSE(move(p).ok());
        return preview->refusal;
    };
    EXPECT_THAT(refusal({0}), HasSubstr("entries"));
    std::vector<int32_t> outside = placement;
    outside.back() = 2;
    EXPECT_THAT(refusal(outside), HasSubstr("shard from 0 to 1"));
    for (int32_t& shard : placement) shard = 1 - shard;
    EXPECT_THAT(refusal(placement), HasSubstr("already"));
    stopAndAudit();
}

}  // namespace
}  // namespace bulkhead::fault
