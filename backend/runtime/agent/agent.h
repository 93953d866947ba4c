// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/file_system.h"
#include "backend/common/secret.h"
#include "backend/model/allow_list.h"
#include "backend/runtime/agent/host.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {

constexpr size_t kMaxOutputLine = 4096;

struct AgentOptions {
    std::string node = "node0";
    std::string address = "127.0.0.1";  ///< IP its ranks listen on; stands for the machine
    uint32_t slots = 16;
    std::string gpus = "all";  ///< that it gives to ranks: chooseGpus()
    /// "unix:/path" or "ip:port" of the controller, or of each that may lead: those that stand by
    /// accept nobody. With several, one that says nothing for 2 s is given up for the next, and
    /// ranks follow (controllerNote()).
    std::vector<std::string> controllers;
    Secret key;  ///< of agentIdentity(node), derived from the controller's secret
    /// Its own directory: one small file per running rank, so that a later life of the agent finds
    /// them again, and their output pipes. Created when absent, mode 0700.
    std::string runDir;
    uint32_t sampleMs = 500;
    uint32_t outputLinesPerSecond = 200;  ///< per rank; what is over is counted, not kept
    /// Called instead of SIGKILL to itself when the node is to die, after its ranks were killed.
    /// For agents that live inside a test or another program.
    std::function<void()> onKillNode;
    FileSystem* files = &diskFiles();
    Network* network = &socketNetwork();
    Host* host = nullptr;  ///< null: this machine
    /// The caller that gives one runs it, and calls begin() instead of run(), on its thread; null:
    /// the agent has one of its own.
    Reactor* reactor = nullptr;
    int32_t pid = 0;                               ///< of the agent, for people; 0: this process's
    std::string gpuLibrary = "libnvidia-ml.so.1";  ///< without `host`: by which it knows its GPUs
    /// The program that ranks of a workload run, whatever the controller names; empty: what it
    /// names.
    std::string worker;
    std::vector<std::string> inherited;     ///< LaunchSpec::inherited of ranks
    std::optional<model::AllowList> allow;  ///< of jobs with a command; nullopt: everything
    std::string allowFile;                  ///< the file it was read from
};

/// Where an agent in `runDir` notes the address of the controller that welcomed it last. Ranks
/// learn it by BULKHEAD_CONTROLLER_NOTE.
std::string controllerNote(const std::string& runDir);

/// Supervises the rank processes of one node: starts, reaps, signals and samples them, forwards
/// what they print, commits faults. It takes every decision from the controller and remembers
/// nothing but which processes are its own. Ranks outlive it: it never kills one unless told to.
/// Thread: run() blocks the thread that calls it; stop() may come from any thread or a signal
/// handler. One Agent per runDir at a time (a lock file sees to it).
class Agent {
  public:
    /// FailedPrecondition when another agent holds runDir; InvalidArgument for a bad address, or
    /// GPUs that are not there.
    static absl::StatusOr<std::unique_ptr<Agent>> create(AgentOptions options, const Clock& clock);
    ~Agent();

    /// Connects, reconnects for ever while the controller is away, serves until stop(). Returns an
    /// error only when the controller refused it (wrong token, version, or name taken).
    absl::Status run();

    /// Makes run() return soon; ranks go on.
    void stop();

    /// The part of run() before it serves, for an agent that was given a reactor.
    void begin();
    /// The controller refused it: it does not try again, and run() returns this.
    const absl::Status& refused() const;

  private:
    class Impl;
    explicit Agent(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::runtime
