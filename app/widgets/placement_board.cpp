// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/placement_board.h"

#include <QApplication>
#include <QContextMenuEvent>
#include <QHelpEvent>
#include <QKeyEvent>
#include <QMenu>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "app/models/units.h"
#include "app/widgets/heat_map.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kHead = 128;  // name and load of a shard
constexpr int kChipWidth = 40;
constexpr int kChipHeight = 22;
constexpr int kGap = 4;
constexpr int kPad = 8;
constexpr int kLeastRow = 48;
constexpr int kBar = 4;
constexpr double kMark = 6;     // across: a rule's mark on a chip
constexpr double kFullBar = 2;  // load at which the bar ends

}  // namespace

bool BoardLayer::Chip::keepsRules() const {
    return (pinned < 0 || pinned == shard) &&
           std::find(forbidden.begin(), forbidden.end(), shard) == forbidden.end();
}

PlacementBoard::PlacementBoard(QWidget* parent) : QWidget(parent) {
    setFocusPolicy(Qt::StrongFocus);
    setAccessibleName(tr("Experts on their shards"));
    QSizePolicy policy(QSizePolicy::Expanding, QSizePolicy::Preferred);
    policy.setHeightForWidth(true);
    setSizePolicy(policy);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void PlacementBoard::set(BoardLayer layer) {
    if (layer == layer_) return;
    layer_ = std::move(layer);
    dragged_.reset();
    current_ = std::clamp(current_, 0, std::max(static_cast<int>(layer_.chips.size()) - 1, 0));
    if (!layer_.chips.empty()) setAccessibleDescription(words(current_));
    arrange();
}

void PlacementBoard::setCurrent(int expert) {
    if (expert < 0 || expert >= static_cast<int>(layer_.chips.size())) return;
    const bool another = expert != current_;
    current_ = expert;
    setAccessibleDescription(words(expert));
    update();
    if (another) Q_EMIT currentChanged(expert);
}

PlacementBoard::Arrangement PlacementBoard::arranged(int width) const {
    Arrangement out;
    const int perLine = std::max(1, (width - kHead - kPad + kGap) / (kChipWidth + kGap));
    int top = 0;
    for (int s = 0; s < shards(); ++s) {
        int n = 0;
        const auto put = [&](const BoardLayer::Chip& chip, bool ghost) {
            out.spots.push_back(
                {chip.expert, s, ghost,
                 QRect(kHead + n % perLine * (kChipWidth + kGap),
                       top + kPad + n / perLine * (kChipHeight + kGap), kChipWidth, kChipHeight)});
            ++n;
        };
        for (const BoardLayer::Chip& chip : layer_.chips)
            if (chip.shard == s) put(chip, false);
        for (const BoardLayer::Chip& chip : layer_.chips)
            if (chip.from == s && chip.shard != s) put(chip, true);
        const int lines = std::max(1, (n + perLine - 1) / perLine);
        const int height = std::max(kLeastRow, lines * (kChipHeight + kGap) - kGap + 2 * kPad);
        out.rows.emplace_back(0, top, width, height);
        top += height;
    }
    out.height = top;
    return out;
}

void PlacementBoard::arrange() {
    arrangement_ = arranged(width());
    setMinimumHeight(arrangement_.height);
    updateGeometry();
    update();
}

int PlacementBoard::heightForWidth(int width) const {
    return arranged(width).height;
}

void PlacementBoard::resizeEvent(QResizeEvent*) {
    arrange();
}

QRect PlacementBoard::chipRect(int expert) const {
    for (const Spot& spot : arrangement_.spots)
        if (spot.expert == expert && !spot.ghost) return spot.rect;
    return {};
}

QRect PlacementBoard::rowRect(int shard) const {
    return arrangement_.rows.at(static_cast<size_t>(shard));
}

int PlacementBoard::shardAt(const QPoint& at) const {
    for (int s = 0; s < shards(); ++s)
        if (rowRect(s).contains(at)) return s;
    return -1;
}

int PlacementBoard::expertAt(const QPoint& at) const {
    for (const Spot& spot : arrangement_.spots)
        if (spot.rect.contains(at)) return spot.expert;
    return -1;
}

QString PlacementBoard::words(int expert) const {
    const BoardLayer::Chip& chip = layer_.chips[static_cast<size_t>(expert)];
    const QString load = tr("%1 \u00d7 the mean, %2 tokens")
                             .arg(formatNumber(chip.share, 2),
                                  formatCount(static_cast<uint64_t>(std::llround(chip.tokens))));
    const QString where = chip.shard == chip.from
                              ? tr("on shard %1").arg(chip.shard)
                              : tr("from shard %1 to shard %2").arg(chip.from).arg(chip.shard);
    QString rules;
    if (chip.pinned >= 0) rules += tr(", pinned to shard %1").arg(chip.pinned);
    for (const int shard : chip.forbidden) rules += tr(", forbidden on shard %1").arg(shard);
    if (!chip.keepsRules()) rules += tr(", which is not so here");
    return tr("%1, expert %2, %3: %4%5").arg(layer_.name).arg(expert).arg(where, load, rules);
}

void PlacementBoard::paintRow(QPainter& painter, int shard) const {
    const Tokens& t = theme().tokens();
    const QRect row = rowRect(shard);
    if (dragged_ && shardAt(*dragged_) == shard) painter.fillRect(row, t.selection);
    painter.setPen(t.border);
    painter.drawLine(row.bottomLeft(), row.bottomRight());
    const double load = layer_.load[static_cast<size_t>(shard)];
    const double now = layer_.loadNow[static_cast<size_t>(shard)];
    const int wide = kHead - 2 * kPad;
    const int top = row.top() + kPad;
    painter.setPen(t.text);
    painter.setFont(Theme::font(0, QFont::Medium));
    painter.drawText(QRect(kPad, top, wide, 16), Qt::AlignLeft | Qt::AlignVCenter,
                     tr("Shard %1").arg(shard));
    painter.setFont(Theme::font(-1));
    painter.setPen(t.muted);
    const QString figure = formatNumber(load, 2) + QStringLiteral("\u202f\u00d7");
    painter.drawText(QRect(kPad, top, wide, 16), Qt::AlignRight | Qt::AlignVCenter, figure);
    const QRect bar(kPad, top + 20, wide, kBar);
    const auto at = [&](double x) {
        return static_cast<int>(std::lround(wide * std::clamp(x / kFullBar, 0.0, 1.0)));
    };
    painter.fillRect(bar, t.border);
    painter.fillRect(QRect(bar.left(), bar.top(), at(load), kBar), load > 1.15 ? t.high : t.accent);
    // The mean, and where the load is now.
    painter.fillRect(QRect(bar.left() + at(1), bar.top() - 2, 1, kBar + 4), t.strong);
    if (std::abs(now - load) > 0.005)
        painter.fillRect(QRect(bar.left() + at(now) - 1, bar.top() - 2, 2, kBar + 4), t.text);
}

void PlacementBoard::paintChip(QPainter& painter, const Spot& spot) const {
    const Tokens& t = theme().tokens();
    const BoardLayer::Chip& chip = layer_.chips[static_cast<size_t>(spot.expert)];
    const QRectF r = QRectF(spot.rect).adjusted(0.5, 0.5, -0.5, -0.5);
    const QString name = QStringLiteral("E%1").arg(spot.expert);
    if (spot.ghost) {
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(t.strong, 1, Qt::DashLine));
        painter.drawRoundedRect(r, 4, 4);
        painter.setPen(t.faint);
        painter.drawText(spot.rect, Qt::AlignCenter, name);
        return;
    }
    const QColor color = HeatMap::colorOf(chip.share);
    const bool moves = chip.shard != chip.from;
    painter.setBrush(color);
    painter.setPen(moves ? QPen(t.accent, 2) : QPen(t.border, 1));
    painter.drawRoundedRect(moves ? r.adjusted(0.5, 0.5, -0.5, -0.5) : r, 4, 4);
    const QColor ink = inkOn(color);
    painter.setPen(ink);
    painter.drawText(spot.rect, Qt::AlignCenter, name);
    paintRules(painter, spot.rect, chip, chip.keepsRules() ? ink : t.bad);
    if (spot.expert == current_ && hasFocus()) {
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(t.text, 2));
        painter.drawRoundedRect(r.adjusted(-2, -2, 2, 2), 6, 6);
    }
}

/// In the chip's upper corners: a dot on the left, a struck ring on the right.
void PlacementBoard::paintRules(QPainter& painter, const QRect& rect, const BoardLayer::Chip& chip,
                                const QColor& ink) const {
    if (chip.pinned >= 0) {
        painter.setPen(Qt::NoPen);
        painter.setBrush(ink);
        painter.drawEllipse(QPointF(rect.left() + kMark + 1.5, rect.top() + kMark + 1.5), kMark / 2,
                            kMark / 2);
    }
    if (chip.forbidden.empty()) return;
    const QPointF center(rect.right() - kMark - 0.5, rect.top() + kMark + 1.5);
    const double r = kMark / 2;
    painter.setPen(QPen(ink, 1.2));
    painter.setBrush(Qt::NoBrush);
    painter.drawEllipse(center, r, r);
    painter.drawLine(center + QPointF(-r, r) * 0.7, center + QPointF(r, -r) * 0.7);
}

void PlacementBoard::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.fillRect(rect(), theme().tokens().surface);
    for (int s = 0; s < shards(); ++s) paintRow(painter, s);
    painter.setFont(Theme::font(-1));
    for (const Spot& spot : arrangement_.spots) paintChip(painter, spot);
    if (!dragged_) return;
    Spot spot{current_, 0, false, chipRect(current_)};
    spot.rect.moveCenter(*dragged_);
    paintChip(painter, spot);
}

/// To the next chip in the order they lie, outlines left out.
void PlacementBoard::step(int by) {
    std::vector<int> order;
    for (const Spot& spot : arrangement_.spots)
        if (!spot.ghost) order.push_back(spot.expert);
    const auto at = std::find(order.begin(), order.end(), current_);
    if (at == order.end()) return;
    const auto next = std::clamp<std::ptrdiff_t>(at - order.begin() + by, 0,
                                                 static_cast<std::ptrdiff_t>(order.size()) - 1);
    setCurrent(order[static_cast<size_t>(next)]);
}

void PlacementBoard::keyPressEvent(QKeyEvent* event) {
    if (layer_.chips.empty()) return QWidget::keyPressEvent(event);
    const int shard = layer_.chips[static_cast<size_t>(current_)].shard;
    const bool vertical = event->key() == Qt::Key_Up || event->key() == Qt::Key_Down;
    const int other = shard + (event->key() == Qt::Key_Up ? -1 : 1);
    if (vertical && event->modifiers() & Qt::ShiftModifier) {
        if (other >= 0 && other < shards()) Q_EMIT moved(current_, other);
        return;
    }
    if (vertical) {
        // The nearest chip of the shard above or below that has any.
        for (int s = other; s >= 0 && s < shards(); s += other - shard) {
            const Spot* best = nullptr;
            const int x = chipRect(current_).center().x();
            for (const Spot& spot : arrangement_.spots)
                if (spot.shard == s && !spot.ghost &&
                    (best == nullptr ||
                     std::abs(spot.rect.center().x() - x) < std::abs(best->rect.center().x() - x)))
                    best = &spot;
            if (best != nullptr) return setCurrent(best->expert);
        }
        return;
    }
    switch (event->key()) {
        case Qt::Key_Left:
            return step(-1);
        case Qt::Key_Right:
            return step(1);
        case Qt::Key_Menu:
            break;
        default:
            QWidget::keyPressEvent(event);
    }
}

void PlacementBoard::mousePressEvent(QMouseEvent* event) {
    const int expert = expertAt(event->pos());
    if (expert < 0) return;
    pressed_ = event->pos();
    setCurrent(expert);
}

void PlacementBoard::mouseMoveEvent(QMouseEvent* event) {
    const bool far =
        (event->pos() - pressed_).manhattanLength() >= QApplication::startDragDistance();
    if (!(event->buttons() & Qt::LeftButton) || (!dragged_ && (!far || pressed_.isNull()))) return;
    dragged_ = event->pos();
    update();
}

void PlacementBoard::mouseReleaseEvent(QMouseEvent* event) {
    const bool dropped = dragged_.has_value();
    dragged_.reset();
    pressed_ = {};
    update();
    if (!dropped) return;
    const int shard = shardAt(event->pos());
    if (shard >= 0) Q_EMIT moved(current_, shard);
}

void PlacementBoard::fillMenu(QMenu& menu) {
    const BoardLayer::Chip& chip = layer_.chips[static_cast<size_t>(current_)];
    const auto part = [&](const QString& title, auto&& state, auto&& chosen) {
        QMenu* sub = menu.addMenu(title.arg(current_));
        for (int s = 0; s < shards(); ++s)
            state(*sub->addAction(tr("Shard %1").arg(s), this, [chosen, s] { chosen(s); }), s);
        return sub;
    };
    part(
        tr("Move expert %1 to"), [&](QAction& a, int s) { a.setEnabled(chip.shard != s); },
        [this](int s) { Q_EMIT moved(current_, s); });
    const auto checked = [](QAction& a, bool on) {
        a.setCheckable(true);
        a.setChecked(on);
        a.setEnabled(!on);
    };
    part(
        tr("Pin expert %1 to"), [&](QAction& a, int s) { checked(a, chip.pinned == s); },
        [this](int s) { Q_EMIT ruled(current_, s, true); })
        ->setEnabled(rulable_);
    part(
        tr("Forbid expert %1 on"),
        [&](QAction& a, int s) {
            checked(a, std::find(chip.forbidden.begin(), chip.forbidden.end(), s) !=
                           chip.forbidden.end());
        },
        [this](int s) { Q_EMIT ruled(current_, s, false); })
        ->setEnabled(rulable_);
    menu.addAction(tr("Free expert %1").arg(current_), this, [this] { Q_EMIT freed(current_); })
        ->setEnabled(rulable_ && (chip.pinned >= 0 || !chip.forbidden.empty()));
}

void PlacementBoard::contextMenuEvent(QContextMenuEvent* event) {
    if (layer_.chips.empty()) return;
    const bool byMouse = event->reason() == QContextMenuEvent::Mouse;
    if (byMouse && expertAt(event->pos()) < 0) return;
    if (byMouse) setCurrent(expertAt(event->pos()));
    auto* menu = new QMenu(this);
    menu->setAttribute(Qt::WA_DeleteOnClose);
    fillMenu(*menu);
    menu->popup(byMouse ? event->globalPos() : mapToGlobal(chipRect(current_).bottomLeft()));
}

bool PlacementBoard::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        const int expert = expertAt(help->pos());
        if (expert >= 0)
            QToolTip::showText(help->globalPos(), words(expert), this);
        else
            QToolTip::hideText();
        return true;
    }
    return QWidget::event(event);
}

}  // namespace bulkhead::ui
