// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/incident_panel.h"

#include <QGridLayout>
#include <QLabel>
#include <QPushButton>
#include <QStringList>

#include "app/models/labels.h"
#include "app/widgets/theme.h"
#include "backend/model/command_text.h"

namespace bulkhead::ui {

IncidentPanel::IncidentPanel(QWidget* parent)
    : QScrollArea(parent), title_(new QLabel), act_(new QPushButton), preview_(new QLabel) {
    setFrameShape(QFrame::NoFrame);
    setWidgetResizable(true);
    setFocusPolicy(Qt::NoFocus);
    setAccessibleName(tr("Incident"));
    const std::array<QString, kLines> names = {tr("What happened"), tr("Evidence"), tr("Now"),
                                               tr("Back"),          tr("Cost"),     tr("Do")};
    auto* inside = new QWidget;
    inside->setAutoFillBackground(true);
    inside->setBackgroundRole(QPalette::Base);
    auto* grid = new QGridLayout(inside);
    grid->setContentsMargins(Space::kTwo, Space::kOne, Space::kTwo, Space::kTwo);
    grid->setHorizontalSpacing(Space::kTwo);
    grid->setVerticalSpacing(Space::kOne);
    grid->setColumnStretch(1, 1);
    title_->setFont(Theme::font(2, QFont::Medium));
    title_->setWordWrap(true);
    title_->setAccessibleName(tr("Title of the incident"));
    grid->addWidget(title_, 0, 0, 1, 2);
    for (int i = 0; i < kLines; ++i) {
        auto& name = names_[static_cast<size_t>(i)] = new QLabel(names[static_cast<size_t>(i)]);
        name->setObjectName(QStringLiteral("Muted"));
        name->setAlignment(Qt::AlignTop | Qt::AlignLeft);
        auto& words = words_[static_cast<size_t>(i)] = new QLabel;
        words->setWordWrap(true);
        words->setTextFormat(Qt::PlainText);
        words->setTextInteractionFlags(Qt::TextSelectableByMouse);
        words->setAccessibleName(names[static_cast<size_t>(i)]);
        grid->addWidget(name, i + 1, 0);
        grid->addWidget(words, i + 1, 1);
    }
    words_[kAdvice]->setFont(Theme::font(0, QFont::Medium));
    act_->setProperty("role", "primary");
    act_->setAccessibleName(tr("Take the advice"));
    preview_->setObjectName(QStringLiteral("Muted"));
    preview_->setWordWrap(true);
    preview_->setAccessibleName(tr("What the advice would do"));
    grid->addWidget(act_, kLines + 1, 1, Qt::AlignLeft);
    grid->addWidget(preview_, kLines + 2, 1);
    grid->setRowStretch(kLines + 3, 1);
    setWidget(inside);
    connect(act_, &QPushButton::clicked, this, &IncidentPanel::press);
    setCard(std::nullopt);
}

void IncidentPanel::say(Line line, const QString& words) {
    names_[line]->setVisible(!words.isEmpty());
    words_[line]->setVisible(!words.isEmpty());
    words_[line]->setText(words);
}

void IncidentPanel::setCard(std::optional<model::IncidentCard> card) {
    card_ = std::move(card);
    const model::IncidentCard shown = card_.value_or(model::IncidentCard{});
    title_->setText(
        card_ ? (shown.incident > 0 ? QStringLiteral("#%1  ").arg(shown.incident) : QString()) +
                    toQt(shown.title)
              : tr("Nothing is wrong, and nothing was."));
    QStringList evidence;
    for (const std::string& line : shown.evidence) evidence << toQt(line);
    say(kHappened, toQt(shown.happened));
    say(kEvidence, evidence.join(u'\n'));
    say(kNow, toQt(shown.now));
    say(kBack, toQt(shown.backText));
    say(kCost, toQt(shown.costText));
    say(kAdvice, toQt(shown.advice));
    const bool acts = shown.action.has_value() || shown.endFault > 0;
    act_->setVisible(acts);
    preview_->setVisible(acts && !preview_->text().isEmpty());
    if (shown.action)
        act_->setText(toQt(model::describe(*shown.action)) + QStringLiteral("\u2026"));
    else if (shown.endFault > 0)
        act_->setText(tr("End fault #%1").arg(shown.endFault));
    setCanAct(canAct_);
}

void IncidentPanel::setPreview(const QString& words) {
    preview_->setText(words);
    preview_->setVisible(act_->isVisibleTo(widget()) && !words.isEmpty());
}

void IncidentPanel::setCanAct(bool can) {
    canAct_ = can;
    act_->setEnabled(can);
}

void IncidentPanel::press() {
    if (!card_) return;
    if (card_->action)
        Q_EMIT actionWanted(*card_->action);
    else if (card_->endFault > 0)
        Q_EMIT endFaultWanted(card_->endFault);
}

}  // namespace bulkhead::ui
