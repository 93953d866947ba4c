// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/coordinator/controller.h"
#include "tests/support/event_tape.h"

/// Whole jobs for tests and benches: a controller in this process, agents and workers as processes
/// of their own, everything in one directory.
namespace bulkhead::support {

struct JobHostOptions {
    uint32_t nodes = 1;
    uint32_t slotsPerNode = 16;
    /// An existing directory that stays in the end; empty: a temporary one that goes.
    std::string dir;
    std::string worker = "bulkhead-worker";  ///< program of the ranks
    runtime::Proposer proposer = {};         ///< of the controller
    runtime::AgentHeartbeat agentHeartbeat = {};
    /// That each agent gives to ranks; "parts": of all, none to two nodes.
    std::string gpus = "all";
    bool withController = true;  ///< false: another process is it, listening on socket()
};

/// The controller and its agents. Killing agents and ranks in the end is its duty. Thread: one.
class JobHost {
  public:
    explicit JobHost(JobHostOptions options);
    ~JobHost();

    /// Not OK when the controller or an agent could not be started.
    const absl::Status& ready() const { return ready_; }

    runtime::Controller& controller() { return *controller_; }
    const std::string& dir() const { return dir_; }
    int historyAsked() const { return historyAsked_; }  ///< requests for a run's past so far
    std::string socket() const { return "unix:" + dir_ + "/c"; }
    static constexpr const char* kToken = "test-token";
    EventTape& tape() { return tape_; }

    /// A job with a model of some ten thousand parameters on text made up here; change what
    /// matters.
    model::JobSpec tinySpec(uint32_t replicas, uint32_t shards, uint64_t steps);

    void startAgent(uint32_t node);
    void killAgent(uint32_t node);
    pid_t agentPid(uint32_t node) const { return agents_.at(node); }
    static std::string nodeName(uint32_t node) { return "node" + std::to_string(node); }

    /// kill -9 of every rank and agent, and the controller gone without a word.
    void killEverything();
    /// A new controller, and agents where there are none, on the same directory; runs that had not
    /// ended are taken up again, after `beforeRecovery`; history has no end of runs `withoutEnd`.
    absl::StatusOr<std::vector<std::string>> comeBack(
        const std::function<void()>& beforeRecovery = {},
        const std::vector<std::string>& withoutEnd = {});
    /// Only the controller goes, without a word.
    void loseController() { controller_.reset(); }

    /// Where the programs of this build lie (BULKHEAD_BIN_DIR, or beside the test).
    static std::string program(const std::string& name);

  private:
    void startController();
    void killRanks();

    JobHostOptions options_;
    std::string dir_;
    SystemClock clock_;
    EventTape tape_;
    absl::Status ready_;
    std::atomic<int> historyAsked_ = 0;
    std::unique_ptr<runtime::Controller> controller_;
    std::map<uint32_t, pid_t> agents_;
};

}  // namespace bulkhead::support
