// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>

#include "app/models/fault_model.h"
#include "app/models/incident_model.h"
#include "app/views/view.h"

class QComboBox;
class QDoubleSpinBox;
class QFormLayout;
class QLabel;
class QPushButton;
class QSpinBox;
class QTabWidget;
class QTableView;

namespace bulkhead::ui {

class CampaignPage;
class IncidentBars;

/// Compose a fault, read what it would do, inject it, see what it caused; or run whole campaigns.
class FaultsView final : public View {
    Q_OBJECT
  public:
    explicit FaultsView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;

    /// The fault as composed, fields its kind lacks left empty.
    model::FaultSpec composed() const;
    /// A rank, a whole replica (shard -1), or a node (replica -1).
    void aimAt(int replica, int shard, const QString& node = {});

    CampaignPage& campaigns() { return *campaigns_; }
    void showCampaigns();

  protected:
    void refresh() override;

  private:
    QWidget* makeComposer();
    QWidget* makeList();
    void showFields();
    void fillTargets();
    void askPreflight();
    void showSelected();
    void composeChanged();
    void enableActions();
    void refreshFaults();

    FaultModel model_;
    QComboBox* kind_;
    QComboBox* replica_;
    QComboBox* shard_;
    QComboBox* node_;
    QSpinBox* step_;
    QComboBox* phase_;
    QDoubleSpinBox* duration_;
    QDoubleSpinBox* factor_;
    QSpinBox* delay_;
    QFormLayout* form_;
    QLabel* sentence_;
    QLabel* effect_;
    QPushButton* inject_;
    QTableView* table_;
    IncidentBars* bars_;
    CampaignPage* campaigns_;
    QTabWidget* tabs_;
    QTimer preflightTimer_;
    std::vector<model::ReplicaState> states_;  ///< when the pre-flight was asked
    uint64_t asked_ = 0;
    Revisions drawn_;
};

}  // namespace bulkhead::ui
