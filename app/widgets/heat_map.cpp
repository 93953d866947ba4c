// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/heat_map.h"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>

#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 56;
constexpr int kAxis = 20;
constexpr int kLegend = 40;
constexpr int kMostCellHeight = 72;
constexpr int kTextCellWidth = 34;
constexpr int kTextCellHeight = 18;

}  // namespace

HeatMap::HeatMap(QWidget* parent) : QWidget(parent) {
    setFocusPolicy(Qt::StrongFocus);
    setAccessibleName(tr("Expert loads by layer"));
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void HeatMap::set(ExpertGrid grid) {
    if (grid == grid_) return;
    grid_ = std::move(grid);
    // A few layers do not need all the height there is.
    if (!compact_ && !grid_.empty())
        setMaximumHeight(std::max(grid_.layers, 2) * kMostCellHeight + kAxis + kLegend + 8);
    layer_ = std::clamp(layer_, 0, std::max(grid_.layers - 1, 0));
    expert_ = std::clamp(expert_, 0, std::max(grid_.experts - 1, 0));
    update();
}

void HeatMap::setCompact(bool compact) {
    compact_ = compact;
    setFocusPolicy(compact ? Qt::NoFocus : Qt::StrongFocus);
    update();
}

QSize HeatMap::sizeHint() const {
    return compact_ ? QSize(160, 96) : QSize(560, 320);
}
QSize HeatMap::minimumSizeHint() const {
    return compact_ ? QSize(96, 56) : QSize(280, 160);
}

QColor HeatMap::colorOf(double share) {
    const Tokens& t = theme().tokens();
    if (share < 1) return blend(t.even, t.low, std::clamp(1 - share, 0.0, 1.0));
    return blend(t.even, t.high, std::clamp((share - 1) / (kFull - 1), 0.0, 1.0));
}

QRect HeatMap::plot() const {
    if (compact_) return rect();
    return rect().adjusted(kGutter, 4, -8, -(kAxis + kLegend));
}

QRect HeatMap::cell(int layer, int expert) const {
    const QRect p = plot();
    const auto x = [&](int e) { return p.left() + p.width() * e / grid_.experts; };
    const auto y = [&](int l) { return p.top() + p.height() * l / grid_.layers; };
    return {QPoint(x(expert), y(layer)), QPoint(x(expert + 1) - 1, y(layer + 1) - 1)};
}

bool HeatMap::hit(const QPoint& at, int& layer, int& expert) const {
    const QRect p = plot();
    if (grid_.empty() || !p.contains(at)) return false;
    expert = std::min((at.x() - p.left()) * grid_.experts / p.width(), grid_.experts - 1);
    layer = std::min((at.y() - p.top()) * grid_.layers / p.height(), grid_.layers - 1);
    return true;
}

QString HeatMap::words(int layer, int expert) const {
    return tr("%1, expert %2: %3 \u00d7 the mean, %4 tokens")
        .arg(grid_.names[layer])
        .arg(expert)
        .arg(formatNumber(grid_.at(layer, expert), 2),
             formatCount(static_cast<uint64_t>(grid_.tokensAt(layer, expert))));
}

void HeatMap::setCurrent(int layer, int expert) {
    if (grid_.empty()) return;
    layer_ = std::clamp(layer, 0, grid_.layers - 1);
    expert_ = std::clamp(expert, 0, grid_.experts - 1);
    setAccessibleDescription(words(layer_, expert_));
    update();
    Q_EMIT currentChanged(layer_, expert_);
}

void HeatMap::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    const Tokens& t = theme().tokens();
    painter.fillRect(rect(), t.surface);
    if (grid_.empty()) return;
    const QRect first = cell(0, 0);
    const int gap = first.width() > 12 && first.height() > 8 ? 1 : 0;
    const bool figures =
        first.width() >= kTextCellWidth && first.height() >= kTextCellHeight && !compact_;
    painter.setFont(Theme::font(-1));
    for (int l = 0; l < grid_.layers; ++l)
        for (int e = 0; e < grid_.experts; ++e) {
            const QRect r = cell(l, e).adjusted(0, 0, -gap, -gap);
            const QColor color = colorOf(grid_.at(l, e));
            painter.fillRect(r, color);
            if (!figures) continue;
            painter.setPen(inkOn(color));
            painter.drawText(r, Qt::AlignCenter, formatNumber(grid_.at(l, e), 2));
        }
    if (compact_) return;
    painter.setPen(t.muted);
    const int rowStep = std::max(1, 16 / std::max(first.height(), 1));
    for (int l = 0; l < grid_.layers; l += rowStep)
        painter.drawText(QRect(0, cell(l, 0).top(), kGutter - 8, cell(l, 0).height()),
                         Qt::AlignRight | Qt::AlignVCenter, grid_.names[l]);
    const int columnStep = std::max(1, 28 / std::max(first.width(), 1));
    for (int e = 0; e < grid_.experts; e += columnStep)
        painter.drawText(
            QRect(cell(0, e).left() - 12, plot().bottom() + 3, cell(0, e).width() + 24, kAxis - 3),
            Qt::AlignCenter, QStringLiteral("E%1").arg(e));
    paintLegend(painter);
    if (hasFocus()) {
        painter.setPen(QPen(t.accent, 2));
        painter.setBrush(Qt::NoBrush);
        painter.drawRect(cell(layer_, expert_).adjusted(1, 1, -2, -2));
    }
}

void HeatMap::paintLegend(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const int width = std::min(240, plot().width() / 2);
    const QRect bar(plot().left(), height() - kLegend + 8, width, 8);
    for (int x = 0; x < bar.width(); ++x)
        painter.fillRect(QRect(bar.left() + x, bar.top(), 1, bar.height()),
                         colorOf(kFull * x / bar.width()));
    painter.setPen(t.muted);
    const auto mark = [&](double share, const QString& text, Qt::Alignment align) {
        const int x = bar.left() + static_cast<int>(bar.width() * share / kFull);
        const int left = align == Qt::AlignLeft ? x : align == Qt::AlignRight ? x - 80 : x - 40;
        painter.drawText(QRect(left, bar.bottom() + 3, 80, 16), static_cast<int>(align), text);
    };
    mark(0, tr("0"), Qt::AlignLeft);
    mark(1, tr("1 = even"), Qt::AlignHCenter);
    mark(kFull, tr("\u2265 %1 \u00d7").arg(kFull), Qt::AlignRight);
    const int left = bar.right() + 24;
    const QRect side(left, bar.top() - 4, rect().right() - left - 8, 16);
    painter.drawText(side, Qt::AlignLeft | Qt::AlignVCenter,
                     painter.fontMetrics().elidedText(
                         hasFocus() ? words(layer_, expert_)
                                    : tr("tokens of an expert over the mean of its layer"),
                         Qt::ElideRight, side.width()));
}

void HeatMap::keyPressEvent(QKeyEvent* event) {
    switch (event->key()) {
        case Qt::Key_Left:
            return setCurrent(layer_, expert_ - 1);
        case Qt::Key_Right:
            return setCurrent(layer_, expert_ + 1);
        case Qt::Key_Up:
            return setCurrent(layer_ - 1, expert_);
        case Qt::Key_Down:
            return setCurrent(layer_ + 1, expert_);
        default:
            QWidget::keyPressEvent(event);
    }
}

void HeatMap::mousePressEvent(QMouseEvent* event) {
    int layer = 0;
    int expert = 0;
    if (hit(event->pos(), layer, expert)) setCurrent(layer, expert);
}

bool HeatMap::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        int layer = 0;
        int expert = 0;
        if (hit(help->pos(), layer, expert))
            QToolTip::showText(help->globalPos(), words(layer, expert), this);
        else
            QToolTip::hideText();
        return true;
    }
    return QWidget::event(event);
}

}  // namespace bulkhead::ui
