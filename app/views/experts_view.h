// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <vector>

#include "app/models/expert_grid.h"
#include "app/views/view.h"

class QComboBox;
class QLabel;
class QTableView;

namespace bulkhead::ui {

class ExpertStudyTabs;
class HeatMap;
class TimeSeriesView;

/// Shows the load of experts, by layer and by domain: heat maps, their text twin, imbalance over
/// time, and what else routing shows, of the job or of a recording.
class ExpertsView final : public View {
    Q_OBJECT
  public:
    explicit ExpertsView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    /// Of routing, token by token or counts: what it shows takes the place of the job's.
    void openRecording(const QString& path);

  protected:
    void refresh() override;
    bool hasContent() const override;

  private:
    void addActions();
    void askRecording();
    void showLive(bool live);
    QStringList domainNames() const;
    ExpertGrid gridOf(int domain) const;
    void fillDomains();
    LoadWindow window() const;

    HeatMap* map_;
    QComboBox* domain_;
    QComboBox* window_;
    QTableView* table_;
    ExpertTableModel model_;
    TimeSeriesView* imbalance_;
    ExpertStudyTabs* study_ = nullptr;
    QWidget* smallRow_;
    std::vector<HeatMap*> small_;
    QStringList domains_;  ///< that the box and the small maps are made for
    Revisions drawn_;
};

}  // namespace bulkhead::ui
