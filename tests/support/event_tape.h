// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/model/event.h"
#include "backend/model/run_state.h"
#include "backend/runtime/coordinator/event_sink.h"

namespace bulkhead::support {

/// Collects the events of all runs and folds them as they come. Thread: any.
class EventTape : public runtime::EventSink {
  public:
    void onEvent(const std::string& run, const model::Event& event) override;

    /// The events of a run with seq > `after`.
    std::vector<model::Event> events(const std::string& run, uint64_t after = 0) const;
    model::RunState state(const std::string& run) const;
    /// Forgets what came behind that event of the run, as a history that was not written in time.
    void forget(const std::string& run, uint64_t behind);

    /// The first event of `run` from index `*from` on that `matches`; nullopt when the time is over
    /// first. `*from` becomes the index behind it.
    std::optional<model::Event> await(const std::string& run, size_t* from,
                                      const std::function<bool(const model::Event&)>& matches,
                                      MonoNs timeout) const;

    /// Waits until `reached` holds of the state of `run`, looked at after each event.
    /// DeadlineExceeded names `what`; so does Aborted when the run ended instead.
    absl::Status awaitState(const std::string& run, const std::string& what,
                            const std::function<bool(const model::RunState&)>& reached,
                            MonoNs timeout) const;

  private:
    struct Run {
        std::vector<model::Event> events;
        model::RunState state;
    };

    mutable Mutex mutex_;
    mutable ConditionVariable grew_;
    mutable std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::support
