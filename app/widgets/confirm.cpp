// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/confirm.h"

#include <QGridLayout>
#include <QLabel>
#include <QLineEdit>
#include <QPushButton>
#include <QVBoxLayout>

#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

QLabel* text(const QString& words, const char* name, int delta, QFont::Weight weight) {
    auto* label = new QLabel(words);
    label->setObjectName(QString::fromLatin1(name));
    label->setFont(Theme::font(delta, weight));
    label->setWordWrap(true);
    label->setTextFormat(Qt::PlainText);
    return label;
}

QLayout* figureTable(const ConfirmRequest& request) {
    auto* grid = new QGridLayout;
    grid->setHorizontalSpacing(Space::kThree);
    grid->setVerticalSpacing(Space::kHalf);
    int row = 0;
    for (const auto& figure : request.figures) {
        grid->addWidget(text(figure.name, "Muted", 0, QFont::Normal), row, 0);
        grid->addWidget(text(figure.before, "", 0, QFont::Normal), row, 1);
        grid->addWidget(text(QStringLiteral("\u2192"), "Muted", 0, QFont::Normal), row, 2);
        const bool changed = figure.before != figure.after;
        grid->addWidget(
            text(figure.after, changed ? "Warn" : "", 0, changed ? QFont::Medium : QFont::Normal),
            row++, 3);
    }
    grid->setColumnStretch(4, 1);
    return grid;
}

}  // namespace

ConfirmDialog::ConfirmDialog(const ConfirmRequest& request, QWidget* parent) : QDialog(parent) {
    setWindowTitle(request.title);
    setObjectName(QStringLiteral("ConfirmDialog"));
    setAccessibleDescription(request.effect);
    setMinimumWidth(440);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kThree, Space::kThree, Space::kThree, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addWidget(text(request.title, "", 3, QFont::Medium));
    if (!request.effect.isEmpty()) column->addWidget(text(request.effect, "", 0, QFont::Normal));
    if (!request.figures.empty()) column->addLayout(figureTable(request));
    if (!request.warning.isEmpty())
        column->addWidget(text(request.warning, "Warn", 0, QFont::Normal));
    QLineEdit* typed = nullptr;
    if (!request.typedName.isEmpty()) {
        typed = new QLineEdit;
        typed->setAccessibleName(tr("Type %1 to confirm").arg(request.typedName));
        typed->setPlaceholderText(tr("Type %1 to confirm").arg(request.typedName));
        column->addWidget(typed);
    }
    auto* buttons = new QHBoxLayout;
    buttons->addStretch();
    for (int i = 0; i < request.choices.size(); ++i) {
        auto* button = new QPushButton(request.choices[i]);
        if (i == 0) button->setProperty("role", request.destructive ? "danger" : "primary");
        connect(button, &QPushButton::clicked, this, [this, i] {
            choice_ = i;
            accept();
        });
        if (i == 0 && typed != nullptr) {
            button->setEnabled(false);
            connect(typed, &QLineEdit::textChanged, button,
                    [button, name = request.typedName](const QString& now) {
                        button->setEnabled(now == name);
                    });
        }
        buttons->addWidget(button);
    }
    auto* cancel = new QPushButton(tr("Cancel"));
    connect(cancel, &QPushButton::clicked, this, &QDialog::reject);
    buttons->addWidget(cancel);
    column->addLayout(buttons);
    // A stray Enter must not do the deed.
    cancel->setDefault(request.destructive);
    if (typed != nullptr)
        typed->setFocus();
    else
        cancel->setFocus();
}

void DialogConfirmer::ask(QWidget* parent, const ConfirmRequest& request,
                          std::function<void(int)> answer) {
    auto* dialog = new ConfirmDialog(request, parent);
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    QObject::connect(dialog, &QDialog::finished, dialog,
                     [dialog, answer = std::move(answer)] { answer(dialog->choice()); });
    dialog->open();
}

}  // namespace bulkhead::ui
