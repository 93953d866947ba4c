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
    const std::lock_guard lock(mutex_);
    Run& r = runs_[run];
    r.events.push_back(event);
    model::apply(r.state, event);
    grew_.notify_all();
}

std::vector<model::Event> EventTape::events(const std::string& run, uint64_t after) const {
    const std::lock_guard lock(mutex_);
    std::vector<model::Event> found;
    for (const model::Event& e : runs_[run].events)
        if (e.seq > after) found.push_back(e);
    return found;
}

model::RunState EventTape::state(const std::string& run) const {
    const std::lock_guard lock(mutex_);
    return runs_[run].state;
}

std::optional<model::Event> EventTape::await(
    const std::string& run, size_t* from, const std::function<bool(const model::Event&)>& matches,
    MonoNs timeout) const {
    const auto deadline = fromNow(timeout);
    std::unique_lock lock(mutex_);
    const Run& r = runs_[run];
    for (;;) {
        while (*from < r.events.size()) {
            const model::Event& event = r.events[(*from)++];
            if (matches(event)) return event;
        }
        if (grew_.wait_until(lock, deadline) == std::cv_status::timeout) return std::nullopt;
    }
}

absl::Status EventTape::awaitState(const std::string& run, const std::string& what,
                                   const std::function<bool(const model::RunState&)>& reached,
                                   MonoNs timeout) const {
    const auto deadline = fromNow(timeout);
    std::unique_lock lock(mutex_);
    const model::RunState& s = runs_[run].state;
    while (!reached(s)) {
        if (s.finished)
            return absl::AbortedError(
                absl::StrCat("waiting for ", what, ", the run ended: ", s.finished->why));
        if (grew_.wait_until(lock, deadline) == std::cv_status::timeout && !reached(s))
            return absl::DeadlineExceededError(
                absl::StrCat("no ", what, " in time; step ",
                             s.lastCommit ? s.lastCommit->record.step : 0, ": ", s.explanation));
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::support
