// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/fleet_model.h"

#include <QStringList>
#include <algorithm>
#include <array>

#include "app/models/gpu_rows.h"
#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

/// A replica's index carries this, a rank's the row of its replica plus one.
constexpr quintptr kTop = 0;

/// The set of rows; the model is reset when this changes.
QStringList shapeOf(const std::vector<FleetRow>& rows, const std::vector<FleetNode>& nodes) {
    QStringList shape;
    for (const FleetRow& row : rows)
        shape << QStringLiteral("%1:%2").arg(row.replica.replica).arg(row.ranks.size());
    for (const FleetNode& row : nodes) shape << toQt(row.node.node);
    return shape;
}

}  // namespace

FleetModel::FleetModel(const RunFeed& feed, QObject* parent)
    : QAbstractItemModel(parent), feed_(feed) {}

std::vector<FleetRow> FleetModel::takeReplicas() const {
    std::vector<FleetRow> rows;
    for (const model::ReplicaView& replica : feed_.state().replicas) {
        FleetRow row;
        row.replica = replica;
        row.replica.lane = {};
        row.ranks.reserve(feed_.state().spec.shards);
        rows.push_back(std::move(row));
    }
    for (const model::RankView& rank : feed_.state().ranks) {
        const auto owner =
            std::lower_bound(rows.begin(), rows.end(), rank.rank.replica,
                             [](const FleetRow& r, int32_t id) { return r.replica.replica < id; });
        if (owner != rows.end() && owner->replica.replica == rank.rank.replica) {
            owner->ranks.push_back(rank);
            for (auto* age : {&owner->ranks.back().beatAgeMs, &owner->ranks.back().progressAgeMs})
                if (*age) **age += feed_.unseenMs();
        }
    }
    return rows;
}

std::vector<FleetNode> FleetModel::takeNodes(const std::vector<FleetRow>& rows) const {
    std::vector<FleetNode> nodes;
    for (const model::NodeView& node : feed_.state().nodes) nodes.emplace_back().node = node;
    for (const FleetRow& replica : rows)
        for (const model::RankFigures& rank : replica.ranks) {
            if (rank.pid == 0) continue;
            const auto host = std::lower_bound(
                nodes.begin(), nodes.end(), rank.node,
                [](const FleetNode& n, const std::string& name) { return n.node.node < name; });
            if (host != nodes.end() && host->node.node == rank.node) host->add(rank);
        }
    return nodes;
}

void FleetModel::refresh() {
    const model::Timeouts& timeouts = feed_.state().spec.timeouts;
    beatLimitMs_ = timeouts.heartbeatMs / 2.0;
    progressLimitMs_ = timeouts.progressFloorMs / 2.0;
    hasGpu_ = std::any_of(feed_.state().ranks.begin(), feed_.state().ranks.end(),
                          [](const model::RankView& r) { return r.gpuPercent.has_value(); }) ||
              std::any_of(feed_.state().nodes.begin(), feed_.state().nodes.end(),
                          [](const model::NodeView& n) { return gpuBusy(n).has_value(); });
    std::vector<FleetRow> rows = takeReplicas();
    std::vector<FleetNode> nodes = takeNodes(rows);
    const bool reshaped = shapeOf(rows, nodes) != shapeOf(rows_, nodes_);
    if (reshaped) beginResetModel();
    rows_ = std::move(rows);
    nodes_ = std::move(nodes);
    if (reshaped) return endResetModel();
    const int last = rowCount() - 1;
    if (last < 0) return;
    Q_EMIT dataChanged(index(0, kState), index(last, kColumns - 1));
    for (int i = 0; i <= last; ++i) {
        const QModelIndex top = index(i, 0);
        if (const int ranks = rowCount(top); ranks > 0)
            Q_EMIT dataChanged(index(0, kState, top), index(ranks - 1, kColumns - 1, top));
    }
}

QModelIndex FleetModel::indexOf(const QString& node) const {
    for (size_t i = 0; i < nodes_.size(); ++i)
        if (toQt(nodes_[i].node.node) == node) return index(static_cast<int>(rows_.size() + i), 0);
    return {};
}

QModelIndex FleetModel::indexOf(int replica, int shard) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i].replica.replica != replica) continue;
        const QModelIndex top = index(static_cast<int>(i), 0);
        if (shard < 0) return top;
        for (size_t k = 0; k < rows_[i].ranks.size(); ++k)
            if (rows_[i].ranks[k].rank.shard == shard) return index(static_cast<int>(k), 0, top);
    }
    return {};
}

QModelIndex FleetModel::index(int row, int column, const QModelIndex& parent) const {
    if (!hasIndex(row, column, parent)) return {};
    return createIndex(row, column,
                       parent.isValid() ? static_cast<quintptr>(parent.row()) + 1 : kTop);
}

QModelIndex FleetModel::parent(const QModelIndex& child) const {
    if (!child.isValid() || child.internalId() == kTop) return {};
    return createIndex(static_cast<int>(child.internalId()) - 1, 0, kTop);
}

int FleetModel::rowCount(const QModelIndex& parent) const {
    if (!parent.isValid()) return static_cast<int>(rows_.size() + nodes_.size());
    if (parent.internalId() != kTop || parent.column() != 0 ||
        static_cast<size_t>(parent.row()) >= rows_.size())
        return 0;
    return static_cast<int>(rows_[static_cast<size_t>(parent.row())].ranks.size());
}

int FleetModel::columnCount(const QModelIndex&) const {
    return kColumns;
}

QVariant FleetModel::toneOf(const FleetRow& row, const model::RankFigures* rank, int column) const {
    const auto as = [](Tone tone) { return QVariant(static_cast<int>(tone)); };
    const bool training = row.replica.state == model::ReplicaState::kTraining;
    if (column == kState && rank == nullptr) return as(tone(row.replica.state));
    if (column == kState) return as(Tone::kMuted);
    if (rank != nullptr && training && column == kBeat &&
        rank->beatAgeMs.value_or(0) > beatLimitMs_)
        return as(Tone::kWarning);
    if (rank != nullptr && training && column == kProgress &&
        rank->progressAgeMs.value_or(0) > progressLimitMs_)
        return as(Tone::kWarning);
    if (column == kNode || column == kPid || column == kIncarnation) return as(Tone::kMuted);
    return {};
}

QVariant FleetModel::nodeData(const FleetNode& row, int column, int role) const {
    switch (role) {
        case Qt::DisplayRole:
            return nodeCell(row, static_cast<FleetColumn>(column));
        case Qt::ToolTipRole:
            return column == kState ? toQt(row.node.why) : toQt(row.node.address);
        case kToneRole:
            if (column == kState) return static_cast<int>(tone(row.node.state));
            return column == kNode ? QVariant(static_cast<int>(Tone::kMuted)) : QVariant();
        case kPillRole:
            return column == kState;
        case kReplicaRole:
        case kShardRole:
            return -1;
        case kNodeRole:
            return toQt(row.node.node);
        default:
            return {};
    }
}

QVariant FleetModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const int column = index.column();
    if (role == Qt::TextAlignmentRole)
        return column >= kStep && column <= kGpu ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                                                 : QVariant();
    const bool isRank = index.internalId() != kTop;
    const size_t top = isRank ? index.internalId() - 1 : static_cast<size_t>(index.row());
    if (top >= rows_.size()) return nodeData(nodes_[top - rows_.size()], column, role);
    const FleetRow& row = rows_[top];
    const model::RankFigures* rank =
        isRank ? &row.ranks[static_cast<size_t>(index.row())] : nullptr;
    switch (role) {
        case Qt::DisplayRole:
            return rank ? rankCell(row, *rank, static_cast<FleetColumn>(column))
                        : replicaCell(row, static_cast<FleetColumn>(column));
        case Qt::ToolTipRole:
            return column == kState && !rank ? toQt(row.replica.why) : QVariant();
        case kToneRole:
            return toneOf(row, rank, column);
        case kPillRole:
            return column == kState && !rank;
        case kStateRole:
            return rank ? QVariant() : static_cast<int>(row.replica.state);
        case kReplicaRole:
            return row.replica.replica;
        case kShardRole:
            return rank ? rank->rank.shard : -1;
        case kNodeRole:
            return toQt(rank && !rank->node.empty() ? rank->node : row.replica.node);
        default:
            return {};
    }
}

QVariant FleetModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal) return {};
    if (role == Qt::TextAlignmentRole)
        return section >= kStep && section <= kGpu ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                                                   : QVariant(Qt::AlignLeft | Qt::AlignVCenter);
    static const std::array<const char*, kColumns> kTitles = {
        QT_TR_NOOP("Name"),       QT_TR_NOOP("State"),         QT_TR_NOOP("Step"),
        QT_TR_NOOP("Starts"),     QT_TR_NOOP("Heartbeat age"), QT_TR_NOOP("Progress age"),
        QT_TR_NOOP("Throughput"), QT_TR_NOOP("CPU"),           QT_TR_NOOP("Memory"),
        QT_TR_NOOP("GPU"),        QT_TR_NOOP("Node"),          QT_TR_NOOP("Pid")};
    static const std::array<const char*, kColumns> kTips = {
        "",
        "",
        QT_TR_NOOP("Last step whose state it holds"),
        QT_TR_NOOP("Incarnation: how often it was started"),
        QT_TR_NOOP("Time since its last heartbeat"),
        QT_TR_NOOP("Time since it last made progress"),
        QT_TR_NOOP("Tokens trained per second"),
        QT_TR_NOOP("Of one core"),
        QT_TR_NOOP("Resident memory"),
        "",
        "",
        ""};
    if (section < 0 || section >= kColumns) return {};
    const auto at = static_cast<size_t>(section);
    if (role == Qt::DisplayRole) return tr(kTitles[at]);
    if (role == Qt::ToolTipRole && kTips[at][0] != '\0') return tr(kTips[at]);
    return {};
}

}  // namespace bulkhead::ui
