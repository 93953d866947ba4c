// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/plan_progress.h"

#include <QAction>
#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QVBoxLayout>

#include "app/models/placement.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

PlanProgress::PlanProgress(QAction* stop, QWidget* parent)
    : QWidget(parent), bar_(new QProgressBar), words_(new QLabel) {
    bar_->setTextVisible(false);
    bar_->setFixedHeight(6);
    bar_->setAccessibleName(tr("Plans that were made, of those to be made"));
    words_->setAccessibleName(tr("How far the search is"));
    auto* button = new QPushButton(tr("Stop"));
    button->setAccessibleName(stop->text());
    button->setToolTip(stop->toolTip());
    connect(button, &QPushButton::clicked, stop, &QAction::trigger);
    auto* column = new QVBoxLayout;
    column->setSpacing(Space::kHalf);
    column->addWidget(bar_);
    column->addWidget(words_);
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(Space::kOne);
    row->addLayout(column, 1);
    row->addWidget(button);
}

void PlanProgress::set(const planner::LiveFrontProgress& progress) {
    bar_->setRange(0, static_cast<int>(progress.of));  // without an end while that is not known
    bar_->setValue(static_cast<int>(progress.done));
    words_->setText(progressWords(progress));
}

}  // namespace bulkhead::ui
