// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/replica/state_fetch.h"

namespace bulkhead::runtime {

/// A joiner's thread: pulls the snapshot a Fetch names, then the deltas one by one as they are
/// asked for. A Fetch of another snapshot ends the old one; one of the same snapshot only names
/// other sources: pieces that arrived stay, and a delta that could not be had is asked for again.
/// Thread: functions from any; hooks on the fetch thread.
class CatchUp {
  public:
    struct Hooks {
        std::function<void(uint64_t done, uint64_t total)> progress;
        std::function<void(std::shared_ptr<const StateSnapshot>)> state;
        std::function<void(Delta)> delta;
        std::function<void(absl::Status, std::vector<int32_t> sources)> broke;
        std::function<bool()> cut;  ///< an injected network cut holds
        std::function<StateBytes(uint64_t bytes)> stateRoom = nullptr;  ///< as FetchOptions::room
    };

    /// `network` and `clock` outlive it.
    CatchUp(RankId self, uint32_t shards, StateNetwork& network, const Clock& clock, Hooks hooks);
    ~CatchUp();

    void fetch(const protocol::Fetch& fetch);
    /// The delta of this record, from the sources of the last fetch.
    void replay(const CommitRecord& record);
    /// Memory of a delta that was replayed, for the next one.
    void recycle(Floats memory);
    /// Ends what runs, drops what is queued.
    void stop();

  private:
    void run();
    void pull();
    void pullDelta(const CommitRecord& record);
    void fail(const std::shared_ptr<StateFetch>& fetch, const absl::Status& why,
              const std::vector<FetchSource>& sources);
    FetchOptions optionsOf(const protocol::Fetch& order) const;

    const RankId self_;
    const uint32_t shards_;
    StateNetwork& network_;
    const Clock& clock_;
    Hooks hooks_;
    Mutex mutex_;
    ConditionVariable changed_;
    std::shared_ptr<StateFetch> fetch_ ABSL_GUARDED_BY(mutex_);  ///< null: nothing to catch up with
    std::vector<FetchSource> sources_ ABSL_GUARDED_BY(mutex_);
    uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of the snapshot
    uint64_t layout_ ABSL_GUARDED_BY(mutex_) = 0;
    bool wanted_ ABSL_GUARDED_BY(mutex_) = false;    ///< the snapshot is still to be pulled
    bool complete_ ABSL_GUARDED_BY(mutex_) = false;  ///< the snapshot was handed over
    bool retry_ ABSL_GUARDED_BY(mutex_) =
        true;  ///< false: the front delta failed, other sources must come first
    std::deque<CommitRecord> deltas_ ABSL_GUARDED_BY(mutex_);
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    Thread thread_;
};

}  // namespace bulkhead::runtime
