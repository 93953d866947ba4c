// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/threads.h"
#include "backend/runtime/protocol/channels.h"
#include "backend/runtime/replica/replica_rank.h"

namespace bulkhead::runtime {

/// The next thing for the training thread: a task of the protocol, or work for the caller.
struct TrainingTask {
    std::function<absl::Status()> run;
    std::optional<Work> work;
    /// Set where the ranks of the replica do it together: it waits for go().
    std::optional<protocol::GroupTask> group = std::nullopt;
    bool allowed = false;  ///< go() named it
};

/// First in, first out, from the control thread to the training thread; but work that may not begin
/// yet keeps no other task waiting. Thread: pop() on the training thread, the rest on any.
///
/// The ranks of a replica meet in the middle of a computation. One that computed something else
/// there, or nothing, would keep the others for ever, or give them sums of other samples. A rank's
/// word that it is ready is therefore a promise: whatever go() names is done, also when it was
/// dropped meanwhile. Its gradient then has a generation that nobody waits for.
class TrainingQueue {
  public:
    void push(TrainingTask task);
    TrainingTask pop();
    /// Takes back work on `step` that may not begin yet; go() can still ask for it.
    void dropWork(uint64_t step);
    /// All ranks of the replica are ready for these, in their order. One that is done or was never
    /// pushed is ignored.
    void go(const std::vector<protocol::GroupTask>& tasks);
    /// Takes back a task that may not begin yet, for good; false when there is none.
    bool cancel(const protocol::GroupTask& task);
    /// Only `last` is left, and nothing but end() comes behind it.
    void finishWith(TrainingTask last);
    void end(Work work);

  private:
    using Tasks = std::deque<TrainingTask>;
    void allow(const protocol::GroupTask& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    Tasks::iterator first() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    Mutex mutex_;
    ConditionVariable arrived_;
    Tasks tasks_ ABSL_GUARDED_BY(mutex_);
    Tasks dropped_ ABSL_GUARDED_BY(mutex_);  ///< since the last go()
    bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

/// A leader's view of what the ranks of its replica are ready for. Pure. Thread: one.
class GroupAgreement {
  public:
    explicit GroupAgreement(uint32_t shards) : ready_(shards) {}
    /// True when all are ready for the task, or were and this rank did not hear it: begun() says
    /// what to do. Words of ranks that do not exist are ignored.
    bool ready(int32_t shard, const protocol::GroupTask& task);
    /// The last tasks that all were ready for, the oldest first.
    const std::vector<protocol::GroupTask>& begun() const { return begun_; }
    /// The rank would rather not. True when the task never begins, since it has not yet.
    bool withdraw(int32_t shard, const protocol::GroupTask& task);

  private:
    std::vector<std::optional<protocol::GroupTask>> ready_;  ///< by shard, the last word
    std::vector<protocol::GroupTask> begun_;
};

}  // namespace bulkhead::runtime
