// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/connect_dialog.h"

#include <QFileDialog>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QLineEdit>
#include <QListWidget>
#include <QPushButton>
#include <QVBoxLayout>

#include "app/widgets/theme.h"

namespace bulkhead::ui {

ConnectDialog::ConnectDialog(Recents& recents, QWidget* parent)
    : QDialog(parent),
      recents_(recents),
      target_(new QLineEdit),
      token_(new QLineEdit),
      certs_(new QLineEdit),
      list_(new QListWidget) {
    setWindowTitle(tr("Attach to a daemon"));
    setObjectName(QStringLiteral("ConnectDialog"));
    resize(560, 380);
    target_->setPlaceholderText(tr("unix:/run/bulkhead.sock or host:port"));
    target_->setAccessibleName(tr("Socket or address"));
    token_->setPlaceholderText(tr("only for an address; the file itself is never stored"));
    token_->setAccessibleName(tr("Token file"));
    certs_->setPlaceholderText(tr("folder with ca.pem, and cert.pem and key.pem of your own"));
    certs_->setAccessibleName(tr("Certificates"));
    list_->setAccessibleName(tr("Opened before"));
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(Space::kTwo);
    form->setVerticalSpacing(Space::kOne);
    form->addRow(tr("Socket or address"), target_);
    form->addRow(tr("Token file"), token_);
    form->addRow(tr("Certificates"), certs_);
    auto* before = new QLabel(tr("Opened before"));
    before->setObjectName(QStringLiteral("Muted"));
    auto* forget = new QPushButton(tr("Forget"));
    auto* attach = new QPushButton(tr("Attach"));
    auto* cancel = new QPushButton(tr("Cancel"));
    attach->setProperty("role", "primary");
    attach->setDefault(true);
    attach->setEnabled(false);
    auto* buttons = new QHBoxLayout;
    buttons->addWidget(forget);
    buttons->addStretch();
    buttons->addWidget(cancel);
    buttons->addWidget(attach);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kThree, Space::kThree, Space::kThree, Space::kTwo);
    column->setSpacing(Space::kOne);
    column->addLayout(form);
    column->addSpacing(Space::kOne);
    column->addWidget(before);
    column->addWidget(list_, 1);
    column->addLayout(buttons);
    connect(target_, &QLineEdit::textChanged, attach,
            [attach](const QString& now) { attach->setEnabled(!now.trimmed().isEmpty()); });
    connect(attach, &QPushButton::clicked, this, &QDialog::accept);
    connect(cancel, &QPushButton::clicked, this, &QDialog::reject);
    connect(forget, &QPushButton::clicked, this, &ConnectDialog::forgetSelected);
    connect(list_, &QListWidget::currentItemChanged, this, [this](QListWidgetItem* item) {
        if (item == nullptr) return;
        target_->setText(item->data(Qt::UserRole).toString());
        token_->setText(item->data(Qt::UserRole + 1).toString());
        certs_->setText(item->data(Qt::UserRole + 2).toString());
    });
    connect(list_, &QListWidget::itemActivated, this, &QDialog::accept);
    fill();
    target_->setFocus();
}

void ConnectDialog::fill() {
    list_->clear();
    for (const Recent& recent : recents_.list()) {
        const QString status = recent.lastStatus.isEmpty()
                                   ? QString()
                                   : QStringLiteral("   \u2013 ") + recent.lastStatus;
        auto* item = new QListWidgetItem(recent.target + status, list_);
        item->setData(Qt::UserRole, recent.target);
        item->setData(Qt::UserRole + 1, recent.tokenFile);
        item->setData(Qt::UserRole + 2, recent.certs);
    }
}

void ConnectDialog::forgetSelected() {
    if (const QListWidgetItem* item = list_->currentItem())
        recents_.forget(item->data(Qt::UserRole).toString());
    fill();
}

Recent ConnectDialog::chosen() const {
    Recent recent;
    recent.target = target_->text().trimmed();
    recent.tokenFile = token_->text().trimmed();
    recent.certs = certs_->text().trimmed();
    // A path of a file that is no socket is a run file, however it was typed.
    if (!recent.target.startsWith(QStringLiteral("unix:")) && recent.target.startsWith(u'/'))
        recent.kind = Recent::Kind::kFile;
    return recent;
}

}  // namespace bulkhead::ui
