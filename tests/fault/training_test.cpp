// SPDX-License-Identifier: Apache-2.0
// Whole jobs with real workers and a real, tiny model: what dies, what goes on, what comes back.
#include <cmath>

#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/coordinator/run_files.h"
#include "tests/fault/training_job.h"

namespace bulkhead::fault {
namespace {

class TrainingTest : public TrainingJob {};

TEST_F(TrainingTest, FourReplicasOfTwoShardsLearn) {
    host();
    start(spec(40, 4, 2));
    expectFinishedWell();
    const auto commits = all<model::StepCommitted>();
    ASSERT_EQ(commits.size(), 40u);
    EXPECT_LT(commits.back().loss, commits.front().loss - 0.5) << "it did not learn";
    EXPECT_EQ(commits.back().shards.size(), 2u);
    EXPECT_EQ(all<model::IncidentOpened>().size(), 0u);
    EXPECT_EQ(all<model::ModelDescribed>().size(), 1u);
    EXPECT_FALSE(all<model::ExpertLoads>().empty());
}

/// Tokens and names of runs are their owners' choice.
TEST_F(TrainingTest, TwoJobsOfOneNameAndTokenShareAHostAndDisturbNobody) {
    host();
    start(spec(0, 2, 2));
    awaitStep(3);
    support::JobHost other({});
    ASSERT_TRUE(other.ready().ok()) << other.ready();
    runtime::StartOptions sameName;
    sameName.run = run_;
    const auto run = other.controller().start(spec(12, 2, 2), sameName);
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_TRUE(other.tape()
                    .awaitState(
                        *run, "its end",
                        [](const model::RunState& s) { return s.finished.has_value(); },
                        60 * kSecond)
                    .ok());
    EXPECT_EQ(other.tape().state(*run).counters.incidents, 0u);
    stopAndAudit();
    EXPECT_EQ(all<model::IncidentOpened>().size(), 0u);
}

class KillInPhase : public TrainingTest, public testing::WithParamInterface<const char*> {};

TEST_P(KillInPhase, SurvivorsLoseNoStepAndTheLostReplicaReturns) {
    host();
    start(spec(0, 3, 2));
    awaitStep(3);
    const uint64_t fault = killAt(GetParam(), 1, 1);
    const auto opened = await<model::IncidentOpened>();
    ASSERT_TRUE(opened.has_value());
    EXPECT_EQ(opened->replica, 1);
    EXPECT_EQ(opened->fault, fault);
    expectRejoined(1);
    stopAndAudit();
    EXPECT_EQ(all<model::LineageOpened>().size(), 1u) << "survivors went back";
}
INSTANTIATE_TEST_SUITE_P(Phases, KillInPhase,
                         testing::Values("compute", "exchange", "vote", "apply"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(TrainingTest, SeveralConnectionsAPairCarryTheJobAcrossALoss) {
    host();
    model::JobSpec s = spec(0, 3, 2);
    s.transport = model::TransportChoice::kTcp;
    s.connections = 3;
    s.encrypt = true;
    start(s);
    awaitStep(3);
    killAt("exchange", 1, 1);
    expectRejoined(1);
    stopAndAudit();
    EXPECT_EQ(all<model::LineageOpened>().size(), 1u) << "survivors went back";
}

TEST_F(TrainingTest, AHangIsFoundByItsHeartbeat) {
    host();
    model::JobSpec s = spec(0);
    s.timeouts.chunkFloorMs = 10000;  // else its peers, who wait for its chunks, are the first
    start(s);
    awaitStep(3);
    inject(model::FaultKind::kHang, 1);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 1);
    EXPECT_EQ(opened->cause, model::EvidenceKind::kMissedHeartbeat);
    expectRejoined(1);
    stopAndAudit();
}

TEST_F(TrainingTest, AHangIsFoundByThePeersThatWaitForItsChunks) {
    host();
    model::JobSpec s = spec(0);
    s.timeouts.heartbeatMs = 3000;
    start(s);
    awaitStep(3);
    inject(model::FaultKind::kHang, 1);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 1);
    // One that stops between its last chunk and its vote keeps no peer waiting for a chunk.
    EXPECT_THAT(opened->cause, testing::AnyOf(model::EvidenceKind::kChunkTimeout,
                                              model::EvidenceKind::kMissedHeartbeat));
    expectRejoined(1);
    stopAndAudit();
}

TEST_F(TrainingTest, ACutNetworkIsFoundByTheTransport) {
    host();
    start(spec(0));
    awaitStep(3);
    const uint64_t fault = inject(model::FaultKind::kCutNetwork, 2, 0, 3000);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 2);
    EXPECT_EQ(opened->fault, fault);
    expectRejoined(2);
    stopAndAudit();
}

TEST_F(TrainingTest, ANaNIsSaidByWhoMadeItAndNobodyIsExpelled) {
    host();
    start(spec(0));
    awaitStep(3);
    inject(model::FaultKind::kNanGradient, 0);
    const auto evidence = await<model::EvidenceSeen>();
    EXPECT_EQ(evidence->kind, model::EvidenceKind::kNonFinite);
    EXPECT_EQ(evidence->replica, 0);
    awaitStep(all<model::StepCommitted>().back().record.step + 4);
    stopAndAudit();
    for (const model::StepCommitted& c : all<model::StepCommitted>())
        EXPECT_TRUE(std::isfinite(c.loss));
}

TEST_F(TrainingTest, AFlippedParameterIsFoundByParity) {
    host();
    start(spec(0));
    awaitStep(3);
    inject(model::FaultKind::kFlipParameter, 2);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 2);
    EXPECT_EQ(opened->cause, model::EvidenceKind::kParityMismatch);
    expectRejoined(2);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    await<model::RunFinished>();
}

TEST_F(TrainingTest, ANodeIsLostAndItsReplicaReturnsElsewhere) {
    host(3);
    start(spec(0));
    awaitStep(3);
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillNode;
    fault.node = "node2";
    ASSERT_TRUE(host_->controller().inject(run_, fault, 0, "", "test").ok());
    EXPECT_EQ(await<model::IncidentOpened>()->replica, 2);
    expectRejoined(2);
    EXPECT_NE(all<model::RankStarted>().back().node, "node2");
    stopAndAudit();
}

TEST_F(TrainingTest, KilledWholeItResumesExactlyOnce) {
    host();
    start(spec(0, 2, 2));
    const auto written = await<model::CheckpointWritten>();
    ASSERT_TRUE(written.has_value());
    awaitStep(15);
    const auto resumes = host_->controller().canResume(written->path, spec(0, 2, 2));
    EXPECT_TRUE(resumes.ok()) << resumes.status() << ": by its path as well";
    host_->killEverything();
    const std::string dir = host_->dir() + "/state/" + run_;
    uint64_t newest = 0;  // of step 10, or a later one by now
    for (const auto& stored : runtime::storedCheckpoints(diskFiles(), dir + "/checkpoints")) {
        EXPECT_EQ(stored.run, runtime::runIdentity(diskFiles(), dir));
        newest = std::max(newest, stored.last.step);
    }
    EXPECT_GE(newest, 10u);
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    const auto lineage =
        await<model::LineageOpened>([](const model::LineageOpened& l) { return l.lineage > 1; });
    ASSERT_TRUE(lineage.has_value());
    EXPECT_EQ(lineage->fromStep, newest);
    awaitStep(newest + 15);
    stopAndAudit();
}

TEST_F(TrainingTest, ATextThatIsAwayAtARestartIsWaitedFor) {
    host();
    start(spec(0, 2, 2));
    await<model::CheckpointWritten>();
    host_->killEverything();
    const std::string text = host_->dir() + "/state/" + run_ + "/text";
    std::filesystem::rename(text, text + "-away");
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    const auto away = await<model::ReplicaChanged>([&](const model::ReplicaChanged& c) {
        return c.state == model::ReplicaState::kBackingOff &&
               c.why.find("exited with code 1") != std::string::npos;
    });
    ASSERT_TRUE(away.has_value());
    EXPECT_THAT(away->why, testing::HasSubstr(text));
    std::filesystem::rename(text + "-away", text);
    awaitStep(15);
    stopAndAudit();
}

TEST_F(TrainingTest, TheSynchronousBaselineGoesBackToTheCheckpoint) {
    host();
    model::JobSpec s = spec(0, 2);
    s.policies.recovery = model::RecoveryPolicy::kRestartAll;
    start(s);
    await<model::CheckpointWritten>();
    awaitStep(14);
    inject(model::FaultKind::kKillReplica, 1);
    const auto lineage =
        await<model::LineageOpened>([](const model::LineageOpened& l) { return l.lineage > 1; });
    ASSERT_TRUE(lineage.has_value());
    EXPECT_LE(lineage->fromStep, all<model::StepCommitted>().back().record.step);
    await<model::StepCommitted>(
        [&](const model::StepCommitted& c) { return c.record.lineage == lineage->lineage; });
    stopAndAudit();
}

}  // namespace
}  // namespace bulkhead::fault
