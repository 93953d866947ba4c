// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/training_view.h"

#include <QFile>
#include <QFileDialog>
#include <QGridLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QSlider>

#include "app/models/labels.h"
#include "app/models/range_words.h"
#include "app/models/units.h"
#include "app/widgets/elided_label.h"
#include "app/widgets/theme.h"
#include "app/widgets/time_series_view.h"
#include "backend/model/ett.h"

namespace bulkhead::ui {

TrainingView::TrainingView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("training"), tr("Training"), parent),
      smoothing_(new QSlider(Qt::Horizontal)),
      range_(new ElidedLabel),
      byDomain_(nullptr) {
    const auto number = [](int decimals) {
        return [decimals](double v) { return formatNumber(v, decimals); };
    };
    auto* body = new QWidget;
    auto* grid = new QGridLayout(body);
    grid->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, Space::kOne);
    grid->setSpacing(Space::kOne);
    const auto add = [&](const QString& title, const QString& unit, auto format) {
        auto* chart = new TimeSeriesView(title, unit, format);
        const int i = static_cast<int>(charts_.size());
        grid->addWidget(chart, i / 2, i % 2);
        charts_.push_back(chart);
        connect(chart, &TimeSeriesView::stepPicked, this, [this](double step) {
            if (const int64_t time = timeOfStep(context_.feed.state(), step); time != 0)
                context_.cursor.set(time);
        });
        connect(chart, &TimeSeriesView::exportWanted, this,
                [this, chart](bool picture) { exportChart(chart, picture); });
        return chart;
    };
    add(tr("Loss, nats per token"), QStringLiteral("nats"), number(3));
    add(tr("Gradient norm"), QStringLiteral("1"), number(2))->setFromZero(true);
    add(tr("Throughput"), QStringLiteral("tok/s"), formatTokenRate)->setFromZero(true);
    add(tr("Contributors"), QStringLiteral("replicas"), number(0))->setFromZero(true);
    add(tr("Learning rate"), QStringLiteral("1"), number(5))->setFromZero(true);
    add(tr("Effective time, %"), QStringLiteral("percent"), [](double v) {
        return formatShare(v / 100);
    })->setMost(100);
    setBody(body);
    setEmptyText(tr("No step committed yet"),
                 tr("Curves appear with the first commit. The line at the top says what the job "
                    "waits for."));
    addControls();
    connect(&context_.cursor, &TimeCursor::moved, this, &TrainingView::placeCursor);
    connect(&context_.cursor, &TimeCursor::framed, this, &TrainingView::placeFrame);
}

void TrainingView::addControls() {
    byDomain_ =
        context_.actions.add(QStringLiteral("training.domains"), tr("View"), tr("Loss by domain"),
                             tr("Show a loss curve for every domain of the data"),
                             QKeySequence(QStringLiteral("Ctrl+Shift+D")), [this] {
                                 drawn_ = {};
                                 touch();
                             });
    byDomain_->setCheckable(true);
    range_->setObjectName(QStringLiteral("Muted"));
    range_->setFont(Theme::font(-1));
    controls()->insertWidget(1, range_);
    auto* words = new QLabel(tr("Smoothing"));
    words->setObjectName(QStringLiteral("Muted"));
    smoothing_->setRange(0, 99);
    smoothing_->setValue(60);
    smoothing_->setFixedWidth(96);
    smoothing_->setAccessibleName(tr("Smoothing of loss and gradient norm, percent"));
    words->setBuddy(smoothing_);
    addButton(byDomain_, tr("By domain"));
    controls()->addWidget(words);
    controls()->addWidget(smoothing_);
    connect(smoothing_, &QSlider::valueChanged, this, [this] {
        drawn_ = {};
        touch();
    });
}

QWidget* TrainingView::focusTarget() {
    return smoothing_;
}
bool TrainingView::hasContent() const {
    return !context_.feed.state().steps.empty();
}
double TrainingView::smoothing() const {
    return smoothing_->value() / 100.0;
}

void TrainingView::refresh() {
    if (context_.feed.revisions().steps == drawn_.steps) return;
    drawn_ = context_.feed.revisions();
    const model::RunState& s = context_.feed.state();
    using Line = TimeSeriesView::Line;
    const auto withRaw = [&](Metric metric, int color) {
        const Points raw = seriesOf(s, metric);
        if (smoothing() == 0) return std::vector<Line>{{tr("raw"), raw, color}};
        return std::vector<Line>{{tr("raw"), raw, color, true},
                                 {tr("smoothed"), smoothedSeries(s, metric, smoothing()), color}};
    };
    std::vector<Line> loss = withRaw(Metric::kLoss, 0);
    if (byDomain_->isChecked()) {
        loss.clear();
        for (size_t d = 0; d < s.spec.domains.size(); ++d)
            loss.push_back(
                {toQt(s.spec.domains[d].name), domainLoss(s, d, smoothing()), static_cast<int>(d)});
    }
    charts_[kLoss]->set(std::move(loss));
    charts_[kGradNorm]->set(withRaw(Metric::kGradNorm, 1));
    charts_[kTokens]->set({{{}, seriesOf(s, Metric::kTokensPerSecond), 2}});
    charts_[kContributors]->set({{{}, seriesOf(s, Metric::kContributors), 3}});
    charts_[kRate]->set({{{}, seriesOf(s, Metric::kLearningRate), 5}});
    const Points effective = seriesOf(s, Metric::kEffectiveTime);
    std::vector<Line> lines;
    if (const auto predicted = model::predictForRun(s); predicted && !effective.empty())
        lines.push_back(
            {tr("model %1").arg(formatShare(*predicted)),
             {{effective.front().x(), *predicted * 100}, {effective.back().x(), *predicted * 100}},
             1,
             false,
             true});
    lines.insert(lines.begin(), {lines.empty() ? QString() : tr("live"), effective, 0});
    charts_[kEffective]->set(std::move(lines));
    const RangeWords range = chartRange(s);
    range_->setText(range.text);
    range_->setToolTip(range.detail);
    placeCursor();
}

void TrainingView::placeCursor() {
    std::optional<double> step;
    if (const auto at = context_.cursor.at())
        step = static_cast<double>(stepAt(context_.feed.state(), *at));
    for (TimeSeriesView* chart : charts_) chart->setCursorStep(step);
}

/// Charts are over steps: those around the stretch, ten on each side at least.
void TrainingView::placeFrame() {
    std::optional<TimeSeriesView::Range> range;
    const model::RunState& s = context_.feed.state();
    if (const auto& frame = context_.cursor.frame(); frame && !s.steps.empty()) {
        constexpr double kAround = 10;
        const auto first = static_cast<double>(stepAt(s, frame->beginNs));
        const auto last = static_cast<double>(stepAt(s, frame->endNs));
        const double around = std::max(kAround, (last - first) / 2);
        range = {std::max(first - around, 1.0), last + around};
    }
    for (TimeSeriesView* chart : charts_) chart->setShown(range);
}

void TrainingView::exportChart(TimeSeriesView* chart, bool picture) {
    auto* dialog = new QFileDialog(this, picture ? tr("Save picture") : tr("Save figures"));
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    dialog->setAcceptMode(QFileDialog::AcceptSave);
    dialog->setDefaultSuffix(picture ? QStringLiteral("png") : QStringLiteral("csv"));
    connect(dialog, &QFileDialog::fileSelected, chart, [chart, picture](const QString& path) {
        if (picture) return void(chart->grab().save(path));
        QFile file(path);
        if (file.open(QIODevice::WriteOnly)) file.write(chart->csv().toUtf8());
    });
    dialog->open();
}

}  // namespace bulkhead::ui
