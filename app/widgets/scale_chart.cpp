// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/scale_chart.h"

#include <QPainter>
#include <QPainterPath>
#include <QStringList>
#include <algorithm>
#include <cmath>

#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 46;
constexpr int kHead = 48;  // title and legend
constexpr int kRight = 16;
constexpr int kBottom = 24;
constexpr int kTickRoom = 48;  // between figures of x
constexpr int kLine = 16;
constexpr int kAside = 10;  // words of a mark from its centre

}  // namespace

ScaleChart::ScaleChart(const QString& title, const QString& unit, QWidget* parent)
    : QWidget(parent), title_(title), unit_(unit) {
    setAccessibleName(title);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void ScaleChart::set(std::vector<Line> lines, std::vector<Mark> marks, std::optional<Here> here) {
    lines_ = std::move(lines);
    marks_ = std::move(marks);
    here_ = std::move(here);
    least_ = 1;
    greatest_ = 10;
    if (!lines_.empty() && !lines_[0].points.empty()) {
        least_ = lines_[0].points.front().x();
        greatest_ = std::max(lines_[0].points.back().x(), least_ * 2);
    }
    QStringList words;
    if (here_) words << here_->name + u' ' + formatShare(here_->at.y() / 100);
    for (const Mark& mark : marks_) words << mark.name + u' ' + mark.source;
    setAccessibleDescription(words.join(QStringLiteral(", ")));
    update();
}

QRectF ScaleChart::plot() const {
    return QRectF(kGutter, kHead, std::max(width() - kGutter - kRight, 10),
                  std::max(height() - kHead - kBottom, 10));
}

QPointF ScaleChart::place(QPointF value) const {
    const QRectF area = plot();
    const double along = std::log(value.x() / least_) / std::log(greatest_ / least_);
    return {area.left() + area.width() * along, area.bottom() - area.height() * value.y() / 100};
}

void ScaleChart::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    painter.setRenderHint(QPainter::Antialiasing);
    const Tokens& t = theme().tokens();
    painter.fillRect(rect(), t.surface);
    paintHead(painter);
    paintScales(painter);
    for (const Line& line : lines_) {
        QPolygonF path;
        for (const QPointF& point : line.points) path << place(point);
        painter.setPen(QPen(t.series[static_cast<size_t>(line.color) % t.series.size()], 2));
        painter.drawPolyline(path);
    }
    if (here_) paintHere(painter);
    for (const Mark& mark : marks_) paintMark(painter, mark);
}

void ScaleChart::paintHead(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    painter.setFont(Theme::font(0, QFont::Medium));
    painter.setPen(t.text);
    painter.drawText(QRectF(0, 0, width(), kLine + 4), Qt::AlignLeft | Qt::AlignVCenter,
                     painter.fontMetrics().elidedText(title_, Qt::ElideRight, width()));
    painter.setFont(Theme::font(-1));
    double at = 0;
    for (const Line& line : lines_) {
        const int advance = painter.fontMetrics().horizontalAdvance(line.name);
        painter.setPen(QPen(t.series[static_cast<size_t>(line.color) % t.series.size()], 2));
        painter.drawLine(QPointF(at, 29), QPointF(at + 16, 29));
        painter.setPen(t.muted);
        painter.drawText(QRectF(at + 22, 21, advance + 4, kLine), Qt::AlignVCenter, line.name);
        at += 22 + advance + 20;
    }
}

void ScaleChart::paintScales(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QRectF area = plot();
    const QPen grid(blend(t.surface, t.border, 0.6));
    painter.setFont(Theme::font(-1));
    for (int percent = 0; percent <= 100; percent += 20) {
        const double y = place({least_, static_cast<double>(percent)}).y();
        painter.setPen(percent == 0 ? QPen(t.border) : grid);
        painter.drawLine(QPointF(area.left(), std::floor(y) + 0.5),
                         QPointF(area.right(), std::floor(y) + 0.5));
        painter.setPen(t.muted);
        painter.drawText(QRectF(0, y - 8, kGutter - 8, 16), Qt::AlignRight | Qt::AlignVCenter,
                         QStringLiteral("%1\u202f%").arg(percent));
    }
    // The unit stands at the end of the scale; figures that would reach into it are left out.
    const double unitWidth = painter.fontMetrics().horizontalAdvance(unit_);
    painter.drawText(QRectF(width() - unitWidth - kRight, area.bottom() + 4, unitWidth + 2, kLine),
                     Qt::AlignLeft | Qt::AlignVCenter, unit_);
    double last = -kTickRoom;
    for (double power = std::pow(10, std::floor(std::log10(least_))); power <= greatest_;
         power *= 10)
        for (const int digit : {1, 2, 5}) {
            const double value = digit * power;
            if (value < least_ || value > greatest_) continue;
            const double x = place({value, 0}).x();
            if (x - last < kTickRoom || x + 20 > width() - kRight - unitWidth - 8) continue;
            last = x;
            painter.drawLine(QPointF(x, area.bottom()), QPointF(x, area.bottom() + 3));
            painter.drawText(QRectF(x - 30, area.bottom() + 4, 60, kLine), Qt::AlignCenter,
                             formatTick(value, 0));
        }
}

void ScaleChart::paintHere(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QRectF area = plot();
    const QPointF at = place(here_->at);
    painter.setPen(QPen(t.accent, 1, Qt::DashLine));
    painter.drawLine(QPointF(at.x(), area.top()), QPointF(at.x(), area.bottom()));
    painter.setFont(Theme::font(-1));
    painter.setPen(t.accent);
    const double wide = painter.fontMetrics().horizontalAdvance(here_->name) + 4;
    // A mark's words stand on the right of its own number of GPUs, which may be this one.
    const bool fits = at.x() - 6 - wide >= area.left();
    painter.drawText(QRectF(fits ? at.x() - 6 - wide : at.x() + 6, area.top() - 2, wide, kLine),
                     (fits ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter, here_->name);
    painter.setPen(QPen(t.surface, 2));
    painter.setBrush(t.accent);
    painter.drawEllipse(at, 6, 6);
    painter.setBrush(Qt::NoBrush);
}

/// A ring with words above on its right, where falling curves leave room, or on its left.
void ScaleChart::paintMark(QPainter& painter, const Mark& mark) const {
    const Tokens& t = theme().tokens();
    const QPointF at = place(mark.at);
    painter.setPen(QPen(t.text, 1.6));
    painter.drawEllipse(at, 8, 8);
    const QFont bold = Theme::font(-1, QFont::Medium);
    const QFont plain = Theme::font(-1);
    const double wide = std::max(QFontMetricsF(bold).horizontalAdvance(mark.name),
                                 QFontMetricsF(plain).horizontalAdvance(mark.source)) +
                        4;
    const bool fits = at.x() + kAside + wide <= width();
    const double left = fits ? at.x() + kAside : at.x() - kAside - wide;
    const double top = at.y() - 2 * kLine - 2;
    const Qt::Alignment side = fits ? Qt::AlignLeft : Qt::AlignRight;
    QColor ground = t.surface;
    ground.setAlphaF(0.85F);
    painter.fillRect(QRectF(left - 2, top, wide + 4, 2 * kLine), ground);
    painter.setFont(bold);
    painter.setPen(t.text);
    painter.drawText(QRectF(left, top, wide, kLine), side | Qt::AlignVCenter, mark.name);
    painter.setFont(plain);
    painter.setPen(t.muted);
    painter.drawText(QRectF(left, top + kLine, wide, kLine), side | Qt::AlignVCenter, mark.source);
}

}  // namespace bulkhead::ui
