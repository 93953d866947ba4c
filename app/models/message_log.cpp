// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/message_log.h"

#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {

void MessageLog::add(int64_t atNs, const QString& text, Tone tone) {
    if (rows_.size() == kCapacity) {
        const auto last = static_cast<int>(kCapacity) - 1;
        beginRemoveRows({}, last, last);
        rows_.pop_back();
        endRemoveRows();
    }
    beginInsertRows({}, 0, 0);
    rows_.push_front({atNs, text, tone});
    endInsertRows();
}

int MessageLog::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int MessageLog::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QVariant MessageLog::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const Row& row = rows_[static_cast<size_t>(index.row())];
    const bool time = index.column() == kTime;
    switch (role) {
        case Qt::DisplayRole:
            return time ? formatClock(row.atNs) : row.text;
        case Qt::ToolTipRole:
            return row.text;
        case kToneRole:
            return static_cast<int>(time ? Tone::kMuted : row.tone);
        default:
            return {};
    }
}

QVariant MessageLog::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal) return {};
    if (role == Qt::TextAlignmentRole) return QVariant(Qt::AlignLeft | Qt::AlignVCenter);
    if (role != Qt::DisplayRole) return {};
    return section == kTime ? tr("Time") : tr("Message");
}

}  // namespace bulkhead::ui
