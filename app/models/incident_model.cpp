// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/incident_model.h"

#include <algorithm>
#include <array>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "backend/model/incident_phases.h"

namespace bulkhead::ui {

IncidentModel::IncidentModel(const RunFeed& feed, QObject* parent)
    : QAbstractTableModel(parent), feed_(feed) {}

void IncidentModel::refresh() {
    std::vector<model::IncidentView> fresh = feed_.state().incidents.toVector();
    std::reverse(fresh.begin(), fresh.end());
    const size_t before = rows_.size();
    const bool grewAtTop =
        fresh.size() >= before &&
        (before == 0 || fresh[fresh.size() - before].incident == rows_.front().incident);
    if (!grewAtTop) {
        beginResetModel();
        rows_ = std::move(fresh);
        endResetModel();
        return;
    }
    if (const size_t added = fresh.size() - before; added > 0) {
        beginInsertRows({}, 0, static_cast<int>(added) - 1);
        rows_ = std::move(fresh);
        endInsertRows();
    } else {
        rows_ = std::move(fresh);
    }
    if (!rows_.empty())
        Q_EMIT dataChanged(index(0, 0), index(static_cast<int>(rows_.size()) - 1, kColumns - 1));
}

const model::IncidentView* IncidentModel::at(int row) const {
    return row >= 0 && static_cast<size_t>(row) < rows_.size() ? &rows_[static_cast<size_t>(row)]
                                                               : nullptr;
}

int IncidentModel::rowOf(uint64_t incident) const {
    for (size_t i = 0; i < rows_.size(); ++i)
        if (rows_[i].incident == incident) return static_cast<int>(i);
    return -1;
}

int IncidentModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int IncidentModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QString IncidentModel::text(const model::IncidentView& i, int column) const {
    switch (column) {
        case kId:
            return QStringLiteral("#%1").arg(i.incident);
        case kTime:
            return formatElapsed(i.openedNs - feed_.state().startedNs);
        case kReplica:
            return replicaName(i.replica);
        case kCause:
            return label(i.cause) + (i.fault == 0 ? QString() : tr(" (fault #%1)").arg(i.fault));
        case kDetect:
            return formatOptional(model::phaseMs(i, model::IncidentPhaseKind::kDetect), formatMs);
        case kStall:
            return formatMs(i.survivorStallMs);
        case kRejoin:
            return i.rejoinMs > 0 ? formatMs(i.rejoinMs) : noFigure();
        case kLost:
            return i.closedNs == 0
                       ? noFigure()
                       : formatNumber(i.replicaSeconds, 1) + QStringLiteral("\u202freplica-s");
        case kOutcome:
            return i.closedNs == 0 ? tr("open") : toQt(i.outcome);
        default:
            return {};
    }
}

QVariant IncidentModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const model::IncidentView& row = rows_[static_cast<size_t>(index.row())];
    const int column = index.column();
    switch (role) {
        case Qt::DisplayRole:
            return text(row, column);
        case Qt::ToolTipRole:
            return toQt(row.title);
        case Qt::TextAlignmentRole:
            return column == kTime || (column >= kDetect && column <= kLost)
                       ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                       : QVariant();
        case kToneRole:
            if (column == kOutcome)
                return static_cast<int>(row.closedNs == 0 ? Tone::kWarning : Tone::kNeutral);
            if (column == kId || column == kTime) return static_cast<int>(Tone::kMuted);
            return {};
        case kPillRole:
            return column == kOutcome && row.closedNs == 0;
        case kTimeRole:
            return QVariant::fromValue<qint64>(row.openedNs);
        case kReplicaRole:
            return row.replica;
        case kIdRole:
            return QVariant::fromValue<qulonglong>(row.incident);
        default:
            return {};
    }
}

QVariant IncidentModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= kColumns) return {};
    if (role == Qt::TextAlignmentRole)
        return section == kTime || (section >= kDetect && section <= kLost)
                   ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                   : QVariant(Qt::AlignLeft | Qt::AlignVCenter);
    static const std::array<const char*, kColumns> kTitles = {
        QT_TR_NOOP("No."),        QT_TR_NOOP("At"),       QT_TR_NOOP("Replica"),
        QT_TR_NOOP("Evidence"),   QT_TR_NOOP("Detected"), QT_TR_NOOP("Survivors' stall"),
        QT_TR_NOOP("Back after"), QT_TR_NOOP("Cost"),     QT_TR_NOOP("Outcome")};
    if (role == Qt::DisplayRole) return tr(kTitles[static_cast<size_t>(section)]);
    if (role == Qt::ToolTipRole && section == kLost)
        return tr("Replica-seconds: by the replica, and by the survivors while they stood still");
    return {};
}

}  // namespace bulkhead::ui
