// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/runs_model.h"

#include <QCoreApplication>
#include <algorithm>
#include <array>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

std::optional<model::JobPhase> phaseOf(const model::RunInfo& run) {
    return enumFromName<model::JobPhase>(run.phase);
}

QString phaseText(const model::RunInfo& run) {
    if (const auto phase = phaseOf(run)) return label(*phase);
    if (run.phase.starts_with(model::kSupersededBy))
        return QCoreApplication::translate("labels", "Superseded by %1")
            .arg(QString::fromStdString(run.phase.substr(model::kSupersededBy.size())));
    return QCoreApplication::translate("labels", "Interrupted");
}

Tone phaseTone(const model::RunInfo& run) {
    const auto phase = phaseOf(run);
    if (!phase) return Tone::kWarning;
    return *phase == model::JobPhase::kFinished ? Tone::kGood : tone(*phase);
}

bool isFigure(int column) {
    return column >= RunsModel::kDuration && column <= RunsModel::kFaults;
}

}  // namespace

void RunsModel::set(std::vector<model::RunInfo> runs) {
    if (runs == rows_) return;
    const bool sameRows = std::equal(rows_.begin(), rows_.end(), runs.begin(), runs.end(),
                                     [](const auto& a, const auto& b) { return a.id == b.id; });
    if (sameRows && !rows_.empty()) {
        rows_ = std::move(runs);
        Q_EMIT dataChanged(index(0, 0), index(static_cast<int>(rows_.size()) - 1, kColumns - 1));
        return;
    }
    beginResetModel();
    rows_ = std::move(runs);
    endResetModel();
}

const model::RunInfo* RunsModel::at(int row) const {
    return row >= 0 && static_cast<size_t>(row) < rows_.size() ? &rows_[static_cast<size_t>(row)]
                                                               : nullptr;
}

int RunsModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int RunsModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QVariant RunsModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const model::RunInfo& run = rows_[static_cast<size_t>(index.row())];
    switch (role) {
        case Qt::DisplayRole:
            switch (index.column()) {
                case kName:
                    return toQt(run.id);
                case kStarted:
                    return formatClock(run.startedNs, true);
                case kDuration:
                    return formatElapsed(run.endedNs - run.startedNs);
                case kSize:
                    return QStringLiteral("%1\u00d7%2").arg(run.replicas).arg(run.shards);
                case kSteps:
                    return formatCount(run.steps);
                case kLoss:
                    return formatOptional(run.lastLoss,
                                          [](double v) { return formatNumber(v, 3); });
                case kEffective:
                    return formatOptional(run.effectiveTime, formatShare);
                case kIncidents:
                    return formatCount(run.incidents);
                case kFaults:
                    return formatCount(run.faults);
                case kHow:
                    return phaseText(run);
                case kNote:
                    return toQt(run.note);
                default:
                    return {};
            }
        case Qt::ToolTipRole:
            return index.column() == kName
                       ? tr("%1 on %2 events").arg(toQt(run.workload), formatCount(run.events))
                       : QVariant();
        case Qt::TextAlignmentRole:
            return isFigure(index.column()) ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                                            : QVariant();
        case kToneRole:
            if (index.column() == kHow) return static_cast<int>(phaseTone(run));
            if (index.column() == kStarted) return static_cast<int>(Tone::kMuted);
            return {};
        case kPillRole:
            return index.column() == kHow;
        case kIdRole:
            return toQt(run.id);
        case kTimeRole:
            return QVariant::fromValue<qint64>(run.startedNs);
        case kSortRole:
            switch (index.column()) {
                case kStarted:
                    return QVariant::fromValue<qint64>(run.startedNs);
                case kDuration:
                    return QVariant::fromValue<qint64>(run.endedNs - run.startedNs);
                case kSteps:
                    return QVariant::fromValue<qulonglong>(run.steps);
                case kLoss:
                    return run.lastLoss.value_or(1e300);
                case kEffective:
                    return run.effectiveTime.value_or(-1);
                case kIncidents:
                    return QVariant::fromValue<qulonglong>(run.incidents);
                case kFaults:
                    return QVariant::fromValue<qulonglong>(run.faults);
                default:
                    return data(index, Qt::DisplayRole);
            }
        default:
            return {};
    }
}

QVariant RunsModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= kColumns) return {};
    if (role == Qt::TextAlignmentRole)
        return isFigure(section) ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                                 : QVariant(Qt::AlignLeft | Qt::AlignVCenter);
    static const std::array<const char*, kColumns> kTitles = {
        QT_TR_NOOP("Run"),       QT_TR_NOOP("Started"),   QT_TR_NOOP("Duration"),
        QT_TR_NOOP("R\u00d7S"),  QT_TR_NOOP("Steps"),     QT_TR_NOOP("Last loss"),
        QT_TR_NOOP("Effective"), QT_TR_NOOP("Incidents"), QT_TR_NOOP("Faults"),
        QT_TR_NOOP("State"),     QT_TR_NOOP("Note")};
    if (role == Qt::DisplayRole) return tr(kTitles[static_cast<size_t>(section)]);
    if (role == Qt::ToolTipRole && section == kEffective) return tr("Effective training time");
    if (role == Qt::ToolTipRole && section == kSize) return tr("Replicas \u00d7 shards");
    return {};
}

}  // namespace bulkhead::ui
