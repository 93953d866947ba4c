// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_store.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/transport/credential.h"

namespace bulkhead::runtime {

void StateStore::setDeltaBudget(uint64_t bytes) {
    const MutexLock lock(mutex_);
    budget_ = bytes;
    shrink();
}

void StateStore::follow() {
    const MutexLock lock(mutex_);
    followed_ = true;
}

void StateStore::unfollow() {
    const MutexLock lock(mutex_);
    if (!followed_) return;
    followed_ = false;
    shrink();
    const MutexLock pool(pool_->mutex);
    pool_->free = {};
}

bool StateStore::followed() const {
    const MutexLock lock(mutex_);
    return followed_;
}

void StateStore::putSnapshot(SnapshotPtr snapshot) {
    const MutexLock lock(mutex_);
    const uint64_t step = snapshot->step;
    snapshots_[step] = std::move(snapshot);
}

void StateStore::dropSnapshot(uint64_t step) {
    const MutexLock lock(mutex_);
    snapshots_.erase(step);
}

StateStore::SnapshotPtr StateStore::snapshot(uint64_t step) const {
    const MutexLock lock(mutex_);
    const auto it = snapshots_.find(step);
    return it == snapshots_.end() ? nullptr : it->second;
}

Floats StateStore::room(size_t floats) {
    Floats memory;
    {
        const MutexLock pool(pool_->mutex);
        if (!pool_->free.empty()) {
            memory = std::move(pool_->free.back());
            pool_->free.pop_back();
        }
    }
    memory.resize(floats);
    return memory;
}

void StateStore::putDelta(const CommitRecord& record, Floats reduced) {
    const auto recycle = [pool = pool_](Delta* old) {
        if (!old->reduced.empty()) {
            const MutexLock lock(pool->mutex);
            pool->free.push_back(std::move(old->reduced));
        }
        delete old;
    };
    std::shared_ptr<Delta> delta(new Delta{record, std::move(reduced)}, recycle);
    {
        const MutexLock lock(mutex_);
        if (record.step <= lost_) lost_ = 0;  // of another lineage
        if (!deltas_.empty()) {
            const CommitRecord& last = deltas_.back()->record;
            if (last.step + 1 != record.step || last.lineage != record.lineage ||
                last.layout != record.layout) {
                deltas_.clear();
                bytes_ = 0;
            }
        }
        bytes_ += delta->reduced.size() * sizeof(float);
        deltas_.push_back(std::move(delta));
        shrink();
    }
    arrived_.notify_all();
}

void StateStore::loseDelta(uint64_t step, Floats memory) {
    {
        const MutexLock lock(mutex_);
        deltas_.clear();
        bytes_ = 0;
        lost_ = step;
        const MutexLock pool(pool_->mutex);
        if (followed_) pool_->free.push_back(std::move(memory));
    }
    arrived_.notify_all();
}

void StateStore::shrink() {
    uint64_t largest = 0;  // a skipped step's has no floats
    for (const DeltaPtr& delta : deltas_)
        largest = std::max<uint64_t>(largest, delta->reduced.size() * sizeof(float));
    const uint64_t budget = followed_ ? std::max(budget_, kDeltasKept * largest) : largest;
    while (deltas_.size() > 1 && bytes_ > budget) {
        bytes_ -= deltas_.front()->reduced.size() * sizeof(float);
        deltas_.pop_front();
    }
    const MutexLock pool(pool_->mutex);
    uint64_t free = 0;
    for (const Floats& memory : pool_->free) free += memory.size() * sizeof(float);
    for (; pool_->free.size() > 1 && bytes_ + free > budget; pool_->free.pop_back())
        free -= pool_->free.back().size() * sizeof(float);
}

StateStore::DeltaPtr StateStore::delta(uint64_t step) const {
    return awaitDelta(step, std::chrono::milliseconds(0));
}

StateStore::DeltaPtr StateStore::awaitDelta(uint64_t step,
                                            std::chrono::milliseconds patience) const {
    MutexLock lock(mutex_);
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return closed_ || step <= lost_ ||
               (!deltas_.empty() && deltas_.back()->record.step >= step);
    };
    if (patience.count() > 0) arrived_.wait_for(lock, patience, settled);
    if (deltas_.empty()) return nullptr;
    const uint64_t first = deltas_.front()->record.step;
    if (step < first || step > deltas_.back()->record.step) return nullptr;
    return deltas_[step - first];
}

std::pair<uint64_t, uint64_t> StateStore::window() const {
    const MutexLock lock(mutex_);
    if (deltas_.empty()) return {lost_ + 1, lost_};
    return {deltas_.front()->record.step, deltas_.back()->record.step};
}

uint64_t StateStore::deltaBytes() const {
    const MutexLock lock(mutex_);
    return bytes_;
}

void StateStore::clearDeltas() {
    const MutexLock lock(mutex_);
    deltas_.clear();
    bytes_ = lost_ = 0;
}

void StateStore::allow(const Secret& key) {
    const MutexLock lock(mutex_);
    joiners_[joinerCredential(key).identity] = key;
}

std::optional<Secret> StateStore::keyOf(std::string_view identity) const {
    const MutexLock lock(mutex_);
    const auto it = joiners_.find(identity);
    return it == joiners_.end() ? std::nullopt : std::optional(it->second);
}

void StateStore::close() {
    {
        const MutexLock lock(mutex_);
        closed_ = true;
    }
    arrived_.notify_all();
}

}  // namespace bulkhead::runtime
