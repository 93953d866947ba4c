// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/timeline_view.h"

#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QSplitter>
#include <QTableView>

#include "app/models/labels.h"
#include "app/models/range_words.h"
#include "app/widgets/elided_label.h"
#include "app/widgets/incident_bars.h"
#include "app/widgets/lane_timeline.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "backend/model/incident_card.h"

namespace bulkhead::ui {
namespace {

constexpr int64_t kLeastAroundNs = 2'000'000'000;

}  // namespace

TimelineView::TimelineView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("timeline"), tr("Timeline"), parent),
      model_(context.feed),
      lanes_(new LaneTimeline),
      table_(new QTableView),
      bars_(new IncidentBars),
      range_(new ElidedLabel) {
    lanes_->setState(&context_.feed.state());
    table_->setModel(&model_);
    styleTable(table_, tr("Incidents"));
    const int widths[] = {44, 64, 60, 176, 76, 108, 84, 96};
    for (int i = 0; i < 8; ++i) table_->setColumnWidth(i, widths[i]);
    auto* below = new QSplitter(Qt::Vertical);
    below->addWidget(bars_);
    below->addWidget(table_);
    below->setSizes({128, 160});
    below->setCollapsible(0, false);
    auto* body = new QSplitter(Qt::Vertical);
    body->addWidget(lanes_);
    body->addWidget(below);
    lanes_->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Expanding);
    below->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Preferred);
    body->setStretchFactor(0, 1);
    body->setSizes({240, 260});
    setBody(body);
    addLegend();
    addActions();
    connect(&context_.feed, &RunFeed::wasReset, this, [this] {
        lanes_->setState(&context_.feed.state());
        context_.cursor.setFrame(std::nullopt);
        drawn_ = {};
    });
    connect(lanes_, &LaneTimeline::cursorPicked, &context_.cursor, &TimeCursor::set);
    connect(lanes_, &LaneTimeline::incidentPicked, this, [this](quint64 incident) {
        selectIncident(incident);
        frameSelected();
    });
    connect(&context_.cursor, &TimeCursor::framed, this, &TimelineView::showFrame);
    connect(table_, &QTableView::clicked, this, &TimelineView::frameSelected);
    connect(&context_.cursor, &TimeCursor::moved, this,
            [this] { lanes_->setCursorTime(context_.cursor.at()); });
    connect(table_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            [this](const QModelIndex& now, const QModelIndex& before) {
                showSelected();
                if (now.isValid() && before.isValid() && table_->hasFocus()) frameSelected();
            });
}

void TimelineView::addLegend() {
    auto* legend = new QLabel;
    legend->setFont(Theme::font(-1));
    legend->setTextFormat(Qt::RichText);
    const auto fill = [legend] {
        const Tokens& t = theme().tokens();
        const auto key = [&](const QColor& color, const QString& words) {
            return QStringLiteral(
                       "<span style='color:%1'>\u25a0</span>&nbsp;<span "
                       "style='color:%2'>%3</span>&nbsp; ")
                .arg(color.name(), t.muted.name(), words);
        };
        using enum model::ReplicaState;
        legend->setText(key(blend(t.surface, t.of(kTraining), 0.45), label(kTraining)) +
                        key(t.stall, tr("Stall")) + key(t.of(kStarting), label(kStarting)) +
                        key(t.of(kFetching), label(kFetching)) +
                        key(t.of(kReplaying), label(kReplaying)) +
                        key(t.of(kProven), label(kProven)));
    };
    fill();
    connect(&theme(), &Theme::changed, legend, fill);
    controls()->insertWidget(1, legend);
    range_->setObjectName(QStringLiteral("Muted"));
    range_->setFont(Theme::font(-1));
    range_->hide();
    controls()->insertWidget(2, range_);
}

void TimelineView::addActions() {
    const auto add = [this](const char* id, const QString& title, const QString& hint,
                            const QString& keys, const QString& face, auto run) {
        QAction* action = context_.actions.add(QString::fromLatin1(id), tr("View"), title, hint,
                                               QKeySequence(keys), run);
        addButton(action, face);
    };
    add("timeline.zoomIn", tr("Zoom in"), tr("Show a shorter stretch of time"),
        QStringLiteral("Ctrl++"), QStringLiteral("+"), [this] { lanes_->zoom(1.5); });
    add("timeline.zoomOut", tr("Zoom out"), tr("Show a longer stretch of time"),
        QStringLiteral("Ctrl+-"), QStringLiteral("\u2212"), [this] { lanes_->zoom(1 / 1.5); });
    add("timeline.all", tr("Whole run"), tr("Show the run from its beginning"),
        QStringLiteral("Ctrl+0"), tr("All"), [this] {
            context_.cursor.setFrame(std::nullopt);
            lanes_->showAll();
        });
    add("timeline.follow", tr("Follow the present"),
        tr("Let go of the time cursor and move along with the run"), QStringLiteral("Ctrl+E"),
        tr("Now"), [this] {
            context_.cursor.setFrame(std::nullopt);
            context_.cursor.set(std::nullopt);
            lanes_->followPresent();
        });
}

QWidget* TimelineView::focusTarget() {
    return lanes_;
}

void TimelineView::selectIncident(uint64_t incident) {
    if (const int row = model_.rowOf(incident); row >= 0) table_->selectRow(row);
}

/// The incident's stretch and as much again around it, on every page.
void TimelineView::frameSelected() {
    const model::IncidentView* incident = model_.at(table_->currentIndex().row());
    if (incident == nullptr) return;
    const model::IncidentCard card =
        model::incidentCard(context_.feed.state(), *incident, model::Prices{});
    context_.cursor.set(card.beginNs);
    context_.cursor.setFrame(
        TimeCursor::Frame{card.beginNs, card.endNs, card.replica, card.incident});
}

void TimelineView::showFrame() {
    const auto& frame = context_.cursor.frame();
    if (!frame) return;
    const int64_t around = std::max<int64_t>((frame->endNs - frame->beginNs) / 2, kLeastAroundNs);
    lanes_->setRange(frame->beginNs - around, frame->endNs + around);
    if (frame->incident != 0) selectIncident(frame->incident);
}

void TimelineView::showSelected() {
    const model::IncidentView* incident = model_.at(table_->currentIndex().row());
    bars_->set(incident ? std::optional(*incident) : std::nullopt);
}

void TimelineView::refresh() {
    const Revisions& now = context_.feed.revisions();
    if (now.lanes != drawn_.lanes || now.steps != drawn_.steps || now.fleet != drawn_.fleet)
        lanes_->advance();
    if (now.lanes != drawn_.lanes) {
        const RangeWords range = laneRange(context_.feed.state());
        range_->setVisible(!range.text.isEmpty());
        range_->setText(range.text);
        range_->setToolTip(range.detail);
    }
    if (now.incidents != drawn_.incidents) {
        const bool wasFirst = table_->currentIndex().row() <= 0;
        model_.refresh();
        if (wasFirst && model_.rowCount() > 0) table_->selectRow(0);
        showSelected();
    }
    drawn_ = now;
}

}  // namespace bulkhead::ui
