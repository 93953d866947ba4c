// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/fleet_model.h"

#include <algorithm>
#include <array>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

/// A replica's index carries this, a rank's the row of its replica plus one.
constexpr quintptr kTop = 0;

template <class Get>
std::optional<double> sum(const std::vector<model::RankView>& ranks, Get get) {
    std::optional<double> total;
    for (const model::RankView& rank : ranks)
        if (const auto value = get(rank)) total = total.value_or(0) + static_cast<double>(*value);
    return total;
}

template <class Get>
double worst(const std::vector<model::RankView>& ranks, Get get) {
    double result = 0;
    for (const model::RankView& rank : ranks) result = std::max(result, get(rank));
    return result;
}

QString percent(double value) {
    return formatShare(value / 100);
}
QString bytes(double value) {
    return formatBytes(static_cast<uint64_t>(value));
}

}  // namespace

FleetModel::FleetModel(const RunFeed& feed, QObject* parent)
    : QAbstractItemModel(parent), feed_(feed) {}

std::vector<FleetModel::Row> FleetModel::take() const {
    std::vector<Row> rows;
    for (const model::ReplicaView& replica : feed_.state().replicas) {
        Row row;
        row.replica = replica;
        row.replica.lane.clear();
        rows.push_back(std::move(row));
    }
    for (const model::RankView& rank : feed_.state().ranks) {
        const auto owner = std::find_if(rows.begin(), rows.end(), [&](const Row& r) {
            return r.replica.replica == rank.rank.replica;
        });
        if (owner != rows.end()) {
            owner->ranks.push_back(rank);
            owner->ranks.back().output.clear();
        }
    }
    return rows;
}

bool FleetModel::sameShape(const std::vector<Row>& other) const {
    return std::equal(
        rows_.begin(), rows_.end(), other.begin(), other.end(), [](const Row& a, const Row& b) {
            return a.replica.replica == b.replica.replica && a.ranks.size() == b.ranks.size();
        });
}

void FleetModel::refresh() {
    std::vector<Row> fresh = take();
    const model::Timeouts& timeouts = feed_.state().spec.timeouts;
    beatLimitMs_ = timeouts.heartbeatMs / 2.0;
    progressLimitMs_ = timeouts.progressFloorMs / 2.0;
    hasGpu_ = std::any_of(feed_.state().ranks.begin(), feed_.state().ranks.end(),
                          [](const model::RankView& r) { return r.gpuPercent.has_value(); });
    if (!sameShape(fresh)) {
        beginResetModel();
        rows_ = std::move(fresh);
        endResetModel();
        return;
    }
    rows_ = std::move(fresh);
    if (rows_.empty()) return;
    const int last = static_cast<int>(rows_.size()) - 1;
    Q_EMIT dataChanged(index(0, kState), index(last, kColumns - 1));
    for (int i = 0; i <= last; ++i) {
        const QModelIndex top = index(i, 0);
        if (const int ranks = rowCount(top); ranks > 0)
            Q_EMIT dataChanged(index(0, kState, top), index(ranks - 1, kColumns - 1, top));
    }
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
    if (!parent.isValid()) return static_cast<int>(rows_.size());
    if (parent.internalId() != kTop || parent.column() != 0) return 0;
    return static_cast<int>(rows_[static_cast<size_t>(parent.row())].ranks.size());
}

int FleetModel::columnCount(const QModelIndex&) const {
    return kColumns;
}

QString FleetModel::replicaText(const Row& row, int column) const {
    const model::ReplicaView& r = row.replica;
    switch (column) {
        case kName:
            return tr("Replica %1").arg(r.replica);
        case kState: {
            if (r.catchUp && r.catchUp->bytesTotal > 0 && r.state == model::ReplicaState::kFetching)
                return tr("Fetching %1 %").arg(100 * r.catchUp->bytesDone / r.catchUp->bytesTotal);
            if (r.catchUp && r.state == model::ReplicaState::kReplaying)
                return tr("Replaying %1").arg(r.catchUp->step);
            return label(r.state);
        }
        case kStep:
            return formatCount(r.step);
        case kIncarnation:
            return QString::number(r.incarnation);
        case kNode:
            return toQt(r.node);
        case kPid:
            return {};
        default:
            break;
    }
    const bool sampled =
        std::any_of(row.ranks.begin(), row.ranks.end(),
                    [](const model::RankView& k) { return k.pid != 0 && k.sampledNs != 0; });
    if (!sampled) return noFigure();
    using R = model::RankView;
    switch (column) {
        case kBeat:
            return formatMs(worst(row.ranks, [](const R& k) { return k.beatAgeMs; }));
        case kProgress:
            return formatMs(worst(row.ranks, [](const R& k) { return k.progressAgeMs; }));
        case kTokens:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.tokensPerSecond; }),
                                  formatRate);
        case kCpu:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.cpuPercent; }), percent);
        case kMemory:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.rssBytes; }), bytes);
        case kGpu:
            return formatOptional(sum(row.ranks, [](const R& k) { return k.gpuPercent; }), percent);
        default:
            return {};
    }
}

QString FleetModel::rankText(const Row& row, const model::RankView& rank, int column) const {
    const bool gone = rank.pid == 0 || rank.phase == model::RankPhase::kGone;
    switch (column) {
        case kName:
            return tr("Rank %1").arg(rankName(rank.rank));
        case kState:
            return label(rank.phase);
        case kStep:
            return formatCount(rank.step);
        case kIncarnation:
            return QString::number(rank.incarnation);
        case kNode:
            return toQt(rank.node.empty() ? row.replica.node : rank.node);
        case kPid:
            return gone ? noFigure() : QString::number(rank.pid);
        default:
            break;
    }
    if (gone || rank.sampledNs == 0) return noFigure();
    switch (column) {
        case kBeat:
            return formatMs(rank.beatAgeMs);
        case kProgress:
            return formatMs(rank.progressAgeMs);
        case kTokens:
            return formatOptional(rank.tokensPerSecond, formatRate);
        case kCpu:
            return formatOptional(rank.cpuPercent, percent);
        case kMemory:
            return formatOptional(rank.rssBytes, formatBytes);
        case kGpu:
            return formatOptional(rank.gpuPercent, percent);
        default:
            return {};
    }
}

QVariant FleetModel::toneOf(const Row& row, const model::RankView* rank, int column) const {
    const auto as = [](Tone tone) { return QVariant(static_cast<int>(tone)); };
    const bool training = row.replica.state == model::ReplicaState::kTraining;
    if (column == kState && rank == nullptr) return as(tone(row.replica.state));
    if (column == kState) return as(Tone::kMuted);
    if (rank != nullptr && training && column == kBeat && rank->beatAgeMs > beatLimitMs_)
        return as(Tone::kWarning);
    if (rank != nullptr && training && column == kProgress &&
        rank->progressAgeMs > progressLimitMs_)
        return as(Tone::kWarning);
    if (column == kNode || column == kPid || column == kIncarnation) return as(Tone::kMuted);
    return {};
}

QVariant FleetModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const bool isRank = index.internalId() != kTop;
    const Row& row = rows_[isRank ? index.internalId() - 1 : static_cast<size_t>(index.row())];
    const model::RankView* rank = isRank ? &row.ranks[static_cast<size_t>(index.row())] : nullptr;
    switch (role) {
        case Qt::DisplayRole:
            return rank ? rankText(row, *rank, index.column()) : replicaText(row, index.column());
        case Qt::ToolTipRole:
            return index.column() == kState && !rank ? toQt(row.replica.why) : QVariant();
        case Qt::TextAlignmentRole:
            return index.column() >= kStep && index.column() <= kGpu
                       ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                       : QVariant();
        case kToneRole:
            return toneOf(row, rank, index.column());
        case kPillRole:
            return index.column() == kState && !rank;
        case kStateRole:
            return rank ? QVariant() : static_cast<int>(row.replica.state);
        case kReplicaRole:
            return row.replica.replica;
        case kShardRole:
            return rank ? rank->rank.shard : -1;
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
        QT_TR_NOOP("Replica"), QT_TR_NOOP("State"),    QT_TR_NOOP("Step"),
        QT_TR_NOOP("Inc."),    QT_TR_NOOP("Beat age"), QT_TR_NOOP("Progress age"),
        QT_TR_NOOP("Tokens"),  QT_TR_NOOP("CPU"),      QT_TR_NOOP("Memory"),
        QT_TR_NOOP("GPU"),     QT_TR_NOOP("Node"),     QT_TR_NOOP("Pid")};
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
