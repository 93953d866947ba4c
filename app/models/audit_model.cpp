// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/audit_model.h"

#include <algorithm>

#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

QString who(const model::AuditEntry& entry) {
    if (entry.principal.empty()) return AuditModel::tr("Unknown");
    return QStringLiteral("%1 (%2)").arg(toQt(entry.principal), toQt(entry.via));
}

/// Without gRPC's "ipv4:".
QString from(const model::AuditEntry& entry) {
    if (entry.peer.starts_with("unix")) return AuditModel::tr("This machine");
    const QString peer = toQt(entry.peer);
    return peer.startsWith(QStringLiteral("ipv")) ? peer.mid(peer.indexOf(u':') + 1) : peer;
}

QString orNone(const std::string& text) {
    return text.empty() ? noFigure() : toQt(text);
}

QString words(AuditModel::Result result) {
    switch (result) {
        case AuditModel::Result::kDone:
            return AuditModel::tr("Done");
        case AuditModel::Result::kFailed:
            return AuditModel::tr("Failed");
        case AuditModel::Result::kRefused:
            return AuditModel::tr("Refused");
    }
    return {};
}

/// The call's effect, or why it had none.
QString effect(const model::AuditEntry& entry) {
    const QString text = orNone(entry.message);
    return entry.repeated == 0 ? text
                               : AuditModel::tr("%1 (and %2 more before it)")
                                     .arg(text, formatCount(entry.repeated));
}

/// Tells what does not fit into a row.
QString details(const model::AuditEntry& entry) {
    QStringList lines{effect(entry)};
    if (!entry.request.empty()) lines << AuditModel::tr("Request: %1").arg(toQt(entry.request));
    if (!entry.by.empty()) lines << AuditModel::tr("The caller's own name: %1").arg(toQt(entry.by));
    lines << AuditModel::tr("Entry %1, %2").arg(formatCount(entry.seq), toQt(entry.outcome));
    for (QString& line : lines) line = line.toHtmlEscaped();
    return QStringLiteral("<p>%1</p>").arg(lines.join(QStringLiteral("<br>")));
}

}  // namespace

AuditModel::Result AuditModel::resultOf(const model::AuditEntry& entry) {
    if (entry.outcome == "ok") return Result::kDone;
    return entry.outcome == "PERMISSION_DENIED" || entry.outcome == "UNAUTHENTICATED"
               ? Result::kRefused
               : Result::kFailed;
}

void AuditModel::add(std::vector<model::AuditEntry> entries) {
    std::erase_if(entries, [this](const model::AuditEntry& e) { return e.seq <= newest(); });
    if (entries.empty()) return;
    std::ranges::sort(entries, std::greater(), &model::AuditEntry::seq);
    beginInsertRows({}, 0, static_cast<int>(entries.size()) - 1);
    rows_.insert(rows_.begin(), std::make_move_iterator(entries.begin()),
                 std::make_move_iterator(entries.end()));
    endInsertRows();
    if (rows_.size() <= kCapacity) return;
    beginRemoveRows({}, kCapacity, static_cast<int>(rows_.size()) - 1);
    rows_.resize(kCapacity);
    endRemoveRows();
}

void AuditModel::clear() {
    if (rows_.empty()) return;
    beginResetModel();
    rows_.clear();
    endResetModel();
}

int AuditModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int AuditModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QVariant AuditModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const model::AuditEntry& entry = rows_[static_cast<size_t>(index.row())];
    const Result result = resultOf(entry);
    switch (role) {
        case Qt::DisplayRole:
            switch (index.column()) {
                case kTime:
                    return formatClock(entry.timeNs, true);
                case kWho:
                    return who(entry);
                case kFrom:
                    return from(entry);
                case kCall:
                    return toQt(entry.call);
                case kJob:
                    return orNone(entry.object);
                case kRevision:
                    return entry.revision == 0 ? noFigure() : formatCount(entry.revision);
                case kResult:
                    return words(result);
                case kEffect:
                    return effect(entry);
                default:
                    return {};
            }
        case Qt::ToolTipRole:
            return details(entry);
        case Qt::TextAlignmentRole:
            return index.column() == kRevision ? QVariant(Qt::AlignRight | Qt::AlignVCenter)
                                               : QVariant();
        case kToneRole:
            if (index.column() == kTime) return static_cast<int>(Tone::kMuted);
            if (result == Result::kRefused) return static_cast<int>(Tone::kBad);
            if (result == Result::kFailed) return static_cast<int>(Tone::kWarning);
            return index.column() == kResult ? QVariant(static_cast<int>(Tone::kGood)) : QVariant();
        case kPillRole:
            return index.column() == kResult;
        case kTimeRole:
            return QVariant::fromValue<qint64>(entry.timeNs);
        case kIdRole:
            return QVariant::fromValue<qulonglong>(entry.seq);
        case kSortRole:
            return static_cast<int>(result);
        default:
            return {};
    }
}

QVariant AuditModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= kColumns) return {};
    if (role == Qt::TextAlignmentRole)
        return QVariant((section == kRevision ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
    if (role == Qt::ToolTipRole && section == kRevision)
        return tr("Revision of the job that the caller expected");
    if (role != Qt::DisplayRole) return {};
    const QString titles[] = {tr("Time"), tr("Result"), tr("Who"),      tr("From"),
                              tr("Call"), tr("Job"),    tr("Revision"), tr("Effect or reason")};
    return titles[section];
}

void AuditFilter::setLeast(AuditModel::Result result) {
    least_ = result;
    invalidateFilter();
}

void AuditFilter::setText(const QString& text) {
    text_ = text;
    invalidateFilter();
}

bool AuditFilter::filterAcceptsRow(int row, const QModelIndex& parent) const {
    const QAbstractItemModel* model = sourceModel();
    const auto at = [&](int column) { return model->index(row, column, parent); };
    if (at(0).data(kSortRole).toInt() < static_cast<int>(least_)) return false;
    if (text_.isEmpty()) return true;
    for (int column = 0; column < AuditModel::kColumns; ++column)
        if (at(column).data().toString().contains(text_, Qt::CaseInsensitive)) return true;
    return at(0)
        .data(Qt::ToolTipRole)
        .toString()
        .contains(text_.toHtmlEscaped(), Qt::CaseInsensitive);
}

}  // namespace bulkhead::ui
