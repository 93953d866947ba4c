// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/event.h"

namespace bulkhead::runtime {

/// Where a job's events go, in order and without gaps: history, watchers.
/// Thread: called on the controller's thread; must not block and must not call the controller back.
class EventSink {
  public:
    virtual ~EventSink() = default;
    virtual void onEvent(const std::string& run, const model::Event& event) = 0;
    /// Returns why the run's events are no longer stored and must be sent again from the last one
    /// that is: "FILE: was removed while it was written". Empty: they are stored, if late.
    virtual std::string lost(const std::string&) const { return ""; }
    /// No more is told of the run until its history is asked for again.
    virtual void release(const std::string&) {}
};

}  // namespace bulkhead::runtime
