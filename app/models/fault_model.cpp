// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/fault_model.h"

#include <QStringList>
#include <algorithm>
#include <array>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "backend/model/command_text.h"

namespace bulkhead::ui {
namespace {

QString incidentList(const model::FaultView& fault) {
    QStringList names;
    for (const uint64_t id : fault.incidents) names << QStringLiteral("#%1").arg(id);
    return names.isEmpty() ? noFigure() : names.join(QStringLiteral(", "));
}

}  // namespace

FaultModel::FaultModel(const RunFeed& feed, QObject* parent)
    : QAbstractTableModel(parent), feed_(feed) {}

void FaultModel::refresh() {
    std::vector<model::FaultView> fresh = feed_.state().faults.toVector();
    std::reverse(fresh.begin(), fresh.end());
    const bool sameRows =
        std::equal(rows_.begin(), rows_.end(), fresh.begin(), fresh.end(),
                   [](const auto& a, const auto& b) { return a.fault == b.fault; });
    if (!sameRows) {
        beginResetModel();
        rows_ = std::move(fresh);
        endResetModel();
    } else if (!rows_.empty()) {
        rows_ = std::move(fresh);
        Q_EMIT dataChanged(index(0, 0), index(static_cast<int>(rows_.size()) - 1, kColumns - 1));
    }
}

const model::FaultView* FaultModel::at(int row) const {
    return row >= 0 && static_cast<size_t>(row) < rows_.size() ? &rows_[static_cast<size_t>(row)]
                                                               : nullptr;
}

int FaultModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int FaultModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QVariant FaultModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const model::FaultView& row = rows_[static_cast<size_t>(index.row())];
    const bool running = row.endedNs == 0;
    switch (role) {
        case Qt::DisplayRole:
            switch (index.column()) {
                case kId:
                    return QStringLiteral("#%1").arg(row.fault);
                case kTime:
                    return formatElapsed(row.injectedNs - feed_.state().startedNs);
                case kFault:
                    return toQt(model::describe(row.spec));
                case kStep:
                    return row.step == 0 ? noFigure() : formatCount(row.step);
                case kBy:
                    return toQt(row.by);
                case kState:
                    return running ? tr("active") : toQt(row.outcome);
                case kIncident:
                    return incidentList(row);
                default:
                    return {};
            }
        case Qt::ToolTipRole:
            return toQt(model::describe(row.spec));
        case Qt::TextAlignmentRole:
            return index.column() == kTime || index.column() == kStep
                       ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                       : QVariant();
        case kToneRole:
            if (index.column() == kState)
                return static_cast<int>(running ? Tone::kWarning : Tone::kNeutral);
            if (index.column() == kId || index.column() == kTime || index.column() == kBy)
                return static_cast<int>(Tone::kMuted);
            return {};
        case kPillRole:
            return index.column() == kState && running;
        case kTimeRole:
            return QVariant::fromValue<qint64>(row.injectedNs);
        case kReplicaRole:
            return row.spec.replica;
        case kIdRole:
            return QVariant::fromValue<qulonglong>(row.fault);
        default:
            return {};
    }
}

QVariant FaultModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= kColumns) return {};
    if (role == Qt::TextAlignmentRole)
        return section == kTime || section == kStep ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                                                    : QVariant(Qt::AlignLeft | Qt::AlignVCenter);
    static const std::array<const char*, kColumns> kTitles = {
        QT_TR_NOOP("No."), QT_TR_NOOP("At"),    QT_TR_NOOP("Fault"),   QT_TR_NOOP("In step"),
        QT_TR_NOOP("By"),  QT_TR_NOOP("State"), QT_TR_NOOP("Incident")};
    return role == Qt::DisplayRole ? tr(kTitles[static_cast<size_t>(section)]) : QVariant();
}

}  // namespace bulkhead::ui
