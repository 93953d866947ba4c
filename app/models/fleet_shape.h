// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/model/run_state.h"

/// The ranks of a fleet in the order of its map. Pure; thread: any.
namespace bulkhead::ui {

/// Ranks in the order of the map: by replica, then node, then shard. Such an index is a rank's
/// place.
struct FleetShape {
    /// Ranks of one replica on one node. Replicas that share a node have a group each.
    struct Group {
        std::string node;  ///< empty: on no node so far
        uint32_t first = 0;
        uint32_t count = 0;
    };
    struct Replica {
        int32_t replica = 0;
        uint32_t firstGroup = 0;
        uint32_t groups = 0;
        uint32_t first = 0;
        uint32_t count = 0;  ///< may be 0: no rank has started yet
    };
    std::vector<RankId> ranks;
    std::vector<uint32_t> source;  ///< by place: index in RunState::ranks
    std::vector<uint32_t> groupOf;
    std::vector<Group> groups;
    std::vector<Replica> replicas;

    /// False when ranks came, went or moved: a new shape is due.
    bool fits(const model::RunState& state) const;
    std::optional<uint32_t> placeOf(RankId rank) const;
    /// Index of a replica; nullopt: it is not there.
    std::optional<uint32_t> indexOf(int32_t replica) const;
    uint32_t replicaAt(uint32_t place) const;
};
FleetShape fleetShape(const model::RunState& state);

/// The node that a rank runs on, or ran on last; its replica's until it says. Empty: none.
const std::string& nodeOf(const model::RankView& rank, const model::ReplicaView* replica);

/// Ranks that a text means: "r0s1", "r0", "0", or a node's name or part of it.
struct FleetMatch {
    std::vector<uint8_t> hits;  ///< by place, 1 or 0
    size_t count = 0;
    int32_t replica = -1;  ///< the first match, -1: nothing matches
    int32_t shard = -1;    ///< of it, -1: the whole replica
};
/// Nullopt for blank text.
std::optional<FleetMatch> findRanks(const FleetShape& shape, const QString& text);

}  // namespace bulkhead::ui
