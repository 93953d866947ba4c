// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/cuda/ftar/command.h"

namespace bulkhead::cuda {

/// Where memory of a rank is, told to a rank that may live in another process. Comes from outside:
/// nothing in it is trusted.
struct Place {
    uint64_t process = 0;                    ///< random, of the rank whose memory it is
    uint64_t base = 0;                       ///< of the block, as that rank sees it
    uint64_t offset = 0;                     ///< of the memory, in the block
    std::array<unsigned char, 64> handle{};  ///< by which the driver finds the block
};

/// A data plane runs on this: a GPU, or threads in its place. Threads: launch() and health() are
/// called by one, unmap() by two, everything else by another.
class Machine {
  public:
    virtual ~Machine() = default;

    /// Host memory that the kernel reads and writes too, zeroed, aligned to 128 bytes.
    [[nodiscard]] virtual absl::StatusOr<void*> allocatePinned(size_t bytes) = 0;
    virtual void freePinned(void* memory) = 0;

    /// Starts serve() on the first `blocks` lanes of `queue`, as run `run`; does not wait.
    [[nodiscard]] virtual absl::Status launch(Queue* queue, uint32_t blocks, uint64_t run) = 0;
    /// Returns why the kernel can no longer be expected to answer; ok while it can.
    [[nodiscard]] virtual absl::Status health() = 0;

    /// InvalidArgument unless all of these bytes lie in one block that peers may map.
    [[nodiscard]] virtual absl::StatusOr<Place> place(const void* memory, size_t bytes) = 0;

    struct Block {
        std::byte* base = nullptr;
        size_t bytes = 0;      ///< as the driver knows it, not as the peer says
        bool imported = true;  ///< false: it is of this process, and there whether mapped or not
    };
    /// The whole block that `place` lies in, readable here until unmap(). Unavailable when it is
    /// gone, or cannot be reached from here.
    [[nodiscard]] virtual absl::StatusOr<Block> map(const Place& place) = 0;
    virtual void unmap(const Block& block) = 0;

    /// An epoch begins, in which memory goes that was given back before and that peers may map.
    virtual void epochBegan() {}
    /// There is something that goes.
    virtual bool givesBack() { return false; }
    /// No member of the epoch has anything mapped that was given back before it began.
    virtual void membersMet() {}
};

}  // namespace bulkhead::cuda
