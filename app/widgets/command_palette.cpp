// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/command_palette.h"

#include <QHeaderView>
#include <QKeyEvent>
#include <QLineEdit>
#include <QListWidget>
#include <QPainter>
#include <QPushButton>
#include <QStyledItemDelegate>
#include <QTreeWidget>
#include <QVBoxLayout>
#include <algorithm>

#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kActionRole = Qt::UserRole + 1;
constexpr int kKeysRole = Qt::UserRole + 2;
constexpr int kHintRole = Qt::UserRole + 3;

/// Title, hint below it, keys at the right.
class EntryDelegate final : public QStyledItemDelegate {
  public:
    using QStyledItemDelegate::QStyledItemDelegate;
    QSize sizeHint(const QStyleOptionViewItem&, const QModelIndex&) const override {
        return {200, 44};
    }
    void paint(QPainter* p, const QStyleOptionViewItem& option,
               const QModelIndex& index) const override {
        const Tokens& t = theme().tokens();
        if (option.state & QStyle::State_Selected) p->fillRect(option.rect, t.selection);
        const QRect r = option.rect.adjusted(Space::kTwo, 5, -Space::kTwo, -5);
        p->setFont(Theme::font());
        p->setPen(t.muted);
        p->drawText(r, Qt::AlignRight | Qt::AlignVCenter, index.data(kKeysRole).toString());
        p->setFont(Theme::font(1));
        p->setPen(t.text);
        p->drawText(r, Qt::AlignLeft | Qt::AlignTop, index.data().toString());
        p->setFont(Theme::font(-1));
        p->setPen(t.muted);
        p->drawText(r, Qt::AlignLeft | Qt::AlignBottom,
                    p->fontMetrics().elidedText(index.data(kHintRole).toString(), Qt::ElideRight,
                                                r.width() - 140));
    }
};

}  // namespace

CommandPalette::CommandPalette(const ActionRegistry& registry, QWidget* parent)
    : QDialog(parent), registry_(registry), input_(new QLineEdit), list_(new QListWidget) {
    setWindowTitle(tr("Command palette"));
    setObjectName(QStringLiteral("CommandPalette"));
    setAttribute(Qt::WA_DeleteOnClose);
    resize(560, 420);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kTwo, Space::kTwo, Space::kTwo, Space::kTwo);
    column->setSpacing(Space::kOne);
    input_->setPlaceholderText(tr("What do you want to do?"));
    input_->setAccessibleName(tr("Search actions"));
    list_->setAccessibleName(tr("Matching actions"));
    list_->setItemDelegate(new EntryDelegate(list_));
    list_->setFocusPolicy(Qt::NoFocus);
    column->addWidget(input_);
    column->addWidget(list_);
    connect(input_, &QLineEdit::textChanged, this, &CommandPalette::fill);
    connect(input_, &QLineEdit::returnPressed, this, &CommandPalette::run);
    connect(list_, &QListWidget::itemClicked, this, &CommandPalette::run);
    input_->installEventFilter(this);
    fill({});
    input_->setFocus();
}

void CommandPalette::fill(const QString& needle) {
    struct Hit {
        int score;
        const ActionRegistry::Entry* entry;
    };
    std::vector<Hit> hits;
    for (const auto& entry : registry_.entries()) {
        if (!entry.action->isEnabled()) continue;
        const QString text =
            entry.action->text().remove(u'&') + u' ' + entry.hint + u' ' + entry.category;
        if (const int score = fuzzyScore(needle, text); score > 0) hits.push_back({score, &entry});
    }
    std::stable_sort(hits.begin(), hits.end(),
                     [](const Hit& a, const Hit& b) { return a.score > b.score; });
    list_->clear();
    for (const Hit& hit : hits) {
        auto* item = new QListWidgetItem(hit.entry->action->text().remove(u'&'), list_);
        item->setData(kActionRole, QVariant::fromValue<QObject*>(hit.entry->action));
        item->setData(kKeysRole, hit.entry->action->shortcut().toString(QKeySequence::NativeText));
        item->setData(kHintRole, hit.entry->hint);
    }
    list_->setCurrentRow(0);
}

void CommandPalette::run() {
    const QListWidgetItem* item = list_->currentItem();
    auto* action =
        item ? qobject_cast<QAction*>(item->data(kActionRole).value<QObject*>()) : nullptr;
    accept();
    if (action != nullptr) action->trigger();
}

bool CommandPalette::eventFilter(QObject* watched, QEvent* event) {
    if (watched == input_ && event->type() == QEvent::KeyPress) {
        const int key = static_cast<QKeyEvent*>(event)->key();
        const int row = list_->currentRow();
        if (key == Qt::Key_Down) list_->setCurrentRow(std::min(row + 1, list_->count() - 1));
        if (key == Qt::Key_Up) list_->setCurrentRow(std::max(row - 1, 0));
        if (key == Qt::Key_Down || key == Qt::Key_Up) return true;
    }
    return QDialog::eventFilter(watched, event);
}

ShortcutSheet::ShortcutSheet(const ActionRegistry& registry, QWidget* parent) : QDialog(parent) {
    setWindowTitle(tr("Keyboard shortcuts"));
    setObjectName(QStringLiteral("ShortcutSheet"));
    setAttribute(Qt::WA_DeleteOnClose);
    resize(620, 640);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kTwo, Space::kTwo, Space::kTwo, Space::kTwo);
    auto* tree = new QTreeWidget;
    tree->setAccessibleName(tr("Keyboard shortcuts"));
    tree->setHeaderLabels({tr("Action"), tr("Keys"), tr("What it does")});
    tree->setRootIsDecorated(false);
    for (const auto& entry : registry.entries()) {
        const auto groups = tree->findItems(entry.category, Qt::MatchExactly);
        QTreeWidgetItem* group = groups.isEmpty() ? nullptr : groups.first();
        if (group == nullptr) {
            group = new QTreeWidgetItem(tree, {entry.category});
            group->setFont(0, Theme::font(0, QFont::Medium));
            group->setExpanded(true);
        }
        new QTreeWidgetItem(
            group, {entry.action->text().remove(u'&'),
                    entry.action->shortcut().toString(QKeySequence::NativeText), entry.hint});
    }
    tree->expandAll();
    tree->header()->setSectionResizeMode(0, QHeaderView::ResizeToContents);
    tree->header()->setSectionResizeMode(1, QHeaderView::ResizeToContents);
    auto* close = new QPushButton(tr("Close"));
    connect(close, &QPushButton::clicked, this, &QDialog::accept);
    column->addWidget(tree);
    column->addWidget(close, 0, Qt::AlignRight);
}

}  // namespace bulkhead::ui
