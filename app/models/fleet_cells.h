// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <optional>
#include <vector>

#include "app/models/labels.h"
#include "backend/model/run_state.h"

/// Texts of the fleet's cells. Pure; thread: any.
namespace bulkhead::ui {

struct FleetColumns {
    enum Column {
        kName,
        kState,
        kStep,
        kIncarnation,
        kBeat,
        kProgress,
        kTokens,
        kCpu,
        kMemory,
        kGpu,
        kNode,
        kPid,
    };
};
using FleetColumn = FleetColumns::Column;

struct FleetRow {
    model::ReplicaView replica;  ///< its lane left out
    std::vector<model::RankFigures> ranks;
};

/// A node and what the ranks that run on it have together; absent where none tells.
struct FleetNode {
    model::NodeView node;
    uint32_t ranks = 0;
    std::optional<double> tokensPerSecond;
    std::optional<double> cpuPercent;
    std::optional<double> rssBytes;
    void add(const model::RankFigures& rank);
};

QString replicaCell(const FleetRow& row, FleetColumn column);
QString rankCell(const FleetRow& row, const model::RankFigures& rank, FleetColumn column);
QString nodeCell(const FleetNode& row, FleetColumn column);
QString nodeState(model::NodeState state);
Tone tone(model::NodeState state);

}  // namespace bulkhead::ui
