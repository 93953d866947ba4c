// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTemporaryDir>
#include <optional>

#include "app/models/placement.h"
#include "app/session/plan_desk.h"
#include "app/views/view.h"
#include "backend/planner/export/engine_files.h"

class QCheckBox;
class QDoubleSpinBox;
class QLabel;
class QSpinBox;
class QStackedWidget;
class QTableView;
class QTabWidget;

namespace bulkhead::ui {

class PlacementBoard;
class PlanFrontPanel;
class PlanProgress;
class ProposalBanner;
class RulesPanel;

/// Where the experts lie, what a plan would move and save, and how to get there: proposed by the
/// planner or by hand, looked at beside what is, applied behind the same question as every command.
class PlacementView final : public View {
    Q_OBJECT
  public:
    explicit PlacementView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    /// A plan of ours, to be looked at.
    void importFrom(const QString& path);
    /// The proposed layout, or else the one in use, in the format of `engine`.
    void exportTo(const QString& path, planner::Engine engine);
    /// The same as a file of ours that lives as long as the page, for who drags it away; empty
    /// after a complaint.
    QString fileToDrag();

  protected:
    void refresh() override;
    void dragEnterEvent(QDragEnterEvent* event) override;
    void dropEvent(QDropEvent* event) override;
    bool hasContent() const override;
    QString emptyText() const override;

  private:
    void addActions();
    QWidget* makeHead();
    QWidget* makeBoard();
    QWidget* makeDetails();
    QTableView* tableOf(RowsModel& model, const QString& name, std::initializer_list<int> widths);
    /// The layout under consideration, rated by the latest counts; nothing without experts.
    void showPlacement();
    void showLayer();
    void showHomes();
    QString words() const;
    void enableActions();
    bool differs() const;
    void showProgress();
    void propose();
    void rollBack();
    void apply();
    // placement_rules.cpp: pins and bans, and the plan that waits.
    void addRuleActions(const QString& menu);
    void showRules();
    void enableRules(bool can);
    void showWaiting();
    void move(int expert, int shard);
    void rule(const std::vector<model::ExpertRule>& rules);
    void ruleCurrent(bool pins);
    void addRule(int expert, int shard, bool pins);
    void freeExpert(int expert);
    void dismiss();
    // placement_files.cpp
    void askImport();
    void askExport();
    /// Options beyond the path; nullopt after an error was shown.
    std::optional<QString> write(const QString& path, planner::Engine engine);

    PlanDesk desk_;
    QTemporaryDir dragged_;
    std::optional<Placement> placement_;
    std::vector<RowsModel::Row> shownLayers_;
    Revisions drawn_;
    RowsModel gain_, layers_, experts_, layouts_;
    std::unique_ptr<RowsModel> homes_;  ///< one column for each shard
    QLabel* words_;
    QCheckBox* group_;
    QDoubleSpinBox* cap_;
    QSpinBox* effort_;
    QStackedWidget* told_;  ///< words_, or while plans are searched for progress_
    PlanProgress* progress_ = nullptr;
    QTableView* layerTable_;
    QLabel* layerName_;
    PlacementBoard* board_;
    QTabWidget* details_;
    PlanFrontPanel* front_;
    ProposalBanner* banner_ = nullptr;
    RulesPanel* rules_ = nullptr;
    QTableView* expertTable_ = nullptr;
    QTableView* homeTable_ = nullptr;
    QLabel* anywhere_ = nullptr;
    QAction* propose_ = nullptr;
    QAction* stop_ = nullptr;
    QAction* apply_ = nullptr;
    QAction* drop_ = nullptr;
    QAction* rollBack_ = nullptr;
    QAction* export_ = nullptr;
    QAction* look_ = nullptr;
    QAction* dismiss_ = nullptr;
    QAction* pin_ = nullptr;
    QAction* forbid_ = nullptr;
    QAction* free_ = nullptr;
};

}  // namespace bulkhead::ui
