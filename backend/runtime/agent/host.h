// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/agent/gpu_sampler.h"
#include "backend/runtime/agent/proc_sampler.h"
#include "backend/runtime/agent/process.h"
#include "backend/runtime/agent/rank_registry.h"

namespace bulkhead::runtime {

/// "run-1 r0s1 incarnation 3", for messages to people.
std::string nameOf(const RankProcess& process);

/// Notices of one process. Called on the agent's thread, never from inside a function of Host or
/// HostProcess but drainOutput().
struct ProcessWatcher {
    std::function<void(bool isStderr, std::string line, uint64_t dropped)> printed;
    /// A signal ends the process, which may hold memory and addresses until it is gone. At most
    /// once; perhaps never.
    std::function<void(int32_t signal)> died;
    /// Once, and the last notice but files. It may destroy the HostProcess.
    std::function<void()> gone;
    /// Names what start() ran, without what cannot be read: the program, what its arguments name,
    /// plugins. At most once, also after gone; never after the host is destroyed.
    std::function<void(std::vector<RunFile>)> files;
};

/// A process that a host runs. Destroying the object ends the notices, not the process.
class HostProcess {
  public:
    virtual ~HostProcess() = default;
    virtual int32_t pid() const = 0;
    /// With the pid it names one process for ever, as processStartTime() does.
    virtual uint64_t startTime() const = 0;
    /// Contract of signalProcess().
    virtual absl::Status signal(int signal, int32_t value = 0) = 0;
    /// Contract of runtime::reap(); once it is gone.
    virtual ExitStatus reap() = 0;
    /// Tells what it has printed so far, an unfinished line included.
    virtual void drainOutput() = 0;
    virtual ProcessFigures sample() = 0;
};

struct HostFigures {
    ProcSampler::Memory memory;
    std::vector<GpuFigures> gpus;
    std::string whyNoGpus;  ///< empty when there are some
};

/// The machine on which an agent runs processes. Inject it; a simulation has its own. Thread: the
/// agent's.
class Host {
  public:
    virtual ~Host() = default;

    /// Starts a process that outlives this one. `output`: path of its named pipes, less ".out" and
    /// ".err", by which a later agent hears it. NotFound, PermissionDenied or Unavailable, naming
    /// the program and the system's reason.
    virtual absl::StatusOr<std::unique_ptr<HostProcess>> start(const StartRank& command,
                                                               const std::string& output,
                                                               ProcessWatcher watcher) = 0;
    /// One that an earlier agent started, or was about to start and did not note (`pid` is 0): then
    /// the one that prints to `output`. NotFound when it is gone, or was not started to print
    /// there: whose folder is a copy finds the original's ranks in it.
    virtual absl::StatusOr<std::unique_ptr<HostProcess>> find(const RegisteredRank& rank,
                                                              const std::string& output,
                                                              ProcessWatcher watcher) = 0;
    /// Its GPUs by the driver's index; before the first sample().
    virtual std::vector<GpuPlace> gpus() { return {}; }
    /// The reason for which it has none.
    virtual std::string whyNoGpus() { return "it has none"; }
    /// Says to other agents of this machine, whose controllers may be others, that a rank has the
    /// GPU, for itself unless `shared`, until the descriptor is closed. AlreadyExists: one of
    /// theirs has it.
    virtual absl::StatusOr<UniqueFd> claim(const GpuPlace&) { return UniqueFd(); }
    /// `done` is called later, once; not after the host is destroyed.
    virtual void sample(std::function<void(HostFigures)> done) = 0;
};

}  // namespace bulkhead::runtime
