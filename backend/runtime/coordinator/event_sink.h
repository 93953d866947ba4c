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
};

}  // namespace bulkhead::runtime
