// SPDX-License-Identifier: Apache-2.0
#include "backend/service/feed.h"

#include <algorithm>

#include "backend/proto/convert.h"
#include "backend/proto/state_form.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {
namespace {

/// Events in one message: a reader that fell behind a little catches up in few messages.
constexpr int kBatchEvents = 256;

}  // namespace

Feed::Kept::Kept(uint64_t s, size_t b, std::unique_ptr<const v1::Event> e)
    : seq(s), bytes(b), event(std::move(e)) {}
Feed::Kept::Kept(Kept&&) noexcept = default;
Feed::Kept::~Kept() = default;

void Feed::reset(model::RunState state) {
    {
        const MutexLock lock(mutex_);
        state_ = std::move(state);
        ++generation_;
        recent_.clear();
        recentBytes_ = 0;
    }
    wakeAll();
}

void Feed::push(const model::Event& event) {
    auto message = std::make_unique<v1::Event>();
    proto::toMessage(event, *message);
    const size_t bytes = message->ByteSizeLong();
    {
        const MutexLock lock(mutex_);
        if (!state_ || event.seq <= state_->seq) return;
        model::apply(*state_, event);
        recent_.emplace_back(event.seq, bytes, std::move(message));
        recentBytes_ += bytes;
        while (recent_.size() > limits_.events || recentBytes_ > limits_.bytes) {
            recentBytes_ -= recent_.front().bytes;
            recent_.pop_front();
        }
    }
    wakeAll();
}

void Feed::setPosition(const model::ReplayPosition& position) {
    {
        const MutexLock lock(mutex_);
        position_ = position;
        ++positionVersion_;
    }
    wakeAll();
}

void Feed::end(absl::Status why) {
    {
        const MutexLock lock(mutex_);
        ended_ = std::move(why);
    }
    wakeAll();
}

bool Feed::next(Cursor& cursor, v1::WatchUpdate& update) const {
    if (!cursor.state) {
        {
            const MutexLock lock(mutex_);
            if (!nextLocked(cursor, update)) return false;
        }
        if (!update.has_snapshot()) return true;
        const Made made = madeState(cursor.json);
        cursor.generation = made.generation;
        cursor.seq = made.seq;
        cursor.state = made.text;
        cursor.sent = 0;
    }
    v1::Snapshot& snapshot = *update.mutable_snapshot();
    snapshot.set_seq(cursor.seq);
    snapshot.set_form(cursor.json ? v1::STATE_FORM_JSON : v1::STATE_FORM_CODEC);
    snapshot.set_state(cursor.state->substr(cursor.sent, kMostBytes));
    cursor.sent += snapshot.state().size();
    snapshot.set_more(cursor.sent < cursor.state->size());
    if (!snapshot.more()) cursor.state.reset();
    const MutexLock lock(mutex_);
    snapshot.set_newest(cursor.generation == generation_ ? state_->seq : cursor.seq);
    return true;
}

Feed::Made Feed::madeState(bool json) const {
    const MutexLock making(makingMutex_);
    Made& made = made_[json ? 1 : 0];
    std::string text;
    {
        const MutexLock lock(mutex_);
        if (isFollowed(made)) return made;
        text = proto::encodeState(*state_, false);
        made.generation = generation_;
        made.seq = state_->seq;
    }
    // JSON is slow to make: outside the lock, from the binary form.
    if (json) {
        const auto state = proto::decodeState(text, false);
        text = proto::encodeState(state.ok() ? *state : model::RunState(), true);
    }
    made.text = std::make_shared<const std::string>(std::move(text));
    return made;
}

/// The events behind it are few and all kept.
bool Feed::isFollowed(const Made& made) const {
    return made.text != nullptr && made.generation == generation_ && made.seq + 1 >= oldest() &&
           state_->seq - made.seq < kBatchEvents;
}

uint64_t Feed::oldest() const {
    return recent_.empty() ? state_->seq + 1 : recent_.front().seq;
}

bool Feed::nextLocked(Cursor& cursor, v1::WatchUpdate& update) const {
    if (!state_) return false;
    const bool behind = cursor.seq + 1 < oldest() && cursor.seq < state_->seq;
    if (cursor.generation != generation_ || behind) {
        update.mutable_snapshot()->set_conflated(cursor.generation == generation_);
        return true;
    }
    if (cursor.seq < state_->seq) {
        auto it = std::lower_bound(recent_.begin(), recent_.end(), cursor.seq + 1,
                                   [](const Kept& kept, uint64_t seq) { return kept.seq < seq; });
        auto& events = *update.mutable_events()->mutable_events();
        size_t bytes = 0;
        for (; it != recent_.end() && events.size() < kBatchEvents && bytes < kMostBytes; ++it) {
            *events.Add() = *it->event;
            bytes += it->bytes;
            cursor.seq = it->seq;
        }
        return true;
    }
    if (position_ && cursor.position != positionVersion_) {
        proto::toMessage(*position_, *update.mutable_position());
        cursor.position = positionVersion_;
        return true;
    }
    return false;
}

std::optional<absl::Status> Feed::ended(const Cursor& cursor) const {
    const MutexLock lock(mutex_);
    if (state_ && cursor.seq < state_->seq) return std::nullopt;
    return ended_;
}

void Feed::add(Listener* listener) {
    const MutexLock lock(listenersMutex_);
    listeners_.push_back(listener);
}

void Feed::remove(Listener* listener) {
    const MutexLock lock(listenersMutex_);
    std::erase(listeners_, listener);
}

size_t Feed::listeners() const {
    const MutexLock lock(listenersMutex_);
    return listeners_.size();
}

void Feed::wakeAll() {
    const MutexLock lock(listenersMutex_);
    for (Listener* listener : listeners_) listener->wake();
}

}  // namespace bulkhead::service
