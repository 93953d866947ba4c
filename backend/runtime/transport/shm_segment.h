// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/limits.h"
#include "backend/common/unique_fd.h"

/// Shared memory that one process writes and others read in place. A segment belongs to one
/// incarnation and one membership and is never used again; readers map it read-only, so nobody can
/// write into another rank's memory, and pull at their own pace. What the writer does or how it
/// ends can neither fault nor block a reader: all pages are allocated before the name appears and
/// the file never shrinks.
namespace bulkhead::runtime {

constexpr size_t kMaxMembers = kMaxGroupMembers;

/// The parameters that both ends must agree on before a segment or connection is used.
struct MeshIdentity {
    uint64_t group = 0;  ///< hash of the group's name
    uint64_t token = 0;
    uint64_t term = 0;
    uint64_t epoch = 0;
    uint64_t step = 0;
    uint32_t attempt = 0;
    uint32_t members = 0;
    bool operator==(const MeshIdentity&) const = default;
};

/// The bytes one member finds for it: in the slot, or where they are in the writer's SharedHeap.
struct ShmPiece {
    uint64_t offset = 0;
    uint64_t length = 0;
    int32_t fd = -1;  ///< -1: in the slot
    uint32_t block = 0;
};

struct ShmSlotHeader {
    uint64_t step = 0;
    uint32_t attempt = 0;
    uint32_t bucket = 0;
    uint32_t more = 0;
    uint32_t reserved = 0;
    ShmPiece pieces[kMaxMembers];
};

struct ShmSegmentHeader {
    std::atomic<uint32_t> magic;  // last to be written
    uint32_t version;
    uint32_t writer;
    uint32_t incarnation;
    int32_t pid;
    uint64_t heap;  // SharedHeap::id, 0 without one
    uint64_t slotBytes;
    MeshIdentity identity;
    alignas(64) std::atomic<uint32_t> published;  // sequence of the newest slot
    alignas(64) std::atomic<uint32_t> attached;   // 1: the writer has mapped all its peers
};

/// The writer's end. Threads: one at a time.
class ShmSegment {
  public:
    /// ResourceExhausted when /dev/shm has no room, Unavailable for other refusals.
    static absl::StatusOr<std::unique_ptr<ShmSegment>> create(const std::string& name,
                                                              const MeshIdentity& identity,
                                                              uint32_t writer, uint32_t incarnation,
                                                              size_t slotBytes, uint64_t heap = 0);
    ~ShmSegment();
    ShmSegment(const ShmSegment&) = delete;
    ShmSegment& operator=(const ShmSegment&) = delete;

    /// The slot of round `sequence`; the one before stays readable.
    ShmSlotHeader& slotHeader(uint32_t sequence);
    std::span<std::byte> slot(uint32_t sequence);
    /// Makes the slot visible and wakes who waits for it.
    void publish(uint32_t sequence);
    void announceAttached();
    /// Removes the name; mappings stay. After all peers are attached nobody needs it.
    void unlinkName();

  private:
    ShmSegment() = default;
    std::string name_;  // empty once unlinked
    UniqueFd fd_;       // holds the lock that tells readers we live
    std::byte* base_ = nullptr;
    size_t bytes_ = 0;
    size_t slotBytes_ = 0;
};

/// A reader's end. Threads: one at a time.
class ShmView {
  public:
    /// NotFound while the segment is not there or not ready; PermissionDenied when it is another's
    /// or for another exchange.
    static absl::StatusOr<std::unique_ptr<ShmView>> open(const std::string& name,
                                                         const MeshIdentity& identity,
                                                         uint32_t writer, uint32_t incarnation,
                                                         size_t slotBytes);
    ~ShmView();
    ShmView(const ShmView&) = delete;
    ShmView& operator=(const ShmView&) = delete;

    const std::atomic<uint32_t>& published() const { return header().published; }
    int32_t pid() const { return header().pid; }
    uint64_t heap() const { return header().heap; }
    bool attached() const { return header().attached.load(std::memory_order_acquire) != 0; }
    /// A copy, since its writer may be hostile or broken.
    ShmSlotHeader slotHeader(uint32_t sequence) const;
    /// The bytes of a piece in the slot. DataLoss when it lies outside.
    absl::StatusOr<std::span<const std::byte>> piece(uint32_t sequence, const ShmPiece& at) const;
    /// False once the writing process is gone, however it went.
    bool writerAlive() const;

  private:
    ShmView() = default;
    const ShmSegmentHeader& header() const {
        return *reinterpret_cast<const ShmSegmentHeader*>(base_);
    }
    UniqueFd fd_;
    const std::byte* base_ = nullptr;
    size_t bytes_ = 0;
    size_t slotBytes_ = 0;
};

/// Removes the names of segments that start with `prefix`, left by processes that were killed.
/// Returns how many. An empty prefix removes nothing.
size_t removeSegments(std::string_view prefix);

}  // namespace bulkhead::runtime
