// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/common/fields.h"
#include "backend/runtime/protocol/messages.h"

/// Assignment of messages to channels, and the messages that stay inside a replica: each rank
/// reports to its leader, which folds the reports over the shards (replica_fold.h) and sends the
/// result to the coordinator. The order of the variants is the wire's: append only.
namespace bulkhead::protocol {

/// Rank -> leader: a shard's part of a Report.
struct RankReport {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t lineage = 0;
    bool hasState = false;
    uint64_t step = 0;
    std::optional<uint64_t> hash;
    uint64_t snapshotStep = 0;  ///< of the fetch that the state comes from; 0: of none
    bool ready = false;
    bool following = false;
    uint64_t layout = 0;
    uint64_t moved = 0;
    std::optional<CommitRecord> last;
    uint64_t retainedStep = 0;
    std::vector<SampleRange> retained;
    uint64_t computation = 0;  ///< of the retained, as in Report
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("lineage", self.lineage);
        visit("has_state", self.hasState);
        visit("step", self.step);
        visit("hash", self.hash);
        visit("snapshot_step", self.snapshotStep);
        visit("ready", self.ready);
        visit("following", self.following);
        visit("layout", self.layout);
        visit("moved", self.moved);
        visit("last", self.last);
        visit("retained_step", self.retainedStep);
        visit("retained", self.retained);
        visit("computation", self.computation);
    }
};

struct RankSnapshotReady {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
    }
};

struct RankFetchProgress {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t snapshotStep = 0;
    uint64_t bytesDone = 0;
    uint64_t bytesTotal = 0;
    uint64_t step = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("snapshot_step", self.snapshotStep);
        visit("bytes_done", self.bytesDone);
        visit("bytes_total", self.bytesTotal);
        visit("step", self.step);
    }
};

struct RankVerdict {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    bool replayed = true;  ///< false: it could not, which tells nothing
    bool matches = true;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("replayed", self.replayed);
        visit("matches", self.matches);
    }
};

/// A shard's part of a checkpoint lies on disk; the leader writes the manifest when all do.
struct RankCheckpoint {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    uint64_t layout = 0;
    std::string file;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    double ms = 0;
    bool ok = true;
    std::string error;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("layout", self.layout);
        visit("file", self.file);
        visit("bytes", self.bytes);
        visit("checksum", self.checksum);
        visit("ms", self.ms);
        visit("ok", self.ok);
        visit("error", self.error);
    }
};

struct RankLayoutMoved {
    RankId rank;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    uint64_t layout = 0;
    bool ok = true;
    uint64_t bytesMoved = 0;
    std::string error;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("step", self.step);
        visit("layout", self.layout);
        visit("ok", self.ok);
        visit("bytes_moved", self.bytesMoved);
        visit("error", self.error);
    }
};

/// Leader -> its ranks, or a rank that relays for its leader: `payload` is an encoded
/// ToCoordinator for the coordinator (up) or ToReplica for this rank (down).
struct Relay {
    bool up = true;
    std::string payload;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("up", self.up);
        visit("payload", self.payload);
    }
};

/// The ranks of a replica do this together on their training threads, each in the middle of it
/// waiting for the others: compute the gradient of `step` over `ranges`, as `computation`, or move
/// experts to `layout` (`moves`; the rest is 0 then). Equal on all ranks.
struct GroupTask {
    bool moves = false;
    uint64_t layout = 0;
    uint64_t step = 0;
    uint64_t computation = 0;
    std::vector<SampleRange> ranges;
    bool operator==(const GroupTask&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("moves", self.moves);
        visit("layout", self.layout);
        visit("step", self.step);
        visit("computation", self.computation);
        visit("ranges", self.ranges);
    }
};

/// A rank -> its leader: it takes part in `task` as soon as all do, even if it has given up what
/// comes of it by then. Its later word counts instead. `withdrawn`: it would rather not, and asks
/// if all have begun.
struct GroupReady {
    RankId rank;
    uint32_t incarnation = 0;
    GroupTask task;
    bool withdrawn = false;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
        visit("task", self.task);
        visit("withdrawn", self.withdrawn);
    }
};

/// The leader -> its ranks: all of them are ready for the last of `tasks`, and do it now. Those
/// before it were begun before, the oldest first: a rank whose connection broke may not have heard.
struct GroupGo {
    static constexpr size_t kMost = 16;
    std::vector<GroupTask> tasks;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("tasks", self.tasks);
    }
};

/// The leader -> its ranks: `task` never begins, because one of them has withdrawn before that.
struct GroupNever {
    GroupTask task;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("task", self.task);
    }
};

/// Everything a rank's connection to the coordinator carries upwards. Hello comes first.
using ToCoordinator =
    std::variant<Hello, Beat, Evidence, Report, ReplicaVote, ReplayVerdict, SnapshotReady,
                 FetchProgress, CheckpointDone, LayoutMoved, FaultNoted, FetchFailed,
                 ModelDescribed, RankHopeless, CheckpointUnusable, LeaveAsked, CommitMissed>;

/// A connection of a rank of this replica and incarnation may carry the message: it is about that
/// replica, whose ranks relay for each other, in that incarnation; about no replica; or what a peer
/// was seen to do, which is weighed.
[[nodiscard]] bool speaksForItself(const ToCoordinator& message, int32_t replica,
                                   uint32_t incarnation);

/// Everything the coordinator sends; whole replicas are addressed, every rank gets its copy, in the
/// order of the coordinator's actions.
using ToReplica =
    std::variant<Welcome, ReplicaFormed, Quorum, Commit, Abort, KeepSnapshot, Fetch, ReplayLast,
                 ChangeLayout, Expelled, Leave, CommitFault, DiscardCheckpoints>;

/// Inside a replica.
using ToLeader =
    std::variant<RankVote, RankReport, RankSnapshotReady, RankFetchProgress, RankVerdict,
                 RankCheckpoint, RankLayoutMoved, Relay, GroupReady, GroupGo, GroupNever>;

}  // namespace bulkhead::protocol
