// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/model/event.h"
#include "backend/runtime/agent/agent_messages.h"

namespace bulkhead::runtime {

/// One GPU now.
struct GpuFigures {
    model::GpuSample sample;
    /// By process that computes on it: bytes, where the driver tells.
    std::map<int32_t, std::optional<uint64_t>> processes;
    /// Since the sample before, in order; node, time and ranks are not the sampler's to know. The
    /// first sample has no errors of memory, whatever their number is: nobody knows how old they
    /// are.
    std::vector<model::GpuTroubled> troubles;
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

    /// Those that answer and have a name, by the driver's index.
    std::vector<GpuPlace> places() const;

    /// The reason for which there are none; empty when there are.
    const std::string& whyNone() const { return whyNone_; }

    /// Utilisation of the GPU of process `pid`, and its own memory there. On several GPUs: the
    /// busiest, and the sum. Absent when it computes on none.
    struct Share {
        std::optional<double> busyPercent;
        std::optional<uint64_t> memoryBytes;
        std::vector<uint32_t> gpus;  ///< by the driver's index
    };
    static Share shareOf(int32_t pid, const std::vector<GpuFigures>& gpus);

  private:
    struct Library;
    std::unique_ptr<Library> library_;  ///< null: none
    std::string whyNone_;
};

/// Those of `all` that CUDA_VISIBLE_DEVICES leaves to this process, as schedulers and containers
/// set it: the driver's indices or the beginnings of UUIDs, with commas between, up to the first
/// that names none. Null: all.
[[nodiscard]] std::vector<GpuPlace> visibleGpus(const std::vector<GpuPlace>& all,
                                                const char* variable);

/// Those of `all` that `wanted` names: "all", "none", the driver's indices or UUIDs with commas
/// between, or "2/4", the second of four parts that differ by one at most. InvalidArgument, naming
/// what there is.
[[nodiscard]] absl::StatusOr<std::vector<GpuPlace>> chooseGpus(const std::vector<GpuPlace>& all,
                                                               const std::string& wanted);

}  // namespace bulkhead::runtime
