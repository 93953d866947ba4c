// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "app/models/fleet_model.h"
#include "app/views/view.h"

class QLabel;
class QPlainTextEdit;
class QTreeView;

namespace bulkhead::ui {

class JobCommands;

/// Every replica and rank; select one and act on it.
class FleetView final : public View {
    Q_OBJECT
  public:
    FleetView(ViewContext& context, JobCommands& commands, QWidget* parent = nullptr);
    QWidget* focusTarget() override;

    /// Replica of the selected row, -1 for none; shard of it, -1 for a whole replica.
    int selectedReplica() const;
    int selectedShard() const;
    void select(int replica, int shard = -1);

  Q_SIGNALS:
    /// The operator wants to compose a fault for the selected target.
    void faultWanted(int replica, int shard);

  protected:
    void refresh() override;

  private:
    void addActions();
    void actOnSelected(model::ActionKind kind);
    void refreshDetail();
    void enableActions();

    JobCommands& commands_;
    FleetModel model_;
    QTreeView* tree_;
    QLabel* detail_;
    QPlainTextEdit* output_;
    uint64_t outputTotal_ = 0;
    int outputReplica_ = -2;
    int outputShard_ = -2;
    Revisions drawn_;
};

}  // namespace bulkhead::ui
