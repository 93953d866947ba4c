// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/common/file_system.h"
#include "backend/history/event_tail.h"
#include "backend/model/run_state.h"
#include "backend/runtime/coordinator/event_sink.h"
#include "backend/runtime/simulation/rng.h"
#include "backend/runtime/transport/reactor.h"

namespace bulkhead::simulation {

/// The database's part of a run; it survives whoever writes it.
struct RunDatabase {
    std::vector<model::Event> events;
    model::RunState folded;
    bool tailFull = false;  ///< an event found no room in the tail
};

/// The history of one run as its writer keeps it: the real tail file, and batches that reach the
/// database a little later.
class DrivenHistory final : public runtime::EventSink {
  public:
    DrivenHistory(RunDatabase& database, FileSystem& files, runtime::Reactor& reactor,
                  uint64_t seed)
        : database_(database), files_(files), reactor_(reactor), rng_(seed) {}

    /// Called for every event once it stands in the tail.
    std::function<void(const model::Event&)> onTold;

    /// Writes what the writer before had accepted; the fold of everything then.
    absl::StatusOr<model::RunState> open();
    void onEvent(const std::string& run, const model::Event& event) override;

  private:
    void beginBatch();
    void write(const model::Event& event);

    RunDatabase& database_;
    FileSystem& files_;
    runtime::Reactor& reactor_;
    Rng rng_;
    std::unique_ptr<history::EventTail> tail_;
    std::vector<model::Event> buffer_;
    std::vector<model::Event> batch_;
    bool waiting_ = false;  ///< a batch is about to be begun, or is being written
};

}  // namespace bulkhead::simulation
