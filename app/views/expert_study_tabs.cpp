// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/expert_study_tabs.h"

#include <QComboBox>
#include <QFileInfo>
#include <QHeaderView>
#include <QLabel>
#include <QSplitter>
#include <QTabBar>
#include <QTableView>
#include <QVBoxLayout>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/scatter_chart.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "backend/planner/import/import.h"

namespace bulkhead::ui {
namespace {

constexpr int kLeastChart = 88;  // the page fits a small window

QString times(double x) {
    return formatNumber(x, 1) + QStringLiteral("\u202f\u00d7");
}

absl::StatusOr<ExpertStudy> studyOfFile(const QString& path) {
    const absl::StatusOr<planner::Recording> recording =
        planner::importRecording(path.toStdString());
    if (!recording.ok()) return recording.status();
    ExpertStudy study = studyOf(*recording);
    study.source = QFileInfo(path).fileName();
    return study;
}

QWidget* page(QLabel* words, QWidget* body) {
    words->setWordWrap(true);
    words->setAlignment(Qt::AlignLeft | Qt::AlignTop);
    auto* widget = new QWidget;
    auto* column = new QVBoxLayout(widget);
    column->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, 0);
    column->setSpacing(Space::kOne);
    column->addWidget(words);
    column->addWidget(body, 1);
    return widget;
}

}  // namespace

ExpertStudyTabs::ExpertStudyTabs(QWidget* first, const QString& name, QWidget* parent)
    : QTabWidget(parent),
      together_({tr("Layer"), tr("Expert"), tr("With"), tr("Tokens"), tr("Over chance")}, {3, 4}),
      phases_({tr("Expert"), tr("Prefill"), tr("Decode")}, {1, 2}),
      distanceWords_(new QLabel),
      togetherWords_(new QLabel),
      phaseWords_(new QLabel),
      distanceTable_(new QTableView),
      layer_(new QComboBox),
      chart_(new ScatterChart(tr("Experts in prefill and decode"),
                              {tr("Prefill, over the mean"), times},
                              {tr("Decode, over the mean"), times})),
      phaseTable_(new QTableView),
      phaseBody_(nullptr) {
    setDocumentMode(true);
    setAccessibleName(tr("What routing shows"));
    tabBar()->setAccessibleName(tr("What routing shows"));
    addTab(first, name);
    addTab(makeDistances(), tr("Domains"));
    addTab(makeTogether(), tr("Used together"));
    addTab(makePhases(), tr("Prefill and decode"));
}

QWidget* ExpertStudyTabs::makeDistances() {
    styleTable(distanceTable_, tr("Distances between domains"));
    distanceTable_->horizontalHeader()->setStretchLastSection(false);
    distanceWords_->setAccessibleName(tr("About the distances between domains"));
    return page(distanceWords_, distanceTable_);
}

QWidget* ExpertStudyTabs::makeTogether() {
    auto* table = new QTableView;
    table->setModel(&together_);
    styleTable(table, tr("Experts that are used together"));
    table->horizontalHeader()->setStretchLastSection(false);
    togetherWords_->setAccessibleName(tr("About experts that are used together"));
    return page(togetherWords_, table);
}

QWidget* ExpertStudyTabs::makePhases() {
    layer_->setAccessibleName(tr("Layer of prefill and decode"));
    phaseTable_->setModel(&phases_);
    styleTable(phaseTable_, tr("Experts in prefill and decode, in figures"));
    phaseTable_->horizontalHeader()->setStretchLastSection(false);
    auto* left = new QWidget;
    auto* column = new QVBoxLayout(left);
    column->setContentsMargins(0, 0, 0, 0);
    column->addWidget(layer_);
    column->addWidget(phaseTable_, 1);
    chart_->setMinimumHeight(kLeastChart);
    auto* split = new QSplitter(Qt::Horizontal);
    split->addWidget(left);
    split->addWidget(chart_);
    split->setStretchFactor(1, 1);
    split->setChildrenCollapsible(false);
    split->setSizes({320, 400});
    connect(layer_, &QComboBox::currentIndexChanged, this, &ExpertStudyTabs::showLayer);
    connect(chart_, &ScatterChart::picked, phaseTable_, &QTableView::selectRow);
    phaseBody_ = split;
    phaseWords_->setAccessibleName(tr("About prefill and decode"));
    return page(phaseWords_, split);
}

void ExpertStudyTabs::setLive(const model::RunState& state) {
    if (!recording_) present(studyOf(state));
}

void ExpertStudyTabs::openRecording(const QString& path) {
    background_.run(
        [path] { return studyOfFile(path); },
        [this, question = ++asked_](const absl::StatusOr<ExpertStudy>& study) {
            if (question != asked_) return;
            if (!study.ok())
                return void(Q_EMIT recordingChanged(toQt(std::string(study.status().message()))));
            recording_ = *study;
            present(*recording_);
            Q_EMIT recordingChanged({});
        });
}

void ExpertStudyTabs::closeRecording() {
    ++asked_;
    recording_.reset();
    Q_EMIT recordingChanged({});
}

void ExpertStudyTabs::present(const ExpertStudy& study) {
    shown_ = study;
    distanceWords_->setText(distanceWords(study));
    togetherWords_->setText(togetherWords(study));
    phaseWords_->setText(phaseWords(study));
    together_.setRows(togetherRows(study));
    showDistances();
    phaseBody_->setVisible(!study.byPhase.empty());
    const int kept = layer_->currentIndex();
    layer_->clear();
    for (size_t l = 0; l < study.byPhase.size(); ++l)
        layer_->addItem(study.layers.value(static_cast<int>(l)));
    layer_->setCurrentIndex(std::min(std::max(kept, 0), layer_->count() - 1));
    showLayer();
}

void ExpertStudyTabs::showDistances() {
    const QStringList titles = QStringList{tr("Domain")} + shown_.domains;
    if (!distances_ || titles != distanceTitles_) {
        std::vector<int> figures;
        for (int c = 1; c < titles.size(); ++c) figures.push_back(c);
        auto next = std::make_unique<RowsModel>(titles, figures);
        distanceTable_->setModel(next.get());
        distances_ = std::move(next);
        distanceTitles_ = titles;
    }
    distances_->setRows(distanceRows(shown_));
    distanceTable_->setVisible(!shown_.distance.empty());
}

void ExpertStudyTabs::showLayer() {
    const int layer = layer_->currentIndex();
    phases_.setRows(phaseRows(shown_, layer));
    std::vector<ScatterChart::Point> points;
    if (layer >= 0 && layer < static_cast<int>(shown_.byPhase.size()))
        for (const QPointF& at : shown_.byPhase[static_cast<size_t>(layer)])
            points.push_back({at, QStringLiteral("E%1").arg(points.size()), true, false});
    chart_->set(std::move(points), phaseTable_->currentIndex().row());
}

}  // namespace bulkhead::ui
