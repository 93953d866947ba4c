// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/action_registry.h"

#include <QHash>
#include <QStringList>

namespace bulkhead::ui {

QAction* ActionRegistry::add(const QString& id, const QString& category, const QString& title,
                             const QString& hint, const QKeySequence& shortcut,
                             std::function<void()> run) {
    Q_ASSERT(find(id) == nullptr);
    auto* action = new QAction(title, this);
    action->setObjectName(id);
    action->setShortcut(shortcut);
    action->setStatusTip(hint);
    connect(action, &QAction::triggered, this, [run = std::move(run)] { run(); });
    entries_.push_back({id, category, hint, action});
    return action;
}

QAction* ActionRegistry::find(const QString& id) const {
    for (const Entry& entry : entries_)
        if (entry.id == id) return entry.action;
    return nullptr;
}

QStringList ActionRegistry::conflicts() const {
    QHash<QString, QString> owner;
    QStringList found;
    for (const Entry& entry : entries_)
        for (const QKeySequence& keys : entry.action->shortcuts()) {
            const QString name = keys.toString(QKeySequence::PortableText);
            if (name.isEmpty()) continue;
            if (owner.contains(name))
                found << QStringLiteral("%1: %2 and %3").arg(name, owner.value(name), entry.id);
            else
                owner.insert(name, entry.id);
        }
    return found;
}

int fuzzyScore(const QString& needle, const QString& text) {
    if (needle.isEmpty()) return 1;
    int score = 0;
    int run = 0;
    qsizetype at = 0;
    for (const QChar wanted : needle) {
        if (wanted.isSpace()) {
            run = 0;
            continue;
        }
        bool found = false;
        for (; at < text.size(); ++at) {
            if (text[at].toCaseFolded() != wanted.toCaseFolded()) {
                run = 0;
                continue;
            }
            const bool wordStart = at == 0 || !text[at - 1].isLetterOrNumber();
            score += 1 + (at == 0 ? 8 : wordStart ? 4 : 0) + 2 * run;
            ++run;
            ++at;
            found = true;
            break;
        }
        if (!found) return 0;
    }
    return score;
}

}  // namespace bulkhead::ui
