// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/what_if_panel.h"

#include <QComboBox>
#include <QEvent>
#include <QFormLayout>
#include <QLabel>
#include <QSignalBlocker>
#include <QSlider>
#include <QToolButton>
#include <QVBoxLayout>
#include <algorithm>

#include "app/models/labels.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr std::string_view kDefault = "published_ft";
const QString kFolded = QStringLiteral(":/icons/chevron-right.svg");
const QString kOpen = QStringLiteral(":/icons/chevron.svg");

bool sameScenario(const model::WhatIf& a, const model::WhatIf& b) {
    return a.recovery == b.recovery && a.spacing == b.spacing &&
           std::ranges::all_of(model::whatIfParameters(), [&](const model::WhatIfParameter& p) {
               return a.*p.field == b.*p.field;
           });
}

}  // namespace

WhatIfPanel::WhatIfPanel(QWidget* parent)
    : QWidget(parent),
      start_(new QComboBox),
      recovery_(new QComboBox),
      spacing_(new QComboBox),
      more_(new QToolButton) {
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kTwo, Space::kTwo, Space::kTwo, Space::kTwo);
    column->setSpacing(Space::kOne);
    addChoices(column);
    for (const Knob& knob : knobs())
        if (knob.inFront) addSlider(column, knob);
    column->addSpacing(Space::kOne);
    column->addWidget(more_, 0, Qt::AlignLeft);
    column->addWidget(makeMore());
    column->addStretch();
    restore();
}

void WhatIfPanel::addChoices(QBoxLayout* column) {
    for (const model::WhatIfPreset* preset : startingPoints()) {
        start_->addItem(toQt(preset->title));
        if (preset->name == kDefault) start_->setCurrentIndex(start_->count() - 1);
    }
    using enum model::WhatIfRecovery;
    for (const auto recovery : {kFaultTolerant, kRestartAll}) recovery_->addItem(label(recovery));
    using enum model::FailureSpacing;
    for (const auto spacing : {kEven, kExponential}) spacing_->addItem(label(spacing));
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(Space::kOne);
    form->setVerticalSpacing(Space::kOne);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    const std::pair<QString, QComboBox*> rows[] = {{tr("Start from"), start_},
                                                   {tr("After a failure"), recovery_},
                                                   {tr("Failures come"), spacing_}};
    for (const auto& [words, box] : rows) {
        box->setAccessibleName(words);
        box->setMinimumContentsLength(12);
        box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
        box->installEventFilter(this);
        form->addRow(words, box);
    }
    column->addLayout(form);
    column->addSpacing(Space::kOne);
    connect(start_, &QComboBox::activated, this, &WhatIfPanel::restore);
    connect(recovery_, &QComboBox::activated, this, [this](int index) {
        model::WhatIf s = scenario_;
        s.recovery = static_cast<model::WhatIfRecovery>(index);
        set(s);
    });
    connect(spacing_, &QComboBox::activated, this, [this](int index) {
        model::WhatIf s = scenario_;
        s.spacing = static_cast<model::FailureSpacing>(index);
        set(s);
    });
}

void WhatIfPanel::addSlider(QBoxLayout* column, const Knob& knob) {
    const QString name = toQt(knob.parameter->label);
    auto* words = new QLabel(name);
    auto* value = new QLabel;
    value->setFont(Theme::font(0, QFont::Medium));
    value->setAlignment(Qt::AlignRight | Qt::AlignVCenter);
    auto* slider = new QSlider(Qt::Horizontal);
    slider->setRange(0, static_cast<int>(knob.values.size()) - 1);
    slider->setPageStep(std::max(slider->maximum() / 8, 1));
    slider->setAccessibleName(name);
    slider->installEventFilter(this);
    words->setBuddy(slider);
    auto* head = new QHBoxLayout;
    head->addWidget(words, 1);
    head->addWidget(value);
    auto* pair = new QVBoxLayout;
    pair->setSpacing(Space::kHalf);
    pair->addLayout(head);
    pair->addWidget(slider);
    column->addLayout(pair);
    connect(slider, &QSlider::valueChanged, this, [this, &knob](int position) {
        model::WhatIf s = scenario_;
        model::setWhatIf(s, *knob.parameter, knob.values[static_cast<size_t>(position)]);
        set(s);
    });
    rows_.push_back({&knob, words, value, slider});
}

QWidget* WhatIfPanel::makeMore() {
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(Space::kOne);
    for (const Knob& knob : knobs())
        if (!knob.inFront) addSlider(column, knob);
    box->hide();
    more_->setObjectName(QStringLiteral("Fold"));
    more_->setText(tr("More numbers"));
    more_->setAccessibleName(tr("More numbers of the scenario"));
    more_->setToolButtonStyle(Qt::ToolButtonTextBesideIcon);
    more_->setIcon(QIcon(kFolded));
    more_->setIconSize({10, 10});
    more_->setCheckable(true);
    more_->setFocusPolicy(Qt::StrongFocus);
    connect(more_, &QToolButton::toggled, this, [this, box](bool open) {
        more_->setIcon(QIcon(open ? kOpen : kFolded));
        box->setVisible(open);
    });
    return box;
}

const model::WhatIfPreset& WhatIfPanel::start() const {
    return *startingPoints()[static_cast<size_t>(start_->currentIndex())];
}

bool WhatIfPanel::isChanged() const {
    return !sameScenario(scenario_, start().scenario);
}

void WhatIfPanel::restore() {
    set(start().scenario);
}

QWidget* WhatIfPanel::focusTarget() {
    return start_;
}

void WhatIfPanel::set(const model::WhatIf& scenario) {
    scenario_ = scenario;
    recovery_->setCurrentIndex(static_cast<int>(scenario.recovery));
    spacing_->setCurrentIndex(static_cast<int>(scenario.spacing));
    for (const Row& row : rows_) {
        const double value = valueOf(*row.knob, scenario);
        const QString figure = words(*row.knob->parameter, value);
        const QString idle = idleWords(*row.knob, scenario);
        const QString source = idle.isEmpty() ? sourceWords(start(), *row.knob, scenario) : idle;
        const QSignalBlocker quiet(row.slider);
        row.slider->setValue(positionOf(*row.knob, value));
        row.slider->setToolTip(source);
        row.slider->setAccessibleDescription(figure + QStringLiteral(". ") + source);
        for (QWidget* part : {static_cast<QWidget*>(row.name), static_cast<QWidget*>(row.value),
                              static_cast<QWidget*>(row.slider)})
            part->setEnabled(idle.isEmpty());
        row.value->setText(figure);
        row.value->setToolTip(source);
    }
    Q_EMIT changed();
}

bool WhatIfPanel::eventFilter(QObject* watched, QEvent* event) {
    const auto* control = qobject_cast<QWidget*>(watched);
    if (event->type() != QEvent::Wheel || control == nullptr || control->hasFocus()) return false;
    event->ignore();
    return true;
}

}  // namespace bulkhead::ui
