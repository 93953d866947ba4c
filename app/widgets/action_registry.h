// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAction>
#include <QKeySequence>
#include <QObject>
#include <QString>
#include <functional>
#include <vector>

namespace bulkhead::ui {

/// Every action of the console, once: menus, shortcuts, the palette and the shortcut sheet are made
/// from it, so that nothing can be done by mouse only. Thread: the GUI's.
class ActionRegistry final : public QObject {
    Q_OBJECT
  public:
    struct Entry {
        QString id;        ///< "view.fleet"; unique
        QString category;  ///< menu it stands in: "View"
        QString hint;      ///< one line for the palette
        QAction* action;   ///< owned by the registry
    };

    using QObject::QObject;

    /// Adds an action. `run` is called when it is triggered. Precondition: `id` is new.
    QAction* add(const QString& id, const QString& category, const QString& title,
                 const QString& hint, const QKeySequence& shortcut, std::function<void()> run);

    const std::vector<Entry>& entries() const { return entries_; }
    /// Null when there is none.
    QAction* find(const QString& id) const;
    /// Pairs that answer to the same keys, one line each; empty when all is well.
    QStringList conflicts() const;

  private:
    std::vector<Entry> entries_;
};

/// Rates the fit of `needle` to `text` as a subsequence, ignoring case: 0 does not fit, more is
/// better. Starts of words and runs of letters count most, the start of the text above all.
int fuzzyScore(const QString& needle, const QString& text);

}  // namespace bulkhead::ui
