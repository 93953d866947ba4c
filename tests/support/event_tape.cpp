// SPDX-License-Identifier: Apache-2.0
#include "tests/support/event_tape.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "backend/model/fold.h"

namespace bulkhead::support {
namespace {

std::chrono::steady_clock::time_point fromNow(MonoNs timeout) {
    return std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
}

}  // namespace

void EventTape::onEvent(const std::string& run, const model::Event& event) {
    const MutexLock lock(mutex_);
    Run& r = runs_[run];
    r.events.push_back(event);
    model::apply(r.state, event);
    grew_.notify_all();
}

std::vector<model::Event> EventTape::events(const std::string& run, uint64_t after) const {
    const MutexLock lock(mutex_);
    std::vector<model::Event> found;
    for (const model::Event& e : runs_[run].events)
        if (e.seq > after) found.push_back(e);
    return found;
}

void EventTape::forget(const std::string& run, uint64_t behind) {
    const MutexLock lock(mutex_);
    Run& r = runs_[run];
    std::erase_if(r.events, [behind](const model::Event& e) { return e.seq > behind; });
    r.state = {};
    for (const model::Event& e : r.events) model::apply(r.state, e);
}

model::RunState EventTape::state(const std::string& run) const {
    const MutexLock lock(mutex_);
    return runs_[run].state;
}

std::optional<model::Event> EventTape::await(
    const std::string& run, size_t* from, const std::function<bool(const model::Event&)>& matches,
    MonoNs timeout) const {
    const auto deadline = fromNow(timeout);
    MutexLock lock(mutex_);
    const Run& r = runs_[run];
    for (;;) {
        while (*from < r.events.size()) {
            const model::Event& event = r.events[(*from)++];
            if (matches(event)) return event;
        }
        if (!grew_.wait_for(
                lock, deadline - std::chrono::steady_clock::now(),
                [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *from < r.events.size(); }))
            return std::nullopt;
    }
}

absl::Status EventTape::awaitState(const std::string& run, const std::string& what,
                                   const std::function<bool(const model::RunState&)>& reached,
                                   MonoNs timeout) const {
    const auto deadline = fromNow(timeout);
    MutexLock lock(mutex_);
    const Run& r = runs_[run];
    const model::RunState& s = r.state;
    for (bool inTime = true; !reached(s);) {
        if (s.finished)
            return absl::AbortedError(
                absl::StrCat("waiting for ", what, ", the run ended: ", s.finished->why));
        if (!inTime)
            return absl::DeadlineExceededError(
                absl::StrCat("no ", what, " in time; step ",
                             s.lastCommit ? s.lastCommit->record.step : 0, ": ", s.explanation));
        inTime = grew_.wait_for(lock, deadline - std::chrono::steady_clock::now(),
                                [&, seen = r.events.size()]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                    mutex_) { return r.events.size() != seen; });
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::support
