// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/mailbox.h"

#include <iterator>

namespace bulkhead::ui {

void Mailbox::putSnapshot(client::StatePtr state) {
    put([&](Delivery& d) {
        d.snapshot = std::move(state);
        d.events.clear();
        d.overflowed = false;
        d.lost.reset();
    });
}

void Mailbox::putEvents(std::vector<model::Event> events) {
    put([&](Delivery& d) {
        if (d.overflowed) return;
        if (d.events.size() + events.size() > kMaxEvents) {
            d.events.clear();
            d.snapshot.reset();
            d.overflowed = true;
            return;
        }
        d.events.insert(d.events.end(), std::make_move_iterator(events.begin()),
                        std::make_move_iterator(events.end()));
    });
}

void Mailbox::putPosition(const model::ReplayPosition& position) {
    put([&](Delivery& d) { d.position = position; });
}

void Mailbox::putConnected(model::ServerInfo info) {
    put([&](Delivery& d) {
        d.connected = std::move(info);
        d.lost.reset();
    });
}

void Mailbox::putJobs(std::vector<model::JobInfo> jobs) {
    put([&](Delivery& d) { d.jobs = std::move(jobs); });
}

void Mailbox::putLost(client::Failure failure, client::SteadyTime nextAttempt) {
    put([&](Delivery& d) { d.lost = Delivery::Lost{std::move(failure), nextAttempt}; });
}

bool Mailbox::hasSnapshot() const {
    const MutexLock lock(mutex_);
    return content_.snapshot != nullptr;
}

Delivery Mailbox::take() {
    const MutexLock lock(mutex_);
    posted_ = false;
    return std::exchange(content_, {});
}

}  // namespace bulkhead::ui
