// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "plugins/cuda/ftar/elements.h"

/// Queue in pinned host memory between the host and a running kernel. The kernel has one lane per
/// block; a lane has one writer on each side, so no word is ever written by two.
///
/// Host, to post a command: slots[posted % kSlots] = command; posted += 1 (release).
/// Block, when it is done:  outcome[finished % kSlots]; finished += 1 (release).
/// Host, to end things:     control.fence and control.stop only ever grow.
/// A block also leaves by itself when it has nothing to do, so that a wait for an idle GPU lasts no
/// longer than the work; the host then starts the next run.
namespace bulkhead::cuda {

constexpr uint64_t kSlots = 32;        ///< of a lane: as many commands may be on their way
constexpr uint64_t kMaxLanes = 64;     ///< blocks
constexpr uint64_t kChunk = 1u << 20;  ///< elements of one command at most: what an abort waits for

/// One chunk of one sum.
struct Command {
    uint64_t epoch;  ///< of the membership whose memory it names
    Sum sum;
};

enum class Outcome : uint64_t {
    kDone = 1,
    kStale = 2,    ///< its epoch is closed: nothing was read or written
    kRefused = 3,  ///< it cannot be meant: nothing was read or written
};

struct alignas(128) Lane {
    alignas(128) uint64_t posted;    ///< by the host: commands told since the queue was made
    alignas(128) uint64_t finished;  ///< by the block: commands answered
    uint64_t entered;                ///< by the block: the last run that it is or was in
    uint64_t left;                   ///< by the block: the last run that it left
    Outcome outcome[kSlots];
    alignas(128) Command slots[kSlots];
};

struct Control {
    alignas(128) uint64_t fence;  ///< commands of epochs below it are stale
    alignas(128) uint64_t stop;   ///< runs up to this one end when their lane is empty
    uint64_t patience;            ///< nanoseconds after which a block whose lane is empty leaves
};

/// Zeroed when made.
struct Queue {
    Control control;
    Lane lanes[kMaxLanes];
};

/// The same at all threads of a block, since they judge the same copy.
BULKHEAD_BOTH inline Outcome judge(const Command& command, uint64_t fence) {
    if (command.epoch < fence) return Outcome::kStale;
    const Sum& sum = command.sum;
    if (sum.sources < 1 || sum.sources > kMaxSources || sum.count > kChunk)
        return Outcome::kRefused;
    const uint64_t grain = sum.narrowTo ? sizeof(Bf16) : sizeof(float);
    if (sum.to == 0 || sum.to % grain != 0) return Outcome::kRefused;
    for (uint32_t s = 0; s < sum.sources; ++s) {
        const uint64_t width = (sum.narrow >> s) & 1u ? sizeof(Bf16) : sizeof(float);
        if (sum.from[s] == 0 || sum.from[s] % width != 0) return Outcome::kRefused;
    }
    return Outcome::kDone;
}

}  // namespace bulkhead::cuda
