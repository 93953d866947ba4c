// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/composer.h"

#include <QFormLayout>
#include <QLabel>
#include <QPushButton>
#include <QVBoxLayout>

#include "app/widgets/theme.h"

namespace bulkhead::ui {

Composer::Composer() : form_(new QFormLayout) {
    form_->setHorizontalSpacing(Space::kTwo);
    form_->setVerticalSpacing(Space::kOne);
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(Space::kTwo, Space::kTwo, Space::kTwo, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addLayout(form_);
    setWidget(box);
    setWidgetResizable(true);
    setFrameShape(QFrame::NoFrame);
    setMinimumWidth(300);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setFocusPolicy(Qt::NoFocus);
}

void Composer::addField(const QString& words, QWidget* field) {
    field->setAccessibleName(words);
    form_->addRow(words, field);
}

void Composer::addRow(QWidget* widget) {
    form_->addRow(QString(), widget);
}

void Composer::finish(QLabel* sentence, QLabel* effect, QPushButton* danger) {
    sentence->setWordWrap(true);
    sentence->setFont(Theme::font(1, QFont::Medium));
    effect->setWordWrap(true);
    effect->setObjectName(QStringLiteral("Muted"));
    danger->setProperty("role", "danger");
    auto* column = static_cast<QVBoxLayout*>(widget()->layout());
    column->addWidget(sentence);
    column->addWidget(effect);
    column->addWidget(danger, 0, Qt::AlignLeft);
    column->addStretch();
}

}  // namespace bulkhead::ui
