// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/scatter_chart.h"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 56;
constexpr int kHead = 24;
constexpr int kRight = 24;
constexpr int kBottom = 38;
constexpr int kLine = 16;
constexpr int kTicks = 5;
constexpr double kDot = 5;
constexpr double kReach = 12;  // of a click, from a point's centre

}  // namespace

ScatterChart::ScatterChart(const QString& title, Axis x, Axis y, QWidget* parent)
    : QWidget(parent), x_(std::move(x)), y_(std::move(y)) {
    setFocusPolicy(Qt::StrongFocus);
    setAccessibleName(title);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void ScatterChart::set(std::vector<Point> points, int chosen) {
    points_ = std::move(points);
    chosen_ = chosen < static_cast<int>(points_.size()) ? chosen : -1;
    QPointF least = points_.empty() ? QPointF() : points_.front().at, greatest = least;
    for (const Point& p : points_) {
        least = {std::min(least.x(), p.at.x()), std::min(least.y(), p.at.y())};
        greatest = {std::max(greatest.x(), p.at.x()), std::max(greatest.y(), p.at.y())};
    }
    // A tenth of air on each side, and something where all are alike; then on to round figures.
    const auto range = [](double a, double b) {
        const double air = std::max((b - a) * 0.1, std::max(std::abs(b), 0.01) * 0.02);
        return niceRange(a - air, b + air, kTicks);
    };
    across_ = range(least.x(), greatest.x());
    up_ = range(least.y(), greatest.y());
    setAccessibleDescription(chosen_ >= 0 ? words(chosen_) : QString());
    update();
}

QString ScatterChart::words(int point) const {
    const Point& p = points_[static_cast<size_t>(point)];
    return tr("%1: %2 %3, %4 %5")
        .arg(p.name, x_.title, x_.words(p.at.x()), y_.title, y_.words(p.at.y()));
}

void ScatterChart::choose(int point) {
    if (point == chosen_) return;
    chosen_ = point;
    setAccessibleDescription(words(point));
    update();
    Q_EMIT picked(point);
}

QRectF ScatterChart::plot() const {
    return QRectF(kGutter, kHead, std::max(width() - kGutter - kRight, 10),
                  std::max(height() - kHead - kBottom, 10));
}

QPointF ScatterChart::place(QPointF value) const {
    const QRectF area = plot();
    const auto part = [](const NiceRange& range, double at) {
        return (at - range.least) / (range.greatest - range.least);
    };
    return {area.left() + area.width() * part(across_, value.x()),
            area.bottom() - area.height() * part(up_, value.y())};
}

int ScatterChart::pointAt(QPointF at) const {
    int best = -1;
    double nearest = kReach;
    for (int i = 0; i < static_cast<int>(points_.size()); ++i) {
        const QPointF way = placeOf(i) - at;
        const double far = std::hypot(way.x(), way.y());
        if (far > nearest) continue;
        nearest = far;
        best = i;
    }
    return best;
}

void ScatterChart::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.fillRect(rect(), theme().tokens().surface);
    if (points_.empty()) return;
    paintScales(painter);
    for (int i = 0; i < static_cast<int>(points_.size()); ++i) paintPoint(painter, i);
    if (hasFocus()) {
        painter.setPen(QPen(theme().tokens().accent, 1));
        painter.setBrush(Qt::NoBrush);
        painter.drawRect(plot().adjusted(-0.5, -0.5, 0.5, 0.5));
    }
}

void ScatterChart::paintScales(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QRectF area = plot();
    painter.setFont(Theme::font(-1));
    const auto line = [&](int tick, QPointF from, QPointF to) {
        painter.setPen(tick == 0 ? QPen(t.border) : QPen(blend(t.surface, t.border, 0.6)));
        painter.drawLine(from, to);
        painter.setPen(t.muted);
    };
    for (int i = 0; i < up_.ticks; ++i) {
        const double y = place({across_.least, up_.tick(i)}).y();
        line(i, {area.left(), y}, {area.right(), y});
        painter.drawText(QRectF(0, y - 8, kGutter - 8, kLine), Qt::AlignRight | Qt::AlignVCenter,
                         y_.words(up_.tick(i)));
    }
    for (int i = 0; i < across_.ticks; ++i) {
        const double x = place({across_.tick(i), up_.least}).x();
        line(i, {x, area.top()}, {x, area.bottom()});
        painter.drawText(QRectF(x - 40, area.bottom() + 3, 80, kLine), Qt::AlignCenter,
                         x_.words(across_.tick(i)));
    }
    painter.drawText(QRectF(4, 2, width() - 8, kLine), Qt::AlignLeft | Qt::AlignVCenter, y_.title);
    painter.drawText(QRectF(area.left(), area.bottom() + 4 + kLine, area.width(), kLine),
                     Qt::AlignRight | Qt::AlignVCenter, x_.title);
}

void ScatterChart::paintPoint(QPainter& painter, int point) const {
    const Tokens& t = theme().tokens();
    const Point& p = points_[static_cast<size_t>(point)];
    const QPointF at = placeOf(point);
    const bool chosen = point == chosen_;
    painter.setPen(QPen(p.onFront ? t.accent : t.strong, 1.6));
    painter.setBrush(chosen ? (p.onFront ? t.accent : t.strong) : t.surface);
    painter.drawEllipse(at, kDot, kDot);
    if (chosen) {
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(t.text, 1.6));
        painter.drawEllipse(at, kDot + 4, kDot + 4);
    }
    if (!p.marked) return;
    painter.setFont(Theme::font(-1, QFont::Medium));
    painter.setPen(t.text);
    const double wide = painter.fontMetrics().horizontalAdvance(p.name) + 4;
    const bool fits = at.x() + 12 + wide <= width();
    painter.drawText(QRectF(fits ? at.x() + 12 : at.x() - 12 - wide, at.y() - 16, wide, kLine),
                     (fits ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter, p.name);
}

void ScatterChart::mousePressEvent(QMouseEvent* event) {
    if (const int point = pointAt(event->position()); point >= 0) choose(point);
}

void ScatterChart::keyPressEvent(QKeyEvent* event) {
    const bool left = event->key() == Qt::Key_Left;
    if (points_.empty() || (!left && event->key() != Qt::Key_Right))
        return QWidget::keyPressEvent(event);
    std::vector<int> order(points_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](int a, int b) {
        return points_[static_cast<size_t>(a)].at.x() < points_[static_cast<size_t>(b)].at.x();
    });
    const auto at = std::find(order.begin(), order.end(), chosen_);
    if (at == order.end()) return choose(order.front());
    if (left ? at != order.begin() : at + 1 != order.end()) choose(*(left ? at - 1 : at + 1));
}

bool ScatterChart::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        const int point = pointAt(help->pos());
        if (point >= 0)
            QToolTip::showText(help->globalPos(), words(point), this);
        else
            QToolTip::hideText();
        return true;
    }
    return QWidget::event(event);
}

}  // namespace bulkhead::ui
