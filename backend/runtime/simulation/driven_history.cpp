// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/driven_history.h"

#include <utility>

namespace bulkhead::simulation {

absl::StatusOr<model::RunState> DrivenHistory::open() {
    auto tail = history::EventTail::open(files_, "/history/runs.db", 1, "");
    if (!tail.ok()) return tail.status();
    tail_ = *std::move(tail);
    for (const model::Event& event : tail_->takeLeft())
        if (event.seq == database_.folded.seq + 1) write(event);
    tail_->clear();
    return database_.folded;
}

void DrivenHistory::write(const model::Event& event) {
    model::apply(database_.folded, event);
    database_.events.push_back(event);
}

void DrivenHistory::onEvent(const std::string&, const model::Event& event) {
    buffer_.push_back(event);
    database_.tailFull = !tail_->add(event).ok() || database_.tailFull;
    if (onTold) onTold(event);
    if (!std::exchange(waiting_, true))
        reactor_.after(rng_.between(20, 100), [this] { beginBatch(); });
}

void DrivenHistory::beginBatch() {
    batch_ = std::exchange(buffer_, {});
    tail_->turn();
    reactor_.after(rng_.between(1, 20), [this] {
        for (const model::Event& event : batch_) write(event);
        tail_->drop();
        waiting_ = !buffer_.empty();
        if (waiting_) beginBatch();
    });
}

}  // namespace bulkhead::simulation
