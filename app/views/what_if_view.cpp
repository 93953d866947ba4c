// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/what_if_view.h"

#include <QGridLayout>
#include <QLabel>
#include <QScrollArea>
#include <QSplitter>
#include <QVBoxLayout>
#include <cmath>

#include "app/models/units.h"
#include "app/models/what_if_form.h"
#include "app/views/what_if_panel.h"
#include "app/widgets/scale_chart.h"
#include "app/widgets/share_bar.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kSettleMs = 30;
constexpr int kPanelWidth = 288;
constexpr int kFigurePoints = 15;       // more than normal
constexpr double kLeastError = 0.0005;  // below, the figure's last digit does not know of it

QColor Tokens::*colorOf(model::TimeLoss loss) {
    switch (loss) {
        case model::TimeLoss::kDetect:
            return &Tokens::stall;
        case model::TimeLoss::kReform:
            return &Tokens::join;
        case model::TimeLoss::kRedo:
            return &Tokens::replay;
        case model::TimeLoss::kRejoin:
            return &Tokens::fetch;
        case model::TimeLoss::kOutage:
            return &Tokens::strong;
        case model::TimeLoss::kRestart:
            return &Tokens::bad;
        case model::TimeLoss::kRedoneWork:
            return &Tokens::start;
        case model::TimeLoss::kCheckpoint:
            return &Tokens::good;
    }
    return &Tokens::strong;
}

}  // namespace

WhatIfView::WhatIfView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("whatif"), tr("What-if"), parent),
      panel_(new WhatIfPanel),
      figure_(new QLabel),
      of_(new QLabel),
      over_(new QLabel),
      chart_(new ScaleChart(tr("Effective training time by number of GPUs"), tr("GPUs"))),
      lost_(new QLabel),
      bar_(new ShareBar(tr("Where the lost time goes"))) {
    auto* body = new QSplitter(Qt::Horizontal);
    body->addWidget(makePanel());
    body->addWidget(makeFigures());
    body->setStretchFactor(1, 1);
    body->setSizes({kPanelWidth, 600});
    body->setCollapsible(0, false);
    body->setCollapsible(1, false);
    setBody(body);
    restore_ = context_.actions.add(
        QStringLiteral("whatif.restore"), tr("View"), tr("Restore the scenario"),
        tr("Every number of What-if as its starting point has it"),
        QKeySequence(QStringLiteral("Ctrl+Shift+W")), [this] { panel_->restore(); });
    addButton(restore_, tr("Restore"));
    restore_->setEnabled(false);
    settle_.setSingleShot(true);
    settle_.setInterval(kSettleMs);
    connect(&settle_, &QTimer::timeout, this, &WhatIfView::ask);
    connect(panel_, &WhatIfPanel::changed, this, [this] {
        restore_->setEnabled(panel_->isChanged());
        if (!settle_.isActive()) settle_.start();
    });
}

QWidget* WhatIfView::makePanel() {
    auto* scroll = new QScrollArea;
    scroll->setWidget(panel_);
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setMinimumWidth(kPanelWidth);
    scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    scroll->setFocusPolicy(Qt::NoFocus);
    return scroll;
}

QWidget* WhatIfView::makeFigures() {
    figure_->setFont(Theme::font(kFigurePoints, QFont::Medium));
    figure_->setAccessibleName(tr("Effective training time"));
    of_->setFont(Theme::font(1, QFont::Medium));
    over_->setObjectName(QStringLiteral("Muted"));
    for (QLabel* label : {of_, over_}) label->setWordWrap(true);
    auto* words = new QVBoxLayout;
    words->setSpacing(2);
    words->addStretch();
    words->addWidget(of_);
    words->addWidget(over_);
    words->addStretch();
    auto* head = new QHBoxLayout;
    head->setSpacing(Space::kTwo);
    head->addWidget(figure_);
    head->addLayout(words, 1);
    lost_->setFont(Theme::font(0, QFont::Medium));
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(Space::kTwo, Space::kTwo, Space::kTwo, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addLayout(head);
    column->addWidget(chart_, 1);
    auto* anatomy = new QVBoxLayout;
    anatomy->setSpacing(Space::kOne);
    anatomy->addWidget(lost_);
    anatomy->addWidget(bar_);
    column->addLayout(anatomy);
    column->addLayout(makeTable());
    return box;
}

QGridLayout* WhatIfView::makeTable() {
    auto* grid = new QGridLayout;
    grid->setHorizontalSpacing(Space::kThree);
    grid->setVerticalSpacing(Space::kHalf);
    const QString columns[] = {tr("This scenario"), tr("Live job")};
    const QString rows[] = {tr("Effective training time"), tr("Stall for each failure"),
                            tr("Until a replica is back"), tr("Samples trained again")};
    const auto add = [grid](const QString& text, int row, int column, bool muted) {
        auto* label = new QLabel(text);
        if (muted) label->setObjectName(QStringLiteral("Muted"));
        grid->addWidget(label, row, column, column == 0 ? Qt::AlignLeft : Qt::AlignRight);
        return label;
    };
    for (int c = 0; c < 2; ++c) add(columns[c], 0, c + 1, true);
    for (int r = 0; r < kRows; ++r) {
        add(rows[r], r + 1, 0, true);
        for (size_t c = 0; c < 2; ++c) {
            QLabel* figure = add(noFigure(), r + 1, static_cast<int>(c) + 1, false);
            figure->setAccessibleName(rows[r] + QStringLiteral(", ") + columns[c]);
            table_[c][static_cast<size_t>(r)] = figure;
        }
    }
    grid->setColumnStretch(3, 1);
    return grid;
}

QWidget* WhatIfView::focusTarget() {
    return panel_->focusTarget();
}

void WhatIfView::ask() {
    asked_ = true;
    background_.run([scenario = panel_->scenario()] { return studyOf(scenario); },
                    [this](const WhatIfStudy& study) { showStudy(study); });
}

void WhatIfView::refresh() {
    if (!asked_) ask();
    showColumn(1, context_.feed.hasRun() ? liveFigures(context_.feed.state()) : WhatIfFigures{});
}

void WhatIfView::showColumn(size_t column, const WhatIfFigures& f) {
    table_[column][kEffective]->setText(formatOptional(f.effective, formatShare));
    table_[column][kStall]->setText(formatOptional(f.stallMs, formatMs));
    table_[column][kReturn]->setText(formatOptional(f.returnMs, formatMs));
    table_[column][kRedone]->setText(formatOptional(f.redone, formatCount));
}

void WhatIfView::showStudy(const WhatIfStudy& study) {
    const model::WhatIfResult& r = study.result;
    const auto gpus = formatCount(static_cast<uint64_t>(std::llround(gpusOf(study.scenario))));
    figure_->setText(formatShare(r.effective));
    of_->setText(tr("of the time of %1 GPUs is training").arg(gpus));
    QString over = tr("over %1 days").arg(study.days, 0, 'g', 3);
    if (r.error >= kLeastError) over = tr("\u00b1%1 ").arg(formatShare(r.error)) + over;
    if (r.failures > 0)
        over += tr(", %1 failures, one in %2")
                    .arg(formatCount(static_cast<uint64_t>(r.failures)),
                         formatMs(r.meanIntervalS * 1000));
    if (study.scenario.spares > 0)
        over += tr("; %1 with the spares' GPUs counted").arg(formatShare(r.perProvisioned));
    over_->setText(over);
    std::vector<ScaleChart::Mark> marks;
    for (const PublishedPoint& p : publishedPoints())
        marks.push_back(
            {p.at, QStringLiteral("%1\u202f% %2").arg(p.at.y(), 0, 'f', 0).arg(p.name), p.source});
    chart_->set(
        {{label(model::WhatIfRecovery::kFaultTolerant), study.faultTolerant, 0},
         {label(model::WhatIfRecovery::kRestartAll), study.restartAll, 1}},
        std::move(marks),
        ScaleChart::Here{{gpusOf(study.scenario), 100 * r.effective}, tr("%1 GPUs").arg(gpus)});
    lost_->setText(tr("Where the lost %1 goes").arg(formatShare(1 - r.effective)));
    std::vector<ShareBar::Part> parts;
    for (size_t i = 0; i < model::kTimeLosses; ++i) {
        const auto loss = static_cast<model::TimeLoss>(i);
        parts.push_back({label(loss), r.lost[i], colorOf(loss)});
    }
    bar_->set(std::move(parts), tr("Nothing is lost."));
    showColumn(0, figuresOf(study));
}

}  // namespace bulkhead::ui
