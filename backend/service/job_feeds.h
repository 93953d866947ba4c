// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/service/backend.h"
#include "backend/service/feed.h"

namespace bulkhead::service {

/// One feed for each job that somebody watches, subscribed at the backend as long as anybody holds
/// it. Thread: any, except inside a Subscriber.
class JobFeeds {
  public:
    explicit JobFeeds(Backend& backend, FeedLimits limits = {})
        : backend_(backend), limits_(limits) {}

    /// NotFound when there is no such job.
    absl::StatusOr<std::shared_ptr<Feed>> open(const std::string& job);

  private:
    Backend& backend_;
    const FeedLimits limits_;
    Mutex mutex_;
    std::map<std::string, std::weak_ptr<Feed>> feeds_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::service
