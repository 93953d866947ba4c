// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/job_dialog.h"

#include <QComboBox>
#include <QFileDialog>
#include <QFormLayout>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QRegularExpressionValidator>
#include <QSpinBox>
#include <QVBoxLayout>

#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kTextHeight = 58;  // three lines
constexpr int kMostNodes = 64;

QPlainTextEdit* lines(const QString& placeholder) {
    auto* edit = new QPlainTextEdit;
    edit->setFixedHeight(kTextHeight);
    edit->setPlaceholderText(placeholder);
    edit->setTabChangesFocus(true);
    edit->setFont(Theme::mono());
    return edit;
}

std::vector<std::string> linesOf(const QPlainTextEdit* edit) {
    std::vector<std::string> out;
    for (const QString& line : edit->toPlainText().split(u'\n'))
        if (!line.trimmed().isEmpty()) out.push_back(line.trimmed().toStdString());
    return out;
}

std::string textOf(const QLineEdit* line) {
    return line->text().trimmed().toStdString();
}

}  // namespace

QLineEdit* JobDialog::addLine(const QString& words, const QString& placeholder) {
    auto* line = new QLineEdit;
    line->setAccessibleName(words);
    line->setPlaceholderText(placeholder);
    form_->addRow(words, line);
    return line;
}

void JobDialog::addBrowsed(QLineEdit* line, const QString& words, bool folder,
                           const QString& filter) {
    QAction* browse =
        line->addAction(style()->standardIcon(QStyle::SP_DirOpenIcon), QLineEdit::TrailingPosition);
    browse->setText(words);
    browse->setToolTip(words);
    connect(browse, &QAction::triggered, line, [this, line, words, folder, filter] {
        auto* dialog = new QFileDialog(this, words, line->text(), filter);
        dialog->setAttribute(Qt::WA_DeleteOnClose);
        if (folder) dialog->setFileMode(QFileDialog::Directory);
        connect(dialog, &QFileDialog::fileSelected, line, &QLineEdit::setText);
        dialog->open();
    });
}

JobDialog::JobDialog(bool attached, QWidget* parent)
    : QDialog(parent),
      form_(new QFormLayout),
      where_(new QComboBox),
      faults_(lines(QStringLiteral("kill:replica=2@step=50"))),
      settings_(lines(QStringLiteral("policies.lr=linear"))),
      nodes_(new QSpinBox) {
    setWindowTitle(tr("Start a job"));
    setObjectName(QStringLiteral("JobDialog"));
    setAttribute(Qt::WA_DeleteOnClose);
    setMinimumWidth(520);
    form_->setHorizontalSpacing(Space::kTwo);
    form_->setVerticalSpacing(Space::kOne);
    const QString asInFile = tr("as in the job file");
    file_ = addLine(tr("Job file"), tr("the demo"));
    addBrowsed(file_, tr("Choose a job file"), false, tr("Jobs (*.toml)"));
    where_->setAccessibleName(tr("Where it runs"));
    where_->addItem(tr("On a daemon of its own"));
    if (attached) where_->addItem(tr("On the daemon that is attached"));
    form_->addRow(tr("Where it runs"), where_);
    name_ = addLine(tr("Name"), asInFile);
    replicas_ = addLine(tr("Replicas"), asInFile);
    shards_ = addLine(tr("Shards"), asInFile);
    steps_ = addLine(tr("Steps"), asInFile);
    seed_ = addLine(tr("Seed"), asInFile);
    for (QLineEdit* line : {replicas_, shards_, steps_, seed_})
        line->setValidator(
            new QRegularExpressionValidator(QRegularExpression(QStringLiteral("\\d{1,18}")), line));
    data_ =
        addLine(tr("Data folder"), tr("as in the job file; each file or folder in it a domain"));
    addBrowsed(data_, tr("Choose a folder of texts"), true, {});
    resume_ = addLine(tr("Resume from"), tr("id of a run, or a checkpoint manifest"));
    faults_->setAccessibleName(tr("Faults, one on each line"));
    settings_->setAccessibleName(tr("Other settings, one on each line"));
    form_->addRow(tr("Faults"), faults_);
    form_->addRow(tr("Other settings"), settings_);
    nodes_->setRange(1, kMostNodes);
    nodes_->setAccessibleName(tr("Nodes on this machine"));
    form_->addRow(tr("Nodes"), nodes_);
    runFile_ = addLine(tr("Run file"), tr("the console's own history"));
    auto* start = new QPushButton(tr("Start"));
    auto* cancel = new QPushButton(tr("Cancel"));
    start->setProperty("role", "primary");
    start->setDefault(true);
    auto* buttons = new QHBoxLayout;
    buttons->addStretch();
    buttons->addWidget(start);
    buttons->addWidget(cancel);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kThree, Space::kThree, Space::kThree, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addLayout(form_);
    column->addLayout(buttons);
    connect(where_, &QComboBox::currentIndexChanged, this, [this] {
        form_->setRowVisible(nodes_, onOwnDaemon());
        form_->setRowVisible(runFile_, onOwnDaemon());
    });
    connect(start, &QPushButton::clicked, this, &QDialog::accept);
    connect(cancel, &QPushButton::clicked, this, &QDialog::reject);
    file_->setFocus();
}

void JobDialog::setFile(const QString& path) {
    file_->setText(path);
}

void JobDialog::setResume(const QString& from) {
    resume_->setText(from);
}

bool JobDialog::onOwnDaemon() const {
    return where_->currentIndex() == 0;
}

client::JobSource JobDialog::source() const {
    client::JobSource job;
    job.file = textOf(file_);
    job.name = textOf(name_);
    job.replicas = textOf(replicas_);
    job.shards = textOf(shards_);
    job.steps = textOf(steps_);
    job.seed = textOf(seed_);
    job.data = textOf(data_);
    job.resume = textOf(resume_);
    job.faults = linesOf(faults_);
    job.set = linesOf(settings_);
    return job;
}

uint32_t JobDialog::nodes() const {
    return static_cast<uint32_t>(nodes_->value());
}

QString JobDialog::runFile() const {
    return runFile_->text().trimmed();
}

}  // namespace bulkhead::ui
