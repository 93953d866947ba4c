// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <vector>

#include "app/models/fleet_model.h"
#include "app/views/view.h"

class QLabel;
class QPlainTextEdit;
class QToolButton;
class QTreeView;

namespace bulkhead::ui {

/// Every replica and rank, and the nodes they run on; select one and act on it.
class FleetView final : public View {
    Q_OBJECT
  public:
    explicit FleetView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;

    /// Replica of the selected row, -1 for none; shard of it, -1 for a whole replica.
    int selectedReplica() const;
    int selectedShard() const;
    /// Node that the selected row is, or is on; empty for none.
    QString selectedNode() const;
    void select(int replica, int shard = -1);
    void selectNode(const QString& node);

  Q_SIGNALS:
    /// The operator wants to compose a fault for the selected target.
    void faultWanted(int replica, int shard, const QString& node);

  protected:
    void refresh() override;

  private:
    void addActions();
    void actOnSelected(model::ActionKind kind);
    void refreshDetail();
    void refreshOutput();
    void enableActions();
    void enable(const char* id, bool can);

    FleetModel model_;
    QTreeView* tree_;
    QLabel* target_;
    std::vector<QToolButton*> buttons_;
    QLabel* detail_;
    QPlainTextEdit* output_;
    uint64_t outputTotal_ = 0;
    int outputReplica_ = -2;
    int outputShard_ = -2;
    Revisions drawn_;
};

}  // namespace bulkhead::ui
