// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/model/event.h"
#include "backend/model/run_state.h"
#include "backend/runtime/agent/agent.h"
#include "backend/runtime/coordinator/controller.h"

/// A real job for a benchmark: a controller and agents in this process, workers as processes of
/// their own, everything below one folder. Workers and plugins are found beside this program.
/// Thread: the functions are for one thread, events arrive on the controller's.
namespace bulkhead::bench {

class LiveJob final : public runtime::EventSink {
  public:
    struct Options {
        std::string folder;  ///< emptied first
        uint32_t agents = 1; ///< node0, node1, ... on 127.0.0.1, 127.0.0.2, ...
    };

    static absl::StatusOr<std::unique_ptr<LiveJob>> start(const Options& options,
                                                          model::JobSpec spec);
    /// Stops the job without a checkpoint, waits for its end, then stops agents and controller.
    ~LiveJob() override;

    /// Waits until `reached` holds of the folded state, looked at after each event.
    /// DeadlineExceeded names `what`; so does Aborted when the run ended instead.
    absl::Status wait(const std::string& what, double seconds,
                      const std::function<bool(const model::RunState&)>& reached);

    absl::StatusOr<uint64_t> inject(const model::FaultSpec& fault);
    absl::Status stop(bool checkpoint);

    /// A copy of the events with seq > `after`.
    std::vector<model::Event> events(uint64_t after = 0) const;
    model::RunState state() const;
    const std::string& run() const { return run_; }
    runtime::Controller& controller() { return *controller_; }

    void onEvent(const std::string& run, const model::Event& event) override;

  private:
    LiveJob() = default;
    absl::Status startAgents(const Options& options, const std::string& address,
                             const std::string& token);

    SystemClock clock_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<model::Event> events_;
    model::RunState state_;

    std::unique_ptr<runtime::Controller> controller_;
    std::vector<std::unique_ptr<runtime::Agent>> agents_;
    std::vector<std::thread> threads_;
    std::string run_;
};

/// The demo's job file, its checkpoints below `folder`. `root` is the project's folder.
absl::StatusOr<model::JobSpec> demoSpec(const std::string& root, const std::string& folder);

/// Committed steps in order; of each step the one of the latest lineage.
std::vector<model::StepCommitted> committed(const std::vector<model::Event>& events);

}  // namespace bulkhead::bench
