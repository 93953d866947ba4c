// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/event_history.h"

#include <algorithm>

#include "app/models/event_text.h"

namespace bulkhead::ui {
namespace {

constexpr uint32_t kPage = 5000;

}  // namespace

EventHistory::EventHistory(Session& session, QObject* parent)
    : QObject(parent), session_(session) {}

void EventHistory::begin(uint64_t seq, bool withRoutine) {
    ++begun_;
    next_ = seq;
    withRoutine_ = withRoutine;
    if (seq == 0) return enter(State::kWhole);
    read();
}

void EventHistory::more() {
    if (state_ == State::kMore) read();
}

void EventHistory::stop() {
    ++begun_;
    enter(State::kFull);
}

void EventHistory::enter(State state) {
    state_ = state;
    Q_EMIT stateChanged();
}

void EventHistory::read() {
    enter(State::kReading);
    model::EventQuery query;
    query.toSeq = next_;
    query.types = typesForLog(withRoutine_);
    query.newestFirst = true;
    query.limit = kPage;
    session_.readEvents(std::move(query), [this, begun = begun_](auto result) {
        if (begun == begun_) take(std::move(result));
    });
}

void EventHistory::take(client::Result<model::EventPage> result) {
    if (!result.ok()) {
        failure_ = result.failure();
        return enter(State::kFailed);
    }
    model::EventPage read = std::move(result).value();
    std::reverse(read.events.begin(), read.events.end());
    next_ = read.nextSeq;
    const uint64_t begun = begun_;
    Q_EMIT page(read.events);
    if (begun != begun_) return;
    if (next_ == 0) return enter(State::kWhole);
    enter(State::kMore);
    if (!withRoutine_) more();
}

}  // namespace bulkhead::ui
