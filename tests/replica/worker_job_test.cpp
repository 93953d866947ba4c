// SPDX-License-Identifier: Apache-2.0
// Real worker processes, two replicas of two shards, under the coordinator machine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "backend/runtime/checkpoint/checkpoint.h"
#include "tests/replica/mini_job.h"

namespace bulkhead::runtime {
namespace {

using protocol::fact::StepCommitted;

class WorkerJob : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = (std::filesystem::path(::testing::TempDir()) /
                   ("job_" + std::to_string(::getpid()) +
                    ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                      .string();
        spec_ = tinyJob(folder_);
    }
    void TearDown() override {
        if (!HasFailure()) std::filesystem::remove_all(folder_);
    }
    /// Every vote of every committed step agreed on the state it started from.
    static void expectParity(const MiniJob& job) {
        for (const StepCommitted& step : job.facts<StepCommitted>())
            for (const protocol::ReplicaVote& vote : step.votes)
                EXPECT_EQ(vote.hashes, step.votes.front().hashes) << "step " << step.record.step;
        EXPECT_TRUE(job.facts<protocol::fact::InvariantBroken>().empty());
    }
    std::string folder_;
    model::JobSpec spec_;
};

/// Of an agent that is gone, say: lines are lost, the worker goes on.
TEST_F(WorkerJob, aPipeThatNobodyReadsHoldsUpNobody) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const int holds = ::fcntl(ends[1], F_GETPIPE_SZ);
    ASSERT_EQ(::write(ends[1], std::string(static_cast<size_t>(holds), 'x').data(), holds), holds);
    const pid_t worker = ::fork();
    if (worker == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        ::alarm(60);  // it would wait for ever
        ::execl(BULKHEAD_WORKER, BULKHEAD_WORKER, "--no-such-option", nullptr);
        ::_exit(127);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(worker, &status, 0), worker);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
    for (const int fd : ends) ::close(fd);
}

TEST_F(WorkerJob, learnsInParity) {
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(30)) << job.output();
    const auto steps = job.facts<StepCommitted>();
    EXPECT_LT(steps.back().loss, steps.front().loss - 0.3);
    for (const StepCommitted& step : steps) EXPECT_EQ(step.votes.size(), 2u);
    expectParity(job);
}

TEST_F(WorkerJob, learnsInParityWithBfloat16OnTheWireAndInARing) {
    spec_.wire = model::WireType::kBfloat16;
    spec_.allReduce = model::AllReduce::kRing;
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(30)) << job.output();
    const auto steps = job.facts<StepCommitted>();
    EXPECT_LT(steps.back().loss, steps.front().loss - 0.3);
    for (const StepCommitted& step : steps) EXPECT_EQ(step.votes.size(), 2u);
    expectParity(job);
}

TEST_F(WorkerJob, everyEpochHasAnExchangeKeyOfItsOwn) {
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(3)) << job.output();
    job.kill({1, 1}, SIGKILL);
    ASSERT_TRUE(job.runUntil([&] { return job.committed() > 3 && !job.contributes(1); }))
        << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
    std::set<std::array<uint64_t, 4>> all;
    for (const auto& [epoch, keys] : job.keys()) {
        EXPECT_EQ(keys.size(), 1u) << "epoch " << epoch.second;
        all.insert(keys.begin(), keys.end());
    }
    EXPECT_GE(job.keys().size(), 3u) << "all, without the lost, all again";
    EXPECT_EQ(all.size(), job.keys().size());
}

TEST_F(WorkerJob, aKilledReplicaComesBackInParityWithoutStoppingTheOther) {
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(8)) << job.output();
    job.kill({1, 1}, SIGKILL);
    ASSERT_TRUE(job.runUntil([&] { return job.committed() > 8 && !job.contributes(1); }))
        << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
    const uint64_t back = job.committed();
    ASSERT_TRUE(job.runToStep(back + 5)) << job.output();
    EXPECT_EQ(job.facts<StepCommitted>().back().votes.size(), 2u) << job.output();
    expectParity(job);
}

TEST_F(WorkerJob, writesACheckpointOfOneCommittedStepAndEnds) {
    spec_.steps = 12;
    spec_.policies.checkpointEverySteps = 5;
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runUntil([&] { return job.finished(); })) << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.exits().size() == 4; })) << job.output();
    // The machine may kill what is left of a replica once the first of its ranks left in order.
    for (const auto& [rank, code] : job.exits())
        EXPECT_TRUE(code == 0 || code == -SIGKILL) << code << job.output();
    EXPECT_EQ(job.exits().front().second, 0);
    const auto all = listCheckpoints(diskFiles(), spec_.checkpointDir);
    ASSERT_FALSE(all.empty()) << job.output();
    auto manifest = readManifest(diskFiles(), all.back());
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->step, 12u);
    EXPECT_FALSE(manifest->dataPosition.empty());
    for (int32_t shard : {0, 1})
        EXPECT_TRUE(readShardFile(diskFiles(), all.back(), *manifest, shard).ok());
}

TEST_F(WorkerJob, aNotFiniteGradientIsSaidAndComputedElsewhere) {
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(5)) << job.output();
    protocol::CommitFault fault;
    fault.fault = 3;
    fault.kind = "nan_gradient";
    job.toReplica(1, fault);
    ASSERT_TRUE(job.runUntil([&] { return !job.faultsNoted().empty(); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 5)) << job.output();
    bool seen = false;
    for (const auto& e : job.facts<protocol::fact::EvidenceSeen>())
        seen |= e.kind == protocol::EvidenceKind::kNonFinite && e.replica == 1;
    EXPECT_TRUE(seen);
    for (const StepCommitted& step : job.facts<StepCommitted>()) EXPECT_FALSE(step.record.skip);
    expectParity(job);
}

TEST_F(WorkerJob, aFlippedParameterBitIsFoundByParityAndHealed) {
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(5)) << job.output();
    protocol::CommitFault fault;
    fault.fault = 4;
    fault.kind = "flip_parameter";
    job.toReplica(1, fault);
    const auto accused = [&] {
        for (const auto& e : job.facts<protocol::fact::EvidenceSeen>())
            if (e.kind == protocol::EvidenceKind::kParityMismatch && e.replica == 1) return true;
        return false;
    };
    ASSERT_TRUE(job.runUntil(accused)) << job.output();
    ASSERT_TRUE(job.runUntil([&] { return !job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 3)) << job.output();
    EXPECT_EQ(job.facts<StepCommitted>().back().votes.size(), 2u) << job.output();
}

/// The rank kills itself somewhere inside the phase; nothing committed is lost and it comes back.
class WorkerKilledIn : public WorkerJob, public ::testing::WithParamInterface<const char*> {};

TEST_P(WorkerKilledIn, thePhaseLosesNothing) {
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(6)) << job.output();
    protocol::CommitFault fault;
    fault.fault = 9;
    fault.kind = "kill_rank";
    fault.shard = 1;
    fault.phase = GetParam();
    job.toReplica(1, fault);
    ASSERT_TRUE(job.runUntil([&] { return !job.exits().empty(); })) << job.output();
    EXPECT_EQ(job.exits().front().second, -SIGKILL);
    ASSERT_TRUE(job.runUntil([&] { return !job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 4)) << job.output();
    const auto steps = job.facts<StepCommitted>();
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].record.step, i + 1);
    expectParity(job);
}

INSTANTIATE_TEST_SUITE_P(Phases, WorkerKilledIn,
                         ::testing::Values("compute", "exchange", "vote", "apply"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(WorkerJob, aStoppedRankIsFencedWhenItWakes) {
    spec_.timeouts.heartbeatMs = 600;
    MiniJob job(spec_, folder_);
    job.keepExpelled();
    ASSERT_TRUE(job.runToStep(5)) << job.output();
    job.kill({1, 0}, SIGSTOP);
    ASSERT_TRUE(job.runUntil([&] { return job.committed() > 5 && !job.contributes(1); }))
        << job.output();
    job.kill({1, 0}, SIGCONT);
    const auto fenced = [&] {
        for (const auto& [rank, code] : job.exits())
            if (rank == RankId{1, 0}) return true;
        return false;
    };
    ASSERT_TRUE(job.runUntil(fenced)) << job.output();
    for (const auto& [rank, code] : job.exits()) {
        if (rank == RankId{1, 0}) {
            EXPECT_EQ(code, 3) << job.output();
        }
    }
    expectParity(job);
}

TEST_F(WorkerJob, aCutReplicaIsPutOutAndComesBack) {
    spec_.timeouts.heartbeatMs = 30'000;  // the exchange, not a missed heartbeat, finds the cut
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(5)) << job.output();
    protocol::CommitFault fault;
    fault.fault = 5;
    fault.kind = "cut_network";
    job.toReplica(1, fault);
    ASSERT_TRUE(job.runUntil([&] { return job.committed() > 5 && !job.contributes(1); }))
        << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 3)) << job.output();
    expectParity(job);
    std::set<std::string> reporters;  // of what the exchange lacked of the one that was cut off
    for (const auto& e : job.facts<protocol::fact::EvidenceSeen>())
        if (e.replica == 1 && (e.kind == protocol::EvidenceKind::kTransportReset ||
                               e.kind == protocol::EvidenceKind::kChunkTimeout))
            reporters.insert(e.reporter);
    EXPECT_FALSE(reporters.empty()) << job.output();
    for (const std::string& reporter : reporters)
        EXPECT_TRUE(reporter == "r0/s0" || reporter == "r0/s1") << reporter;
}

TEST_F(WorkerJob, aWholeJobResumesFromItsCheckpoint) {
    spec_.policies.checkpointEverySteps = 5;
    std::string manifest;
    {
        MiniJob job(spec_, folder_);
        ASSERT_TRUE(job.runUntil([&] { return !job.checkpoints().empty(); })) << job.output();
        EXPECT_TRUE(job.checkpoints().front().ok);
        manifest = job.checkpoints().front().path;
    }
    const auto written = readManifest(diskFiles(), manifest);
    ASSERT_TRUE(written.ok()) << written.status();
    protocol::LogCheckpoint from;
    from.step = written->step;
    from.path = manifest;
    MiniJob job(spec_, folder_, from);
    ASSERT_TRUE(job.runToStep(written->step + 5)) << job.output();
    const auto steps = job.facts<StepCommitted>();
    EXPECT_EQ(steps.front().record.step, written->step + 1);
    ASSERT_FALSE(steps.front().votes.empty());
    for (size_t shard = 0; shard < 2; ++shard)
        EXPECT_EQ(steps.front().votes.front().hashes[shard], written->files[shard].hash);
    expectParity(job);
}

TEST_F(WorkerJob, orphansWriteACheckpointAndLeave) {
    spec_.timeouts.orphanMs = 1000;
    MiniJob job(spec_, folder_);
    ASSERT_TRUE(job.runToStep(5)) << job.output();
    job.loseCoordinator();
    ASSERT_TRUE(job.runUntil([&] { return job.exits().size() == 4; })) << job.output();
    for (const auto& [rank, code] : job.exits()) EXPECT_EQ(code, 4) << job.output();
    const auto paths = listCheckpoints(diskFiles(), spec_.checkpointDir);
    ASSERT_FALSE(paths.empty()) << job.output();
    const auto manifest = readManifest(diskFiles(), paths.back());
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    ASSERT_EQ(manifest->records.size(), manifest->step) << "of all steps that it has seen";
    EXPECT_EQ(manifest->records.front().step, 1u);
    EXPECT_EQ(manifest->records.back(), manifest->last);
}

TEST_F(WorkerJob, aRankWhoseControllerIsAnotherBuildEndsAndSaysSo) {
    MiniJob job(spec_, folder_);
    job.speakAnotherVersion();
    ASSERT_TRUE(job.runUntil([&] { return !job.exits().empty(); })) << job.output();
    EXPECT_EQ(job.exits().front().second, protocol::kExitHopeless);
    EXPECT_NE(job.output().find("install the same release on both"), std::string::npos)
        << job.output();
}

}  // namespace
}  // namespace bulkhead::runtime
