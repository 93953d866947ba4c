// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/messages_dialog.h"

#include <QDialogButtonBox>
#include <QHeaderView>
#include <QTableView>
#include <QVBoxLayout>

#include "app/models/message_log.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

MessagesDialog::MessagesDialog(MessageLog& log, QWidget* parent) : QDialog(parent) {
    setWindowTitle(tr("Messages"));
    setObjectName(QStringLiteral("MessagesDialog"));
    setAttribute(Qt::WA_DeleteOnClose);
    resize(720, 360);
    auto* table = new QTableView;
    table->setModel(&log);
    styleTable(table, tr("Messages"));
    table->setColumnWidth(MessageLog::kTime, 104);
    table->horizontalHeader()->setStretchLastSection(true);
    auto* buttons = new QDialogButtonBox(QDialogButtonBox::Close);
    connect(buttons, &QDialogButtonBox::rejected, this, &QDialog::reject);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kTwo, Space::kTwo, Space::kTwo, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addWidget(table);
    column->addWidget(buttons);
    table->setFocus();
}

}  // namespace bulkhead::ui
