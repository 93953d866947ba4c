// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/runs_view.h"

#include <QCoreApplication>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QSplitter>
#include <QTableView>
#include <QToolButton>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "app/widgets/time_series_view.h"

namespace bulkhead::ui {
namespace {

constexpr int kFetchDelayMs = 400;
const std::array<Metric, 3> kCompared = {Metric::kLoss, Metric::kEffectiveTime,
                                         Metric::kTokensPerSecond};

QString cell(const QString& text) {
    return QStringLiteral("<td style='padding:2px 16px 2px 0'>%1</td>").arg(text.toHtmlEscaped());
}

QString row(const QString& name, const QString& a, const QString& b) {
    return QStringLiteral("<tr>") + cell(name) + cell(a) + cell(b) + QStringLiteral("</tr>");
}

}  // namespace

QString comparisonWords(const QString& nameA, const model::RunState& a, const QString& nameB,
                        const model::RunState& b) {
    const auto tr = [](const char* text) { return QCoreApplication::translate("runs", text); };
    const auto both = [&](const char* name, auto figure) {
        return row(tr(name), figure(a), figure(b));
    };
    using S = const model::RunState&;
    QString html = QStringLiteral("<table>") + row({}, nameA, nameB);
    html += both("Steps",
                 [](S s) { return formatCount(s.lastCommit ? s.lastCommit->record.step : 0); });
    html += both("Last loss", [](S s) {
        return s.lastCommit ? formatNumber(s.lastCommit->loss, 3) : noFigure();
    });
    html += both("Effective training time", [](S s) { return formatShare(s.effectiveTime); });
    html += both("Incidents", [](S s) { return formatCount(s.counters.incidents); });
    html += both("Survivors stood still", [](S s) { return formatMs(s.counters.survivorStallMs); });
    html += both("Mean time to rejoin", [](S s) {
        return s.counters.rejoins == 0
                   ? noFigure()
                   : formatMs(s.counters.rejoinMs / static_cast<double>(s.counters.rejoins));
    });
    html += both("Samples redone", [](S s) {
        return formatCount(s.counters.samplesRedone + s.counters.samplesSuperseded);
    });
    html += both("Recovery", [](S s) { return toQt(enumName(s.policies.recovery)); });
    return html + QStringLiteral("</table>");
}

RunsView::RunsView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("runs"), tr("Runs"), parent),
      table_(new QTableView),
      search_(new QLineEdit),
      summary_(new QLabel) {
    sorted_.setSourceModel(&model_);
    sorted_.setSortRole(kSortRole);
    table_->setModel(&sorted_);
    styleTable(table_, tr("Runs"));
    table_->setSelectionMode(QAbstractItemView::ExtendedSelection);
    const int widths[] = {120, 148, 80, 56, 72, 80, 84, 76, 64, 104};
    for (int i = 0; i < 10; ++i) table_->setColumnWidth(i, widths[i]);
    table_->setSortingEnabled(true);
    table_->sortByColumn(RunsModel::kStarted, Qt::DescendingOrder);
    summary_->setTextFormat(Qt::RichText);
    summary_->setAlignment(Qt::AlignTop);
    summary_->setMargin(Space::kTwo);
    summary_->setWordWrap(true);
    summary_->setAccessibleName(tr("Comparison in words"));
    summary_->setText(emptyWords(tr("Compare two runs"),
                                 tr("Select two with Shift or Ctrl, then choose Compare.")));
    auto* charts = new QSplitter(Qt::Horizontal);
    charts->addWidget(summary_);
    const auto chart = [&](size_t i, const QString& title, auto format) {
        charts_[i] = new TimeSeriesView(title, {}, format);
        charts->addWidget(charts_[i]);
        charts_[i]->hide();  // until there is something to compare
    };
    chart(0, tr("Loss"), [](double v) { return formatNumber(v, 3); });
    chart(1, tr("Effective time, %"), [](double v) { return formatShare(v / 100); });
    chart(2, tr("Tokens per second"), formatRate);
    charts_[2]->setFromZero(true);
    charts->setSizes({320, 300, 300, 300});
    auto* body = new QSplitter(Qt::Vertical);
    body->addWidget(table_);
    body->addWidget(charts);
    body->setSizes({240, 230});
    setBody(body);
    setEmptyText(tr("No history open"), tr("Runs are listed once a daemon or a run file is open."));
    addControls();
    fetchTimer_.setSingleShot(true);
    fetchTimer_.setInterval(kFetchDelayMs);
    connect(&fetchTimer_, &QTimer::timeout, this, &RunsView::fetch);
    connect(search_, &QLineEdit::textChanged, &fetchTimer_, qOverload<>(&QTimer::start));
    connect(&context_.session, &Session::runsChanged, this, [this] {
        touch();
        if (isVisible() && !fetchTimer_.isActive()) fetchTimer_.start();
    });
    connect(table_, &QTableView::activated, this, &RunsView::replaySelected);
}

void RunsView::addControls() {
    search_->setPlaceholderText(tr("Search"));
    search_->setClearButtonEnabled(true);
    search_->setAccessibleName(tr("Search runs"));
    search_->setFixedWidth(160);
    const auto button = [this](QAction* action, const QString& face) {
        auto* tool = new QToolButton;
        tool->setDefaultAction(action);
        tool->setText(face);
        tool->setAccessibleName(action->text());
        controls()->addWidget(tool);
    };
    controls()->addWidget(search_);
    button(
        context_.actions.add(QStringLiteral("runs.replay"), tr("Runs"), tr("Replay selected run"),
                             tr("Show the selected run again, from its events"),
                             QKeySequence(QStringLiteral("Ctrl+R")), [this] { replaySelected(); }),
        tr("Replay"));
    button(
        context_.actions.add(QStringLiteral("runs.compare"), tr("Runs"), tr("Compare two runs"),
                             tr("Lay the curves of two selected runs over each other"),
                             QKeySequence(QStringLiteral("Ctrl+M")), [this] { compareSelected(); }),
        tr("Compare"));
}

QWidget* RunsView::focusTarget() {
    return table_;
}

void RunsView::showEvent(QShowEvent* event) {
    View::showEvent(event);
    fetch();
}

void RunsView::fetch() {
    context_.session.listRuns(search_->text(), [this](auto result) {
        if (result.ok()) model_.set(std::move(result).value());
        touch();
    });
}

QString RunsView::selectedRun() const {
    const QModelIndex index = table_->currentIndex();
    return index.isValid() ? index.data(kIdRole).toString() : QString();
}

void RunsView::replaySelected() {
    if (const QString run = selectedRun(); !run.isEmpty()) context_.session.replayRun(run);
}

void RunsView::compareSelected() {
    const QModelIndexList rows = table_->selectionModel()->selectedRows();
    if (rows.size() != 2)
        return void(Q_EMIT failed(
            {client::FailureCode::kInvalid, tr("Nothing to compare").toStdString(),
             tr("%n run(s) are selected.", nullptr, static_cast<int>(rows.size())).toStdString(),
             tr("Select exactly two runs.").toStdString(), false}));
    for (size_t i = 0; i < 2; ++i) {
        sides_[i] = {rows[static_cast<int>(i)].data(kIdRole).toString(), nullptr};
        context_.session.loadRun(sides_[i].name, [this, i, name = sides_[i].name](auto result) {
            if (!result.ok()) return void(Q_EMIT failed(result.failure()));
            if (sides_[i].name != name) return;
            sides_[i].state = std::move(result).value();
            showComparison();
        });
    }
}

void RunsView::showComparison() {
    if (!sides_[0].state || !sides_[1].state) return;
    summary_->setText(
        comparisonWords(sides_[0].name, *sides_[0].state, sides_[1].name, *sides_[1].state));
    for (size_t i = 0; i < kCompared.size(); ++i) {
        charts_[i]->show();
        charts_[i]->set({{sides_[0].name, seriesOf(*sides_[0].state, kCompared[i]), 0},
                         {sides_[1].name, seriesOf(*sides_[1].state, kCompared[i]), 1}});
    }
}

}  // namespace bulkhead::ui
