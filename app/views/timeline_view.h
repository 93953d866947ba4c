// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "app/models/incident_model.h"
#include "app/views/view.h"

class QLabel;
class QTableView;

namespace bulkhead::ui {

class IncidentBars;
class LaneTimeline;

/// Lanes over time, the incidents below, the phases of the selected one.
class TimelineView final : public View {
    Q_OBJECT
  public:
    explicit TimelineView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    void selectIncident(uint64_t incident);

  protected:
    void refresh() override;

  private:
    void addActions();
    void addLegend();
    void showSelected();
    void frameSelected();
    void showFrame();

    IncidentModel model_;
    LaneTimeline* lanes_;
    QTableView* table_;
    IncidentBars* bars_;
    QLabel* range_;
    Revisions drawn_;
};

}  // namespace bulkhead::ui
