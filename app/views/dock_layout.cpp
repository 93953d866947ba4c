// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/dock_layout.h"

#include <QApplication>
#include <QDockWidget>

#include "app/views/view.h"

namespace bulkhead::ui {

void DockLayout::add(View* view) {
    auto* dock = new QDockWidget(view->title(), &window_);
    dock->setObjectName(QStringLiteral("dock.") + view->id());
    dock->setAccessibleName(view->title());
    dock->setTitleBarWidget(view->header());
    dock->setWidget(view);
    docks_.push_back(dock);
    views_.push_back(view);
}

QDockWidget* DockLayout::dockOf(const View* view) const {
    for (size_t i = 0; i < views_.size(); ++i)
        if (views_[i] == view) return docks_[i];
    return nullptr;
}

void DockLayout::arrange() {
    before_.clear();
    const auto byId = [this](const char* id) {
        for (size_t i = 0; i < views_.size(); ++i)
            if (views_[i]->id() == QLatin1String(id)) return docks_[i];
        return static_cast<QDockWidget*>(nullptr);
    };
    for (QDockWidget* dock : docks_) {
        dock->setFloating(false);
        window_.removeDockWidget(dock);
    }
    // Left what goes on, right what it means and what to do about it.
    QDockWidget* fleet = byId("fleet");
    QDockWidget* timeline = byId("timeline");
    QDockWidget* training = byId("training");
    window_.addDockWidget(Qt::LeftDockWidgetArea, fleet);
    window_.addDockWidget(Qt::LeftDockWidgetArea, timeline);
    window_.addDockWidget(Qt::RightDockWidgetArea, training);
    for (const char* id : {"experts", "faults", "runs", "events"}) {
        window_.addDockWidget(Qt::RightDockWidgetArea, byId(id));
        window_.tabifyDockWidget(training, byId(id));
    }
    for (QDockWidget* dock : docks_) dock->show();
    training->raise();
    const int width = window_.width();
    window_.resizeDocks({fleet, training}, {width * 54 / 100, width * 46 / 100}, Qt::Horizontal);
    window_.resizeDocks({fleet, timeline}, {52, 48}, Qt::Vertical);
}

void DockLayout::save(QSettings& settings) const {
    settings.setValue(QStringLiteral("window/layoutVersion"), kVersion);
    settings.setValue(QStringLiteral("window/state"),
                      before_.isEmpty() ? window_.saveState(kVersion) : before_);
    settings.setValue(QStringLiteral("window/geometry"), window_.saveGeometry());
}

bool DockLayout::restore(QSettings& settings) {
    if (settings.value(QStringLiteral("window/layoutVersion")).toInt() != kVersion) return false;
    window_.restoreGeometry(settings.value(QStringLiteral("window/geometry")).toByteArray());
    return window_.restoreState(settings.value(QStringLiteral("window/state")).toByteArray(),
                                kVersion);
}

void DockLayout::raise(View* view) {
    QDockWidget* dock = dockOf(view);
    if (isOnly() && !dock->isVisible()) {
        toggleOnly(last_);
        toggleOnly(view);
    }
    dock->show();
    dock->raise();
    last_ = view;
    view->focusTarget()->setFocus(Qt::ShortcutFocusReason);
}

void DockLayout::toggleOnly(View* view) {
    if (isOnly()) {
        window_.restoreState(before_, kVersion);
        before_.clear();
        return;
    }
    before_ = window_.saveState(kVersion);
    for (size_t i = 0; i < docks_.size(); ++i) docks_[i]->setVisible(views_[i] == view);
    last_ = view;
    view->focusTarget()->setFocus(Qt::ShortcutFocusReason);
}

View* DockLayout::current() const {
    for (QWidget* w = QApplication::focusWidget(); w != nullptr; w = w->parentWidget())
        if (auto* view = qobject_cast<View*>(w)) return view;
    return last_ != nullptr ? last_ : views_.front();
}

}  // namespace bulkhead::ui
