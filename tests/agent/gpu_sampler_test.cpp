// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/gpu_sampler.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bulkhead::runtime {
namespace {

using ::testing::HasSubstr;

std::string fake(const std::string& kind) {
    return std::string(FAKE_NVML) + "/fake_nvml_" + kind + ".so";
}
std::vector<GpuFigures> sampleOf(const std::string& library) {
    return GpuSampler(library.c_str()).sample();
}

TEST(GpuSampler, withoutADriverThereAreNoGpus) {
    EXPECT_TRUE(sampleOf("libno-such-driver.so.1").empty());
    EXPECT_TRUE(sampleOf("libm.so.6").empty()) << "a library that is something else";
    EXPECT_TRUE(sampleOf(fake("broken")).empty());
    EXPECT_TRUE(sampleOf(fake("empty")).empty());
}

TEST(GpuSampler, whatTheDriverTellsIsTold) {
    const std::vector<GpuFigures> gpus = sampleOf(fake("whole"));
    ASSERT_EQ(gpus.size(), 2u);
    EXPECT_EQ(gpus[0].sample.name, "GPU A");
    EXPECT_EQ(gpus[0].sample.busyPercent, 97.0);
    EXPECT_EQ(gpus[0].sample.memoryTotalBytes, 80ull << 30);
    EXPECT_EQ(gpus[0].sample.memoryUsedBytes, 30ull << 30);
    EXPECT_EQ(gpus[0].sample.temperatureCelsius, 61.0);
    EXPECT_EQ(gpus[0].sample.powerWatts, 512.5);
    EXPECT_EQ(gpus[0].sample.clockMhz, 1980u);
    EXPECT_EQ(gpus[0].sample.memoryClockMhz, 2619u);
    EXPECT_EQ(gpus[0].sample.eccUncorrected, 0u)
        << "told to be none, which is not the same as not told";
    EXPECT_EQ(gpus[1].sample.name, "GPU B");
}

TEST(GpuSampler, theLastCriticalErrorIsKeptForTheGpuThatHadIt) {
    const std::string library = fake("whole");
    GpuSampler sampler(library.c_str());
    for (int samples = 0; samples < 2; ++samples) {
        const std::vector<GpuFigures> gpus = sampler.sample();
        EXPECT_EQ(gpus[0].sample.lastXid, std::nullopt);
        EXPECT_EQ(gpus[1].sample.lastXid, 79u);
    }
}

TEST(GpuSampler, everyCriticalErrorIsNewsOnceAndInOrder) {
    const std::string library = fake("whole");
    GpuSampler sampler(library.c_str());
    const std::vector<GpuFigures> first = sampler.sample();
    EXPECT_TRUE(first[0].troubles.empty());
    ASSERT_EQ(first[1].troubles.size(), 2u) << "the one before the last is not lost";
    EXPECT_EQ(first[1].troubles[0].xid, 31u);
    EXPECT_EQ(first[1].troubles[1].xid, 79u);
    EXPECT_EQ(first[1].troubles[1].gpu, 1u);
    EXPECT_EQ(first[1].troubles[1].name, "GPU B");
    EXPECT_TRUE(sampler.sample()[1].troubles.empty());
}

TEST(GpuSampler, memoryErrorsAreNewsWhenTheyBecomeMore) {
    GpuSampler sampler(FAKE_NVML "/live/libnvidia-ml.so.1");
    ASSERT_EQ(sampler.whyNone(), "");
    // The library's GPU has two more of them, and an Xid, once this process has a child.
    EXPECT_TRUE(sampler.sample()[1].troubles.empty());
    const pid_t child = ::fork();
    if (child == 0) {
        ::pause();
        ::_exit(0);
    }
    (void)sampler.sample();  // sees the child
    const std::vector<GpuFigures> gpus = sampler.sample();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(gpus[1].processes.count(child), 1u);
    EXPECT_EQ(GpuSampler::shareOf(child, gpus).gpus, std::vector<uint32_t>{1});
    ASSERT_EQ(gpus[1].troubles.size(), 2u);
    EXPECT_EQ(gpus[1].troubles[0].xid, 79u);
    EXPECT_EQ(gpus[1].troubles[1].eccUncorrected, 2u);
    EXPECT_EQ(gpus[1].troubles[1].xid, std::nullopt);
}

TEST(GpuSampler, whyThereAreNoneIsSaid) {
    const auto why = [](const std::string& library) {
        return GpuSampler(library.c_str()).whyNone();
    };
    EXPECT_THAT(why("libno-such-driver.so.1"), HasSubstr("libno-such-driver.so.1"));
    EXPECT_THAT(why("libm.so.6"), HasSubstr("not NVIDIA's"));
    EXPECT_THAT(why(fake("broken")), HasSubstr("does not answer (NVML code 9)"));
    EXPECT_THAT(why(fake("empty")), HasSubstr("no GPU"));
    EXPECT_EQ(why(fake("whole")), "");
}

TEST(GpuSampler, whatIsMissingOrFailsIsAbsentAndNotZero) {
    const std::vector<GpuFigures> gpus = sampleOf(fake("partial"));
    ASSERT_EQ(gpus.size(), 2u) << "a lost GPU keeps its place";
    EXPECT_EQ(gpus[0].sample.memoryUsedBytes, 30ull << 30);
    EXPECT_EQ(gpus[1].sample.memoryUsedBytes, std::nullopt);
    for (const GpuFigures& gpu : gpus) {
        EXPECT_EQ(gpu.sample.name, "");
        EXPECT_EQ(gpu.sample.busyPercent, std::nullopt);
        EXPECT_EQ(gpu.sample.temperatureCelsius, std::nullopt);
        EXPECT_EQ(gpu.sample.powerWatts, std::nullopt);
        EXPECT_EQ(gpu.sample.clockMhz, std::nullopt);
        EXPECT_EQ(gpu.sample.memoryClockMhz, std::nullopt);
        EXPECT_EQ(gpu.sample.eccUncorrected, std::nullopt);
        EXPECT_EQ(gpu.sample.lastXid, std::nullopt);
        EXPECT_TRUE(gpu.processes.empty());
    }
}

TEST(GpuSampler, aProcessHasItsOwnMemoryAndTheLoadOfItsGpu) {
    const std::vector<GpuFigures> gpus = sampleOf(fake("whole"));
    EXPECT_EQ(gpus[0].processes.size(), 20u);
    const auto second = GpuSampler::shareOf(101, gpus);
    EXPECT_EQ(second.busyPercent, 97.0);
    EXPECT_EQ(second.memoryBytes, 2u << 20);
    const auto onBoth = GpuSampler::shareOf(100, gpus);
    EXPECT_EQ(onBoth.busyPercent, 97.0);
    EXPECT_EQ(onBoth.memoryBytes, 2u << 20) << "1 MiB on each";
    const auto untold = GpuSampler::shareOf(119, gpus);
    EXPECT_EQ(untold.busyPercent, 97.0);
    EXPECT_EQ(untold.memoryBytes, std::nullopt);
    const auto stranger = GpuSampler::shareOf(7, gpus);
    EXPECT_EQ(stranger.busyPercent, std::nullopt);
    EXPECT_EQ(stranger.memoryBytes, std::nullopt);
}

}  // namespace
}  // namespace bulkhead::runtime
