// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/client/client.h"

namespace bulkhead::ui {

/// What came from a watch since the GUI last looked. The snapshot, if there is one, comes before
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

/// Where client threads leave what they bring. Bounded; `wake` is called once per take(), on the
/// thread that put something into the empty box. Thread: any; take() by one reader.
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

    Delivery take();

  private:
    template <class F>
    void put(F change) {
        bool first = false;
        {
            const std::lock_guard lock(mutex_);
            change(content_);
            first = !posted_;
            posted_ = true;
        }
        if (first) wake_();
    }

    std::function<void()> wake_;
    std::mutex mutex_;
    Delivery content_;
    bool posted_ = false;
};

}  // namespace bulkhead::ui
