// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"

namespace bulkhead::planner {

/// Cost of a message that crosses this level and no higher one.
struct Link {
    double bytesPerSecond = 0;  ///< of one GPU, one direction
    double seconds = 0;         ///< latency of one message
    bool operator==(const Link&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("bytes_per_second", self.bytesPerSecond);
        visit("seconds", self.seconds);
    }
};

/// One storey of the tree: `count` units of the level below make one unit of this one.
struct Level {
    std::string name;    ///< "host", "rack", "building", ...
    uint32_t count = 1;  ///< level 0: GPUs in a host
    Link link;
    bool operator==(const Level&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("count", self.count);
        visit("link", self.link);
    }
};

/// GPUs and what lies between them. Level 0 is the host; a host is a node. Either the levels above
/// it say what two nodes are apart, or `between` does, pair by pair (then there is one level above
/// the host, and its link is the slowest of the pairs). Thread: a value.
struct Topology {
    std::string name;
    std::vector<Level> levels;
    std::vector<Link> between;  ///< nodes x nodes, row by row: from, to; empty: the levels say

    uint32_t gpusPerNode() const { return levels.empty() ? 0 : levels[0].count; }
    uint32_t nodes() const;
    uint32_t gpus() const { return nodes() * gpusPerNode(); }

    /// The lowest level that holds both nodes: 0 when they are one. Both < nodes().
    uint32_t levelBetween(uint32_t a, uint32_t b) const;
    /// Cost of a message from node `from` to node `to`.
    const Link& linkBetween(uint32_t from, uint32_t to) const;

    bool operator==(const Topology&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("levels", self.levels);
        visit("between", self.between);
    }
};

/// InvalidArgument, naming level and field, unless there are 1..8 levels with names of their own,
/// counts of 1..4096, at most 4,096 nodes and 65,536 GPUs, positive finite bandwidths, latencies
/// not negative, and `between` empty or nodes x nodes.
[[nodiscard]] absl::Status checkTopology(const Topology& topology);

/// Hosts of so many GPUs on one switched network: NVLink at 450 GB/s and 2 us inside, 50 GB/s and
/// 6 us a GPU outside (an HGX H100 host with one 400 Gb/s card for each GPU).
[[nodiscard]] Topology flatTopology(uint32_t nodes, uint32_t gpusPerNode);

/// Names that presetTopology knows, with what they are.
struct PresetName {
    std::string_view name;
    std::string_view what;
};
[[nodiscard]] const std::vector<PresetName>& topologyPresets();

/// NotFound, listing the names, when there is no such preset.
[[nodiscard]] absl::StatusOr<Topology> presetTopology(std::string_view name);

}  // namespace bulkhead::planner
