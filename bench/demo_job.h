// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/event.h"
#include "backend/model/run_state.h"
#include "tests/support/job_host.h"

namespace bulkhead::bench {

/// The demo's job, everything below one folder, which stays to be looked at. It ends
/// with the object. Thread: one.
class DemoJob {
  public:
    /// `root` is the project's folder; `folder` is emptied first; `change` changes the job file.
    static absl::StatusOr<std::unique_ptr<DemoJob>> start(
        const std::string& root, const std::string& folder,
        const std::function<void(model::JobSpec&)>& change = {}, uint32_t nodes = 1);

    /// Waits as EventTape::awaitState does.
    absl::Status wait(const std::string& what, double seconds,
                      const std::function<bool(const model::RunState&)>& reached);
    absl::StatusOr<uint64_t> inject(const model::FaultSpec& fault);
    absl::Status act(const model::Action& action);

    /// The events with seq > `after`.
    std::vector<model::Event> events(uint64_t after = 0) {
        return host_.tape().events(run_, after);
    }
    model::RunState state() { return host_.tape().state(run_); }

  private:
    DemoJob(const std::string& folder, uint32_t nodes) : host_({.nodes = nodes, .dir = folder}) {}

    support::JobHost host_;
    std::string run_;
};

/// Committed steps in order; of each step the one of the latest lineage.
std::vector<model::StepCommitted> committed(const std::vector<model::Event>& events);

}  // namespace bulkhead::bench
