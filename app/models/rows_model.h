// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <QString>
#include <QStringList>
#include <vector>

#include "app/models/labels.h"

namespace bulkhead::ui {

struct Cell {
    QString text;
    Tone tone = Tone::kNeutral;
    bool pill = false;
    bool operator==(const Cell&) const = default;
};

/// A table of ready words for short lists that are told anew as a whole: titles, and which columns
/// hold figures (right-aligned). Rows that stay in number change in place, so that a selection and
/// the place scrolled to stay.
class RowsModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    using Row = std::vector<Cell>;
    RowsModel(QStringList titles, std::vector<int> figures, QObject* parent = nullptr);

    void setRows(std::vector<Row> rows);

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    Qt::Alignment alignment(int column) const;

    QStringList titles_;
    std::vector<int> figures_;
    std::vector<Row> rows_;
};

}  // namespace bulkhead::ui
