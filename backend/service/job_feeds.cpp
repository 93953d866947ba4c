// SPDX-License-Identifier: Apache-2.0
#include "backend/service/job_feeds.h"

namespace bulkhead::service {
namespace {

class JobFeed final : public Feed, private Subscriber {
  public:
    JobFeed(Backend& backend, std::string job, FeedLimits limits)
        : Feed(limits), backend_(backend), job_(std::move(job)) {}
    ~JobFeed() override {
        if (subscribed_) backend_.unsubscribe(job_, this);
    }
    absl::Status begin() {
        const absl::Status status = backend_.subscribe(job_, this);
        subscribed_ = status.ok();
        return status;
    }

  private:
    void onSnapshot(const model::RunState& state) override { reset(state); }
    void onEvent(const model::Event& event) override { push(event); }

    Backend& backend_;
    const std::string job_;
    bool subscribed_ = false;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Feed>> JobFeeds::open(const std::string& job) {
    const MutexLock lock(mutex_);
    std::erase_if(feeds_, [](const auto& entry) { return entry.second.expired(); });
    if (const auto it = feeds_.find(job); it != feeds_.end())
        if (auto feed = it->second.lock()) return feed;
    auto feed = std::make_shared<JobFeed>(backend_, job, limits_);
    if (absl::Status status = feed->begin(); !status.ok()) return status;
    feeds_[job] = feed;
    return feed;
}

}  // namespace bulkhead::service
