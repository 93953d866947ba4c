// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>

#include "backend/planner/live/live_front.h"

class QAction;
class QLabel;
class QProgressBar;

namespace bulkhead::ui {

/// Shows the progress of the search for plans, the best so far, and the button that ends it.
class PlanProgress final : public QWidget {
    Q_OBJECT
  public:
    explicit PlanProgress(QAction* stop, QWidget* parent = nullptr);
    void set(const planner::LiveFrontProgress& progress);

  private:
    QProgressBar* bar_;
    QLabel* words_;
};

}  // namespace bulkhead::ui
