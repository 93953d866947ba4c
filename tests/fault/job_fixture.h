// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/model/event.h"
#include "backend/model/run_state.h"
#include "backend/runtime/coordinator/controller.h"

/// Whole jobs for tests and benches: a controller in this process, agents and workers as processes
/// of their own, everything in one temporary directory that goes with the object.
namespace bulkhead::fault {

/// Collects the events of all runs. Thread: any.
class EventTape : public runtime::EventSink {
  public:
    void onEvent(const std::string& run, const model::Event& event) override;

    std::vector<model::Event> all(const std::string& run) const;
    model::RunState fold(const std::string& run) const;

    /// The first event of `run` from index `*from` on that `matches`; nullopt when the time is over
    /// first. `*from` becomes the index behind it.
    std::optional<model::Event> await(const std::string& run, size_t* from,
                                      const std::function<bool(const model::Event&)>& matches,
                                      MonoNs timeout) const;

  private:
    mutable std::mutex mutex_;
    mutable std::condition_variable grew_;
    std::map<std::string, std::vector<model::Event>> events_;
};

struct JobHostOptions {
    uint32_t nodes = 1;
    uint32_t slotsPerNode = 16;
    /// Where an earlier host left its state; empty: a new temporary directory.
    std::string dir;
    bool keepDir = false;                    ///< do not remove it in the end
    std::string worker = "bulkhead-worker";  ///< program of the ranks
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
    EventTape& tape() { return tape_; }

    /// A job with a model of some ten thousand parameters on text made up here; change what
    /// matters.
    model::JobSpec tinySpec(uint32_t replicas, uint32_t shards, uint64_t steps);

    void startAgent(uint32_t node);
    void killAgent(uint32_t node);
    static std::string nodeName(uint32_t node) { return "node" + std::to_string(node); }

    /// kill -9 of every rank and agent, and the controller gone without a word.
    void killEverything();
    /// A new controller, and agents where there are none, on the same directory; runs that had not
    /// ended are taken up again.
    absl::StatusOr<std::vector<std::string>> comeBack();
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
    std::unique_ptr<runtime::Controller> controller_;
    std::map<uint32_t, pid_t> agents_;
};

/// Everything the events of a run must agree on, whatever happened in it: numbers without gaps, no
/// step committed twice within a lineage or left out, no sample trained on twice, no invariant
/// broken. Returns what is wrong, in words; empty when all is well.
std::vector<std::string> auditRun(const std::vector<model::Event>& events);

}  // namespace bulkhead::fault
