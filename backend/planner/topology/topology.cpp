// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/topology/topology.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"

namespace bulkhead::planner {

namespace {

constexpr Link kNvlinkH100{450e9, 2e-6};
constexpr Link kInfiniband400{50e9, 6e-6};
constexpr Link kSpine{25e9, 12e-6};
constexpr Link kBuildings{12.5e9, 60e-6};

absl::Status checkLink(const Link& link, const std::string& where) {
    if (!(link.bytesPerSecond > 0) || !std::isfinite(link.bytesPerSecond))
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": the bandwidth must be more than 0 bytes a second"));
    if (!(link.seconds >= 0) || !std::isfinite(link.seconds))
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": the latency must be 0 seconds or more"));
    return absl::OkStatus();
}

}  // namespace

uint32_t Topology::nodes() const {
    uint32_t nodes = levels.empty() ? 0 : 1;
    for (size_t i = 1; i < levels.size(); ++i) nodes *= levels[i].count;
    return nodes;
}

uint32_t Topology::levelBetween(uint32_t a, uint32_t b) const {
    uint32_t level = 0;
    while (a != b && level + 1 < levels.size()) {
        ++level;
        a /= levels[level].count;
        b /= levels[level].count;
    }
    return level;
}

const Link& Topology::linkBetween(uint32_t from, uint32_t to) const {
    if (from != to && !between.empty()) return between[size_t{from} * nodes() + to];
    return levels[levelBetween(from, to)].link;
}

absl::Status checkTopology(const Topology& topology) {
    if (topology.levels.empty() || topology.levels.size() > 8)
        return absl::InvalidArgumentError(
            absl::StrCat("a topology has 1 to 8 levels, the first being the host; here ",
                         topology.levels.size()));
    std::set<std::string> names;
    uint64_t nodes = 1;
    for (size_t i = 0; i < topology.levels.size(); ++i) {
        const Level& level = topology.levels[i];
        const std::string where = absl::StrCat("level ", i, " (", level.name, ")");
        if (level.name.empty() || !names.insert(level.name).second)
            return absl::InvalidArgumentError(
                absl::StrCat(where, ": every level has a name of its own"));
        if (level.count < 1 || level.count > 4096)
            return absl::InvalidArgumentError(
                absl::StrCat(where, ": count is ", level.count, ", expected 1 to 4096"));
        if (auto status = checkLink(level.link, where); !status.ok()) return status;
        if (i > 0) nodes *= level.count;
        if (nodes > 4096 || nodes * topology.levels[0].count > 65536)
            return absl::InvalidArgumentError(
                absl::StrCat(where, ": more than 4,096 nodes or 65,536 GPUs"));
    }
    if (!topology.between.empty() && topology.between.size() != nodes * nodes)
        return absl::InvalidArgumentError(absl::StrCat("the cost matrix has ",
                                                       topology.between.size(),
                                                       " entries, expected ", nodes, " x ", nodes));
    for (size_t i = 0; i < topology.between.size(); ++i) {
        if (i / nodes == i % nodes) continue;
        const std::string where = absl::StrCat("from node ", i / nodes, " to node ", i % nodes);
        if (auto status = checkLink(topology.between[i], where); !status.ok()) return status;
    }
    return absl::OkStatus();
}

Topology flatTopology(uint32_t nodes, uint32_t gpusPerNode) {
    return {absl::StrCat(nodes, "x", gpusPerNode),
            {{"host", gpusPerNode, kNvlinkH100}, {"network", nodes, kInfiniband400}},
            {}};
}

const std::vector<PresetName>& topologyPresets() {
    static const std::vector<PresetName> names{
        {"h100-4x8", "4 hosts of 8 H100 on one InfiniBand network"},
        {"h100-32x8", "32 hosts of 8 H100: 8 racks of 4 under one spine"},
        {"nvl72-2", "2 NVLink domains of 72 GPUs"},
        {"two-buildings", "2 buildings of 4 racks of 4 hosts of 8 H100"},
    };
    return names;
}

absl::StatusOr<Topology> presetTopology(std::string_view name) {
    Topology made;
    if (name == "h100-4x8") made = flatTopology(4, 8);
    if (name == "h100-32x8")
        made.levels = {{"host", 8, kNvlinkH100}, {"rack", 4, kInfiniband400}, {"spine", 8, kSpine}};
    if (name == "nvl72-2")
        made.levels = {{"host", 72, {900e9, 2e-6}}, {"network", 2, kInfiniband400}};
    if (name == "two-buildings")
        made.levels = {{"host", 8, kNvlinkH100},
                       {"rack", 4, kInfiniband400},
                       {"building", 4, kSpine},
                       {"campus", 2, kBuildings}};
    if (made.levels.empty()) {
        std::string known;
        for (const PresetName& preset : topologyPresets())
            absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(preset.name));
        return absl::NotFoundError(absl::StrCat("no topology is called '", std::string(name),
                                                "'; the built-in ones are ", known));
    }
    made.name = std::string(name);
    return made;
}

}  // namespace bulkhead::planner
