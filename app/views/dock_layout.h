// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QByteArray>
#include <QMainWindow>
#include <QSettings>
#include <vector>

#include "app/views/pages.h"

class QDockWidget;

namespace bulkhead::ui {

class View;

/// The views as docks of a window: default arrangement, saved and restored, one view alone.
class DockLayout final : public QObject {
  public:
    /// Grows when the set of docks changes, so that an old layout is not put upon new docks.
    static constexpr int kVersion = 3;

    explicit DockLayout(QMainWindow& window) : window_(window) {}
    void add(View* view, Place place);
    void arrange();
    void save(QSettings& settings) const;
    /// False when nothing fitting was saved.
    bool restore(QSettings& settings);

    /// Shows the view, in front, with the keyboard in it.
    void raise(View* view);
    /// This view alone, or everything as it was before.
    void toggleOnly(View* view);
    bool isOnly() const { return !before_.isEmpty(); }
    /// The view that has the keyboard, else the one raised last.
    View* current() const;
    const std::vector<View*>& views() const { return views_; }
    /// The view of this class; null when there is none.
    template <class V>
    V* find() const {
        for (View* view : views_)
            if (auto* wanted = qobject_cast<V*>(view)) return wanted;
        return nullptr;
    }
    QDockWidget* dockOf(const View* view) const;

  private:
    void noteTabs();

    QMainWindow& window_;
    std::vector<View*> views_;
    std::vector<QDockWidget*> docks_;
    std::vector<Place> places_;
    View* last_ = nullptr;
    QByteArray before_;
};

}  // namespace bulkhead::ui
