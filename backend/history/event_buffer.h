// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/history/run_tables.h"

/// Events accepted and not yet taken by the writer's thread, within bounds; what does not fit is a
/// gap that is told in its place once there is room. Not thread-safe.
namespace bulkhead::history {

class EventBuffer {
  public:
    EventBuffer(size_t maxEvents, size_t maxBytes, uint64_t lastSeq)
        : maxEvents_(maxEvents), maxBytes_(maxBytes), lastSeq_(lastSeq) {}

    /// InvalidArgument when `event.seq` is not the next one; ResourceExhausted when it was dropped.
    absl::Status push(const model::Event& event, int64_t nowNs, const std::string& whyFull);
    /// The oldest, at most `limit`, and none beyond the one that fills `limitBytes`; a gap at their
    /// end once there is room for it.
    std::vector<model::Event> take(size_t limit, size_t limitBytes, int64_t nowNs);

    bool empty() const { return queue_.empty() && !gap_; }
    size_t size() const { return queue_.size(); }
    uint64_t lastSeq() const { return lastSeq_; }

  private:
    struct Held {
        model::Event event;
        size_t bytes = 0;
    };
    bool hasRoom(size_t bytes) const {
        return queue_.size() < maxEvents_ && bytes_ + bytes <= maxBytes_;
    }
    void hold(model::Event event, size_t bytes);
    void tellGap(int64_t nowNs);

    size_t maxEvents_;
    size_t maxBytes_;
    uint64_t lastSeq_;
    size_t bytes_ = 0;
    std::deque<Held> queue_;
    std::optional<Gap> gap_;
};

}  // namespace bulkhead::history
