// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/snapshot_cache.h"

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::runtime {

/// One under way or whole. Its maker is done with it once `end` is set.
struct SnapshotCache::Copy {
    StateSnapshot snapshot;
    bool shared = false;  ///< somebody else got it, or will
    Mutex mutex;
    std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);
    std::vector<Taker> takers ABSL_GUARDED_BY(mutex);  ///< until the end

    static Snapshot share(const std::shared_ptr<Copy>& copy) { return {copy, &copy->snapshot}; }
    std::optional<absl::Status> ended() {
        const MutexLock lock(mutex);
        return end;
    }
};

SnapshotCache::SnapshotCache(TrainingProgram* program, std::function<void(absl::Status)> failed)
    : program_(program), failed_(std::move(failed)) {}

void SnapshotCache::give(StateSnapshot label, Taker taker) {
    const bool begun = now_ != nullptr;
    if (!begun) {
        now_ = std::make_shared<Copy>();
        now_->snapshot = std::move(label);
        now_->snapshot.bytes = std::exchange(spare_, {});
    }
    if (taker != nullptr) {
        now_->shared = true;
        MutexLock lock(now_->mutex);
        if (!now_->end) {
            now_->takers.push_back(std::move(taker));
        } else if (now_->end->ok()) {
            lock.unlock();
            taker(Copy::share(now_));
        }
    }
    if (begun) return;
    const auto made = [copy = now_, failed = failed_](const absl::Status& status) {
        std::vector<Taker> takers;
        {
            const MutexLock lock(copy->mutex);
            copy->end = status;
            takers = std::move(copy->takers);
        }
        if (!status.ok()) return failed(status);
        for (const Taker& taker : takers) taker(Copy::share(copy));
    };
    absl::StatusOr<std::vector<std::byte>> local = program_->exportLocal(now_->snapshot.step);
    if (!local.ok()) return made(local.status());
    now_->snapshot.local = *std::move(local);
    now_->snapshot.tensors = program_->tensorTable();
    program_->snapshot(&now_->snapshot.bytes, made);
}

absl::StatusOr<const StateSnapshot*> SnapshotCache::await(StateSnapshot label) {
    give(std::move(label), nullptr);
    program_->awaitCopies();
    if (const absl::Status end = *now_->ended(); !end.ok()) return end;
    return &now_->snapshot;
}

void SnapshotCache::changed() {
    // Lent memory goes back to its lender, who knows best who is to have it next.
    if (now_ != nullptr && !now_->shared && now_->ended() && !now_->snapshot.bytes.lent())
        spare_ = std::move(now_->snapshot.bytes);
    now_.reset();
}

void SnapshotCache::clear() {
    now_.reset();
    spare_ = {};
}

}  // namespace bulkhead::runtime
