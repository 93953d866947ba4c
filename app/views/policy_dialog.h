// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>
#include <QTimer>

#include "app/models/policy_form.h"
#include "app/views/view.h"

class QComboBox;
class QLabel;
class QPushButton;
class QSpinBox;
class QStackedWidget;

namespace bulkhead::ui {

/// One policy of the running job: what it is now, what it shall be, what that would do.
class PolicyDialog final : public QDialog {
    Q_OBJECT
  public:
    PolicyDialog(ViewContext& context, const QString& key, QWidget* parent);
    /// The change as composed.
    model::Action composed() const;

  private:
    const PolicyField& field() const;
    void showPolicy();
    void showNow();
    void askPreflight();
    void changed();

    ViewContext& context_;
    QComboBox* policy_;
    QLabel* hint_;
    QLabel* now_;
    QStackedWidget* editor_;
    QComboBox* choice_;
    QSpinBox* number_;
    QLabel* effect_;
    QPushButton* set_;
    QTimer preflightTimer_;
    uint64_t asked_ = 0;
};

}  // namespace bulkhead::ui
