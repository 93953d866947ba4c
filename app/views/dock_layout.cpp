// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/dock_layout.h"

#include <QApplication>
#include <QDockWidget>
#include <QStyle>
#include <algorithm>

#include "app/views/view.h"

namespace bulkhead::ui {

void DockLayout::add(View* view, Place place) {
    auto* dock = new QDockWidget(view->title(), &window_);
    dock->setObjectName(QStringLiteral("dock.") + view->id());
    dock->setAccessibleName(view->title());
    dock->setTitleBarWidget(view->header());
    dock->setWidget(view);
    docks_.push_back(dock);
    views_.push_back(view);
    places_.push_back(place);
    // A tab says the title already.
    connect(dock, &QDockWidget::visibilityChanged, this, [this, view](bool inFront) {
        noteTabs();
        view->setInFront(inFront);
    });
    connect(dock, &QDockWidget::dockLocationChanged, this, [this] { noteTabs(); });
}

void DockLayout::noteTabs() {
    for (size_t i = 0; i < docks_.size(); ++i)
        views_[i]->setTitleShown(docks_[i]->isFloating() ||
                                 window_.tabifiedDockWidgets(docks_[i]).isEmpty());
}

QDockWidget* DockLayout::dockOf(const View* view) const {
    for (size_t i = 0; i < views_.size(); ++i)
        if (views_[i] == view) return docks_[i];
    return nullptr;
}

void DockLayout::arrange() {
    before_.clear();
    for (QDockWidget* dock : docks_) {
        dock->setFloating(false);
        window_.removeDockWidget(dock);
    }
    QList<QDockWidget*> left;
    QList<QDockWidget*> right;
    for (size_t i = 0; i < docks_.size(); ++i) {
        QList<QDockWidget*>& side = places_[i] == Place::kLeft ? left : right;
        side << docks_[i];
        window_.addDockWidget(
            places_[i] == Place::kLeft ? Qt::LeftDockWidgetArea : Qt::RightDockWidgetArea,
            docks_[i]);
        if (side == right && side.size() > 1) window_.tabifyDockWidget(side.first(), docks_[i]);
    }
    for (QDockWidget* dock : docks_) dock->show();
    if (!right.isEmpty()) right.first()->raise();
    if (left.isEmpty() || right.isEmpty()) return;
    const int width = window_.width();
    // Less than its widest page needs would widen the window itself, beyond a small screen.
    int least = width * 46 / 100;
    for (const QDockWidget* dock : right) least = std::max(least, dock->minimumSizeHint().width());
    const int between = window_.style()->pixelMetric(QStyle::PM_DockWidgetSeparatorExtent);
    window_.resizeDocks({left.first(), right.first()}, {width - between - least, least},
                        Qt::Horizontal);
    window_.resizeDocks(left, QList<int>(left.size(), window_.height() / 2), Qt::Vertical);
    noteTabs();
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
