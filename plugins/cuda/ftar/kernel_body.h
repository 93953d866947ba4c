// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/cuda/ftar/command.h"
#include "plugins/cuda/ftar/order.h"

/// The persistent kernel, written once: nvcc makes it a kernel's body, a C++ compiler what threads
/// do in the kernel's place.
namespace bulkhead::cuda {

/// State that the threads of a block share; on the GPU in shared memory.
struct BlockShared {
    uint64_t posted;  ///< the lane's `posted` when the block last waited
    uint64_t leave;
    uint64_t fence;
    Command command;
};

namespace detail {

typedef uint64_t __attribute__((may_alias)) Word;

/// One thread's wait for the next command, or for the end. Stop is read before posted: whoever asks
/// for a stop has told everything before, so an empty lane is then empty for good. A block that
/// leaves because its patience is over may overlook a command; the next run finds it.
BULKHEAD_BOTH inline void await(const Queue& queue, const Lane& lane, uint64_t next, uint64_t run,
                                BlockShared* shared) {
    const uint64_t begin = nanoseconds();
    for (;;) {
        const bool stopping = loadAcquire(&queue.control.stop) >= run ||
                              nanoseconds() - begin > queue.control.patience;
        shared->posted = loadAcquire(&lane.posted);
        if (shared->posted != next) break;
        if (stopping) {
            shared->leave = 1;
            return;
        }
        relax();
    }
    shared->leave = 0;
}

}  // namespace detail

/// Serves lane `block.lane()` until run `run` is stopped or there is nothing to do. A Block has
/// lane(), sync() (a barrier of the block's threads that orders memory among them), shared() and
/// what add() asks for. The fence is looked at before every command, so that once it has passed an
/// epoch and the lane has left, or has answered everything told before, no memory of that epoch is
/// touched; a block that was not seen to have entered then finds the fence when it does.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Block>
BULKHEAD_BOTH void serve(Block& block, Queue* queue, uint64_t run) {
    Lane& lane = queue->lanes[block.lane()];
    BlockShared* shared = block.shared();
    const bool leader = block.thread() == 0;
    uint64_t next = lane.finished;  // nobody else writes it
    if (leader) storeBeforeLoads(&lane.entered, run);
    block.sync();
    uint64_t posted = next;
    for (;;) {
        if (posted == next) {
            if (leader) detail::await(*queue, lane, next, run, shared);
            block.sync();
            if (shared->leave) break;
            posted = shared->posted;
        }
        // Host memory is far: all that is read of it now is read at once, the fence by a thread
        // that has no part of the command where threads are many.
        const auto* from = reinterpret_cast<const detail::Word*>(&lane.slots[next % kSlots]);
        auto* to = reinterpret_cast<detail::Word*>(&shared->command);
        for (uint64_t i = block.thread(); i < sizeof(Command) / sizeof(detail::Word);
             i += block.threads())
            to[i] = from[i];
        if (block.thread() + 1 == block.threads())
            shared->fence = loadAcquire(&queue->control.fence);
        block.sync();
        const Outcome outcome = judge(shared->command, shared->fence);
        if (outcome == Outcome::kDone) add(shared->command.sum, block);
        block.sync();
        if (leader) {
            lane.outcome[next % kSlots] = outcome;
            storeRelease(&lane.finished, next + 1);
        }
        ++next;
    }
    if (leader) storeRelease(&lane.left, run);
}

}  // namespace bulkhead::cuda
