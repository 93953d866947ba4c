// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/common/clock.h"
#include "backend/common/fields.h"

namespace bulkhead::simulation {

enum class FaultKind {
    kKillRank,
    kKillReplica,
    kCrashNode,  ///< power: ranks and agent are gone without a word, the node comes back
    kHangRank,
    kSlowRank,
    kCutData,        ///< of one replica from and to all others
    kCutDataOneWay,  ///< messages from `replica` to `other` are lost
    kCutControl,     ///< a rank's connection breaks and cannot be made again for a while
    kLoseUp,         ///< one way: nothing of what a rank says arrives, nobody is told
    kLoseDown,
    kStall,      ///< a rank's messages, both ways, wait
    kStorm,      ///< messages of one replica are dropped, doubled, delayed, reordered
    kStormAll,   ///< of everybody
    kIsolate,    ///< a replica's control and data at once
    kLoseInner,  ///< between a rank and its leader
    kKillCoordinator,
    kKillCoordinatorLosingTail,  ///< data not fsynced is lost with it
    kSlowDisk,
    kKillAgent,
    kFailStart,  ///< the next start of a replica
    kFlipParameter,
    kFlipGradient,
    kNanGradient,
    kPoisonSample,
    kOverflow,  ///< the next sum of finite gradients is not finite
    kFailFetch,
    kLoseDeltas,  ///< a replica's delta window is emptied; only of a pretended one
    kFailCheckpoint,
    kFailLayoutMove,
    kDrain,
    kHold,
    kRelease,
    kRestart,
    kPause,
    kCheckpoint,
    kPolicies,
    kChangeLayout,
    kFlipCopy,          ///< the next state that the replica fetches
    kHangCoordinator,   ///< its program is stopped for a while
    kDamageCheckpoint,  ///< the newest on disk, when there is an older one
    // Only with the real programs:
    kSecondCoordinator,  ///< one more is started while the first lives
    kCutAgent,    ///< an agent's connection: at once, what it says first, or one end knows nothing
    kFullDisk,    ///< the controller's, or that of a node
    kFreezeNode,  ///< agent and ranks of a node are stopped for a while
    kLyingDisk,   ///< the controller's says that it has synced, and its machine loses power
};

/// When a fault strikes: at its time, or at the first such moment after it.
enum class Trigger {
    kNone,
    kAppendCommit,
    kCommitDurable,
    kSendCommit,
    kVote,
    kRedo,
    kAbort,
    kSnapshot,
    kFetch,
    kReplay,
    kApply,
    kStart,
    kReport,
    kLayout,
    kTie,
    kRollback,
};

/// One thing that goes wrong. Times are virtual, durations end what lasts; `parameter` is whatever
/// the kind needs: how slow, which sample, which policy.
struct Fault {
    FaultKind kind = FaultKind::kKillRank;
    MonoNs at = 0;
    Trigger trigger = Trigger::kNone;
    MonoNs duration = 0;
    int32_t replica = 0;
    int32_t shard = 0;
    int32_t other = 0;
    uint64_t parameter = 0;
};
using Schedule = std::vector<Fault>;

/// Number of gradients in a row that a kNanGradient spoils: one is a cosmic ray, several are a
/// device that has gone wrong.
inline uint64_t gradientsNotFinite(const Fault& fault) {
    return fault.parameter % 4 != 0 ? 1 : 2 + (fault.parameter >> 8) % 6;
}

/// "r2s1 is killed"; for people.
std::string describe(const Fault& fault);

}  // namespace bulkhead::simulation

namespace bulkhead {
template <>
struct EnumNames<simulation::FaultKind> {
    static constexpr std::array<std::string_view, 45> kNames = {"kill_rank",
                                                                "kill_replica",
                                                                "crash_node",
                                                                "hang_rank",
                                                                "slow_rank",
                                                                "cut_data",
                                                                "cut_data_one_way",
                                                                "cut_control",
                                                                "lose_up",
                                                                "lose_down",
                                                                "stall",
                                                                "storm",
                                                                "storm_all",
                                                                "isolate",
                                                                "lose_inner",
                                                                "kill_coordinator",
                                                                "kill_coordinator_losing_tail",
                                                                "slow_disk",
                                                                "kill_agent",
                                                                "fail_start",
                                                                "flip_parameter",
                                                                "flip_gradient",
                                                                "nan_gradient",
                                                                "poison_sample",
                                                                "overflow",
                                                                "fail_fetch",
                                                                "lose_deltas",
                                                                "fail_checkpoint",
                                                                "fail_layout_move",
                                                                "drain",
                                                                "hold",
                                                                "release",
                                                                "restart",
                                                                "pause",
                                                                "checkpoint",
                                                                "policies",
                                                                "change_layout",
                                                                "flip_copy",
                                                                "hang_coordinator",
                                                                "damage_checkpoint",
                                                                "second_coordinator",
                                                                "cut_agent",
                                                                "full_disk",
                                                                "freeze_node",
                                                                "lying_disk"};
};
template <>
struct EnumNames<simulation::Trigger> {
    static constexpr std::array<std::string_view, 16> kNames = {"",
                                                                "a commit is appended",
                                                                "a commit is durable",
                                                                "a commit is sent",
                                                                "a vote",
                                                                "a redo",
                                                                "an abort",
                                                                "a snapshot",
                                                                "a fetch",
                                                                "a replay",
                                                                "an apply",
                                                                "a start",
                                                                "a report",
                                                                "a layout move",
                                                                "a parity tie",
                                                                "a rollback"};
};
}  // namespace bulkhead
