// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/proposal_banner.h"

#include <QAction>
#include <QHBoxLayout>
#include <QLabel>
#include <QToolButton>
#include <QVBoxLayout>

#include "app/widgets/theme.h"

namespace bulkhead::ui {

ProposalBanner::ProposalBanner(QAction* look, QAction* dismiss, QWidget* parent)
    : QFrame(parent), headline_(new QLabel), words_(new QLabel) {
    setObjectName(QStringLiteral("Banner"));
    setAttribute(Qt::WA_StyledBackground);
    setAccessibleName(tr("Proposed plan"));
    headline_->setFont(Theme::font(0, QFont::Medium));
    headline_->setAccessibleName(tr("When a plan was proposed"));
    words_->setWordWrap(true);
    words_->setAccessibleName(tr("Why a plan was proposed, and what it would do"));
    auto* text = new QVBoxLayout;
    text->setSpacing(2);
    text->addWidget(headline_);
    text->addWidget(words_);
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, Space::kOne);
    row->setSpacing(Space::kOne);
    row->addLayout(text, 1);
    const auto button = [&](QAction* action, const QString& face) {
        auto* made = new QToolButton;
        made->setDefaultAction(action);
        made->setText(face);
        made->setAccessibleName(action->text());
        connect(action, &QAction::changed, made, [made, face] { made->setText(face); });
        row->addWidget(made, 0, Qt::AlignTop);
    };
    button(look, tr("Look at it"));
    button(dismiss, tr("Dismiss"));
    hide();
}

void ProposalBanner::set(const QString& headline, const QString& words) {
    headline_->setText(headline);
    words_->setText(words);
    setVisible(!headline.isEmpty());
}

}  // namespace bulkhead::ui
