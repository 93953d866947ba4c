// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/events_view.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QScrollBar>
#include <QTableView>
#include <utility>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "app/widgets/elided_label.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kDebounceMs = 150;

}  // namespace

EventsView::EventsView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("events"), tr("Events"), parent),
      model_(context.feed),
      history_(context.session),
      table_(new QTableView),
      text_(new QLineEdit),
      severity_(new QComboBox),
      replica_(new QComboBox),
      count_(new ElidedLabel) {
    filter_.setSourceModel(&model_);
    filter_.setHideRoutine(true);
    table_->setModel(&filter_);
    styleTable(table_, tr("Events"));
    table_->setColumnWidth(EventLogModel::kTime, 96);
    table_->setColumnWidth(EventLogModel::kSeverity, 88);
    table_->setColumnWidth(EventLogModel::kKind, 112);
    table_->setColumnWidth(EventLogModel::kSubject, 72);
    setBody(table_);
    addControls();
    connect(&history_, &EventHistory::page, this, &EventsView::takeHistory);
    connect(&history_, &EventHistory::stateChanged, this, &EventsView::countRows);
    connect(&context_.feed, &RunFeed::wasReset, this, [this] {
        fresh_ = true;
        snapshotSeq_ = context_.feed.state().seq;
    });
    connect(&context_.cursor, &TimeCursor::moved, this, &EventsView::followCursor);
    // Not the current row: a table makes its first one that when it gets the keyboard.
    connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this, [this] {
        const QModelIndexList rows = table_->selectionModel()->selectedRows();
        if (movingCursor_ || rows.isEmpty() || !table_->hasFocus()) return;
        movingCursor_ = true;
        context_.cursor.set(rows.first().data(kTimeRole).toLongLong());
        movingCursor_ = false;
    });
    connect(table_->verticalScrollBar(), &QScrollBar::valueChanged, this, [this](int value) {
        atEnd_ = value >= table_->verticalScrollBar()->maximum() - 4;
        if (value == 0) history_.more();
    });
    // Rows that come from history arrive after the view was drawn.
    connect(table_->verticalScrollBar(), &QScrollBar::rangeChanged, this, [this] {
        if (atEnd_ && !context_.cursor.at()) table_->scrollToBottom();
    });
    connect(&filter_, &QAbstractItemModel::rowsInserted, this, &EventsView::countRows);
    connect(&filter_, &QAbstractItemModel::rowsRemoved, this, &EventsView::countRows);
    connect(&filter_, &QAbstractItemModel::modelReset, this, &EventsView::countRows);
}

void EventsView::addControls() {
    text_->setPlaceholderText(tr("Filter"));
    text_->setClearButtonEnabled(true);
    text_->setAccessibleName(tr("Filter events by text"));
    text_->setFixedWidth(160);
    severity_->setAccessibleName(tr("Least severity"));
    severity_->addItems(
        {tr("All severities"), tr("Notice and up"), tr("Warning and up"), tr("Errors only")});
    replica_->setAccessibleName(tr("Replica"));
    replica_->addItem(tr("All replicas"));
    count_->setObjectName(QStringLiteral("Muted"));
    count_->setFont(Theme::font(-1));
    QAction* routine = context_.actions.add(
        QStringLiteral("events.routine"), tr("View"), tr("Show routine events"),
        tr("Show step, quorum and output lines as well"),
        QKeySequence(QStringLiteral("Ctrl+Shift+E")), [this] {
            filter_.setHideRoutine(
                !context_.actions.find(QStringLiteral("events.routine"))->isChecked());
            model_.dropUntil(snapshotSeq_);
            beginHistory();
        });
    routine->setCheckable(true);
    context_.actions.add(
        QStringLiteral("events.find"), tr("View"), tr("Filter events"),
        tr("Type what to look for in the log"), QKeySequence(QKeySequence::Find), [this] {
            if (auto* action = context_.actions.find(QStringLiteral("view.events")))
                action->trigger();
            text_->setFocus();
        });
    controls()->insertWidget(1, count_);
    addButton(routine, tr("Show routine events"));
    controls()->addWidget(severity_);
    controls()->addWidget(replica_);
    controls()->addWidget(text_);
    debounce_.setSingleShot(true);
    debounce_.setInterval(kDebounceMs);
    connect(text_, &QLineEdit::textChanged, &debounce_, qOverload<>(&QTimer::start));
    connect(&debounce_, &QTimer::timeout, this, [this] {
        filter_.setText(text_->text());
        countRows();
    });
    connect(severity_, &QComboBox::currentIndexChanged, this, [this](int i) {
        filter_.setMinSeverity(static_cast<model::Severity>(i));
        countRows();
    });
    connect(replica_, &QComboBox::currentIndexChanged, this, [this](int i) {
        filter_.setReplica(i - 1);
        countRows();
    });
}

QWidget* EventsView::focusTarget() {
    return table_;
}

void EventsView::beginHistory() {
    history_.begin(snapshotSeq_,
                   context_.actions.find(QStringLiteral("events.routine"))->isChecked());
}

void EventsView::takeHistory(const std::vector<model::Event>& events) {
    // The row at the top stays where it was.
    const QModelIndex top = table_->indexAt({0, 0});
    const QPersistentModelIndex first = filter_.mapToSource(top);
    const bool fits = model_.prepend(events, history_.withRoutine());
    if (!atEnd_ && first.isValid())
        table_->scrollTo(filter_.mapFromSource(first), QAbstractItemView::PositionAtTop);
    if (!fits) history_.stop();
}

QString EventsView::missingWords() const {
    const QString since = formatClock(model_.firstNs());
    switch (history_.state()) {
        case EventHistory::State::kReading:
            return tr("reading earlier ones\u2026");
        case EventHistory::State::kMore:
            return tr("from %1 on; scroll up for earlier ones").arg(since);
        case EventHistory::State::kFull:
            return tr("from %1 on; filter or replay an earlier moment for the rest").arg(since);
        case EventHistory::State::kFailed:
            return tr("earlier ones could not be read: %1").arg(inWords(history_.failure()));
        case EventHistory::State::kWhole:
            break;
    }
    return {};
}

void EventsView::countRows() {
    const QString missing = missingWords();
    count_->setText(tr("%1 of %2")
                        .arg(formatCount(static_cast<uint64_t>(filter_.rowCount())),
                             formatCount(context_.feed.state().counters.events)) +
                    (missing.isEmpty() ? QString() : QStringLiteral(", ") + missing));
    count_->setToolTip(count_->text() + u'\n' +
                       tr("Events shown, and events of the run. Figures of ranks and experts, "
                          "which come several times a second, are never listed."));
}

void EventsView::followCursor() {
    if (movingCursor_ || !context_.cursor.at()) return;
    // The nearest line at or before the moment that the filter lets through.
    for (int row = model_.rowAt(*context_.cursor.at()); row >= 0; --row) {
        const QModelIndex shown = filter_.mapFromSource(model_.index(row, 0));
        if (!shown.isValid()) continue;
        movingCursor_ = true;
        table_->selectRow(shown.row());
        table_->scrollTo(shown, QAbstractItemView::PositionAtCenter);
        movingCursor_ = false;
        return;
    }
}

void EventsView::refresh() {
    if (std::exchange(fresh_, false)) beginHistory();
    const auto replicas = static_cast<int>(context_.feed.state().replicas.size());
    while (replica_->count() < replicas + 1)
        replica_->addItem(tr("Replica %1").arg(replica_->count() - 1));
    countRows();
    if (atEnd_ && !context_.cursor.at()) table_->scrollToBottom();
}

}  // namespace bulkhead::ui
