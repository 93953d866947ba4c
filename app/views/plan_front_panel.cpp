// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/plan_front_panel.h"

#include <QLabel>
#include <QSplitter>
#include <QTableView>
#include <QVBoxLayout>

#include "app/models/placement.h"
#include "app/models/units.h"
#include "app/widgets/scatter_chart.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kLeastChart = 88;  // the page fits a small window

}  // namespace

PlanFrontPanel::PlanFrontPanel(QWidget* parent)
    : QWidget(parent),
      rows_({tr("Plan"), tr("Remote"), tr("5 to 95 %"), tr("Busiest"), tr("Moves"), tr("In short")},
            {1, 2, 3, 4}),
      reason_(new QLabel),
      chart_(new ScatterChart(
          tr("Plans to choose from"), {tr("Remote copies"), formatShare},
          {tr("Busiest shard over mean"), [](double load) { return formatNumber(load, 2); }})),
      table_(new QTableView) {
    reason_->setWordWrap(true);
    reason_->setAccessibleName(tr("Why one is recommended"));
    table_->setModel(&rows_);
    styleTable(table_, tr("Plans to choose from, in figures"));
    int column = 0;
    for (const int width : {156, 68, 120, 64, 60}) table_->setColumnWidth(column++, width);
    chart_->setMinimumHeight(kLeastChart);
    auto* split = new QSplitter(Qt::Horizontal);
    split->addWidget(chart_);
    split->addWidget(table_);
    split->setChildrenCollapsible(false);
    split->setSizes({240, 520});
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, 0);
    layout->setSpacing(Space::kHalf);
    layout->addWidget(reason_);
    layout->addWidget(split, 1);
    connect(chart_, &ScatterChart::picked, this, &PlanFrontPanel::picked);
    connect(table_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            [this](const QModelIndex& row) {
                if (!filling_ && row.isValid()) Q_EMIT picked(row.row());
            });
    set(nullptr, -1);
}

void PlanFrontPanel::set(const planner::LiveFront* front, int chosen) {
    filling_ = true;
    reason_->setText(
        front == nullptr
            ? tr("Let the planner propose: it makes several plans, of which one can "
                 "be chosen here.")
            : tr("Recommended is \u201c%1\u201d: %2.")
                  .arg(toQt(front->points[front->recommended].name), toQt(front->reason)));
    std::vector<ScatterChart::Point> points;
    for (size_t i = 0; front != nullptr && i < front->points.size(); ++i) {
        const planner::LiveFrontPoint& p = front->points[i];
        const bool best = i == front->recommended;
        points.push_back({{p.plan.preview.forecast.remote.mean, p.load},
                          best ? tr("recommended") : toQt(p.name),
                          p.onFront,
                          best || i == 0});
    }
    chart_->set(std::move(points), chosen);
    rows_.setRows(front == nullptr ? std::vector<RowsModel::Row>() : frontRows(*front));
    if (chosen >= 0)
        table_->selectRow(chosen);
    else
        table_->selectionModel()->clear();
    filling_ = false;
}

}  // namespace bulkhead::ui
