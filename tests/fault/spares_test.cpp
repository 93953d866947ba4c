// SPDX-License-Identifier: Apache-2.0
// A replica beyond those of the job, kept caught up, takes the place of one that is lost.
#include <algorithm>

#include "tests/fault/training_job.h"

namespace bulkhead::fault {
namespace {

using testing::HasSubstr;

class SparesTest : public TrainingJob {
  protected:
    static bool contributes(const model::StepCommitted& c, int32_t replica) {
        return std::any_of(c.record.contributors.begin(), c.record.contributors.end(),
                           [&](const Contribution& k) { return k.replica == replica; });
    }
};

TEST_F(SparesTest, WhenANodeIsLostTheSpareTakesOverAndTheLostReplicaReturnsInReserve) {
    host(3);
    model::JobSpec s = spec(0, 2, 2);
    s.spares = 1;
    ASSERT_TRUE(s.placement[2].replicas.empty());
    s.placement[2].replicas = {2};
    start(s);
    await<model::ReplicaChanged>([](const model::ReplicaChanged& r) {
        return r.replica == 2 && r.state == model::ReplicaState::kProven && r.step > 0;
    });
    for (const model::StepCommitted& c : all<model::StepCommitted>())
        EXPECT_FALSE(contributes(c, 2)) << "nobody was lost yet";
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillNode;
    fault.node = "node1";
    ASSERT_TRUE(host_->controller().inject(run_, fault, 0, "", "test").ok());
    EXPECT_EQ(await<model::IncidentOpened>()->replica, 1);
    const auto took = await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return contributes(c, 2); });
    ASSERT_TRUE(took.has_value());
    EXPECT_EQ(took->record.contributors.size(), 2u);
    const auto closed = await<model::IncidentClosed>();
    ASSERT_TRUE(closed.has_value());
    EXPECT_THAT(closed->outcome, HasSubstr("in reserve"));
    EXPECT_NE(all<model::RankStarted>().back().node, "node1");
    awaitStep(all<model::StepCommitted>().back().record.step + 3);
    stopAndAudit();
    for (const model::StepCommitted& c : all<model::StepCommitted>())
        EXPECT_FALSE(c.record.step > took->record.step && contributes(c, 1)) << c.record.step;
}

TEST_F(SparesTest, AJobWithASpareIsTakenUpAgainAfterItWasKilledWhole) {
    host();
    model::JobSpec s = spec(0, 2, 1);
    s.spares = 1;
    start(s);
    await<model::CheckpointWritten>();
    host_->killEverything();
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    const auto lineage =
        await<model::LineageOpened>([](const model::LineageOpened& l) { return l.lineage > 1; });
    ASSERT_TRUE(lineage.has_value());
    awaitStep(lineage->fromStep + 5);
    stopAndAudit();
}

}  // namespace
}  // namespace bulkhead::fault
