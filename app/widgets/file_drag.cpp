// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/file_drag.h"

#include <QAbstractButton>
#include <QApplication>
#include <QDrag>
#include <QMimeData>
#include <QMouseEvent>
#include <QUrl>
#include <QWidget>
#include <utility>

namespace bulkhead::ui {

FileDrag::FileDrag(QWidget* widget, std::function<QString()> make)
    : QObject(widget), widget_(widget), make_(std::move(make)) {
    widget->installEventFilter(this);
}

std::unique_ptr<QMimeData> FileDrag::data() const {
    const QString path = make_();
    if (path.isEmpty()) return nullptr;
    auto data = std::make_unique<QMimeData>();
    data->setUrls({QUrl::fromLocalFile(path)});
    return data;
}

bool FileDrag::eventFilter(QObject*, QEvent* event) {
    if (event->type() != QEvent::MouseButtonPress && event->type() != QEvent::MouseMove)
        return false;
    const auto* mouse = static_cast<QMouseEvent*>(event);
    const QPoint at = mouse->position().toPoint();
    if (event->type() == QEvent::MouseButtonPress) {
        pressedAt_ = at;
        return false;
    }
    if (!mouse->buttons().testFlag(Qt::LeftButton) ||
        (at - pressedAt_).manhattanLength() < QApplication::startDragDistance())
        return false;
    start();
    return true;
}

void FileDrag::start() {
    // The release that would end the click goes to whom the file is dropped on.
    if (auto* button = qobject_cast<QAbstractButton*>(widget_)) button->setDown(false);
    std::unique_ptr<QMimeData> carried = data();
    if (!carried) return;
    auto* drag = new QDrag(widget_);
    drag->setMimeData(carried.release());
    drag->exec(Qt::CopyAction);
}

}  // namespace bulkhead::ui
