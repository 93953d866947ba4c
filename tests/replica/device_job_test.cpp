// SPDX-License-Identifier: Apache-2.0
// Real worker processes whose memory the CPU cannot reach: four replicas of one rank on a device
// that adds gradients itself. Here it is a device of shared memory in a GPU's place, in tests/gpu
// the GPU, which they share.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/replica/exit_code.h"
#include "tests/replica/mini_job.h"
#ifdef BULKHEAD_CUDA_PLUGIN
#include "tests/support/gpu_plugin.h"
#endif

namespace bulkhead::runtime {
namespace {

using protocol::fact::StepCommitted;
using ::testing::HasSubstr;
using ::testing::Not;

#ifdef BULKHEAD_CUDA_PLUGIN
constexpr const char* kDevice = "cuda";
std::string whyNot() {
    return support::GpuPlugin(BULKHEAD_CUDA_PLUGIN).whyNot();
}
#else
constexpr const char* kDevice = "fake";
std::string whyNot() {
    return "";
}
#endif
const std::string kSays = std::string(kDevice) + ", exchanging there";

class DeviceJob : public ::testing::Test {
  protected:
    void SetUp() override {
        if (const std::string why = whyNot(); !why.empty())
            GTEST_SKIP() << "no GPU answers: " << why;
        folder_ = (std::filesystem::path(::testing::TempDir()) /
                   ("device_" + std::to_string(::getpid()) +
                    ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                      .string();
    }
    void TearDown() override {
        if (!HasFailure()) std::filesystem::remove_all(folder_);
    }
    model::JobSpec specOn(const std::string& device) {
        const std::string folder = folder_ + "/" + device;
        model::JobSpec spec = tinyJob(folder);
        spec.workload = "bigram";
        spec.modelToml.clear();
        spec.device = device;
        spec.replicas = 4;
        spec.shards = 1;
        spec.samplesPerReplica = 2;
        spec.bucketBytes = 64 << 10;  // of 256 KiB
        return spec;
    }
    std::string folderOf(const std::string& device) const { return folder_ + "/" + device; }

    static void expectParity(const MiniJob& job) {
        for (const StepCommitted& step : job.facts<StepCommitted>())
            for (const protocol::ReplicaVote& vote : step.votes)
                EXPECT_EQ(vote.hashes, step.votes.front().hashes) << "step " << step.record.step;
        EXPECT_TRUE(job.facts<protocol::fact::InvariantBroken>().empty());
    }
    /// Returns loss and hash of each of `steps` steps committed on that device.
    std::vector<std::pair<double, uint64_t>> numbersOn(const std::string& device, uint64_t steps,
                                                       const std::string& says) {
        model::JobSpec spec = specOn(device);
        spec.replicas = protocol::kMostThatTie;
        MiniJob job(spec, folderOf(device));
        EXPECT_TRUE(job.runToStep(steps)) << job.output();
        EXPECT_THAT(job.output(), HasSubstr("device: " + says));
        // They may tie, so each of them needs the state before every step; but nobody joins, and
        // no checkpoint is due.
        const auto waited = HasSubstr("the whole state is exported, and all wait");
        const auto beside = HasSubstr("the whole state is exported beside training");
        const auto there = HasSubstr("the whole state is kept on the device");
        if (device == "cpu")
            EXPECT_THAT(job.output(), AllOf(waited, Not(beside), Not(there)));
        else
            EXPECT_THAT(job.output(), AllOf(there, Not(beside), Not(waited)));
        expectParity(job);
        std::vector<std::pair<double, uint64_t>> numbers;
        for (const StepCommitted& step : job.facts<StepCommitted>()) {
            EXPECT_EQ(step.votes.size(), protocol::kMostThatTie) << "step " << step.record.step;
            if (numbers.size() < steps)
                numbers.emplace_back(step.loss, step.votes.front().hashes.front());
        }
        return numbers;
    }
    std::string folder_;
};

TEST_F(DeviceJob, theNumbersAreTheCpusWhoeverAddsGradients) {
    const auto cpu = numbersOn("cpu", 12, "cpu");
    EXPECT_LT(cpu.back().first, cpu.front().first - 0.3) << "it learns";
    EXPECT_EQ(numbersOn(kDevice, 12, kSays), cpu);
#ifndef BULKHEAD_CUDA_PLUGIN
    EXPECT_EQ(numbersOn("fake_staged", 12, "fake_staged"), cpu);
#endif
}

TEST_F(DeviceJob, ofFourAKilledOneComesBackInParityAndTheOthersTrainOn) {
    MiniJob job(specOn(kDevice), folderOf(kDevice));
    ASSERT_TRUE(job.runToStep(6)) << job.output();
    job.kill({2, 0}, SIGKILL);
    ASSERT_TRUE(job.runUntil([&] { return job.committed() > 8 && !job.contributes(2); }))
        << job.output();
    EXPECT_EQ(job.facts<StepCommitted>().back().votes.size(), 3u);
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(2); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 5)) << job.output();
    EXPECT_EQ(job.facts<StepCommitted>().back().votes.size(), 4u) << job.output();
    EXPECT_EQ(job.exits().size(), 1u) << "nobody else left" << job.output();
    expectParity(job);
}

/// A job whose file sets no interval for the comparison of states.
class PacedJob : public DeviceJob {
  protected:
    ~PacedJob() override { ::unsetenv("BULKHEAD_TEST_HASH_MS"); }
    std::unique_ptr<MiniJob> job(int hashMs) {
        ::setenv("BULKHEAD_TEST_HASH_MS", std::to_string(hashMs).c_str(), 1);  // ranks inherit it
        model::JobSpec spec = specOn("cpu");
        spec.replicas = 3;
        spec.policies.parityEverySteps.reset();
        return std::make_unique<MiniJob>(spec, folderOf("cpu"));
    }
    static uint32_t pace(const MiniJob& job) {
        const auto told = job.facts<protocol::fact::ParityPaced>();
        return told.empty() ? 0 : told.back().everySteps;
    }
    static size_t compared(const MiniJob& job, uint64_t after) {
        size_t n = 0;
        for (const StepCommitted& step : job.facts<StepCommitted>())
            n += step.record.step > after && !step.parity.empty();
        return n;
    }
};

TEST_F(PacedJob, aHashThatTakesLongIsComputedSeldom) {
    const auto job = this->job(20);
    ASSERT_TRUE(job->runUntil([&] { return pace(*job) >= 16; })) << job->output();
    const uint64_t paced = job->committed();
    ASSERT_TRUE(job->runToStep(paced + 200)) << job->output();
    const auto told = job->facts<protocol::fact::ParityPaced>().back();
    EXPECT_GE(told.hashMs, 20);
    if (told.everySteps < 256) {
        EXPECT_LE(told.hashMs / (told.everySteps * told.stepMs), 0.01);
    }
    EXPECT_LE(compared(*job, paced), 200 / 16 + 1);
    expectParity(*job);
}

TEST_F(PacedJob, aFlippedBitIsFoundBeforeTheNextComparisonIsOver) {
    const auto job = this->job(2);
    ASSERT_TRUE(job->runUntil([&] { return pace(*job) >= 4 && job->committed() > 20; }))
        << job->output();
    // One flipped bit may leave no trace at the comparison: its effect on a mean of gradients
    // decays.
    const uint64_t from = job->committed() + 2;
    constexpr uint64_t kFlips = 8;
    for (uint64_t i = 0; i < kFlips; ++i) {
        protocol::CommitFault fault;
        fault.fault = 4 + i;
        fault.kind = "flip_parameter";
        fault.step = from + i;
        job->toReplica(1, fault);
    }
    const auto accused = [&] {
        for (const auto& e : job->facts<protocol::fact::EvidenceSeen>())
            if (e.kind == protocol::EvidenceKind::kParityMismatch && e.replica == 1) return true;
        return false;
    };
    ASSERT_TRUE(job->runUntil(accused)) << job->output();
    uint32_t slowest = 1;
    for (const auto& told : job->facts<protocol::fact::ParityPaced>())
        slowest = std::max(slowest, told.everySteps);
    EXPECT_LE(job->committed(), from + kFlips + slowest) << job->output();
    const uint64_t found = job->committed();
    const auto suspect = job->facts<protocol::fact::StepsSuspect>();
    ASSERT_EQ(suspect.size(), 1u) << job->output();
    EXPECT_LT(suspect[0].first, from + kFlips);
    EXPECT_EQ(suspect[0].last, found);
    ASSERT_TRUE(job->runUntil([&] { return !job->contributes(1); })) << job->output();
    ASSERT_TRUE(job->runUntil([&] { return job->contributes(1); })) << job->output();
    ASSERT_TRUE(job->runToStep(job->committed() + 3)) << job->output();
    EXPECT_EQ(job->facts<StepCommitted>().back().votes.size(), 3u) << job->output();
}

/// The duration of a step depends on the machine: the choice has to follow from its own figures.
TEST_F(PacedJob, aHashThatTakesLittleIsComparedAsOftenAsCostsLittle) {
    const auto job = this->job(0);
    ASSERT_TRUE(job->runUntil([&] { return pace(*job) > 0; })) << job->output();
    ASSERT_TRUE(job->runToStep(job->committed() + 60)) << job->output();
    for (const auto& told : job->facts<protocol::fact::ParityPaced>()) {
        const double share = told.hashMs / (told.everySteps * told.stepMs);
        ASSERT_LT(told.everySteps, 256u);
        EXPECT_LE(share, 0.01);
        EXPECT_TRUE(told.everySteps == 1 || share > 0.0025) << told.everySteps;
    }
    EXPECT_GT(compared(*job, 0), 0u);
    expectParity(*job);
}

#ifdef BULKHEAD_CUDA_PLUGIN
TEST_F(DeviceJob, replicasOfTwoRanksTrainOnOneGpuToTheCpusNumbersAndOneComesBack) {
    std::map<std::string, std::vector<double>> losses;
    for (const std::string device : {"cpu", kDevice}) {
        model::JobSpec spec = specOn(device);
        spec.replicas = spec.shards = 2;
        MiniJob job(spec, folderOf(device));
        ASSERT_TRUE(job.runToStep(8)) << job.output();
        for (const StepCommitted& step : job.facts<StepCommitted>())
            if (losses[device].size() < 8) losses[device].push_back(step.loss);
        job.kill({1, 1}, SIGKILL);
        ASSERT_TRUE(job.runUntil([&] { return !job.contributes(1); })) << job.output();
        ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
        ASSERT_TRUE(job.runToStep(job.committed() + 3)) << job.output();
        expectParity(job);
    }
    EXPECT_EQ(losses[kDevice], losses["cpu"]);
}
#endif

TEST_F(DeviceJob, whoComputesElsewhereIsRefusedByNameAndTheOthersTrainOn) {
    MiniJob job(specOn(kDevice), folderOf(kDevice));
    ASSERT_TRUE(job.runToStep(3)) << job.output();
    job.moveTo(2, "cpu");
    job.kill({2, 0}, SIGKILL);
    const auto refused = [&] {
        for (const auto& changed : job.facts<protocol::fact::ReplicaChanged>())
            if (changed.replica == 2 &&
                changed.why.find("computes on cpu, the rest of the job on " + kSays) !=
                    std::string::npos)
                return true;
        return false;
    };
    ASSERT_TRUE(job.runUntil(refused)) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 5)) << job.output();
    EXPECT_EQ(job.facts<StepCommitted>().back().votes.size(), 3u);
    EXPECT_FALSE(job.contributes(2));
    expectParity(job);
}

TEST_F(DeviceJob, ofTwoTheOneWithAFlippedBitIsFoundByItsOwnReplay) {
    model::JobSpec spec = specOn(kDevice);
    spec.replicas = 2;
    MiniJob job(spec, folderOf(kDevice));
    ASSERT_TRUE(job.runToStep(5)) << job.output();
    protocol::CommitFault fault;
    fault.fault = 4;
    fault.kind = "flip_parameter";
    job.toReplica(1, fault);
    const auto accused = [&] {
        for (const auto& e : job.facts<protocol::fact::EvidenceSeen>())
            if (e.kind == protocol::EvidenceKind::kParityMismatch)
                return e.replica == 1 && e.detail.find("its own replay") != std::string::npos;
        return false;
    };
    ASSERT_TRUE(job.runUntil(accused)) << job.output();
    ASSERT_TRUE(job.runUntil([&] { return !job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runUntil([&] { return job.contributes(1); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 3)) << job.output();
    EXPECT_EQ(job.facts<StepCommitted>().back().votes.size(), 2u) << job.output();
}

TEST_F(DeviceJob, aCheckpointCopiedBesideTrainingIsTheStateOfItsStep) {
    model::JobSpec spec = specOn(kDevice);
    spec.replicas = 2;
    spec.policies.checkpointEverySteps = 5;
    std::string path;
    std::map<uint64_t, uint64_t> hashAfter;
    {
        MiniJob job(spec, folderOf(kDevice));
        ASSERT_TRUE(job.runUntil([&] { return !job.checkpoints().empty(); })) << job.output();
        EXPECT_TRUE(job.checkpoints().front().ok);
        path = job.checkpoints().front().path;
        ASSERT_TRUE(job.runToStep(job.checkpoints().front().step + 4)) << job.output();
        for (const StepCommitted& step : job.facts<StepCommitted>())
            hashAfter[step.record.step - 1] = step.votes.front().hashes.front();
    }
    const auto written = readManifest(diskFiles(), path);
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->files.front().hash, hashAfter.at(written->step));
    protocol::LogCheckpoint from;
    from.step = written->step;
    from.path = path;
    MiniJob job(spec, folderOf(kDevice), from);
    ASSERT_TRUE(job.runToStep(written->step + 3)) << job.output();
    const StepCommitted first = job.facts<StepCommitted>().front();
    EXPECT_EQ(first.record.step, written->step + 1);
    EXPECT_EQ(first.votes.front().hashes.front(), hashAfter.at(written->step));
    expectParity(job);
}

TEST_F(DeviceJob, aGradientThatIsNotFiniteIsFoundOnTheDevice) {
    MiniJob job(specOn(kDevice), folderOf(kDevice));
    ASSERT_TRUE(job.runToStep(4)) << job.output();
    protocol::CommitFault fault;
    fault.fault = 3;
    fault.kind = "nan_gradient";
    job.toReplica(1, fault);
    ASSERT_TRUE(job.runUntil([&] { return !job.faultsNoted().empty(); })) << job.output();
    ASSERT_TRUE(job.runToStep(job.committed() + 4)) << job.output();
    bool seen = false;
    for (const auto& e : job.facts<protocol::fact::EvidenceSeen>())
        seen |= e.kind == protocol::EvidenceKind::kNonFinite && e.replica == 1;
    EXPECT_TRUE(seen);
    for (const StepCommitted& step : job.facts<StepCommitted>()) EXPECT_FALSE(step.record.skip);
    expectParity(job);
}

#ifndef BULKHEAD_CUDA_PLUGIN
TEST_F(DeviceJob, aDeviceWithoutRoomForTheSumIsToldByTheRankAsItEnds) {
    ::setenv("BULKHEAD_FAKE_PEER_BLOCKS", "1", 1);  // the workload's gradient is the one
    MiniJob job(specOn(kDevice), folderOf(kDevice));
    EXPECT_TRUE(job.runUntil([&] { return !job.exits().empty(); })) << job.output();
    ::unsetenv("BULKHEAD_FAKE_PEER_BLOCKS");
    EXPECT_THAT(job.output(), HasSubstr("buffers: "));
    EXPECT_EQ(job.committed(), 0u);
}

TEST_F(DeviceJob, aGradientThatTheDeviceCannotLookAtEndsItsRankInOrder) {
    ::setenv("BULKHEAD_BIGRAM_SUMS", "1", 1);  // one when it warms up
    MiniJob job(specOn(kDevice), folderOf(kDevice));
    EXPECT_TRUE(job.runUntil([&] { return !job.exits().empty(); })) << job.output();
    ::unsetenv("BULKHEAD_BIGRAM_SUMS");
    EXPECT_THAT(job.output(), HasSubstr("squares: "));
    EXPECT_EQ(job.exits().front().second, kExitInternal) << job.output();
    EXPECT_EQ(job.committed(), 0u);
}
#endif

}  // namespace
}  // namespace bulkhead::runtime
