// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>

#include "app/models/placement.h"

class QAction;
class QLabel;
class QTableView;

namespace bulkhead::ui {

/// The experts that the job's plans keep where somebody said, and a button that frees one.
class RulesPanel final : public QWidget {
    Q_OBJECT
  public:
    /// `free` frees the expert that picked() named last.
    explicit RulesPanel(QAction* free, QWidget* parent = nullptr);
    void set(const Placement& placement);

  Q_SIGNALS:
    void picked(int layer, int expert);

  private:
    RowsModel rows_;
    std::vector<model::ExpertRule> rules_;
    QTableView* table_;
    QLabel* none_;
};

}  // namespace bulkhead::ui
