// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <vector>

#include "app/models/run_feed.h"

namespace bulkhead::ui {

/// Injected faults, newest first, with what each caused.
class FaultModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    enum Column { kId, kTime, kFault, kStep, kBy, kState, kIncident, kColumns };
    explicit FaultModel(const RunFeed& feed, QObject* parent = nullptr);

    void refresh();
    /// Null when out of range; valid until the next refresh().
    const model::FaultView* at(int row) const;

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    const RunFeed& feed_;
    std::vector<model::FaultView> rows_;
};

}  // namespace bulkhead::ui
