// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <QWidget>
#include <functional>
#include <vector>

#include "app/widgets/nice_range.h"

namespace bulkhead::ui {

/// Points over two figures, one of them chosen: by a click, or with the arrow keys from left to
/// right. Who uses it puts a table beside it as its text twin.
class ScatterChart final : public QWidget {
    Q_OBJECT
  public:
    struct Axis {
        QString title;
        std::function<QString(double)> words;
    };
    struct Point {
        QPointF at;
        QString name;
        bool onFront = true;  ///< else paler: another is at least as good in everything
        bool marked = false;  ///< with its name beside it
        bool operator==(const Point&) const = default;
    };
    ScatterChart(const QString& title, Axis x, Axis y, QWidget* parent = nullptr);

    /// `chosen` -1: none.
    void set(std::vector<Point> points, int chosen);
    int chosen() const { return chosen_; }
    QPointF placeOf(int point) const { return place(points_.at(static_cast<size_t>(point)).at); }
    QSize sizeHint() const override { return {360, 220}; }
    QSize minimumSizeHint() const override { return {220, 140}; }

  Q_SIGNALS:
    void picked(int point);

  protected:
    void paintEvent(QPaintEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    bool event(QEvent* event) override;

  private:
    QRectF plot() const;
    QPointF place(QPointF value) const;
    int pointAt(QPointF at) const;
    QString words(int point) const;
    void choose(int point);
    void paintScales(QPainter& painter) const;
    void paintPoint(QPainter& painter, int point) const;

    Axis x_;
    Axis y_;
    std::vector<Point> points_;
    NiceRange across_, up_;
    int chosen_ = -1;
};

}  // namespace bulkhead::ui
