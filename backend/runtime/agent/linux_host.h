// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/runtime/agent/host.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::runtime {

/// This machine: processes by posix_spawn and pidfds, their deaths by life locks, their output by
/// named pipes, figures from /proc and the GPU's driver. Its processes are destroyed before it, the
/// reactor after it.
class LinuxHost final : public Host {
  public:
    /// `inherited`: LaunchSpec::inherited of every process.
    LinuxHost(Reactor& reactor, uint32_t outputLinesPerSecond, const std::string& gpuLibrary,
              std::vector<std::string> inherited)
        : reactor_(reactor),
          outputLinesPerSecond_(outputLinesPerSecond),
          inherited_(std::move(inherited)),
          gpus_(gpuLibrary.c_str()) {}

    absl::StatusOr<std::unique_ptr<HostProcess>> start(const StartRank& command,
                                                       const std::string& output,
                                                       ProcessWatcher watcher) override;
    absl::StatusOr<std::unique_ptr<HostProcess>> find(const RegisteredRank& rank,
                                                      const std::string& output,
                                                      ProcessWatcher watcher) override;
    std::vector<RunFile> files(const StartRank& command) override;
    std::vector<GpuPlace> gpus() override { return gpus_.places(); }
    void sample(std::function<void(HostFigures)> done) override;

  private:
    class Process;
    struct Hashed {
        std::string identity;  ///< of the file and its last change
        std::string sha256;
    };
    std::string hashOf(const std::string& path);

    Reactor& reactor_;
    const uint32_t outputLinesPerSecond_;
    const std::vector<std::string> inherited_;
    std::map<std::string, Hashed> hashed_;  ///< by path
    ProcSampler sampler_;
    GpuSampler gpus_;
    std::jthread askingGpus_;  ///< uses gpus_
};

}  // namespace bulkhead::runtime
