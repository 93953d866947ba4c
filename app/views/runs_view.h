// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QSortFilterProxyModel>
#include <QTimer>
#include <array>

#include "app/models/runs_model.h"
#include "app/views/view.h"

class QLabel;
class QLineEdit;
class QTableView;

namespace bulkhead::ui {

class TimeSeriesView;

/// The runs of the history: look for one, replay it, lay two over each other.
class RunsView final : public View {
    Q_OBJECT
  public:
    explicit RunsView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    void raised() override;

  Q_SIGNALS:
    /// The operator wants to go on from the last checkpoint of this run.
    void resumeWanted(const QString& run);

  protected:
    void refresh() override {}
    bool isOfNow() const override { return false; }
    bool hasContent() const override { return context_.session.status().link == Link::kLive; }

  private:
    void addControls();
    void fetch();
    QString selectedRun() const;
    void replaySelected();
    void compareSelected();
    void checkSelected();
    void exportSelected();
    void enableActions();
    void showComparison();

    RunsModel model_;
    QSortFilterProxyModel sorted_;
    QTableView* table_;
    QLineEdit* search_;
    QLabel* summary_;
    std::array<TimeSeriesView*, 3> charts_{};
    struct Side {
        QString name;
        client::StatePtr state;
    };
    std::array<Side, 2> sides_;
    QTimer fetchTimer_;
};

/// The differences of two runs that a person would name first, as a small table in HTML. Pure.
QString comparisonWords(const QString& nameA, const model::RunState& a, const QString& nameB,
                        const model::RunState& b);

}  // namespace bulkhead::ui
