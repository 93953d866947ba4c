// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QFrame>

class QAction;
class QLabel;
class QToolButton;

namespace bulkhead::ui {

/// Says that the backend has proposed a plan: why, and what it would do. Hidden while none waits.
class ProposalBanner final : public QFrame {
    Q_OBJECT
  public:
    ProposalBanner(QAction* look, QAction* dismiss, QWidget* parent = nullptr);
    /// Empty: hides.
    void set(const QString& headline, const QString& words);

  private:
    QLabel* headline_;
    QLabel* words_;
};

}  // namespace bulkhead::ui
