// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/protocol/channels.h"

namespace bulkhead::protocol {

/// The leader's side: adds the shards' messages up to what the replica says. Answers with the
/// folded message when the last shard's part came. Parts of an older (step, epoch, attempt) than
/// the newest seen are dropped; a newer one starts anew. A "no" or a non-finite gradient is sent on
/// as soon as the first shard says so, and again, complete, when all have. Thread: none of its own;
/// externally serialised.
class ReplicaFold {
  public:
    ReplicaFold(int32_t replica, uint32_t incarnation, uint32_t shards);

    /// nullopt: waiting for more shards, or stale. InvalidArgument: not of this replica, not of
    /// this incarnation, or a shard that does not exist.
    absl::StatusOr<std::optional<ToCoordinator>> add(const ToLeader& part);

  private:
    template <class Part>
    using Shards = std::vector<std::optional<Part>>;
    std::optional<ToCoordinator> addVote(const RankVote& vote);
    std::optional<ToCoordinator> addReport(const RankReport& report);

    int32_t replica_;
    uint32_t incarnation_;
    uint32_t shards_;
    Shards<RankVote> votes_;
    Shards<RankReport> reports_;
    Shards<RankSnapshotReady> snapshots_;
    Shards<RankFetchProgress> fetch_;
    Shards<RankVerdict> verdicts_;
    Shards<RankLayoutMoved> layouts_;
};

}  // namespace bulkhead::protocol
