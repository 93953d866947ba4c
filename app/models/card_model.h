// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <map>
#include <vector>

#include "app/models/run_feed.h"
#include "backend/model/incident_card.h"

namespace bulkhead::ui {

/// Incident cards as rows: problems that stand, open incidents, those that are over, each newest
/// first.
class CardModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    enum Column { kTitle, kTime, kBack, kCost, kColumns };
    explicit CardModel(const RunFeed& feed, model::Prices prices, QObject* parent = nullptr);

    void refresh();
    /// Null when out of range; valid until the next refresh().
    const model::IncidentCard* at(int row) const;
    /// Row of an incident; -1: none.
    int rowOf(uint64_t incident) const;
    /// Rows that are not over.
    int openCount() const;

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    QString text(const model::IncidentCard& card, int column) const;

    const RunFeed& feed_;
    model::Prices prices_;
    std::vector<model::IncidentCard> rows_;
};

}  // namespace bulkhead::ui
