// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <vector>

#include "app/models/run_feed.h"

namespace bulkhead::ui {

/// Incidents, newest first: what happened, what it cost, how it ended.
class IncidentModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    enum Column {
        kId,
        kTime,
        kReplica,
        kCause,
        kDetect,
        kStall,
        kRejoin,
        kLost,
        kOutcome,
        kColumns
    };
    explicit IncidentModel(const RunFeed& feed, QObject* parent = nullptr);

    void refresh();
    /// Null when out of range; valid until the next refresh().
    const model::IncidentView* at(int row) const;
    int rowOf(uint64_t incident) const;

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    QString text(const model::IncidentView& incident, int column) const;

    const RunFeed& feed_;
    std::vector<model::IncidentView> rows_;
};

}  // namespace bulkhead::ui
