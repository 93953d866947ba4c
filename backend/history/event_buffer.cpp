// SPDX-License-Identifier: Apache-2.0
#include "backend/history/event_buffer.h"

#include "backend/common/codec.h"
#include "backend/model/names.h"

namespace bulkhead::history {

absl::Status EventBuffer::push(const model::Event& event, int64_t nowNs,
                               const std::string& whyFull) {
    if (event.seq != lastSeq_ + 1)
        return absl::InvalidArgumentError(model::concat("event ", event.seq, " given after ",
                                                        lastSeq_, "; expected ", lastSeq_ + 1));
    const size_t bytes = encode(event).size();  // close to what it takes in memory
    lastSeq_ = event.seq;
    if (gap_ && hasRoom(bytes)) tellGap(nowNs);
    if (hasRoom(bytes)) {
        hold(event, bytes);
        return absl::OkStatus();
    }
    if (!gap_) gap_ = Gap{event.seq, event.seq, whyFull};
    gap_->last = event.seq;
    return absl::ResourceExhaustedError(model::concat("the history's buffer is full and event ",
                                                      event.seq, " was lost: ", whyFull));
}

std::vector<model::Event> EventBuffer::take(size_t limit, size_t limitBytes, int64_t nowNs) {
    std::vector<model::Event> events;
    size_t taken = 0;
    while (!queue_.empty() && events.size() < limit && taken < limitBytes) {
        taken += queue_.front().bytes;
        bytes_ -= queue_.front().bytes;
        events.push_back(std::move(queue_.front().event));
        queue_.pop_front();
    }
    if (queue_.empty() && gap_) {
        events.push_back(gapEvent(*gap_, nowNs));
        gap_.reset();
    }
    return events;
}

void EventBuffer::hold(model::Event event, size_t bytes) {
    bytes_ += bytes;
    queue_.push_back({std::move(event), bytes});
}

void EventBuffer::tellGap(int64_t nowNs) {
    hold(gapEvent(*gap_, nowNs), 0);
    gap_.reset();
}

}  // namespace bulkhead::history
