// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/rules_panel.h"

#include <QAction>
#include <QHBoxLayout>
#include <QLabel>
#include <QTableView>
#include <QToolButton>
#include <QVBoxLayout>

#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

RulesPanel::RulesPanel(QAction* free, QWidget* parent)
    : QWidget(parent),
      rows_({tr("Layer"), tr("Expert"), tr("Rule"), tr("Placed on"), tr("Kept")}, {}),
      table_(new QTableView),
      none_(new QLabel(
          tr("No expert is pinned or forbidden anywhere. The menu of a chip does it."))) {
    table_->setModel(&rows_);
    styleTable(table_, tr("Pinned and forbidden experts"));
    int column = 0;
    for (const int width : {140, 72, 168, 96}) table_->setColumnWidth(column++, width);
    none_->setObjectName(QStringLiteral("Muted"));
    none_->setAlignment(Qt::AlignCenter);
    auto* button = new QToolButton;
    button->setObjectName(QStringLiteral("Framed"));
    button->setDefaultAction(free);
    auto* side = new QVBoxLayout;
    side->addWidget(button);
    side->addStretch();
    auto* layout = new QHBoxLayout(this);
    layout->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, 0);
    layout->setSpacing(Space::kOne);
    layout->addWidget(table_, 1);
    layout->addWidget(none_, 1);
    layout->addLayout(side);
    connect(table_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            [this](const QModelIndex& row) {
                if (row.row() < 0 || row.row() >= static_cast<int>(rules_.size())) return;
                const model::ExpertRule& rule = rules_[static_cast<size_t>(row.row())];
                Q_EMIT picked(static_cast<int>(rule.layer), static_cast<int>(rule.expert));
            });
}

void RulesPanel::set(const Placement& placement) {
    if (rules_ != placement.job.rules) table_->selectionModel()->clear();
    rules_ = placement.job.rules;
    rows_.setRows(ruleRows(placement));
    table_->setVisible(!rules_.empty());
    none_->setVisible(rules_.empty());
}

}  // namespace bulkhead::ui
