// SPDX-License-Identifier: Apache-2.0
#include "backend/service/job_list.h"

#include <chrono>

#include "backend/proto/convert.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {
namespace {

constexpr std::chrono::milliseconds kEvery{200};

}  // namespace

JobListFeed::JobListFeed(Backend* backend) : backend_(backend), thread_([this] { poll(); }) {}

JobListFeed::~JobListFeed() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void JobListFeed::poll() {
    MutexLock lock(mutex_);
    while (!ending_) {
        wake_.wait(lock,
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || anybody_; });
        if (ending_) return;
        lock.unlock();
        std::vector<model::JobInfo> jobs;
        if (backend_ != nullptr) jobs = backend_->jobs();
        lock.lock();
        if (version_ == 0 || jobs != jobs_) {
            jobs_ = std::move(jobs);
            ++version_;
            lock.unlock();
            {
                const MutexLock listening(listenersMutex_);
                for (Listener* listener : listeners_) listener->wake();
            }
            lock.lock();
        }
        wake_.wait_for(lock, kEvery,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_; });
    }
}

bool JobListFeed::next(Cursor& cursor, v1::JobList& update) const {
    const MutexLock lock(mutex_);
    if (cursor.version == version_) return false;
    for (const model::JobInfo& job : jobs_) proto::toMessage(job, *update.add_jobs());
    cursor.version = version_;
    return true;
}

std::optional<absl::Status> JobListFeed::ended(const Cursor&) const {
    const MutexLock lock(mutex_);
    return ended_;
}

void JobListFeed::end(absl::Status why) {
    {
        const MutexLock lock(mutex_);
        ended_ = std::move(why);
    }
    const MutexLock listening(listenersMutex_);
    for (Listener* listener : listeners_) listener->wake();
}

void JobListFeed::add(Listener* listener) {
    {
        const MutexLock lock(listenersMutex_);
        listeners_.push_back(listener);
    }
    const MutexLock lock(mutex_);
    anybody_ = true;
    wake_.notify_all();
}

void JobListFeed::remove(Listener* listener) {
    bool empty = false;
    {
        const MutexLock lock(listenersMutex_);
        std::erase(listeners_, listener);
        empty = listeners_.empty();
    }
    const MutexLock lock(mutex_);
    if (empty) anybody_ = false;
}

}  // namespace bulkhead::service
