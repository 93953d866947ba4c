// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/faults_view.h"

#include <QComboBox>
#include <QDoubleSpinBox>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QPushButton>
#include <QSplitter>
#include <QTabBar>
#include <QTabWidget>
#include <QTableView>
#include <QVBoxLayout>

#include "app/models/fault_form.h"
#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/views/campaign_page.h"
#include "app/views/job_commands.h"
#include "app/widgets/composer.h"
#include "app/widgets/incident_bars.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "backend/model/command_text.h"

namespace bulkhead::ui {
namespace {

void setRowVisible(QFormLayout* form, QWidget* field, bool visible) {
    form->setRowVisible(field, visible);
}

QStringList textsOf(const QComboBox* box) {
    QStringList texts;
    for (int i = 0; i < box->count(); ++i) texts << box->itemText(i);
    return texts;
}

/// Keeps the choice when the same text is still there.
void refill(QComboBox* box, const QStringList& items) {
    if (textsOf(box) == items) return;
    const QString kept = box->currentText();
    box->clear();
    box->addItems(items);
    box->setCurrentIndex(std::max(0, static_cast<int>(items.indexOf(kept))));
}

/// Keeps the place of the choice where as many items have other texts now.
void rename(QComboBox* box, const QStringList& items) {
    if (box->count() != items.size()) return refill(box, items);
    for (int i = 0; i < box->count(); ++i) box->setItemText(i, items[i]);
}

}  // namespace

FaultsView::FaultsView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("faults"), tr("Faults"), parent),
      model_(context.feed),
      kind_(new QComboBox),
      replica_(new QComboBox),
      shard_(new QComboBox),
      node_(new QComboBox),
      step_(new QSpinBox),
      phase_(new QComboBox),
      duration_(new QDoubleSpinBox),
      factor_(new QDoubleSpinBox),
      delay_(new QSpinBox),
      form_(nullptr),
      sentence_(new QLabel),
      effect_(new QLabel),
      inject_(new QPushButton(tr("Inject\u2026"))),
      table_(new QTableView),
      bars_(new IncidentBars),
      campaigns_(new CampaignPage(context)),
      tabs_(new QTabWidget) {
    auto* body = new QSplitter(Qt::Horizontal);
    body->addWidget(makeComposer());
    body->addWidget(makeList());
    body->setStretchFactor(1, 1);
    body->setSizes({320, 600});
    body->setCollapsible(0, false);
    tabs_->setDocumentMode(true);
    tabs_->setAccessibleName(tr("Single faults or campaigns"));
    tabs_->tabBar()->setAccessibleName(tr("Single faults or campaigns"));
    tabs_->addTab(body, tr("Single faults"));
    tabs_->addTab(campaigns_, tr("Campaigns"));
    connect(tabs_, &QTabWidget::currentChanged, this, &FaultsView::touch);
    setBody(tabs_);
    context_.actions.add(
        QStringLiteral("fault.inject"), tr("Faults"), tr("Inject composed fault\u2026"),
        tr("Ask what the composed fault would do, then inject it"),
        QKeySequence(QStringLiteral("Ctrl+I")), [this] { context_.commands.inject(composed()); });
    connect(inject_, &QPushButton::clicked, context_.actions.find(QStringLiteral("fault.inject")),
            &QAction::trigger);
    QAction* end =
        context_.actions.add(QStringLiteral("fault.end"), tr("Faults"), tr("End selected fault"),
                             tr("End a fault that lasts, or cancel one that has not begun"),
                             QKeySequence(QStringLiteral("Ctrl+Shift+I")), [this] {
                                 if (const auto* fault = model_.at(table_->currentIndex().row()))
                                     context_.commands.endFault(fault->fault);
                             });
    QWidget* endButton = addButton(end, tr("End fault"));
    QWidget* stop =
        addButton(context_.actions.find(QStringLiteral("campaign.stop")), tr("Stop campaign"));
    QWidget* report = addButton(context_.actions.find(QStringLiteral("campaign.export")),
                                tr("Export report\u2026"));
    const auto showButtons = [=, this] {
        const bool campaigns = tabs_->currentWidget() == campaigns_;
        endButton->setVisible(!campaigns);
        stop->setVisible(campaigns);
        report->setVisible(campaigns);
    };
    connect(tabs_, &QTabWidget::currentChanged, this, showButtons);
    showButtons();
    context_.actions.add(QStringLiteral("campaign.show"), tr("Faults"), tr("Campaigns"),
                         tr("Many faults by a file, with one verdict"),
                         QKeySequence(QStringLiteral("Ctrl+Shift+A")), [this] { showCampaigns(); });
    preflightTimer_.setSingleShot(true);
    connect(&preflightTimer_, &QTimer::timeout, this, &FaultsView::askPreflight);
    connect(&context_.session, &Session::statusChanged, this, &FaultsView::enableActions);
    enableActions();
    showFields();
}

QWidget* FaultsView::makeComposer() {
    for (int k = 0; k <= static_cast<int>(model::FaultKind::kKillNode); ++k)
        kind_->addItem(label(static_cast<model::FaultKind>(k)));
    kind_->setCurrentIndex(static_cast<int>(model::FaultKind::kKillReplica));
    step_->setRange(0, 100'000'000);
    step_->setSpecialValueText(tr("now"));
    phase_->addItems(
        {tr("any time in it"), tr("compute"), tr("exchange"), tr("vote"), tr("apply")});
    duration_->setRange(0, 3600);
    duration_->setDecimals(1);
    duration_->setSuffix(QStringLiteral("\u202fs"));
    duration_->setSpecialValueText(tr("for good"));
    duration_->setValue(3);
    factor_->setRange(1.1, 100);
    factor_->setValue(3);
    delay_->setRange(1, 60'000);
    delay_->setValue(20);
    delay_->setSuffix(QStringLiteral("\u202fms"));
    auto* composer = new Composer;
    form_ = composer->form();
    composer->addField(tr("Fault"), kind_);
    composer->addField(tr("Replica"), replica_);
    composer->addField(tr("Rank"), shard_);
    composer->addField(tr("Node"), node_);
    composer->addField(tr("When step begins"), step_);
    composer->addField(tr("Phase"), phase_);
    composer->addField(tr("Lasts"), duration_);
    composer->addField(tr("Slower by"), factor_);
    composer->addField(tr("Delay"), delay_);
    sentence_->setAccessibleName(tr("The fault in words"));
    effect_->setAccessibleName(tr("What it would do"));
    inject_->setAccessibleName(tr("Inject the composed fault"));
    composer->finish(sentence_, effect_, inject_);
    for (QComboBox* combo : {kind_, replica_, shard_, node_, phase_})
        connect(combo, &QComboBox::currentIndexChanged, this, &FaultsView::composeChanged);
    for (QSpinBox* spin : {step_, delay_})
        connect(spin, &QSpinBox::valueChanged, this, &FaultsView::composeChanged);
    for (QDoubleSpinBox* spin : {duration_, factor_})
        connect(spin, &QDoubleSpinBox::valueChanged, this, &FaultsView::composeChanged);
    return composer;
}

QWidget* FaultsView::makeList() {
    table_->setModel(&model_);
    styleTable(table_, tr("Injected faults"));
    const int widths[] = {44, 64, 260, 72, 152, 120};
    for (int i = 0; i < 6; ++i) table_->setColumnWidth(i, widths[i]);
    connect(table_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            &FaultsView::showSelected);
    auto* list = new QSplitter(Qt::Vertical);
    list->addWidget(table_);
    list->addWidget(bars_);
    list->setStretchFactor(0, 1);
    list->setSizes({300, 132});
    return list;
}

QWidget* FaultsView::focusTarget() {
    return tabs_->currentWidget() == campaigns_ ? static_cast<QWidget*>(campaigns_) : kind_;
}

model::FaultSpec FaultsView::composed() const {
    static const char* const kPhases[] = {"", "compute", "exchange", "vote", "apply"};
    model::FaultSpec spec;
    spec.kind = static_cast<model::FaultKind>(kind_->currentIndex());
    spec.replica = replica_->currentIndex();
    spec.shard = shard_->currentIndex() - (fieldsOf(spec.kind).shard ? 0 : 1);
    spec.node = node_->currentText().toStdString();
    spec.atStep = static_cast<uint64_t>(step_->value());
    spec.atPhase = kPhases[std::max(phase_->currentIndex(), 0)];
    spec.durationMs = static_cast<uint64_t>(duration_->value() * 1000);
    spec.factor = factor_->value();
    spec.delayMs = static_cast<uint64_t>(delay_->value());
    return cleaned(spec);
}

void FaultsView::aimAt(int replica, int shard, const QString& node) {
    fillTargets();
    if (replica < 0) {
        kind_->setCurrentIndex(static_cast<int>(model::FaultKind::kKillNode));
        return node_->setCurrentText(node);
    }
    replica_->setCurrentIndex(replica);
    kind_->setCurrentIndex(static_cast<int>(shard >= 0 ? model::FaultKind::kKillRank
                                                       : model::FaultKind::kKillReplica));
    if (shard >= 0) shard_->setCurrentIndex(shard);
}

void FaultsView::fillTargets() {
    const model::RunState& s = context_.feed.state();
    QStringList replicas;
    QStringList shards;
    QStringList nodes;
    for (const model::ReplicaView& r : s.replicas) replicas << tr("Replica %1").arg(r.replica);
    const auto kind = static_cast<model::FaultKind>(kind_->currentIndex());
    if (!fieldsOf(kind).shard) shards << tr("all its ranks");
    const int replica = std::max(replica_->currentIndex(), 0);
    for (int k = 0; k < static_cast<int>(s.spec.shards); ++k) shards << rankName({replica, k});
    for (const model::NodeView& n : s.nodes) nodes << toQt(n.node);
    refill(replica_, replicas);
    rename(shard_, shards);
    refill(node_, nodes);
}

void FaultsView::showFields() {
    const FaultFields f = fieldsOf(static_cast<model::FaultKind>(kind_->currentIndex()));
    setRowVisible(form_, replica_, f.replica);
    setRowVisible(form_, shard_, f.shard || f.shardOptional);
    setRowVisible(form_, node_, f.node);
    setRowVisible(form_, duration_, f.duration);
    setRowVisible(form_, factor_, f.factor);
    setRowVisible(form_, delay_, f.delay);
    fillTargets();
}

void FaultsView::composeChanged() {
    if (sender() == kind_) showFields();
    if (sender() == replica_) fillTargets();
    const model::FaultSpec fault = composed();
    const absl::Status check = model::checkFault(fault);
    sentence_->setText(toQt(model::describe(fault)));
    effect_->setText(check.ok() ? QString()
                                : toQt({check.message().data(), check.message().size()}));
    enableActions();
    if (check.ok()) preflightTimer_.start(kPreflightDelayMs);
}

void FaultsView::enableActions() {
    const bool can = context_.session.status().canAct();
    const bool whole = can && model::checkFault(composed()).ok();
    const model::FaultView* fault = model_.at(table_->currentIndex().row());
    context_.actions.find(QStringLiteral("fault.inject"))->setEnabled(whole);
    context_.actions.find(QStringLiteral("fault.end"))
        ->setEnabled(can && fault != nullptr && fault->endedNs == 0);
    inject_->setEnabled(whole);
}

void FaultsView::askPreflight() {
    if (!context_.session.status().canAct()) return;
    context_.session.preflight(composed(), [this, asked = ++asked_](auto result) {
        if (asked != asked_) return;
        if (!result.ok()) return effect_->setText(inWords(result.failure()));
        const model::Preflight& p = result.value();
        effect_->setText(p.allowed ? toQt(p.effect) : toQt(p.refusal));
    });
}

void FaultsView::showSelected() {
    enableActions();
    const model::FaultView* fault = model_.at(table_->currentIndex().row());
    const model::IncidentView* incident =
        fault != nullptr && !fault->incidents.empty()
            ? model::findIncident(context_.feed.state(), fault->incidents.back())
            : nullptr;
    bars_->set(incident ? std::optional(*incident) : std::nullopt);
}

void FaultsView::showCampaigns() {
    tabs_->setCurrentWidget(campaigns_);
    context_.actions.find(QStringLiteral("view.faults"))->trigger();
}

void FaultsView::refresh() {
    if (tabs_->currentWidget() == campaigns_)
        campaigns_->refresh();
    else
        refreshFaults();
}

void FaultsView::refreshFaults() {
    const Revisions& now = context_.feed.revisions();
    if (now.incidents == drawn_.incidents && now.status == drawn_.status) return;
    fillTargets();
    if (now.incidents != drawn_.incidents) {
        const int row = table_->currentIndex().row();
        const int before = model_.rowCount();
        model_.refresh();
        // A fault just injected is the one to look at.
        if (model_.rowCount() > 0 && (row <= 0 || model_.rowCount() != before))
            table_->selectRow(0);
        showSelected();
    }
    // The preview of a fault depends on the replicas present.
    std::vector<model::ReplicaState> there;
    for (const model::ReplicaView& r : context_.feed.state().replicas) there.push_back(r.state);
    if (sentence_->text().isEmpty() || there != states_) composeChanged();
    states_ = std::move(there);
    drawn_ = now;
}

}  // namespace bulkhead::ui
