// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/threads.h"
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
    mutable Mutex mutex_;
    ConditionVariable wake_;
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    std::vector<model::JobInfo> jobs_ ABSL_GUARDED_BY(mutex_);
    uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
    std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
    Mutex listenersMutex_;
    std::vector<Listener*> listeners_ ABSL_GUARDED_BY(listenersMutex_);
    bool anybody_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace bulkhead::service
