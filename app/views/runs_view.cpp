// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/runs_view.h"

#include <QCoreApplication>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QSplitter>
#include <QTableView>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "app/views/export_dialog.h"
#include "app/views/job_commands.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "app/widgets/time_series_view.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/run_figures.h"

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
        return row(tr(name), figure(model::figuresOf(a)), figure(model::figuresOf(b)));
    };
    using F = const model::RunFigures&;
    QString html = QStringLiteral("<table>") + row({}, nameA, nameB);
    html += both("Steps", [](F f) { return formatCount(f.steps); });
    html += both("Last loss", [](F f) { return f.loss ? formatNumber(*f.loss, 3) : noFigure(); });
    html += both("Effective training time", [](F f) { return formatShare(f.effectiveTime); });
    html += both("Incidents", [](F f) { return formatCount(f.incidents); });
    html += both("Survivors stood still", [](F f) { return formatMs(f.survivorStallMs); });
    html +=
        both("Mean time to rejoin", [](F f) { return formatOptional(f.meanRejoinMs, formatMs); });
    html += both("Samples redone", [](F f) { return formatCount(f.samplesRedone); });
    html += both("Recovery", [](F f) { return toQt(enumName(f.recovery)); });
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
    const int widths[] = {120, 148, 80, 56, 72, 80, 84, 76, 64, 184};
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
    chart(0, tr("Loss, raw"), [](double v) { return formatNumber(v, 3); });
    chart(1, tr("Effective time, %"), [](double v) { return formatShare(v / 100); });
    chart(2, tr("Throughput"), formatTokenRate);
    charts_[1]->setMost(100);
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
        if (canBeSeen() && !fetchTimer_.isActive()) fetchTimer_.start();
    });
    connect(table_, &QTableView::activated, this, &RunsView::replaySelected);
}

void RunsView::addControls() {
    search_->setPlaceholderText(tr("Search"));
    search_->setClearButtonEnabled(true);
    search_->setAccessibleName(tr("Search runs"));
    search_->setFixedWidth(160);
    controls()->addWidget(search_);
    const auto add = [this](const char* id, const QString& face, const QString& title,
                            const QString& hint, const char* keys, auto run) {
        QAction* action = context_.actions.add(QString::fromLatin1(id), tr("Runs"), title, hint,
                                               QKeySequence(QString::fromLatin1(keys)), run);
        addButton(action, face);
        table_->addAction(action);
    };
    add("runs.replay", tr("Replay"), tr("Replay selected run"),
        tr("Show the selected run again, from its events"), "Ctrl+R", [this] { replaySelected(); });
    add("runs.compare", tr("Compare"), tr("Compare two runs"),
        tr("Lay the curves of two selected runs over each other"), "Ctrl+M",
        [this] { compareSelected(); });
    add("runs.check", tr("Verify ledger"), tr("Verify the data ledger"),
        tr("Add the selected run's data up again: everything once, nothing twice"), "Ctrl+Shift+K",
        [this] { checkSelected(); });
    add("runs.export", tr("Export"), tr("Export selected run\u2026"),
        tr("Its ledger or its events as a file"), "Ctrl+Shift+S", [this] { exportSelected(); });
    add("runs.resume", tr("Resume"), tr("Resume from selected run\u2026"),
        tr("Start a job from the last checkpoint of the selected run"), "Ctrl+Shift+N",
        [this] { Q_EMIT resumeWanted(selectedRun()); });
    table_->setContextMenuPolicy(Qt::ActionsContextMenu);
    connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this,
            &RunsView::enableActions);
    enableActions();
}

void RunsView::enableActions() {
    const auto rows = table_->selectionModel()->selectedRows().size();
    for (const char* id : {"runs.replay", "runs.check", "runs.export", "runs.resume"})
        context_.actions.find(QString::fromLatin1(id))->setEnabled(rows > 0);
    context_.actions.find(QStringLiteral("runs.compare"))->setEnabled(rows == 2);
}

QWidget* RunsView::focusTarget() {
    return table_;
}

void RunsView::raised() {
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
    if (rows.size() != 2) return;
    for (size_t i = 0; i < 2; ++i) {
        sides_[i] = {rows[static_cast<int>(i)].data(kIdRole).toString(), nullptr};
        context_.session.loadRun(sides_[i].name, [this, i, name = sides_[i].name](auto result) {
            if (!result.ok()) return context_.commands.complain(result.failure());
            if (sides_[i].name != name) return;
            sides_[i].state = std::move(result).value();
            showComparison();
        });
    }
}

void RunsView::checkSelected() {
    context_.session.checkLedger(selectedRun(), [this, run = selectedRun()](auto result) {
        if (!result.ok()) return context_.commands.complain(result.failure());
        const model::LedgerReport& report = result.value();
        const std::string text = model::ledgerText(report);
        if (report.ok) return context_.commands.tell(tr("%1: %2").arg(run, toQt(text)));
        const model::LedgerFinding& first = report.findings.front();
        const std::string more =
            report.findings.size() > 1
                ? tr(" (and %1 more)").arg(report.findings.size() - 1).toStdString()
                : "";
        context_.commands.complain({client::FailureCode::kServer,
                                    tr("The ledger of %1").arg(run).toStdString(),
                                    first.what + more + ". " + text, first.remedy, false});
    });
}

void RunsView::exportSelected() {
    auto* dialog = new ExportDialog(selectedRun(), this);
    connect(dialog, &QDialog::accepted, this, [this, dialog] {
        context_.session.exportRun(dialog->request(), dialog->path(),
                                   [this, path = dialog->path()](auto result) {
                                       if (!result.ok())
                                           return context_.commands.complain(result.failure());
                                       context_.commands.tell(tr("Written to %1").arg(path));
                                   });
    });
    dialog->open();
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
