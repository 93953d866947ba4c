// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/cuda/ftar/machine.h"

namespace bulkhead::cuda {

/// The host's side of FTAR on a GPU: tells a persistent kernel what to add, chunk by chunk, and
/// keeps other ranks' memory apart by epochs. An epoch is one membership: only what was reached in
/// it is read. A mapping is kept from one epoch to the next, for a driver that clears up after a
/// killed process may let other calls wait for long. What a peer of the epoch no longer names is
/// unmapped by the end of its first sums, what is of others once a driver has surely cleared up.
///
/// Inputs are only read, so an abort at any chunk leaves them whole. After a kernel that does not
/// end in time nothing works any more and nothing is unmapped: the rank must start again.
///
/// A driver has one lock, which calls of a program's other threads may hold until the GPU is idle.
/// So whatever calls the driver while a kernel runs does so on a thread of the plane's own, and who
/// waits here, or has to abort, looks at nothing but words in memory.
///
/// Threads: one at a time; abort() from any.
class DataPlane {
  public:
    struct Options {
        uint32_t blocks = 2;  ///< 1 to kMaxLanes; the literature uses 2 of 512 threads
        std::chrono::microseconds eager{200};        ///< a wait looks so long without a pause
        std::chrono::milliseconds chunkLimit{2000};  ///< a full lane must move
        std::chrono::milliseconds endLimit{2000};    ///< a kernel asked to end must have ended
        std::chrono::milliseconds patience{1};  ///< a block that has nothing to do so long leaves
        /// As `blocks`, in an epoch in which memory of a peer is read where it is: a link between
        /// GPUs takes more of them than a network. 0: as many.
        uint32_t nearBlocks = 0;
        /// So long the memory of those who are no peers any more stays mapped.
        std::chrono::milliseconds unmapAfter{1000};
    };

    /// InvalidArgument: blocks. Else what the machine says.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<DataPlane>> create(
        std::unique_ptr<Machine> machine, Options options);
    ~DataPlane();

    /// Closes the last epoch, if it is open, and opens the next. Not before this does an abort end.
    [[nodiscard]] absl::Status enter();
    /// Ends the kernel and unmaps everything.
    [[nodiscard]] absl::Status leave();

    [[nodiscard]] absl::StatusOr<Place> place(const void* memory, size_t bytes);
    /// `bytes` of another rank where this process can read them, until the epoch is closed.
    /// InvalidArgument when the place has fewer bytes than that behind it. All that the epoch reads
    /// is reached before the first finish(); the first reach behind it comes when every member is
    /// known to have returned from its own: memory that was given back goes then.
    [[nodiscard]] absl::StatusOr<const void*> reach(const Place& place, size_t bytes);

    /// Has a kernel started if none runs and puts a sum of any length on the lanes, in chunks.
    /// Waits while the lanes are full. Aborted, or InvalidArgument: a sum without sense, of which
    /// nothing was told.
    [[nodiscard]] absl::Status submit(const Sum& sum);
    /// Returns when everything submitted is done. Aborted; DeadlineExceeded: it took longer than
    /// `limit`; Internal: the kernel refused a command or is gone; else why it did not start.
    [[nodiscard]] absl::Status finish(std::chrono::milliseconds limit);
    /// Lets the kernel end, so that others have its part of the GPU; submit() starts it again.
    [[nodiscard]] absl::Status park();

    /// Ends the epoch that is open now: what the kernel has begun it ends, at most a chunk of each
    /// lane; the rest is dropped; a call that waits ends the kernel and returns Aborted, as do all
    /// until enter(). Liveness, no valid result.
    void abort();

    /// Staging memory, for ranks that are reached over a network. Lives until the plane ends.
    [[nodiscard]] absl::StatusOr<void*> allocatePinned(size_t bytes);

  private:
    class Caller;
    DataPlane(std::unique_ptr<Machine> machine, Options options);

    void gather();
    absl::Status post(const Sum& sum);
    void run();
    absl::Status collect(uint32_t lane);
    /// True: nothing is on its way.
    absl::StatusOr<bool> collectAll();
    absl::Status standing() const;
    absl::Status endKernel();
    absl::Status endEpoch();
    absl::Status settle();
    void dropUnreached();
    absl::Status giveUp(absl::Status why);
    bool aborted() const { return abortedEpoch_.load(std::memory_order_acquire) >= epoch_; }

    std::unique_ptr<Machine> machine_;
    const Options options_;
    Queue* queue_ = nullptr;
    std::vector<void*> pinned_;
    std::atomic<uint64_t> epoch_{0};  ///< the open one, or the last; written by one thread
    std::atomic<uint64_t> abortedEpoch_{0};
    std::atomic<uint64_t> run_{0};  ///< the last that was asked for; written by one thread
    uint32_t blocks_;               ///< of the next run; changes only while none runs
    bool open_ = false;
    enum class Meeting {
        kNone,     ///< of the open epoch nothing was reached
        kReached,  ///< something was
        kSettled,  ///< ... and what its peers do not name is unmapped here
        kMet       ///< ... and at all of them
    };
    Meeting meeting_ = Meeting::kNone;
    bool running_ = false;  ///< asked for and not known to have left
    uint32_t nextLane_ = 0;
    std::array<uint64_t, kMaxLanes> posted_{};
    std::array<uint64_t, kMaxLanes> collected_{};
    absl::Status failed_;  ///< of this epoch
    absl::Status lost_;    ///< for ever
    struct Import {
        Machine::Block block;
        uint64_t process = 0;
        uint64_t epoch = 0;  ///< the last in which it was reached
    };
    std::map<std::string, Import> imports_;
    std::unique_ptr<Caller> caller_;  ///< ends before everything that it uses
};

}  // namespace bulkhead::cuda
