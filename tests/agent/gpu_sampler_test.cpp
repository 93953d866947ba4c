// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/gpu_sampler.h"

#include <gtest/gtest.h>

namespace bulkhead::runtime {
namespace {

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
    EXPECT_EQ(gpus[0].name, "GPU A");
    EXPECT_EQ(gpus[0].busyPercent, 97.0);
    EXPECT_EQ(gpus[0].memoryTotalBytes, 80ull << 30);
    EXPECT_EQ(gpus[0].memoryUsedBytes, 30ull << 30);
    EXPECT_EQ(gpus[0].temperatureCelsius, 61.0);
    EXPECT_EQ(gpus[0].powerWatts, 512.5);
    EXPECT_EQ(gpus[0].clockMhz, 1980u);
    EXPECT_EQ(gpus[0].memoryClockMhz, 2619u);
    EXPECT_EQ(gpus[0].eccUncorrected, 0u) << "told to be none, which is not the same as not told";
    EXPECT_EQ(gpus[1].name, "GPU B");
}

TEST(GpuSampler, theLastCriticalErrorIsKeptForTheGpuThatHadIt) {
    const std::string library = fake("whole");
    GpuSampler sampler(library.c_str());
    for (int samples = 0; samples < 2; ++samples) {
        const std::vector<GpuFigures> gpus = sampler.sample();
        EXPECT_EQ(gpus[0].lastXid, std::nullopt);
        EXPECT_EQ(gpus[1].lastXid, 79u);
    }
}

TEST(GpuSampler, whatIsMissingOrFailsIsAbsentAndNotZero) {
    const std::vector<GpuFigures> gpus = sampleOf(fake("partial"));
    ASSERT_EQ(gpus.size(), 2u) << "a lost GPU keeps its place";
    EXPECT_EQ(gpus[0].memoryUsedBytes, 30ull << 30);
    EXPECT_EQ(gpus[1].memoryUsedBytes, std::nullopt);
    for (const GpuFigures& gpu : gpus) {
        EXPECT_EQ(gpu.name, "");
        EXPECT_EQ(gpu.busyPercent, std::nullopt);
        EXPECT_EQ(gpu.temperatureCelsius, std::nullopt);
        EXPECT_EQ(gpu.powerWatts, std::nullopt);
        EXPECT_EQ(gpu.clockMhz, std::nullopt);
        EXPECT_EQ(gpu.memoryClockMhz, std::nullopt);
        EXPECT_EQ(gpu.eccUncorrected, std::nullopt);
        EXPECT_EQ(gpu.lastXid, std::nullopt);
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
