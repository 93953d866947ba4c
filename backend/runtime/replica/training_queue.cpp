// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/training_queue.h"

#include <algorithm>
#include <utility>

namespace bulkhead::runtime {

void TrainingQueue::push(TrainingTask task) {
    {
        const MutexLock lock(mutex_);
        if (finished_) return;
        tasks_.push_back(std::move(task));
    }
    arrived_.notify_one();
}

/// The first task that may begin. What follows a move of experts depends on it.
TrainingQueue::Tasks::iterator TrainingQueue::first() {
    return std::find_if(tasks_.begin(), tasks_.end(), [waits = false](TrainingTask& t) mutable {
        const bool may = !waits && (!t.group || t.allowed);
        waits = waits || (t.group && !t.allowed && t.group->moves);
        return may;
    });
}

TrainingTask TrainingQueue::pop() {
    MutexLock lock(mutex_);
    arrived_.wait(
        lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return first() != tasks_.end(); });
    const auto it = first();
    TrainingTask task = std::move(*it);
    tasks_.erase(it);
    return task;
}

void TrainingQueue::dropWork(uint64_t step) {
    const MutexLock lock(mutex_);
    for (auto it = tasks_.begin(); it != tasks_.end();) {
        if (!it->work || it->work->step != step || it->allowed) {
            ++it;
            continue;
        }
        if (it->group) dropped_.push_back(std::move(*it));
        it = tasks_.erase(it);
    }
}

void TrainingQueue::go(const std::vector<protocol::GroupTask>& tasks) {
    {
        const MutexLock lock(mutex_);
        for (const protocol::GroupTask& task : tasks) allow(task);
    }
    arrived_.notify_one();
}

void TrainingQueue::allow(const protocol::GroupTask& task) {
    const auto names = [&task](const TrainingTask& t) { return t.group == task && !t.allowed; };
    if (const auto it = std::find_if(tasks_.begin(), tasks_.end(), names); it != tasks_.end()) {
        it->allowed = true;
        dropped_.clear();  // older, and the others are past them
        const auto isPassed = [](const TrainingTask& t) { return t.group && !t.allowed; };
        tasks_.erase(std::remove_if(tasks_.begin(), it, isPassed), it);
    } else if (const auto old = std::find_if(dropped_.begin(), dropped_.end(), names);
               old != dropped_.end()) {
        old->allowed = true;
        // Before what is younger, behind what was allowed before.
        const auto waits = [](const TrainingTask& t) { return !t.group || !t.allowed; };
        tasks_.insert(std::find_if(tasks_.begin(), tasks_.end(), waits), std::move(*old));
        dropped_.erase(dropped_.begin(), old + 1);
    }
}

bool TrainingQueue::cancel(const protocol::GroupTask& task) {
    bool found = false;
    {
        const MutexLock lock(mutex_);
        found = std::erase_if(tasks_, [&](const TrainingTask& t) {
                    return t.group == task && !t.allowed;
                }) > 0;
    }
    arrived_.notify_one();
    return found;
}

void TrainingQueue::finishWith(TrainingTask last) {
    {
        const MutexLock lock(mutex_);
        if (finished_) return;
        finished_ = true;
        tasks_.clear();
        dropped_.clear();
        tasks_.push_back(std::move(last));
    }
    arrived_.notify_one();
}

void TrainingQueue::end(Work work) {
    {
        const MutexLock lock(mutex_);
        tasks_.push_back({nullptr, std::move(work)});
    }
    arrived_.notify_one();
}

bool GroupAgreement::ready(int32_t shard, const protocol::GroupTask& task) {
    if (shard < 0 || static_cast<size_t>(shard) >= ready_.size()) return false;
    ready_[static_cast<size_t>(shard)] = task;
    if (std::find(begun_.begin(), begun_.end(), task) != begun_.end()) return true;
    if (!std::all_of(ready_.begin(), ready_.end(), [&](const auto& r) { return r == task; }))
        return false;
    if (begun_.size() == protocol::GroupGo::kMost) begun_.erase(begun_.begin());
    begun_.push_back(task);
    return true;
}

bool GroupAgreement::withdraw(int32_t shard, const protocol::GroupTask& task) {
    if (std::find(begun_.begin(), begun_.end(), task) != begun_.end()) return false;
    if (shard >= 0 && static_cast<size_t>(shard) < ready_.size() &&
        ready_[static_cast<size_t>(shard)] == task)
        ready_[static_cast<size_t>(shard)].reset();
    return true;
}

}  // namespace bulkhead::runtime
