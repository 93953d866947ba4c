// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/floats.h"
#include "backend/common/secret.h"
#include "backend/common/threads.h"
#include "backend/common/types.h"
#include "backend/runtime/checkpoint/checkpoint.h"

namespace bulkhead::runtime {

/// Turns the state after step record.step - 1 into the state after record.step.
struct Delta {
    CommitRecord record;
    Floats reduced;  ///< empty when the record says skip
};

/// Keeps state at a source for joiners, for checkpoints and for parity replays: pinned snapshots
/// and, while somebody follows, a window of the last deltas; else the newest at most. Entries are
/// shared, because a server or writer thread may still read one when training drops it. Thread: all
/// functions from any thread.
class StateStore {
  public:
    using SnapshotPtr = std::shared_ptr<const StateSnapshot>;
    using DeltaPtr = std::shared_ptr<const Delta>;

    /// The window has room for so many deltas of any size: a joiner that fetches a state for as
    /// long as a few steps take finds those that it must replay.
    static constexpr uint64_t kDeltasKept = 8;

    /// Bytes of reduced gradients kept where that is more. Shrinking drops the oldest at once.
    void setDeltaBudget(uint64_t bytes);

    /// A joiner replays, or will: deltas are kept from now on.
    void follow();
    /// Nobody does any more: all but the newest go, and their memory.
    void unfollow();
    bool followed() const;

    /// Memory for the next delta: what a dropped one had, if there is any; its contents are
    /// anything.
    Floats room(size_t floats);

    void putSnapshot(SnapshotPtr snapshot);
    void dropSnapshot(uint64_t step);
    /// nullptr: not kept.
    SnapshotPtr snapshot(uint64_t step) const;

    /// Appends the delta of record.step. A gap, another lineage or another layout than the last
    /// one's empties the window first: a window never crosses those. `reduced` is empty for a
    /// record that says skip.
    void putDelta(const CommitRecord& record, Floats reduced);
    /// That of `step` will not come: those before it lead nowhere. `memory` is for another one.
    void loseDelta(uint64_t step, Floats memory);
    /// nullptr: not in the window.
    DeltaPtr delta(uint64_t step) const;
    /// As delta(), but waits up to `patience` for a step that is still to come.
    DeltaPtr awaitDelta(uint64_t step, std::chrono::milliseconds patience) const;
    /// First and last step in the window. When it is empty, last is the one lost last, first the
    /// one after it; {1, 0} where none was lost.
    std::pair<uint64_t, uint64_t> window() const;
    uint64_t deltaBytes() const;
    /// A layout moved, the lineage was rolled back, or nobody will ask: none is in the window.
    void clearDeltas();

    /// Joiners that know this key may pull from now on.
    void allow(const Secret& key);
    /// The key of a joinerCredential(); nullopt: none was allowed.
    std::optional<Secret> keyOf(std::string_view identity) const;

    /// Ends every awaitDelta at once, now and later.
    void close();

  private:
    /// Recycles the memory of deltas that nobody reads any more.
    struct Pool {
        Mutex mutex;
        std::vector<Floats> free ABSL_GUARDED_BY(mutex);
    };
    void shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    mutable Mutex mutex_;
    mutable ConditionVariable arrived_;
    std::map<uint64_t, SnapshotPtr> snapshots_ ABSL_GUARDED_BY(mutex_);
    std::deque<DeltaPtr> deltas_ ABSL_GUARDED_BY(mutex_);
    std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
    std::map<std::string, Secret, std::less<>> joiners_ ABSL_GUARDED_BY(mutex_);  ///< by identity
    uint64_t budget_ ABSL_GUARDED_BY(mutex_) = 256ull << 20;
    uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;  ///< the last step whose delta is; 0: none
    bool followed_ ABSL_GUARDED_BY(mutex_) = false;
    bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bulkhead::runtime
