// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace bulkhead::runtime {

/// One GPU now. What its driver does not tell is absent, never zero.
struct GpuFigures {
    std::string name;
    std::optional<double> busyPercent;  ///< of the time, some kernel ran
    std::optional<uint64_t> memoryTotalBytes;
    std::optional<uint64_t> memoryUsedBytes;
    std::optional<double> temperatureCelsius;
    std::optional<double> powerWatts;
    std::optional<uint32_t> clockMhz;  ///< of the multiprocessors
    std::optional<uint32_t> memoryClockMhz;
    std::optional<uint64_t> eccUncorrected;  ///< since the driver was loaded
    std::optional<uint64_t> lastXid;         ///< the driver's number of its last critical error
    /// By process that computes on it: bytes, where the driver tells.
    std::map<int32_t, std::optional<uint64_t>> processes;
};

/// The node's GPUs, from NVIDIA's management library, which is looked for once. Thread: one.
class GpuSampler {
  public:
    /// `library` is what the driver installs, except in tests.
    explicit GpuSampler(const char* library = "libnvidia-ml.so.1");
    ~GpuSampler();
    GpuSampler(const GpuSampler&) = delete;
    GpuSampler& operator=(const GpuSampler&) = delete;

    /// By the driver's index; empty where there is no driver or no GPU.
    std::vector<GpuFigures> sample();

    /// Of process `pid`: how busy its GPU is, and its own memory there. On several GPUs: the
    /// busiest, and the sum. Absent when it computes on none.
    struct Share {
        std::optional<double> busyPercent;
        std::optional<uint64_t> memoryBytes;
    };
    static Share shareOf(int32_t pid, const std::vector<GpuFigures>& gpus);

  private:
    struct Library;
    std::unique_ptr<Library> library_;  ///< null: none
};

}  // namespace bulkhead::runtime
