// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"

/// Memory that its owner works in and other processes of the host read in place: gradients, so that
/// a peer's reduction takes them from where they are. Every block is a file in memory without a
/// name, which ends with the last process that has it open or mapped: a killed owner leaves nothing
/// behind and faults no reader. All its pages are there from the start and the file can neither
/// shrink nor grow. Readers reach it through the owner's /proc entry, so they must be of the same
/// user.
namespace bulkhead::runtime {

/// Where bytes of a heap are, for a reader in another process.
struct HeapPlace {
    int32_t fd = -1;     ///< of the owner
    uint32_t block = 0;  ///< counts up in a heap: an fd may be used again
    uint64_t offset = 0;
};

/// The owner's end. Threads: any.
class SharedHeap {
  public:
    SharedHeap();
    ~SharedHeap();
    SharedHeap(const SharedHeap&) = delete;
    SharedHeap& operator=(const SharedHeap&) = delete;

    /// Zeroed, aligned to 64 bytes. ResourceExhausted when there is no memory.
    [[nodiscard]] absl::StatusOr<void*> allocate(size_t bytes);
    /// False when `memory` is none of this heap's blocks.
    bool free(void* memory);
    /// nullopt when not all of `bytes` lies in one block.
    std::optional<HeapPlace> find(std::span<const std::byte> bytes) const;
    /// Random; tells a heap from another one of a process with the same number.
    uint64_t id() const { return id_; }

  private:
    struct Block {
        UniqueFd fd;
        uint32_t number = 0;
        size_t bytes = 0;  ///< without the header
    };
    const uint64_t id_;
    mutable Mutex mutex_;
    uint32_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;
    std::map<const std::byte*, Block> byAddress_
        ABSL_GUARDED_BY(mutex_);  ///< key: first byte after the header
};

/// Other processes' heaps, each block mapped read-only on first use and kept. Threads: one at a
/// time.
class HeapReader {
  public:
    HeapReader() = default;
    ~HeapReader();
    HeapReader(const HeapReader&) = delete;
    HeapReader& operator=(const HeapReader&) = delete;

    /// Unavailable when the owner is gone and the block was not mapped before; DataLoss when the
    /// place is not in a block of that heap.
    [[nodiscard]] absl::StatusOr<std::span<const std::byte>> at(int32_t pid, uint64_t heap,
                                                                const HeapPlace& place,
                                                                size_t length);
    /// Unmaps what belongs to other heaps than these.
    void keepOnly(std::span<const uint64_t> heaps);

  private:
    struct Mapping {
        const std::byte* base = nullptr;
        size_t bytes = 0;  ///< header included
    };
    absl::StatusOr<Mapping> map(int32_t pid, uint64_t heap, const HeapPlace& place) const;
    std::map<std::pair<uint64_t, uint32_t>, Mapping> mappings_;  ///< by heap and block
};

}  // namespace bulkhead::runtime
