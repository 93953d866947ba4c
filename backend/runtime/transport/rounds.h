// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/transport/peer_mesh.h"

namespace bulkhead::runtime {

/// Lock-step rounds over a mesh: in each round every member gives every other a message (maybe
/// empty) and gets one from each; pairs may stay apart in a round, if both ends say so, but a
/// member never from only some of those it shares memory with. Over shared memory the others read
/// what lies in the giver's heap in place; anything else it writes into its own segment and they
/// read it there. What was given from a heap stays as it is until the next round over shared memory
/// is done. Over TCP it goes in chunk frames, from where it is and to where it shall be. Two slots
/// per segment are enough: whoever has finished round n has everyone's round n, and everyone gave
/// that only after having read round n-1. Threads: one at a time.
class Rounds {
  public:
    struct Give {
        std::span<const std::byte> bytes;
    };
    struct Get {
        size_t size = 0;
        std::byte* to = nullptr;  ///< null: leave it where it is, got() shows it
        bool apart = false;       ///< nothing goes either way between this member and us
    };
    struct Totals {
        uint64_t bytesSent = 0;
        uint64_t bytesReceived = 0;
        uint64_t staleFrames = 0;
    };

    /// `mesh` and what `context` points to outlive it.
    Rounds(PeerMesh& mesh, const MeshContext& context);

    /// One round; `give` and `get` have one entry per member, one's own is ignored. What a member
    /// gives to all peers over shared memory and not from the heap fits into spec().slotBytes
    /// (equal spans count once). Nobody moving for `timeout`: DeadlineExceeded; broken peer:
    /// Unavailable; wrong size, tag or checksum: DataLoss; Aborted. failures() names who; after an
    /// error no round works.
    [[nodiscard]] absl::Status run(const RoundTag& tag, std::span<const Give> give,
                                   std::span<const Get> get, MonoNs timeout, bool more = false);

    /// The data of member `peer` in the last round; valid until the next run().
    std::span<const std::byte> got(size_t peer) const { return got_[peer]; }
    /// Somebody (we included) said `more` in the last round.
    bool anyMore() const { return anyMore_; }
    /// The longest wait for one peer within the last round.
    MonoNs lastWait() const { return lastWait_; }

    /// Blocked for each member's frames, all rounds together.
    std::span<const MonoNs> waits() const { return waits_; }

    const std::vector<MeshFailure>& failures() const { return failures_; }
    const Totals& totals() const { return totals_; }

  private:
    absl::Status publish(const RoundTag& tag, std::span<const Give> give, bool more);
    absl::Status place(std::span<const std::byte> bytes, size_t& used, ShmPiece& piece);
    bool sharesMemory() const;
    absl::Status beginTcp(const RoundTag& tag, std::span<const Give> give, std::span<const Get> get,
                          bool more);
    absl::Status await(const RoundTag& tag, std::span<const Get> get, MonoNs timeout);
    absl::Status tryPeer(const RoundTag& tag, size_t peer, const Get& get);
    absl::StatusOr<std::span<const std::byte>> shared(size_t peer, const ShmPiece& piece) const;
    absl::Status copyOut(std::span<const std::byte> from, std::byte* to) const;
    absl::Status pullShared(const RoundTag& tag, size_t peer, const Get& get);
    absl::Status checkLate(MonoNs now, MonoNs timeout);
    absl::Status checkResets();
    absl::Status holdBack();
    void block();
    void blockWhileCut();
    absl::Status accuse(size_t peer, MeshFault fault, const absl::Status& why);
    bool waitsFor(size_t peer) const { return peer != mesh_.self() && !done_[peer]; }

    PeerMesh& mesh_;
    const MeshContext& context_;
    uint32_t sequence_ = 0;  // of the slots: rounds over shared memory
    uint64_t resetsSeen_ = 0;
    MonoNs aliveChecked_ = 0;
    std::vector<bool> done_;
    std::vector<MonoNs> waited_;  // blocked for this peer, this round
    std::vector<MonoNs> active_;  // when it last moved
    std::vector<uint64_t> movedSeen_;
    std::vector<std::span<const std::byte>> got_;
    std::vector<std::vector<std::byte>> staging_;  // for TCP messages that stay here
    bool anyMore_ = false;
    MonoNs lastWait_ = 0;
    std::vector<MonoNs> waits_;
    std::vector<MeshFailure> failures_;
    absl::Status broken_;
    Totals totals_;
};

}  // namespace bulkhead::runtime
