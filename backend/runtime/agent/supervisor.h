// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/agent/agent.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/agent/disk_ballast.h"
#include "backend/runtime/agent/host.h"
#include "backend/runtime/agent/rank_registry.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::runtime {

/// The last line of a rank on stderr; a critical line, which gives a reason, is not replaced by
/// another.
struct LastWords {
    std::string text;
    bool critical = false;
};

/// The processes of one node: obeys the controller's commands and says what became of them.
/// Thread: the reactor's. Lifetime: longer than the reactor runs; its processes outlive it.
class Supervisor {
  public:
    using Emit = std::function<void(AgentMessage)>;

    Supervisor(const AgentOptions& options, RankRegistry registry, Reactor& reactor, Host& host,
               Emit emit);
    ~Supervisor();

    /// Takes up the processes that outlived an earlier agent; those that did not are reported gone.
    void adopt();

    /// Takes the node's GPUs that its options name. InvalidArgument: they are not there.
    absl::Status ownGpus();
    std::vector<std::string> gpus() const;

    std::vector<RunningRank> running() const;

    void obey(const AgentCommand& command);

  private:
    struct Process {
        std::unique_ptr<HostProcess> handle;
        GpuPlace gpu;          ///< its own, or shared; no UUID: none
        UniqueFd claim;        ///< of it (Host::claim)
        int32_t killedBy = 0;  ///< the signal, once it was told that it died
        LastWords words;
    };
    struct LastingFault {
        RankProcess stopped;  ///< to be continued, when `disk` is empty
        std::unique_ptr<DiskBallast> disk;
        Reactor::TimerId timer = 0;
    };
    using FaultKey = std::pair<std::string, uint64_t>;  ///< job, fault

    void start(const StartRank& command);
    absl::StatusOr<Process> spawn(StartRank command);
    absl::StatusOr<GpuPlace> gpuFor(const StartRank& command, UniqueFd& claim) const;
    std::string whyNoGpu(const StartRank& command) const;
    absl::Status chooseProgram(StartRank& command) const;
    ProcessWatcher watcher(const RankProcess& id);
    void printed(const RankProcess& id, bool isStderr, std::string line, uint64_t dropped);
    void died(const RankProcess& id, int32_t signal);
    void gone(const RankProcess& id);
    void signal(const SignalRank& command);
    void fillDisk(const FillDisk& command);
    void last(const FaultKey& key, LastingFault fault, uint64_t durationMs);
    void endFault(const EndFault& command);
    void endHeld(const FaultKey& key);
    void note(const FaultKey& key, bool ended, const std::string& error);
    void killNode();
    void sample();
    void sampled(const HostFigures& figures);
    void tellTroubles(const std::vector<GpuFigures>& gpus);
    bool retire(const model::GpuTroubled& trouble);

    const AgentOptions& options_;
    RankRegistry registry_;
    Reactor& reactor_;
    Host& host_;
    Emit emit_;
    const std::vector<GpuPlace> allGpus_;  ///< of the node
    std::vector<GpuPlace> gpus_;           ///< those that it gives to ranks
    std::string gpuGone_;  ///< reason for giving one fewer than at its start; empty: none
    std::map<uint32_t, std::set<RankProcess>> gpuUsers_;  ///< by GPU, at the last sample
    std::map<RankProcess, Process> processes_;
    std::multimap<FaultKey, LastingFault> faults_;
    Reactor::TimerId sampling_ = 0;
};

}  // namespace bulkhead::runtime
