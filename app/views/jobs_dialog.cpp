// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/jobs_dialog.h"

#include <QListWidget>
#include <QPushButton>
#include <QVBoxLayout>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

JobsDialog::JobsDialog(Session& session, QWidget* parent)
    : QDialog(parent), session_(session), list_(new QListWidget) {
    setWindowTitle(tr("Jobs of this daemon"));
    setObjectName(QStringLiteral("JobsDialog"));
    setAttribute(Qt::WA_DeleteOnClose);
    resize(520, 300);
    list_->setAccessibleName(tr("Jobs"));
    auto* show = new QPushButton(tr("Show"));
    auto* cancel = new QPushButton(tr("Cancel"));
    show->setProperty("role", "primary");
    show->setDefault(true);
    auto* buttons = new QHBoxLayout;
    buttons->addStretch();
    buttons->addWidget(show);
    buttons->addWidget(cancel);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kThree, Space::kThree, Space::kThree, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addWidget(list_);
    column->addLayout(buttons);
    connect(show, &QPushButton::clicked, this, &JobsDialog::choose);
    connect(list_, &QListWidget::itemActivated, this, &JobsDialog::choose);
    connect(cancel, &QPushButton::clicked, this, &QDialog::reject);
    connect(&session_, &Session::statusChanged, this, &JobsDialog::fill);
    fill();
    list_->setFocus();
}

void JobsDialog::fill() {
    const SessionStatus& status = session_.status();
    const int row = list_->currentRow();
    list_->clear();
    int shown = 0;
    for (const model::JobInfo& job : status.jobs) {
        auto* item = new QListWidgetItem(
            tr("%1   %2, step %3, %4/%5 replicas")
                .arg(toQt(job.id), label(job.phase).toLower(), formatCount(job.step))
                .arg(job.contributors)
                .arg(job.replicas),
            list_);
        item->setData(Qt::UserRole, toQt(job.id));
        if (status.job && status.job->id == job.id) shown = list_->count() - 1;
    }
    list_->setCurrentRow(row >= 0 && row < list_->count() ? row : shown);
}

void JobsDialog::choose() {
    if (const QListWidgetItem* item = list_->currentItem())
        session_.selectJob(item->data(Qt::UserRole).toString());
    accept();
}

}  // namespace bulkhead::ui
