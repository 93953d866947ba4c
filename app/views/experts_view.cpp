// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/experts_view.h"

#include <QComboBox>
#include <QFileDialog>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QSplitter>
#include <QTableView>
#include <QToolButton>
#include <QVBoxLayout>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/views/expert_study_tabs.h"
#include "app/views/job_commands.h"
#include "app/widgets/heat_map.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "app/widgets/time_series_view.h"

namespace bulkhead::ui {
namespace {

constexpr size_t kMostSmall = 6;
constexpr int kSmallHeight = 160;

}  // namespace

ExpertsView::ExpertsView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("experts"), tr("Experts"), parent),
      map_(new HeatMap),
      domain_(new QComboBox),
      window_(new QComboBox),
      table_(new QTableView),
      imbalance_(new TimeSeriesView(tr("Busiest expert over mean, of the 100 steps before"),
                                    QStringLiteral("1"),
                                    [](double v) { return formatNumber(v, 2); })),
      smallRow_(new QWidget) {
    domain_->setAccessibleName(tr("Domain"));
    domain_->addItem(tr("All domains"));
    window_->setAccessibleName(tr("Which steps"));
    window_->addItems({tr("Last 100 steps"), tr("Last report"), tr("Whole run")});
    controls()->addWidget(domain_);
    controls()->addWidget(window_);
    table_->setModel(&model_);
    styleTable(table_, tr("Expert loads in figures"));
    table_->verticalHeader()->show();
    table_->horizontalHeader()->setDefaultSectionSize(64);
    table_->horizontalHeader()->setStretchLastSection(false);
    table_->setSelectionBehavior(QAbstractItemView::SelectItems);
    auto* row = new QHBoxLayout(smallRow_);
    row->setContentsMargins(Space::kTwo, Space::kOne, Space::kTwo, Space::kOne);
    row->setSpacing(Space::kTwo);
    smallRow_->setMaximumHeight(kSmallHeight);
    auto* below = new QSplitter(Qt::Horizontal);
    below->addWidget(table_);
    below->addWidget(imbalance_);
    below->setSizes({420, 420});
    study_ = new ExpertStudyTabs(below, tr("Loads"));
    addActions();
    auto* body = new QSplitter(Qt::Vertical);
    body->addWidget(map_);
    body->addWidget(smallRow_);
    body->addWidget(study_);
    body->setStretchFactor(0, 2);
    body->setStretchFactor(1, 1);
    body->setStretchFactor(2, 1);
    body->setSizes({300, 110, 220});
    setBody(body);
    setEmptyText(tr("No expert loads yet"),
                 tr("They come with committed steps of a mixture-of-experts model."));
    const auto redo = [this] {
        drawn_ = {};
        touch();
    };
    connect(domain_, &QComboBox::activated, this, redo);
    connect(window_, &QComboBox::activated, this, redo);
    connect(map_, &HeatMap::currentChanged, this, [this](int layer, int expert) {
        table_->setCurrentIndex(model_.index(layer, expert + 1));
    });
}

void ExpertsView::addActions() {
    ActionRegistry& a = context_.actions;
    addButton(a.add(QStringLiteral("experts.recording"), tr("Experts"),
                    tr("Open a recording of routing\u2026"),
                    tr("Of a server or a job: domains, experts used together, prefill and decode"),
                    QKeySequence(QStringLiteral("Ctrl+W")), [this] { askRecording(); }),
              tr("Recording\u2026"));
    QAction* close =
        a.add(QStringLiteral("experts.live"), tr("Experts"), tr("Close the recording of routing"),
              tr("Back to the job's own"), QKeySequence(QStringLiteral("Ctrl+U")),
              [this] { study_->closeRecording(); });
    QToolButton* closeButton = addButton(close, tr("Close recording"));
    const auto enable = [this, close, closeButton](const QString& refusal) {
        close->setEnabled(study_->hasRecording());
        closeButton->setVisible(study_->hasRecording());
        showLive(!study_->hasRecording());
        drawn_ = {};
        touch();
        if (!refusal.isEmpty())
            context_.commands.complain(client::localFailure(
                client::FailureCode::kInvalid, tr("Cannot read the recording").toStdString(),
                refusal.toStdString()));
    };
    connect(study_, &ExpertStudyTabs::recordingChanged, this, enable);
    close->setEnabled(false);
    closeButton->hide();
}

/// A recording takes the whole page, and has no steps to choose among.
void ExpertsView::showLive(bool live) {
    for (QWidget* part : std::initializer_list<QWidget*>{window_, imbalance_})
        part->setVisible(live);
}

void ExpertsView::askRecording() {
    auto* dialog = new QFileDialog(this, tr("Open a recording of routing"), QDir::homePath());
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    connect(dialog, &QFileDialog::fileSelected, this, &ExpertsView::openRecording);
    dialog->open();
}

void ExpertsView::openRecording(const QString& path) {
    study_->openRecording(path);
}

QWidget* ExpertsView::focusTarget() {
    return map_;
}

bool ExpertsView::hasContent() const {
    return !context_.feed.state().experts.latest.empty() || study_->hasRecording();
}

LoadWindow ExpertsView::window() const {
    switch (window_->currentIndex()) {
        case 1:
            return LoadWindow::kLatest;
        case 2:
            return LoadWindow::kTotal;
        default:
            return LoadWindow::kRecent;
    }
}

QStringList ExpertsView::domainNames() const {
    if (const ExpertStudy* recording = study_->recording())
        return recording->loads.size() > 1 ? recording->domains : QStringList();
    const auto& domains = context_.feed.state().spec.domains;
    QStringList names;
    for (uint32_t d = 0; d < context_.feed.state().experts.domains; ++d)
        names << (d < domains.size() ? toQt(domains[d].name) : tr("Domain %1").arg(d));
    return names;
}

ExpertGrid ExpertsView::gridOf(int domain) const {
    if (const ExpertStudy* recording = study_->recording())
        return recording->loads.at(static_cast<size_t>(domain + 1));
    return expertGrid(context_.feed.state(), window(), domain);
}

void ExpertsView::fillDomains() {
    const QStringList names = domainNames();
    if (names == domains_) return;
    domains_ = names;
    domain_->clear();
    domain_->addItem(tr("All domains"));
    domain_->addItems(names);
    for (HeatMap* map : small_) map->parentWidget()->deleteLater();
    small_.clear();
    const auto count = static_cast<size_t>(names.size());
    for (size_t d = 0; d < count && d < kMostSmall && count > 1; ++d) {
        auto* box = new QWidget;
        auto* column = new QVBoxLayout(box);
        column->setContentsMargins(0, 0, 0, 0);
        column->setSpacing(Space::kHalf);
        auto* name = new QLabel(tr("Domain %1").arg(domain_->itemText(static_cast<int>(d) + 1)));
        name->setObjectName(QStringLiteral("Muted"));
        auto* map = new HeatMap;
        map->setCompact(true);
        map->setAccessibleName(tr("Expert loads, %1").arg(name->text()));
        column->addWidget(name);
        column->addWidget(map, 1);
        smallRow_->layout()->addWidget(box);
        small_.push_back(map);
    }
    smallRow_->setVisible(!small_.empty());
}

void ExpertsView::refresh() {
    if (context_.feed.revisions().experts == drawn_.experts) return;
    drawn_ = context_.feed.revisions();
    fillDomains();
    const model::RunState& state = context_.feed.state();
    const ExpertGrid grid = gridOf(domain_->currentIndex() - 1);
    map_->set(grid);
    model_.set(grid);
    for (size_t d = 0; d < small_.size(); ++d) small_[d]->set(gridOf(static_cast<int>(d)));
    study_->setLive(state);
    imbalance_->set({{tr("worst layer"), imbalance(state, true), 1},
                     {tr("mean of layers"), imbalance(state, false), 0}});
    const uint64_t width = state.experts.history.width();
    imbalance_->setToolTip(
        width > 1 ? tr("A point is the worst of %1 steps.").arg(formatCount(width)) : QString());
}

}  // namespace bulkhead::ui
