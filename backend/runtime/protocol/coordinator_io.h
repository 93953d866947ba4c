// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "backend/common/clock.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/channels.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/facts.h"
#include "backend/runtime/protocol/options.h"

/// Inputs and outputs of the coordinator machine. Plain values.
namespace bulkhead::protocol {

// ---- inputs ------------------------------------------------------------------------------------

/// A message on `from`'s connection. A sibling may relay: what counts is what the message says of
/// itself. Job id, protocol version and token of a Hello were checked by the driver.
struct Received {
    RankId from;
    ToCoordinator message;
};

/// A process runs: started now, or found again by an agent or a new coordinator.
struct RankRunning {
    RankId rank;
    uint32_t incarnation = 0;
    int32_t pid = 0;
    std::string node;
};

/// An agent saw it end. Confirms whatever was suspected of it.
struct RankExited {
    RankId rank;
    uint32_t incarnation = 0;
    int32_t exitCode = 0;
    int32_t signal = 0;
    std::string node;
    MonoNs at = 0;           ///< when it ended, as well as known; 0: now
    std::string words = {};  ///< its own reason; may be empty
    bool known = true;       ///< somebody saw how it ended
};

/// An agent is gone (its connection ended and it did not come back in time). Not a confirmation:
/// it may be the network.
struct NodeLost {
    std::string node;
    std::vector<int32_t> replicas;  ///< with a rank there
};

/// Answer to StartReplica when it could not be done; counts as a restart. The machine backs off.
struct StartFailed {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    std::string why;
};

/// Every AppendLog up to this sequence number is on disk (fsync). Told for overlapped ones.
struct RecordDurable {
    uint64_t sequence = 0;
};

/// Answer to FindCheckpoints: those on disk that hold a step of the log's line of descent
/// (checkpoint_book.h), whether or not the log names them. Those of one step: the best first.
struct CheckpointsFound {
    std::vector<LogCheckpoint> checkpoints;
};

/// Only after a recovery: agents have told what still runs (RankRunning), and the rest is gone, but
/// for the replicas in `unheard`, by the node they ran on as far as that is known: its agent is
/// away, and they may run there. Told again when one of those nodes has told.
struct InventoryDone {
    std::map<int32_t, std::string> unheard;
};

enum class OperationKind {
    kDrain,          ///< leaves after its current commit, its processes stop, it stays out
    kHoldRejoin,     ///< when lost it stays out
    kReleaseRejoin,  ///< ends a hold, a drain or a give-up
    kRestartReplica,
    kPause,
    kResume,
    kCheckpoint,
    kStop,  ///< with a checkpoint when `checkpoint`
    kSetPolicies,
    kChangeLayout,
};

/// OperatorAnswered follows at once.
struct Operation {
    OperationKind kind = OperationKind::kPause;
    int32_t replica = -1;
    bool checkpoint = true;     ///< kStop
    bool thisTermOnly = false;  ///< kStop: no order to the coordinators that follow
    Policies policies;
    std::vector<int32_t> expertShard;   ///< kChangeLayout
    std::vector<uint32_t> domainShare;  ///< kChangeLayout: as in Quorum
    double predictedRemote = -1;        ///< kChangeLayout: share of copies that will leave a shard
    std::string requestId;
    std::string why;  ///< "operator ana"
};

/// Time passed; the machine asked for it by WakeAt (more ticks do no harm).
struct Tick {
    std::vector<int32_t> unplaced;  ///< replicas whose start waits for a node with room
};

using Input = std::variant<Received, RankRunning, RankExited, NodeLost, StartFailed, RecordDurable,
                           Operation, Tick, InventoryDone, CheckpointsFound>;

// ---- actions, to be carried out in their order
// ---------------------------------------------------

/// To every connected rank of the replica, if it still is in that incarnation. The driver fills
/// Welcome::jobJson.
struct SendReplica {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    ToReplica message;
};

struct SendRank {
    RankId rank;
    uint32_t incarnation = 0;
    ToReplica message;
};

/// Append encodeEntry(entry) and fsync before any later action is carried out. `overlapped`: later
/// actions go on meanwhile, RecordDurable{sequence} answers, and the machine itself holds back what
/// must not leave before.
struct AppendLog {
    uint64_t sequence = 0;
    LogEntry entry;
    bool overlapped = false;
};

/// Start all ranks of the replica in this incarnation, on whatever node. Answer: RankRunning each,
/// or StartFailed.
struct StartReplica {
    int32_t replica = 0;
    uint32_t incarnation = 0;
};

/// End its processes of this and older incarnations. `kill`: SIGKILL at once; else they were told
/// by Leave or get SIGTERM. Answer: RankExited each.
struct StopReplica {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    bool kill = false;
    std::string why;
};

/// Look for checkpoints on disk. Answer: CheckpointsFound. Ranks without a coordinator write some
/// of which the log knows nothing.
struct FindCheckpoints {};

/// Tick at this time unless told another in the meantime.
struct WakeAt {
    MonoNs at = 0;
};

struct Emit {
    MonoNs at = 0;
    Fact fact;
};

/// Nothing more will come from this machine.
struct Finished {
    bool ok = true;
    std::string why;
};

using Action = std::variant<SendReplica, SendRank, AppendLog, StartReplica, StopReplica, WakeAt,
                            Emit, Finished, FindCheckpoints>;
using Actions = std::vector<Action>;

}  // namespace bulkhead::protocol
