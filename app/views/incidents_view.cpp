// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/incidents_view.h"

#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QScopedValueRollback>
#include <QSplitter>
#include <QTableView>
#include <QVBoxLayout>
#include <algorithm>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/views/job_commands.h"
#include "app/widgets/elided_label.h"
#include "app/widgets/incident_bars.h"
#include "app/widgets/incident_panel.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

IncidentsView::IncidentsView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("incidents"), tr("Incidents"), parent),
      model_(context.feed, context.prices),
      panel_(new IncidentPanel),
      bars_(new IncidentBars),
      table_(new QTableView),
      count_(new ElidedLabel) {
    table_->setModel(&model_);
    styleTable(table_, tr("Incidents and problems"));
    table_->horizontalHeader()->setStretchLastSection(false);
    table_->horizontalHeader()->setSectionResizeMode(CardModel::kTitle, QHeaderView::Stretch);
    for (const int column : {CardModel::kTime, CardModel::kBack, CardModel::kCost})
        table_->setColumnWidth(column, column == CardModel::kBack ? 136 : 104);
    auto* card = new QWidget;
    auto* column = new QVBoxLayout(card);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(panel_, 1);
    column->addWidget(bars_);
    auto* body = new QSplitter(Qt::Vertical);
    body->addWidget(card);
    body->addWidget(table_);
    body->setStretchFactor(0, 1);
    body->setSizes({420, 180});
    body->setCollapsible(0, false);
    setBody(body);
    addActions();
    connect(panel_, &IncidentPanel::actionWanted, this,
            [this](const model::Action& action) { context_.commands.act(action); });
    connect(panel_, &IncidentPanel::endFaultWanted, this,
            [this](quint64 fault) { context_.commands.endFault(fault); });
    connect(table_->selectionModel(), &QItemSelectionModel::currentRowChanged, this, [this] {
        showCard();
        if (!selecting_ && table_->hasFocus()) frameCard();
    });
    connect(table_, &QTableView::clicked, this, &IncidentsView::frameCard);
    connect(&context_.cursor, &TimeCursor::framed, this, &IncidentsView::followFrame);
    connect(&context_.session, &Session::statusChanged, this,
            [this] { panel_->setCanAct(context_.session.status().canAct()); });
}

void IncidentsView::addActions() {
    count_->setObjectName(QStringLiteral("Muted"));
    count_->setFont(Theme::font(-1));
    controls()->insertWidget(1, count_);
    const auto add = [this](const char* id, const QString& title, const QString& hint,
                            const char* keys, const QString& face, int by) {
        addButton(
            context_.actions.add(QString::fromLatin1(id), tr("View"), title, hint,
                                 QKeySequence(QString::fromLatin1(keys)), [this, by] { go(by); }),
            face);
    };
    add("incidents.previous", tr("Previous incident"), tr("Show and frame the card above"),
        "Alt+Up", tr("Previous"), -1);
    add("incidents.next", tr("Next incident"), tr("Show and frame the card below"), "Alt+Down",
        tr("Next"), 1);
}

QWidget* IncidentsView::focusTarget() {
    return table_;
}

void IncidentsView::showFirst() {
    if (model_.rowCount() > 0) table_->selectRow(0);
}

void IncidentsView::go(int by) {
    model_.refresh();
    if (model_.rowCount() == 0) return;
    const int row = table_->currentIndex().isValid() ? table_->currentIndex().row() + by : 0;
    table_->selectRow(std::clamp(row, 0, model_.rowCount() - 1));
    frameCard();
}

/// An incident that was chosen on another page is the one to show here.
void IncidentsView::followFrame() {
    const auto& frame = context_.cursor.frame();
    if (!frame || frame->incident == 0) return;
    model_.refresh();
    const int row = model_.rowOf(frame->incident);
    if (row < 0 || row == table_->currentIndex().row()) return;
    const QScopedValueRollback quiet(selecting_, true);
    table_->selectRow(row);
}

void IncidentsView::frameCard() {
    const model::IncidentCard* card = model_.at(table_->currentIndex().row());
    if (card == nullptr) return;
    context_.cursor.set(card->beginNs);
    context_.cursor.setFrame(
        TimeCursor::Frame{card->beginNs, card->endNs, card->replica, card->incident});
}

void IncidentsView::showCard() {
    const model::IncidentCard* card = model_.at(table_->currentIndex().row());
    panel_->setCard(card ? std::optional(*card) : std::nullopt);
    const model::IncidentView* incident =
        card ? model::findIncident(context_.feed.state(), card->incident) : nullptr;
    bars_->setVisible(incident != nullptr);
    bars_->set(incident ? std::optional(*incident) : std::nullopt);
    askPreview();
}

/// The preview of the recommended action depends on the replicas present.
void IncidentsView::askPreview() {
    const model::IncidentCard* card = model_.at(table_->currentIndex().row());
    const std::optional<model::Action> action = card ? card->action : std::nullopt;
    std::vector<model::ReplicaState> there;
    for (const model::ReplicaView& r : context_.feed.state().replicas) there.push_back(r.state);
    if (action == asked_ && there == there_) return;
    asked_ = action;
    there_ = std::move(there);
    ++asks_;
    panel_->setPreview({});
    if (!action || !context_.session.status().canAct()) return;
    context_.session.preflight(*action, [this, asked = asks_](auto result) {
        if (asked != asks_) return;
        if (!result.ok()) return panel_->setPreview(inWords(result.failure()));
        const model::Preflight& p = result.value();
        panel_->setPreview(toQt(p.allowed ? p.effect : p.refusal));
    });
}

void IncidentsView::refresh() {
    const Revisions& now = context_.feed.revisions();
    if (now.incidents == drawn_.incidents && now.status == drawn_.status &&
        now.fleet == drawn_.fleet)
        return;
    drawn_ = now;
    const model::IncidentCard* shown = model_.at(table_->currentIndex().row());
    const uint64_t incident = shown != nullptr ? shown->incident : 0;
    model_.refresh();
    const QScopedValueRollback quiet(selecting_, true);
    if (const int row = model_.rowOf(incident); row >= 0 && row != table_->currentIndex().row())
        table_->selectRow(row);
    else if (!table_->currentIndex().isValid())
        showFirst();
    const int open = model_.openCount();
    count_->setText(tr("%1 open, %2 over").arg(open).arg(model_.rowCount() - open));
    showCard();
}

}  // namespace bulkhead::ui
