// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/fleet_shape.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "app/models/labels.h"
#include "backend/model/rank_name.h"

namespace bulkhead::ui {

const std::string& nodeOf(const model::RankView& rank, const model::ReplicaView* replica) {
    return rank.node.empty() && replica != nullptr ? replica->node : rank.node;
}

FleetShape fleetShape(const model::RunState& state) {
    FleetShape shape;
    shape.ranks.reserve(state.ranks.size());
    shape.source.reserve(state.ranks.size());
    shape.groupOf.reserve(state.ranks.size());
    size_t next = 0;
    size_t known = 0;
    std::map<std::string_view, std::vector<uint32_t>> byNode;
    std::vector<std::string_view> order;
    while (next < state.ranks.size() || known < state.replicas.size()) {
        // The least replica that ranks or the list of replicas name.
        const int32_t ofRank = next < state.ranks.size() ? state.ranks[next].rank.replica
                                                         : std::numeric_limits<int32_t>::max();
        const bool listed =
            known < state.replicas.size() && state.replicas[known].replica <= ofRank;
        const model::ReplicaView* view = listed ? &state.replicas[known++] : nullptr;
        FleetShape::Replica replica;
        replica.replica = view ? view->replica : ofRank;
        replica.firstGroup = static_cast<uint32_t>(shape.groups.size());
        replica.first = static_cast<uint32_t>(shape.ranks.size());
        byNode.clear();
        order.clear();
        for (; next < state.ranks.size() && state.ranks[next].rank.replica == replica.replica;
             ++next) {
            const std::string_view node = nodeOf(state.ranks[next], view);
            std::vector<uint32_t>& there = byNode[node];
            if (there.empty()) order.push_back(node);
            there.push_back(static_cast<uint32_t>(next));
        }
        for (const std::string_view node : order) {
            const std::vector<uint32_t>& there = byNode[node];
            for (const uint32_t source : there) {
                shape.ranks.push_back(state.ranks[source].rank);
                shape.source.push_back(source);
                shape.groupOf.push_back(static_cast<uint32_t>(shape.groups.size()));
            }
            const auto count = static_cast<uint32_t>(there.size());
            shape.groups.push_back(
                {std::string(node), static_cast<uint32_t>(shape.ranks.size()) - count, count});
        }
        replica.groups = static_cast<uint32_t>(shape.groups.size()) - replica.firstGroup;
        replica.count = static_cast<uint32_t>(shape.ranks.size()) - replica.first;
        shape.replicas.push_back(replica);
    }
    return shape;
}

bool FleetShape::fits(const model::RunState& state) const {
    if (ranks.size() != state.ranks.size()) return false;
    size_t listed = 0;
    for (const Replica& replica : replicas) {
        const bool isListed =
            listed < state.replicas.size() && state.replicas[listed].replica == replica.replica;
        if (!isListed && replica.count == 0) return false;
        const model::ReplicaView* view = isListed ? &state.replicas[listed++] : nullptr;
        for (uint32_t place = replica.first; place < replica.first + replica.count; ++place) {
            const model::RankView& rank = state.ranks[source[place]];
            if (rank.rank != ranks[place] || nodeOf(rank, view) != groups[groupOf[place]].node)
                return false;
        }
    }
    return listed == state.replicas.size();
}

std::optional<uint32_t> FleetShape::indexOf(int32_t replica) const {
    const auto it = std::lower_bound(replicas.begin(), replicas.end(), replica,
                                     [](const Replica& r, int32_t id) { return r.replica < id; });
    if (it == replicas.end() || it->replica != replica) return std::nullopt;
    return static_cast<uint32_t>(it - replicas.begin());
}

std::optional<uint32_t> FleetShape::placeOf(RankId rank) const {
    const auto index = indexOf(rank.replica);
    if (!index) return std::nullopt;
    const Replica& replica = replicas[*index];
    for (uint32_t place = replica.first; place < replica.first + replica.count; ++place)
        if (ranks[place] == rank) return place;
    return std::nullopt;
}

uint32_t FleetShape::replicaAt(uint32_t place) const {
    return indexOf(ranks[place].replica).value_or(0);
}

std::optional<FleetMatch> findRanks(const FleetShape& shape, const QString& text) {
    const QString trimmed = text.trimmed();
    if (trimmed.isEmpty()) return std::nullopt;
    FleetMatch match;
    match.hits.assign(shape.ranks.size(), 0);
    const auto take = [&](uint32_t first, uint32_t count) {
        std::fill_n(match.hits.begin() + first, count, 1);
        if (match.replica < 0 && count > 0) {
            match.replica = shape.ranks[first].replica;
            match.shard = shape.ranks[first].shard;
        }
        match.count += count;
    };
    const auto isNamed = [&](const FleetShape::Group& group) {
        return trimmed.compare(toQt(group.node), Qt::CaseInsensitive) == 0;
    };
    // A node's whole name means that node alone, not others that begin with it.
    const bool whole = std::any_of(shape.groups.begin(), shape.groups.end(), isNamed);
    if (!whole) {
        if (const auto rank = model::parseRank(trimmed.toStdString())) {
            if (const auto place = shape.placeOf(*rank)) take(*place, 1);
            return match;
        }
        // "r0s" is on its way to "r0s1".
        QString start = trimmed;
        if (start.size() > 1 && start.back().toLower() == u's') start.chop(1);
        if (const auto replica = model::parseReplica(start.toStdString())) {
            if (const auto index = shape.indexOf(*replica)) {
                take(shape.replicas[*index].first, shape.replicas[*index].count);
                match.replica = *replica;
                match.shard = -1;
            }
            return match;
        }
    }
    for (const FleetShape::Group& group : shape.groups)
        if (whole ? isNamed(group) : toQt(group.node).contains(trimmed, Qt::CaseInsensitive))
            take(group.first, group.count);
    return match;
}

}  // namespace bulkhead::ui
