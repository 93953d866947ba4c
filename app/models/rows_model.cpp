// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/rows_model.h"

#include <algorithm>

#include "app/models/roles.h"

namespace bulkhead::ui {

RowsModel::RowsModel(QStringList titles, std::vector<int> figures, QObject* parent)
    : QAbstractTableModel(parent), titles_(std::move(titles)), figures_(std::move(figures)) {}

void RowsModel::setRows(std::vector<Row> rows) {
    if (rows == rows_) return;
    if (rows.size() != rows_.size()) {
        beginResetModel();
        rows_ = std::move(rows);
        endResetModel();
        return;
    }
    rows_ = std::move(rows);
    Q_EMIT dataChanged(index(0, 0), index(rowCount() - 1, columnCount() - 1));
}

int RowsModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int RowsModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(titles_.size());
}

Qt::Alignment RowsModel::alignment(int column) const {
    const bool figure = std::find(figures_.begin(), figures_.end(), column) != figures_.end();
    return (figure ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter;
}

QVariant RowsModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const Row& row = rows_[static_cast<size_t>(index.row())];
    if (static_cast<size_t>(index.column()) >= row.size()) return {};
    const Cell& cell = row[static_cast<size_t>(index.column())];
    switch (role) {
        case Qt::DisplayRole:
        case Qt::ToolTipRole:
            return cell.text;
        case Qt::TextAlignmentRole:
            return QVariant(alignment(index.column()));
        case kToneRole:
            return static_cast<int>(cell.tone);
        case kPillRole:
            return cell.pill;
        default:
            return {};
    }
}

QVariant RowsModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= columnCount()) return {};
    if (role == Qt::TextAlignmentRole) return QVariant(alignment(section));
    return role == Qt::DisplayRole ? titles_[section] : QVariant();
}

}  // namespace bulkhead::ui
