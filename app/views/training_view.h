// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <vector>

#include "app/views/view.h"

class QLabel;
class QSlider;

namespace bulkhead::ui {

class TimeSeriesView;

/// Loss, gradient norm, tokens, contributors, learning rate and effective training time over steps.
class TrainingView final : public View {
    Q_OBJECT
  public:
    explicit TrainingView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;

  protected:
    void refresh() override;
    bool hasContent() const override;

  private:
    enum Chart { kLoss, kGradNorm, kTokens, kContributors, kRate, kEffective, kCharts };
    void addControls();
    void placeCursor();
    void placeFrame();
    void exportChart(TimeSeriesView* chart, bool picture);
    double smoothing() const;

    std::vector<TimeSeriesView*> charts_;
    QSlider* smoothing_;
    QLabel* range_;
    QAction* byDomain_;
    Revisions drawn_;
};

}  // namespace bulkhead::ui
