// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/fleet_cells.h"

#include <algorithm>
#include <optional>

#include "app/models/gpu_rows.h"
#include "app/models/units.h"
#include "app/models/words.h"

namespace bulkhead::ui {
namespace {

bool isSampled(const model::RankFigures& rank) {
    return rank.pid != 0 && rank.sampledNs != 0;
}

template <class T>
void addTo(std::optional<double>& total, const std::optional<T>& value) {
    if (value) total = total.value_or(0) + static_cast<double>(*value);
}

template <class Get>
std::optional<double> sum(const std::vector<model::RankFigures>& ranks, Get get) {
    std::optional<double> total;
    for (const model::RankFigures& rank : ranks) addTo(total, get(rank));
    return total;
}

template <class Get>
std::optional<double> worst(const std::vector<model::RankFigures>& ranks, Get get) {
    std::optional<double> result;
    for (const model::RankFigures& rank : ranks) result = std::max(result, get(rank));
    return result;
}

QString percent(double value) {
    return formatShare(value / 100);
}
QString bytes(double value) {
    return formatBytes(static_cast<uint64_t>(value));
}

}  // namespace

void FleetNode::add(const model::RankFigures& rank) {
    ++ranks;
    addTo(tokensPerSecond, rank.tokensPerSecond);
    addTo(cpuPercent, rank.cpuPercent);
    addTo(rssBytes, rank.rssBytes);
}

QString replicaCell(const FleetRow& row, FleetColumn column) {
    const model::ReplicaView& r = row.replica;
    switch (column) {
        case FleetColumn::kName:
            return tr("Replica %1").arg(r.replica);
        case FleetColumn::kState: {
            if (r.catchUp && r.catchUp->bytesTotal > 0 && r.state == model::ReplicaState::kFetching)
                return tr("Fetching %1 %").arg(100 * r.catchUp->bytesDone / r.catchUp->bytesTotal);
            if (r.catchUp && r.state == model::ReplicaState::kReplaying)
                return tr("Replaying %1").arg(r.catchUp->step);
            return label(r.state);
        }
        case FleetColumn::kStep:
            return formatCount(r.step);
        case FleetColumn::kIncarnation:
            return QString::number(r.incarnation);
        case FleetColumn::kNode:
            return toQt(r.node);
        case FleetColumn::kPid:
            return {};
        default:
            break;
    }
    const bool sampled = std::any_of(row.ranks.begin(), row.ranks.end(), isSampled);
    if (!sampled) return noFigure();
    using R = model::RankFigures;
    switch (column) {
        case FleetColumn::kBeat:
            return formatOptional(worst(row.ranks, [](const R& k) { return k.beatAgeMs; }),
                                  formatMs);
        case FleetColumn::kProgress:
            return formatOptional(worst(row.ranks, [](const R& k) { return k.progressAgeMs; }),
                                  formatMs);
        case FleetColumn::kTokens:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.tokensPerSecond; }),
                                  formatTokenRate);
        case FleetColumn::kCpu:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.cpuPercent; }), percent);
        case FleetColumn::kMemory:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.rssBytes; }), bytes);
        case FleetColumn::kGpu:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.gpuPercent; }), percent);
        default:
            return {};
    }
}

QString rankCell(const FleetRow& row, const model::RankFigures& rank, FleetColumn column) {
    const bool gone = rank.pid == 0 || rank.phase == model::RankPhase::kGone;
    switch (column) {
        case FleetColumn::kName:
            return tr("Rank %1").arg(rankName(rank.rank));
        case FleetColumn::kState:
            return label(rank.phase);
        case FleetColumn::kStep:
            return formatCount(rank.step);
        case FleetColumn::kIncarnation:
            return QString::number(rank.incarnation);
        case FleetColumn::kNode:
            return toQt(rank.node.empty() ? row.replica.node : rank.node);
        case FleetColumn::kPid:
            return gone ? noFigure() : QString::number(rank.pid);
        default:
            break;
    }
    if (gone || rank.sampledNs == 0) return noFigure();
    switch (column) {
        case FleetColumn::kBeat:
            return formatOptional(rank.beatAgeMs, formatMs);
        case FleetColumn::kProgress:
            return formatOptional(rank.progressAgeMs, formatMs);
        case FleetColumn::kTokens:
            return formatOptional(rank.tokensPerSecond, formatTokenRate);
        case FleetColumn::kCpu:
            return formatOptional(rank.cpuPercent, percent);
        case FleetColumn::kMemory:
            return formatOptional(rank.rssBytes, formatBytes);
        case FleetColumn::kGpu:
            return formatOptional(rank.gpuPercent, percent);
        default:
            return {};
    }
}

QString nodeState(model::NodeState state) {
    switch (state) {
        case model::NodeState::kUp:
            return tr("Up");
        case model::NodeState::kCordoned:
            return tr("Cordoned");
        case model::NodeState::kLost:
            return tr("Lost");
        case model::NodeState::kForgotten:
            return tr("Forgotten");
    }
    return QStringLiteral("?");
}

QString nodeCell(const FleetNode& row, FleetColumn column) {
    switch (column) {
        case FleetColumn::kName:
            return toQt(row.node.node);
        case FleetColumn::kState:
            return nodeState(row.node.state);
        case FleetColumn::kTokens:
            return formatOptional(row.tokensPerSecond, formatTokenRate);
        case FleetColumn::kCpu:
            return formatOptional(row.cpuPercent, percent);
        case FleetColumn::kMemory:
            return formatOptional(row.rssBytes, bytes);
        case FleetColumn::kGpu:
            return formatOptional(gpuBusy(row.node), percent);
        case FleetColumn::kNode:
            return tr("%1/%2 used").arg(row.ranks).arg(row.node.slots);
        default:
            return {};
    }
}

Tone tone(model::NodeState state) {
    switch (state) {
        case model::NodeState::kUp:
            return Tone::kGood;
        case model::NodeState::kCordoned:
            return Tone::kMuted;
        case model::NodeState::kLost:
            return Tone::kBad;
        case model::NodeState::kForgotten:
            return Tone::kMuted;
    }
    return Tone::kNeutral;
}

}  // namespace bulkhead::ui
