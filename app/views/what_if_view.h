// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>
#include <array>
#include <optional>

#include "app/models/what_if_study.h"
#include "app/session/background.h"
#include "app/views/view.h"

class QGridLayout;

namespace bulkhead::ui {

class ScaleChart;
class ShareBar;
class WhatIfPanel;

/// Shows the throughput of a job of any size, simulated while its numbers are changed, with
/// the live job's own figures beside it. Needs no run.
class WhatIfView final : public View {
    Q_OBJECT
  public:
    explicit WhatIfView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;

  protected:
    void refresh() override;
    bool hasContent() const override { return true; }
    bool isOfNow() const override { return false; }

  private:
    enum Row { kEffective, kStall, kReturn, kRedone, kRows };
    QWidget* makePanel();
    QWidget* makeFigures();
    QGridLayout* makeTable();
    void ask();
    void showStudy(const WhatIfStudy& study);
    void showColumn(size_t column, const WhatIfFigures& figures);

    Background background_;
    QTimer settle_;  ///< from the last change to the question
    bool asked_ = false;
    WhatIfPanel* panel_;
    QAction* restore_;
    QLabel* figure_;
    QLabel* of_;
    QLabel* over_;
    ScaleChart* chart_;
    QLabel* lost_;
    ShareBar* bar_;
    std::array<std::array<QLabel*, kRows>, 2> table_{};  ///< this scenario, live job
};

}  // namespace bulkhead::ui
