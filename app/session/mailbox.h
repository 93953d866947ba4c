// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/client/client.h"
#include "backend/common/threads.h"

namespace bulkhead::ui {

/// Updates of a watch since the GUI last took them. The snapshot, if there is one, comes before
/// the events.
struct Delivery {
    struct Lost {
        client::Failure failure;
        client::SteadyTime nextAttempt;
    };
    client::StatePtr snapshot;
    std::vector<model::Event> events;
    std::optional<model::ReplayPosition> position;
    std::optional<model::ServerInfo> connected;
    std::optional<std::vector<model::JobInfo>> jobs;
    std::optional<Lost> lost;
    /// Events were thrown away because the GUI did not come: only a new snapshot helps.
    bool overflowed = false;
};

/// Passes updates from client threads to the GUI thread. Bounded; `wake` is called once per take(),
/// on the thread that put something into the empty box, and for a first
/// snapshot. Thread: any; take() by one reader.
class Mailbox {
  public:
    static constexpr size_t kMaxEvents = 20'000;

    explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

    void putSnapshot(client::StatePtr state);
    void putEvents(std::vector<model::Event> events);
    void putPosition(const model::ReplayPosition& position);
    void putConnected(model::ServerInfo info);
    void putJobs(std::vector<model::JobInfo> jobs);
    void putLost(client::Failure failure, client::SteadyTime nextAttempt);

    bool hasSnapshot() const;
    Delivery take();

  private:
    template <class F>
    void put(F change) {
        bool first = false;
        {
            const MutexLock lock(mutex_);
            const bool had = content_.snapshot != nullptr;
            change(content_);
            first = !posted_ || (!had && content_.snapshot);
            posted_ = true;
        }
        if (first) wake_();
    }

    std::function<void()> wake_;
    mutable Mutex mutex_;
    Delivery content_ ABSL_GUARDED_BY(mutex_);
    bool posted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bulkhead::ui
