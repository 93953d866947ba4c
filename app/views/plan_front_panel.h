// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>

#include "app/models/rows_model.h"
#include "backend/planner/live/live_front.h"

class QLabel;
class QTableView;

namespace bulkhead::ui {

class ScatterChart;

/// The plans that the planner found, what each saves and costs, and which it recommends: as points
/// and as a table, in which one is chosen.
class PlanFrontPanel final : public QWidget {
    Q_OBJECT
  public:
    explicit PlanFrontPanel(QWidget* parent = nullptr);

    /// `chosen` -1: none of them. Null: none were asked for.
    void set(const planner::LiveFront* front, int chosen);

  Q_SIGNALS:
    void picked(int point);

  private:
    RowsModel rows_;
    QLabel* reason_;
    ScatterChart* chart_;
    QTableView* table_;
    bool filling_ = false;
};

}  // namespace bulkhead::ui
