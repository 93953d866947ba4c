// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/export_dialog.h"

#include <QComboBox>
#include <QDir>
#include <QFileDialog>
#include <QFormLayout>
#include <QLineEdit>
#include <QPushButton>
#include <QSpinBox>
#include <QVBoxLayout>
#include <array>

#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

struct Kind {
    client::ExportWhat what;
    client::ExportFormat format;
    const char* ending;
};
constexpr std::array<Kind, 3> kKinds = {
    {{client::ExportWhat::kLedger, client::ExportFormat::kCsv, "ledger.csv"},
     {client::ExportWhat::kLedger, client::ExportFormat::kJsonLines, "ledger.jsonl"},
     {client::ExportWhat::kEvents, client::ExportFormat::kJsonLines, "events.jsonl"}}};
constexpr int kMostSteps = 1'000'000'000;

}  // namespace

ExportDialog::ExportDialog(const QString& run, QWidget* parent)
    : QDialog(parent),
      run_(run),
      what_(new QComboBox),
      from_(new QSpinBox),
      to_(new QSpinBox),
      path_(new QLineEdit) {
    setWindowTitle(tr("Export %1").arg(run));
    setObjectName(QStringLiteral("ExportDialog"));
    setAttribute(Qt::WA_DeleteOnClose);
    setMinimumWidth(520);
    what_->setAccessibleName(tr("What to export"));
    what_->addItems({tr("Ledger, one line a step, as CSV"), tr("Ledger as JSON lines"),
                     tr("Every event as JSON lines")});
    from_->setAccessibleName(tr("First step"));
    to_->setAccessibleName(tr("Last step"));
    from_->setSpecialValueText(tr("the first"));
    to_->setSpecialValueText(tr("the last"));
    for (QSpinBox* step : {from_, to_}) step->setRange(0, kMostSteps);
    path_->setAccessibleName(tr("File"));
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(Space::kTwo);
    form->setVerticalSpacing(Space::kOne);
    form->addRow(tr("What"), what_);
    form->addRow(tr("From step"), from_);
    form->addRow(tr("To step"), to_);
    form->addRow(tr("File"), path_);
    auto* browse = new QPushButton(tr("Choose a file\u2026"));
    auto* write = new QPushButton(tr("Export"));
    auto* cancel = new QPushButton(tr("Cancel"));
    write->setProperty("role", "primary");
    write->setDefault(true);
    auto* buttons = new QHBoxLayout;
    buttons->addWidget(browse);
    buttons->addStretch();
    buttons->addWidget(write);
    buttons->addWidget(cancel);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kThree, Space::kThree, Space::kThree, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addLayout(form);
    column->addLayout(buttons);
    connect(what_, &QComboBox::currentIndexChanged, this, [this, form](int i) {
        const bool ledger = kKinds[static_cast<size_t>(i)].what == client::ExportWhat::kLedger;
        form->setRowVisible(from_, ledger);
        form->setRowVisible(to_, ledger);
        suggestName();
    });
    connect(browse, &QPushButton::clicked, this, [this] {
        auto* dialog = new QFileDialog(this, tr("Export to"), path_->text());
        dialog->setAttribute(Qt::WA_DeleteOnClose);
        dialog->setAcceptMode(QFileDialog::AcceptSave);
        connect(dialog, &QFileDialog::fileSelected, path_, &QLineEdit::setText);
        dialog->open();
    });
    connect(path_, &QLineEdit::textChanged, write,
            [write](const QString& now) { write->setEnabled(!now.trimmed().isEmpty()); });
    connect(write, &QPushButton::clicked, this, &QDialog::accept);
    connect(cancel, &QPushButton::clicked, this, &QDialog::reject);
    suggestName();
    what_->setFocus();
}

void ExportDialog::suggestName() {
    const char* ending = kKinds[static_cast<size_t>(what_->currentIndex())].ending;
    path_->setText(QDir::home().filePath(run_ + u'-' + QString::fromLatin1(ending)));
}

client::ExportRequest ExportDialog::request() const {
    const Kind& kind = kKinds[static_cast<size_t>(what_->currentIndex())];
    client::ExportRequest request;
    request.run = run_.toStdString();
    request.what = kind.what;
    request.format = kind.format;
    if (kind.what == client::ExportWhat::kLedger) {
        request.fromStep = static_cast<uint64_t>(from_->value());
        request.toStep = static_cast<uint64_t>(to_->value());
    }
    return request;
}

QString ExportDialog::path() const {
    return path_->text().trimmed();
}

}  // namespace bulkhead::ui
