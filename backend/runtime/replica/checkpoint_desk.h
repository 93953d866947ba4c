// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/protocol/channels.h"

namespace bulkhead::runtime {

/// A thread that writes, so that training does not wait for a disk. Jobs run in order; what they
/// do and whom they tell is the caller's. Thread: post() from any; the destructor runs what is
/// queued, then joins.
class CheckpointThread {
  public:
    CheckpointThread();
    ~CheckpointThread();
    void post(std::function<void()> job);
    /// Returns when everything posted before is done.
    void drain();

  private:
    void run();

    Mutex mutex_;
    ConditionVariable changed_;
    std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
    bool busy_ ABSL_GUARDED_BY(mutex_) = false;
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    Thread thread_;
};

struct CheckpointSettings {
    std::string job;
    std::string run;  ///< its identity; empty: not known
    model::JobSpec spec;
    std::string jobJson;
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t corpusHash = 0;
};

/// A rank's part in checkpoints: its own file, and on the leader the manifest once every shard is
/// durable. A shard that failed ends that checkpoint: nothing of it stays. Which checkpoints may go
/// is the coordinator's decision alone.
/// Thread: all from any; hooks on the writer thread.
class CheckpointDesk {
  public:
    struct Hooks {
        std::function<void(const protocol::RankCheckpoint&)> shardWritten;  ///< to the leader
        std::function<void(const protocol::CheckpointDone&)> done;          ///< leader only
        std::function<void(const absl::Status&)> damaged;  ///< the own state, by checkIntact()
    };

    /// `files` and `clock` outlive it.
    CheckpointDesk(CheckpointSettings settings, FileSystem& files, const Clock& clock, Hooks hooks);

    /// Policies as they are now.
    void update(const model::JobSpec& spec, const std::string& jobJson);

    /// Writes this rank's shard. Asked again while it is being written, it goes on with that; a
    /// leader that is asked again for a checkpoint that is whole says so again.
    /// `records` led to that state; for where `dataPosition` is not known.
    void write(std::shared_ptr<const StateSnapshot> snapshot, std::string dataPosition,
               std::vector<CommitRecord> records = {});

    /// Leader: a shard, its own included, reports.
    void shardReported(const protocol::RankCheckpoint& part);

    /// Leader: the coordinator's log no longer names these manifests.
    void discard(const std::vector<std::string>& manifests);

    /// This rank was put out: no manifest any more.
    void forbid();

    /// Leader: true when the checkpoint of `step` is over within `patience`; others: own file is.
    bool await(uint64_t step, std::chrono::milliseconds patience);

    /// Returns when everything that is queued now is written and its hooks have been called.
    void drain() { writer_.drain(); }

  private:
    struct Pending {
        std::shared_ptr<const StateSnapshot> snapshot;
        std::string dataPosition;
        std::vector<CommitRecord> records;
        std::vector<std::optional<protocol::RankCheckpoint>> parts;
        MonoNs begun = 0;
    };
    /// Step, layout: experts may move between two checkpoints of one step.
    using Key = std::pair<uint64_t, uint64_t>;
    bool isWhole(Key key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    Pending& pending(Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void tryFinish(Key key);
    void finish(uint64_t step, Pending pending);
    void over(uint64_t step);
    std::string folderOf(const StateSnapshot& snapshot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    CheckpointManifest manifestOf(const Pending& pending) const
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    FileSystem& files_;
    const Clock& clock_;
    Hooks hooks_;
    mutable Mutex mutex_;
    ConditionVariable changed_;
    CheckpointSettings settings_ ABSL_GUARDED_BY(mutex_);
    std::set<Key> writing_ ABSL_GUARDED_BY(mutex_);           ///< own shards
    std::map<Key, Pending> pending_ ABSL_GUARDED_BY(mutex_);  ///< leader
    std::set<Key> finishing_ ABSL_GUARDED_BY(mutex_);  ///< leader: all their shards have reported
    std::optional<protocol::CheckpointDone> whole_
        ABSL_GUARDED_BY(mutex_);  ///< leader: the last one that was written
    uint64_t lastOver_ ABSL_GUARDED_BY(mutex_) = 0;
    bool forbidden_ ABSL_GUARDED_BY(mutex_) = false;
    CheckpointThread writer_;
};

}  // namespace bulkhead::runtime
