// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"
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
    ~LinuxHost() override;

    absl::StatusOr<std::unique_ptr<HostProcess>> start(const StartRank& command,
                                                       const std::string& output,
                                                       ProcessWatcher watcher) override;
    absl::StatusOr<std::unique_ptr<HostProcess>> find(const RegisteredRank& rank,
                                                      const std::string& output,
                                                      ProcessWatcher watcher) override;
    std::vector<GpuPlace> gpus() override;
    std::string whyNoGpus() override;
    absl::StatusOr<UniqueFd> claim(const GpuPlace& gpu) override;
    void sample(std::function<void(HostFigures)> done) override;

  private:
    class Process;
    struct Hashed {
        const std::string identity;  ///< of the file and its last change
        UniqueFd file;               ///< until it was read; the hashing thread's
        std::string sha256;          ///< afterwards; empty: it could not be read
    };
    using Files = std::vector<std::pair<std::string, std::shared_ptr<Hashed>>>;  ///< by path
    struct ToHash {
        Files files;
        std::function<void(std::vector<RunFile>)> done;
    };
    Files open(const StartRank& command);
    std::shared_ptr<Hashed> open(const std::string& path);
    void hash(ToHash what);
    void hashAll();
    void read(Hashed& file) const;

    Reactor& reactor_;
    const uint32_t outputLinesPerSecond_;
    const std::vector<std::string> inherited_;
    std::map<std::string, std::shared_ptr<Hashed>> hashed_;  ///< by path, as last opened
    ProcSampler sampler_;
    GpuSampler gpus_;
    std::jthread askingGpus_;  ///< uses gpus_
    std::atomic<bool> ending_{false};
    Mutex mutex_;
    ConditionVariable changed_;
    std::deque<ToHash> toHash_ ABSL_GUARDED_BY(mutex_);
    Thread hashing_;  ///< from the first start on; a file of 256 MiB takes a second
};

}  // namespace bulkhead::runtime
