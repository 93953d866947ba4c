// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "backend/common/clock.h"

namespace bulkhead::simulation {

/// Virtual time: events in order of their time, those of one time in the order they were added.
class EventQueue {
  public:
    using Event = absl::AnyInvocable<void()>;

    void at(MonoNs when, Event event) {
        uint32_t slot = static_cast<uint32_t>(events_.size());
        if (free_.empty()) {
            events_.push_back(std::move(event));
        } else {
            slot = free_.back();
            free_.pop_back();
            events_[slot] = std::move(event);
        }
        heap_.push_back({when, ++added_, slot});
        std::push_heap(heap_.begin(), heap_.end(), later);
    }

    bool empty() const { return heap_.empty(); }
    MonoNs nextAt() const { return heap_.front().when; }

    Event takeNext() {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const uint32_t slot = heap_.back().slot;
        heap_.pop_back();
        free_.push_back(slot);
        return std::exchange(events_[slot], nullptr);
    }

  private:
    struct Entry {
        MonoNs when;
        uint64_t order;
        uint32_t slot;
    };
    static bool later(const Entry& a, const Entry& b) {
        return a.when != b.when ? a.when > b.when : a.order > b.order;
    }

    std::vector<Entry> heap_;
    std::vector<Event> events_;
    std::vector<uint32_t> free_;
    uint64_t added_ = 0;
};

}  // namespace bulkhead::simulation
