// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "backend/service/backend.h"
#include "backend/service/feed.h"

namespace bulkhead::v1 {
class JobList;
}

namespace bulkhead::service {

/// The list of jobs for those who watch it: asked of the backend five times a second while anybody
/// does, and passed on when it changed. Thread: any.
class JobListFeed {
  public:
    struct Cursor {
        uint64_t version = 0;
    };

    explicit JobListFeed(Backend* backend);
    ~JobListFeed();

    bool next(Cursor& cursor, v1::JobList& update) const;
    std::optional<absl::Status> ended(const Cursor& cursor) const;
    void end(absl::Status why);
    void add(Listener* listener);
    void remove(Listener* listener);

  private:
    void poll();

    Backend* const backend_;  ///< null: there are no jobs and never will be
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    bool ending_ = false;
    std::vector<model::JobInfo> jobs_;
    uint64_t version_ = 0;
    std::optional<absl::Status> ended_;
    std::mutex listenersMutex_;
    std::vector<Listener*> listeners_;
    bool anybody_ = false;
    std::thread thread_;
};

}  // namespace bulkhead::service
