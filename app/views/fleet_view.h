// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>
#include <vector>

#include "app/models/fleet_model.h"
#include "app/views/view.h"

class QLabel;
class QPlainTextEdit;
class QSplitter;
class QStackedWidget;
class QToolButton;
class QTreeView;

namespace bulkhead::ui {

class FleetMapPanel;

/// Every replica and rank, and the nodes they run on, as a map or as a table; select one and act on
/// it. Both show the same selection. Until the operator chooses, a large fleet is a map.
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
    /// Remembered for the next run and the next start.
    void choose(bool map);
    bool showsMap() const;
    FleetMapPanel& mapPanel() { return *panel_; }

  Q_SIGNALS:
    /// The operator wants to compose a fault for the selected target.
    void faultWanted(int replica, int shard, const QString& node);

  protected:
    void refresh() override;
    void resizeEvent(QResizeEvent* event) override;

  private:
    void makeRoom();
    void addActions();
    void addSwitch();
    void turnTo(bool map);
    void keepSelection();
    void fillShown();
    void setSelected(int replica, int shard, const QString& node);
    void markSelected();
    void actOnSelected(model::ActionKind kind);
    void refreshDetail();
    void refreshOutput();
    void enableActions();
    void enable(const char* id, bool can);

    FleetModel model_;
    QTreeView* tree_;
    FleetMapPanel* panel_;
    QStackedWidget* pages_;
    QLabel* target_;
    std::vector<QToolButton*> buttons_;
    QSplitter* below_;  ///< details and output
    QLabel* detail_;
    QPlainTextEdit* output_;
    int replica_ = -1;  ///< selected
    int shard_ = -1;
    QString node_;          ///< selected, where no replica is
    bool marking_ = false;  ///< the table is being told of the selection, and does not tell of it
    QTimer fill_;           ///< runs while the map is due to be filled
    uint64_t outputTotal_ = 0;
    int outputReplica_ = -2;
    int outputShard_ = -2;
    Revisions drawn_;
};

}  // namespace bulkhead::ui
