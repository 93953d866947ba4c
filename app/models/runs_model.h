// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <vector>

#include "backend/model/listing.h"

namespace bulkhead::ui {

/// The runs of a history file, newest first.
class RunsModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    enum Column {
        kName,
        kStarted,
        kDuration,
        kSize,
        kSteps,
        kLoss,
        kEffective,
        kIncidents,
        kFaults,
        kHow,
        kNote,
        kColumns
    };
    using QAbstractTableModel::QAbstractTableModel;

    void set(std::vector<model::RunInfo> runs);
    /// Null when out of range; valid until the next set().
    const model::RunInfo* at(int row) const;

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    std::vector<model::RunInfo> rows_;
};

}  // namespace bulkhead::ui
