// SPDX-License-Identifier: Apache-2.0
// kill -9 of an agent under a job of real workers: its ranks live on, the next agent finds them
// again, and sees them end although they are not its children.
#include <signal.h>

#include <set>
#include <string>

#include "tests/fault/training_job.h"
#include "tests/support/held_at_exit.h"

namespace bulkhead::fault {
namespace {

using testing::IsEmpty;

class AgentLoss : public TrainingJob {
  protected:
    int32_t pidOf(RankId rank) {
        int32_t pid = 0;
        for (const auto& started : all<model::RankStarted>())
            if (started.rank == rank) pid = started.pid;
        return pid;
    }
};

TEST_F(AgentLoss, ItsRanksTrainOnAndTheNextAgentSeesThemEnd) {
    host();
    start(spec(0, 3, 2));
    awaitStep(3);
    host_->killAgent(0);
    awaitStep(all<model::StepCommitted>().back().record.step + 5);
    host_->startAgent(0);
    awaitStep(all<model::StepCommitted>().back().record.step + 5);
    EXPECT_EQ(all<model::RankStarted>().size(), 6u) << "somebody was started again";
    EXPECT_THAT(all<model::RankExited>(), IsEmpty());

    // Its cause and its return need the agent: it reports the exit and starts the successor.
    const int32_t pid = pidOf({1, 1});
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    const auto exited =
        await<model::RankExited>([pid](const model::RankExited& e) { return e.pid == pid; });
    ASSERT_TRUE(exited.has_value());
    EXPECT_EQ(exited->rank, (RankId{1, 1}));
    expectRejoined(1);
    stopAndAudit();
    const auto opened = all<model::IncidentOpened>();
    ASSERT_EQ(opened.size(), 1u);
    EXPECT_EQ(opened[0].replica, 1);
    // The agent's word of a small process that dies and its broken connections come together.
    EXPECT_THAT(opened[0].cause, testing::AnyOf(model::EvidenceKind::kProcessExit,
                                                model::EvidenceKind::kTransportReset));
}

/// Each node has room for one of its two ranks.
TEST_F(AgentLoss, AReplicaThatIsLargerThanANodeSpansNodesAndEndsWithOneOfThem) {
    host(5, {}, 1);
    start(spec(0, 2, 2));
    awaitStep(3);
    std::set<std::string> nodes;
    for (const auto& started : all<model::RankStarted>()) nodes.insert(started.node);
    EXPECT_EQ(nodes.size(), 4u);
    EXPECT_EQ(all<model::RankStarted>().size(), 4u);

    inject(model::FaultKind::kKillReplica, 0);
    expectRejoined(0);

    const auto nodeNow = [&](RankId rank) {
        std::string node;
        for (const auto& started : all<model::RankStarted>())
            if (started.rank == rank) node = started.node;
        return node;
    };
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillNode;
    fault.node = nodeNow({1, 1});
    const std::string stays = nodeNow({0, 0});
    ASSERT_TRUE(host_->controller().inject(run_, fault, 0, "", "test").ok());
    expectRejoined(1);
    EXPECT_NE(nodeNow({1, 0}), fault.node);
    EXPECT_NE(nodeNow({1, 1}), fault.node);
    EXPECT_NE(nodeNow({1, 0}), nodeNow({1, 1}));
    EXPECT_EQ(nodeNow({0, 0}), stays);
    stopAndAudit();
}

TEST_F(AgentLoss, ARankThatEndsWhileNoAgentLooksIsReportedByTheNext) {
    host();
    start(spec(0, 3, 1));
    awaitStep(3);
    const int32_t pid = pidOf({2, 0});
    host_->killAgent(0);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    host_->startAgent(0);
    const auto exited =
        await<model::RankExited>([pid](const model::RankExited& e) { return e.pid == pid; });
    ASSERT_TRUE(exited.has_value());
    expectRejoined(2);
    stopAndAudit();
    EXPECT_EQ(all<model::IncidentOpened>().size(), 1u);
}

TEST_F(AgentLoss, TheDeathOfARankThatIsNoChildOfItsAgentIsToldWithTheSignal) {
    host();
    start(spec(0, 3, 1));
    awaitStep(3);
    const int32_t pid = pidOf({1, 0});
    support::HeldAtExit held(pid);
    host_->killAgent(0);
    host_->startAgent(0);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    ASSERT_TRUE(held.awaitDeath());
    const auto opened = await<model::IncidentOpened>();
    ASSERT_TRUE(opened.has_value());
    EXPECT_EQ(opened->cause, model::EvidenceKind::kProcessExit);
    EXPECT_THAT(all<model::RankExited>(), IsEmpty()) << "it is not gone";
    held.release();
    const auto exited = await<model::RankExited>();
    ASSERT_TRUE(exited.has_value());
    EXPECT_EQ(exited->pid, pid);
    EXPECT_EQ(exited->signal, SIGKILL);
    expectRejoined(1);
    stopAndAudit();
    EXPECT_EQ(all<model::IncidentOpened>().size(), 1u);
}

TEST_F(AgentLoss, AgentAndCoordinatorTogetherCostNobodyAStep) {
    host();
    start(spec(0, 3, 1));
    awaitStep(3);
    host_->killAgent(0);
    host_->loseController();
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    awaitStep(all<model::StepCommitted>().back().record.step + 5);
    stopAndAudit();
    EXPECT_EQ(all<model::RankStarted>().size(), 3u) << "somebody was started again";
    EXPECT_EQ(all<model::LineageOpened>().size(), 1u);
    const auto incidents = all<model::IncidentOpened>();
    ASSERT_EQ(incidents.size(), 1u);
    EXPECT_EQ(incidents[0].cause, model::EvidenceKind::kControllerLost);
}

}  // namespace
}  // namespace bulkhead::fault
