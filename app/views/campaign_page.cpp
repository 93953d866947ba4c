// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/campaign_page.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDir>
#include <QFile>
#include <QFileDialog>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QSaveFile>
#include <QSpinBox>
#include <QSplitter>
#include <QStyle>
#include <QTableView>
#include <QVBoxLayout>

#include "app/models/campaign_rows.h"
#include "app/models/units.h"
#include "app/views/job_commands.h"
#include "app/widgets/composer.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "backend/campaign/campaign_file.h"
#include "backend/campaign/judge.h"
#include "backend/campaign/report.h"
#include "backend/client/job_source.h"

namespace bulkhead::ui {
namespace {

constexpr int64_t kRedrawNs = 500'000'000;

/// Beside the demo's job file, wherever the program is installed.
QDir shippedFolder() {
    return QDir(
        QFileInfo(toQt(client::demoJobFile())).dir().filePath(QStringLiteral("../campaigns")));
}

QTableView* tableOf(RowsModel& model, const QString& name, std::initializer_list<int> widths) {
    auto* table = new QTableView;
    table->setModel(&model);
    styleTable(table, name);
    int column = 0;
    for (const int width : widths) table->setColumnWidth(column++, width);
    return table;
}

void setTone(QLabel* label, Tone tone) {
    label->setObjectName(tone == Tone::kBad       ? QStringLiteral("Bad")
                         : tone == Tone::kWarning ? QStringLiteral("Warn")
                                                  : QStringLiteral("Muted"));
    // The name chooses the colour.
    label->style()->unpolish(label);
    label->style()->polish(label);
}

}  // namespace

CampaignPage::CampaignPage(ViewContext& context, QWidget* parent)
    : QWidget(parent),
      context_(context),
      campaigns_({tr("No."), tr("Campaign"), tr("At"), tr("Took"), tr("Faults"),
                  tr("Effective time"), tr("Outcome")},
                 {2, 3, 4, 5}),
      verdicts_({tr("Criterion"), tr("Verdict"), tr("Measured")}, {}),
      faults_({tr("No."), tr("Planned at"), tr("Fault"), tr("Incident"), tr("What came of it")},
              {0, 1}),
      file_(new QComboBox),
      minutes_(new QSpinBox),
      seed_(new QSpinBox),
      lasting_(new QCheckBox(tr("Allow what cannot be undone"))),
      about_(new QLabel),
      effect_(new QLabel),
      run_(new QPushButton(tr("Run campaign\u2026"))),
      list_(nullptr),
      name_(new QLabel),
      stage_(new QLabel),
      bar_(new QProgressBar),
      details_(nullptr) {
    auto* split = new QSplitter(Qt::Horizontal, this);
    split->addWidget(makeChoice());
    split->addWidget(makeProgress());
    split->setStretchFactor(1, 1);
    split->setSizes({320, 600});
    split->setCollapsible(0, false);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 0);
    column->addWidget(split);
    setFocusProxy(file_);
    addActions();
    preflightTimer_.setSingleShot(true);
    connect(&preflightTimer_, &QTimer::timeout, this, &CampaignPage::askPreflight);
    connect(&context_.session, &Session::statusChanged, this, &CampaignPage::enableActions);
    const QDir shipped = shippedFolder();
    for (const QString& name : shipped.entryList({QStringLiteral("*.toml")}, QDir::Files))
        file_->addItem(name, QDir::cleanPath(shipped.absoluteFilePath(name)));
    choiceChanged();
}

QWidget* CampaignPage::makeChoice() {
    minutes_->setRange(0, 24 * 3600);
    minutes_->setSingleStep(30);
    minutes_->setSuffix(QStringLiteral("\u202fs"));
    minutes_->setSpecialValueText(tr("as the file says"));
    seed_->setRange(0, 1'000'000'000);
    seed_->setSpecialValueText(tr("as the file says"));
    auto* composer = new Composer;
    composer->addField(tr("Campaign file"), file_);
    auto* other = new QPushButton(tr("Other file\u2026"));
    other->setAccessibleName(tr("Choose another campaign file"));
    connect(other, &QPushButton::clicked, this, &CampaignPage::askFile);
    composer->addRow(other);
    composer->addField(tr("Duration"), minutes_);
    composer->addField(tr("Seed"), seed_);
    lasting_->setAccessibleName(lasting_->text());
    composer->addRow(lasting_);
    about_->setAccessibleName(tr("The campaign in words"));
    effect_->setAccessibleName(tr("What the campaign would do"));
    run_->setAccessibleName(tr("Run the chosen campaign"));
    composer->finish(about_, effect_, run_);
    connect(file_, &QComboBox::currentIndexChanged, this, &CampaignPage::choiceChanged);
    connect(minutes_, &QSpinBox::valueChanged, this, &CampaignPage::choiceChanged);
    connect(seed_, &QSpinBox::valueChanged, this, &CampaignPage::choiceChanged);
    connect(lasting_, &QCheckBox::toggled, this, &CampaignPage::choiceChanged);
    return composer;
}

QWidget* CampaignPage::makeTiles() {
    auto* tiles = new QWidget;
    auto* row = new QHBoxLayout(tiles);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(Space::kTwo);
    for (const QString& words :
         {tr("Effective time"), tr("Faults injected"), tr("Skipped"), tr("Open incidents")}) {
        auto* column = new QVBoxLayout;
        column->setSpacing(0);
        auto* figure = new QLabel;
        figure->setFont(Theme::font(4, QFont::Medium));
        figure->setAccessibleName(words);
        auto* caption = new QLabel(words);
        caption->setObjectName(QStringLiteral("Muted"));
        column->addWidget(figure);
        column->addWidget(caption);
        row->addLayout(column);
        figures_.push_back(figure);
    }
    row->addStretch();
    return tiles;
}

QWidget* CampaignPage::makeProgress() {
    list_ = tableOf(campaigns_, tr("Campaigns of this run"), {44, 120, 64, 96, 88, 104});
    connect(list_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            &CampaignPage::showSelected);
    name_->setFont(Theme::font(2, QFont::Medium));
    name_->setAccessibleName(tr("Selected campaign"));
    stage_->setWordWrap(true);
    stage_->setAccessibleName(tr("How far it is"));
    bar_->setRange(0, 1000);
    bar_->setTextVisible(false);
    bar_->setFixedHeight(6);
    bar_->setAccessibleName(tr("Part of the campaign's time"));
    details_ = new QWidget;
    auto* head = new QVBoxLayout(details_);
    // In line with the text of the tables below.
    head->setContentsMargins(Space::kOne, Space::kTwo, Space::kTwo, Space::kOne);
    head->setSpacing(Space::kOne);
    head->addWidget(name_);
    head->addWidget(bar_);
    head->addWidget(stage_);
    head->addWidget(makeTiles());
    QTableView* verdicts = tableOf(verdicts_, tr("Verdicts"), {128, 120});
    QTableView* faults = tableOf(faults_, tr("Planned faults"), {48, 88, 360, 80});
    auto* below = new QWidget;
    auto* column = new QVBoxLayout(below);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(details_);
    column->addWidget(verdicts);
    auto* right = new QSplitter(Qt::Vertical);
    right->addWidget(list_);
    right->addWidget(below);
    right->addWidget(faults);
    right->setStretchFactor(2, 1);
    right->setSizes({96, 360, 240});
    return right;
}

void CampaignPage::addActions() {
    ActionRegistry& a = context_.actions;
    a.add("campaign.choose", tr("Faults"), tr("Choose a campaign file\u2026"),
          tr("Another than those that come with the program"), QKeySequence("Ctrl+Shift+O"),
          [this] { askFile(); });
    a.add("campaign.run", tr("Faults"), tr("Run the chosen campaign\u2026"),
          tr("Ask what it would do, then put its faults one after the other"),
          QKeySequence("Ctrl+Shift+U"), [this] {
              const auto text = chosen();
              if (text.ok())
                  context_.commands.runCampaign(text.value());
              else
                  context_.commands.complain(text.failure());
          });
    a.add("campaign.stop", tr("Faults"), tr("Stop the campaign"),
          tr("At once: nothing more is injected, and what lasts of it is ended"),
          QKeySequence("Ctrl+Shift+X"), [this] {
              if (const auto* c = active()) context_.commands.stopCampaign(c->started.campaign);
          });
    a.add("campaign.export", tr("Faults"), tr("Export the campaign's report\u2026"),
          tr("One HTML file with faults, incidents and verdicts"), QKeySequence("Ctrl+Shift+B"),
          [this] { askExport(); });
    connect(run_, &QPushButton::clicked, a.find("campaign.run"), &QAction::trigger);
}

client::Result<model::CampaignText> CampaignPage::chosen() const {
    const QString path = file_->currentData().toString();
    QFile file(path);
    if (path.isEmpty() || !file.open(QIODevice::ReadOnly))
        return client::localFailure(client::FailureCode::kInvalid,
                                    tr("Cannot use this campaign").toStdString(),
                                    tr("%1 cannot be read; choose a campaign file (TOML)")
                                        .arg(path.isEmpty() ? tr("No file") : path)
                                        .toStdString());
    model::CampaignText text;
    text.text = file.read((1 << 20) + 1).toStdString();
    text.fileName = file_->currentText().toStdString();
    text.durationMs = static_cast<uint64_t>(minutes_->value()) * 1000;
    if (seed_->value() != 0) text.seed = static_cast<uint64_t>(seed_->value());
    text.allowLasting = lasting_->isChecked();
    return text;
}

void CampaignPage::chooseFile(const QString& path) {
    int at = file_->findData(path);
    if (at < 0) {
        file_->addItem(QFileInfo(path).fileName(), path);
        at = file_->count() - 1;
    }
    file_->setCurrentIndex(at);
}

void CampaignPage::askFile() {
    auto* dialog = new QFileDialog(this, tr("Choose a campaign file"), shippedFolder().path(),
                                   tr("Campaigns (*.toml);;All files (*)"));
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    connect(dialog, &QFileDialog::fileSelected, this, &CampaignPage::chooseFile);
    dialog->open();
}

void CampaignPage::choiceChanged() {
    ++asked_;
    allowed_ = false;
    effect_->clear();
    preflightTimer_.start(describeChoice() ? kPreflightDelayMs : kReadAgainMs);
    enableActions();
}

/// False when it cannot be read; then the words say why.
bool CampaignPage::describeChoice() {
    const auto text = chosen();
    if (!text.ok()) {
        about_->setText(inWords(text.failure()));
        return false;
    }
    const auto parsed = campaign::parseCampaign(text.value().text, text.value().fileName);
    if (parsed.ok())
        about_->setText(toQt(parsed->file.about.empty() ? parsed->file.name : parsed->file.about));
    else
        about_->setText(toQt({parsed.status().message().data(), parsed.status().message().size()}));
    return parsed.ok();
}

void CampaignPage::askPreflight() {
    // Its file may be repaired, or broken, at any time.
    if (!describeChoice()) {
        allowed_ = false;
        effect_->clear();
        preflightTimer_.start(kReadAgainMs);
        return enableActions();
    }
    const auto text = chosen();
    if (!text.ok() || !context_.session.status().canAct()) return;
    context_.session.preflight(text.value(), [this, asked = ++asked_](auto result) {
        if (asked != asked_) return;
        allowed_ = result.ok() && result.value().preflight.allowed;
        if (!result.ok())
            effect_->setText(inWords(result.failure()));
        else
            effect_->setText(toQt(allowed_ ? result.value().preflight.effect
                                           : result.value().preflight.refusal));
        setTone(effect_, allowed_ ? Tone::kMuted : Tone::kWarning);
        enableActions();
    });
}

const model::CampaignView* CampaignPage::selected() const {
    const auto& campaigns = context_.feed.state().campaigns;
    const int row = list_->currentIndex().row();
    if (row < 0 || static_cast<size_t>(row) >= campaigns.size()) return nullptr;
    return &campaigns[campaigns.size() - 1 - static_cast<size_t>(row)];
}

const model::CampaignView* CampaignPage::active() const {
    const auto& campaigns = context_.feed.state().campaigns;
    return campaigns.empty() || campaigns.back().ended ? nullptr : &campaigns.back();
}

void CampaignPage::enableActions() {
    const bool can = context_.session.status().canAct();
    const bool runs = can && allowed_ && active() == nullptr;
    context_.actions.find("campaign.run")->setEnabled(runs);
    run_->setEnabled(runs);
    context_.actions.find("campaign.stop")->setEnabled(can && active() != nullptr);
    context_.actions.find("campaign.export")->setEnabled(selected() != nullptr);
}

void CampaignPage::showSelected() {
    enableActions();
    const model::RunState& state = context_.feed.state();
    const model::CampaignView* c = selected();
    const int64_t now = state.lastEventNs;
    for (QLabel* figure : figures_) figure->setText(noFigure());
    bar_->setVisible(c != nullptr && !c->ended);
    if (c == nullptr) {
        name_->setText(tr("No campaign in this run yet"));
        stage_->setText(tr("Choose a file on the left and see what it would do to this job."));
        setTone(stage_, Tone::kMuted);
        verdicts_.setRows({});
        return faults_.setRows({});
    }
    const auto p = campaign::progressOf(state, *c, now);
    name_->setText(tr("#%1 %2").arg(c->started.campaign).arg(toQt(c->started.name)) +
                   tr(", seed %1, by %2").arg(c->started.seed).arg(toQt(c->started.by)));
    stage_->setText(stageWords(state, *c, now));
    setTone(stage_, stageTone(*c));
    bar_->setValue(stagePermille(*c, now));
    figures_[0]->setText(formatShare(p.effectiveTime));
    figures_[1]->setText(tr("%1 of %2").arg(p.injected).arg(p.planned));
    figures_[2]->setText(formatCount(p.skipped));
    figures_[3]->setText(formatCount(p.openIncidents));
    verdicts_.setRows(verdictRows(state, *c, now));
    faults_.setRows(fateRows(state, *c));
}

void CampaignPage::refresh() {
    const model::RunState& state = context_.feed.state();
    const Revisions& now = context_.feed.revisions();
    const bool news = now.incidents != drawn_.incidents;
    const bool ticks = active() != nullptr && state.lastEventNs - drawnNs_ >= kRedrawNs;
    // The preview depends on the present replicas.
    if (const uint32_t there = model::contributors(state); there != contributors_ || news) {
        contributors_ = there;
        if (active() == nullptr && !preflightTimer_.isActive())
            preflightTimer_.start(kPreflightDelayMs);
    }
    if (!news && !ticks) return;
    const int before = campaigns_.rowCount();
    campaigns_.setRows(campaignRows(state, state.lastEventNs));
    // The one just begun is the one to look at.
    if (campaigns_.rowCount() != before && campaigns_.rowCount() > 0) list_->selectRow(0);
    showSelected();
    drawn_ = now;
    drawnNs_ = state.lastEventNs;
}

void CampaignPage::askExport() {
    const model::CampaignView* c = selected();
    if (c == nullptr) return;
    auto* dialog = new QFileDialog(
        this, tr("Export the report to"),
        QDir::home().filePath(toQt(c->started.name) + QStringLiteral("-campaign.html")),
        tr("HTML (*.html)"));
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    dialog->setAcceptMode(QFileDialog::AcceptSave);
    dialog->setDefaultSuffix(QStringLiteral("html"));
    connect(dialog, &QFileDialog::fileSelected, this, &CampaignPage::exportTo);
    dialog->open();
}

void CampaignPage::exportTo(const QString& path) {
    const model::CampaignView* c = selected();
    if (c == nullptr) return;
    const model::RunState& state = context_.feed.state();
    const std::string html = campaign::reportHtml(state, *c, state.spec.name, state.lastEventNs);
    QSaveFile file(path);
    if (file.open(QIODevice::WriteOnly) &&
        file.write(html.data(), static_cast<qint64>(html.size())) ==
            static_cast<qint64>(html.size()) &&
        file.commit())
        return context_.commands.tell(tr("Report written to %1").arg(path));
    context_.commands.complain(client::localFailure(
        client::FailureCode::kInvalid, tr("Cannot write the report").toStdString(),
        tr("%1: %2; choose another place").arg(path, file.errorString()).toStdString()));
}

}  // namespace bulkhead::ui
