// SPDX-License-Identifier: GPL-3.0-only
#include <QPainter>
#include <algorithm>
#include <cmath>

#include "app/models/units.h"
#include "app/widgets/fleet_map.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kTile = 256;
constexpr int kSwatch = 12;
constexpr int kScale = 120;
constexpr int kLetterWidth = 10;
constexpr int kLetterHeight = 12;
constexpr int kNameWidth = 44;
constexpr int kNameHeight = 17;
constexpr int kFigureHeight = 34;
constexpr int kHatch = 4;
constexpr int kOutline = 9;  // least side of the frame around the current cell

}  // namespace

QColor FleetMap::colorAt(uint32_t place) const {
    const bool dimmed = match_ && match_->hits[place] == 0;
    if (figures_.figure == FleetFigure::kState) {
        const auto at = static_cast<size_t>(figures_.conditions[place]);
        return QColor(dimmed ? dimmedStates_[at] : states_[at]);
    }
    const auto at =
        static_cast<size_t>(std::lround(std::max(figures_.badness[place], 0.0F) * (kShades - 1)));
    return QColor(dimmed ? dimmedShades_[at] : shades_[at]);
}

/// Tens of thousands of cells are in sight at once: pixels are written without a painter.
void FleetMap::fill(QImage& image, const QRect& area, const QRect& cell, uint32_t place) const {
    const qreal ratio = image.devicePixelRatio();
    const auto edge = [ratio](int v) { return static_cast<int>(std::lround(v * ratio)); };
    const QRect part = cell.translated(-area.topLeft());
    const int left = std::clamp(edge(part.left()), 0, image.width());
    const int right = std::clamp(edge(part.right() + 1), 0, image.width());
    const int top = std::clamp(edge(part.top()), 0, image.height());
    const int bottom = std::clamp(edge(part.bottom() + 1), 0, image.height());
    if (left >= right || top >= bottom) return;
    const bool hatched = figures_.figure != FleetFigure::kState && figures_.badness[place] < 0;
    if (!hatched) {
        const QRgb color = colorAt(place).rgb();
        for (int y = top; y < bottom; ++y) {
            auto* line = reinterpret_cast<QRgb*>(image.scanLine(y));
            std::fill(line + left, line + right, color);
        }
        return;
    }
    const Tokens& t = theme().tokens();
    const bool dimmed = match_ && match_->hits[place] == 0;
    const QRgb ink = dimmed ? blend(t.surface, t.faint, kDimmed).rgb() : t.faint.rgb();
    const QRgb ground = blend(t.surface, t.faint, dimmed ? 0.08 : 0.3).rgb();
    // Counted from the map's corner, so that neighbours and tiles continue each other.
    const int x0 = edge(area.left());
    const int y0 = edge(area.top());
    for (int y = top; y < bottom; ++y) {
        auto* line = reinterpret_cast<QRgb*>(image.scanLine(y));
        for (int x = left; x < right; ++x) line[x] = (x + x0 + y + y0) % kHatch == 0 ? ink : ground;
    }
}

void FleetMap::paintCell(QPainter& painter, const QRect& cell, uint32_t place) const {
    const bool isState = figures_.figure == FleetFigure::kState;
    const bool hatched = !isState && figures_.badness[place] < 0;
    const Tokens& t = theme().tokens();
    const QColor ink = hatched ? t.text : inkOn(colorAt(place));
    const bool dimmed = match_ && match_->hits[place] == 0;
    painter.setPen(dimmed ? t.faint : ink);
    const QRect room = cell.adjusted(4, 0, -4, 0);
    if (cell.width() < kNameWidth || cell.height() < kNameHeight) {
        if (isState && cell.width() >= kLetterWidth && cell.height() >= kLetterHeight &&
            figures_.conditions[place] != RankCondition::kTraining)
            painter.drawText(cell, Qt::AlignCenter, QString(letter(figures_.conditions[place])));
        return;
    }
    const QFontMetrics metrics = painter.fontMetrics();
    const QString name = rankName(shape_.ranks[place]);
    if (cell.height() < kFigureHeight)
        return painter.drawText(room, Qt::AlignCenter,
                                metrics.elidedText(name, Qt::ElideRight, room.width()));
    const int line = metrics.height();
    const QRect both(room.left(), room.center().y() - line + 1, room.width(), 2 * line);
    painter.drawText(both, Qt::AlignHCenter | Qt::AlignTop,
                     metrics.elidedText(name, Qt::ElideRight, room.width()));
    painter.drawText(
        both, Qt::AlignHCenter | Qt::AlignBottom,
        metrics.elidedText(figureWords(figures_, place), Qt::ElideRight, room.width()));
}

void FleetMap::paintUnit(QPainter& painter, QImage& image, uint32_t unit, const QRect& area) const {
    const MapLevel& level = layout_.at(level_);
    const QRect whole = layout_.unit(level_, unit);
    const uint32_t first = level.starts[unit];
    const uint32_t end = level.starts[unit + 1];
    if (level.aggregated) {
        uint32_t shown = worstOf(figures_, first, end - first);
        // A rank that was looked for is seen, though another one there is worse.
        if (match_ && match_->hits[shown] == 0)
            for (uint32_t place = first; place < end; ++place)
                if (match_->hits[place] != 0) shown = place;
        return fill(image, area, whole, shown);
    }
    if (level.unitTitle > 0) {
        const std::string& node = shape_.groups[shape_.groupOf[first]].node;
        const QRect title(whole.left(), whole.top() - level.unitTitle, whole.width(),
                          level.unitTitle);
        painter.setPen(theme().tokens().muted);
        painter.drawText(title, Qt::AlignLeft | Qt::AlignVCenter,
                         painter.fontMetrics().elidedText(node.empty() ? tr("no node") : toQt(node),
                                                          Qt::ElideMiddle, title.width()));
    }
    const QSize size = level.pitch - QSize(level.cellGap, level.cellGap);
    const bool hasWords = size.width() >= kLetterWidth && size.height() >= kLetterHeight;
    const int firstRow = std::max(0, (area.top() - whole.top()) / level.pitch.height());
    const auto columns = static_cast<uint32_t>(level.rankColumns);
    for (uint32_t k = static_cast<uint32_t>(firstRow) * columns; first + k < end; ++k) {
        const QRect cell(whole.left() + static_cast<int>(k % columns) * level.pitch.width(),
                         whole.top() + static_cast<int>(k / columns) * level.pitch.height(),
                         size.width(), size.height());
        if (cell.top() > area.bottom()) break;
        if (cell.right() < area.left() || cell.left() > area.right()) continue;
        fill(image, area, cell, first + k);
        if (hasWords) paintCell(painter, cell, first + k);
    }
}

QRect FleetMap::titleOf(const QRect& block) const {
    const MapLevel& level = layout_.at(level_);
    return {block.left() + level.padding + 2, block.top() + 3,
            block.width() - 2 * level.padding - 4, level.blockTitle};
}

void FleetMap::paintTitle(QPainter& painter, uint32_t replica, QRect line) const {
    const Tokens& t = theme().tokens();
    const Title& title = titles_[replica];
    painter.setFont(Theme::font(0, QFont::Medium));
    const QFontMetrics metrics = painter.fontMetrics();
    const QString brief = replicaName(shape_.replicas[replica].replica);
    if (Space::kTwo + metrics.horizontalAdvance(brief) <= line.width()) {
        paintMark(painter, QPointF(line.left() + 4, line.center().y() + 0.5), tone(title.value),
                  t.of(title.value));
        line.setLeft(line.left() + Space::kTwo);
    }
    const QString& name =
        metrics.horizontalAdvance(title.name) <= line.width() ? title.name : brief;
    painter.setPen(t.text);
    painter.drawText(line, Qt::AlignLeft | Qt::AlignVCenter, name);
    line.setLeft(line.left() + metrics.horizontalAdvance(name) + Space::kOne);
    painter.setFont(Theme::font(-1));
    if (line.width() <= Space::kThree) return;
    const Tone told = tone(title.value);
    painter.setPen(told == Tone::kGood || told == Tone::kBusy ? t.muted : t.of(told));
    painter.drawText(line, Qt::AlignLeft | Qt::AlignVCenter,
                     painter.fontMetrics().elidedText(title.state, Qt::ElideRight, line.width()));
}

QRect FleetMap::titleAtEdge(uint32_t replica) const {
    const QRect block = layout_.block(level_, replica).translated(-offset_);
    const QRect seen = block.intersected(plot());
    if (layout_.at(level_).blockTitle == 0 || seen.isEmpty()) return {};
    if (block.top() >= 0 && block.left() >= 0) return {};
    QRect band(seen.left(), std::max(block.top(), 0), seen.width(), titleBand());
    if (band.bottom() > block.bottom()) band.moveBottom(block.bottom());
    return band;
}

void FleetMap::paintTitlesAtEdge(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    for (uint32_t replica = 0; replica < shape_.replicas.size(); ++replica) {
        const QRect band = titleAtEdge(replica);
        if (band.isEmpty()) continue;
        const bool above = layout_.block(level_, replica).top() < offset_.y();
        painter.fillRect(band.adjusted(0, above ? 0 : 1, 0, 0), t.surface);
        painter.setPen(t.border);
        if (above) painter.drawLine(band.bottomLeft(), band.bottomRight());
        paintTitle(painter, replica, titleOf(band));
    }
}

void FleetMap::paintBlock(QPainter& painter, QImage& image, uint32_t replica,
                          const QRect& area) const {
    const Tokens& t = theme().tokens();
    const MapLevel& level = layout_.at(level_);
    const QRect block = layout_.block(level_, replica);
    painter.setPen(level.blockTitle > 0 ? t.border : t.surface);
    painter.setBrush(t.surface);
    painter.drawRect(block.adjusted(0, 0, -1, -1));
    if (level.blockTitle > 0) paintTitle(painter, replica, titleOf(block));
    painter.setFont(Theme::font(-1));
    const auto [first, end] = layout_.unitsIn(level_, replica, area);
    const int step = level.unit.width() + level.unitGap;
    const int left = block.left() + level.padding;
    const auto columns = static_cast<uint32_t>(level.unitColumns);
    const auto from =
        static_cast<uint32_t>(std::clamp((area.left() - left) / step, 0, level.unitColumns - 1));
    const auto to =
        static_cast<uint32_t>(std::clamp((area.right() - left) / step, 0, level.unitColumns - 1));
    for (uint32_t row = first; row < end; row += columns)
        for (uint32_t unit = row + from; unit <= row + to && unit < end; ++unit)
            paintUnit(painter, image, unit, area);
}

QImage FleetMap::paintTile(const QRect& area) const {
    const qreal ratio = devicePixelRatioF();
    QImage image(QSize(static_cast<int>(std::lround(area.width() * ratio)),
                       static_cast<int>(std::lround(area.height() * ratio))),
                 QImage::Format_RGB32);
    image.setDevicePixelRatio(ratio);
    image.fill(theme().tokens().surface);
    QPainter painter(&image);
    painter.setRenderHint(QPainter::Antialiasing, false);
    painter.translate(-area.topLeft());
    const MapLevel& level = layout_.at(level_);
    const int stepX = level.block.width() + level.blockGap;
    const int stepY = level.block.height() + level.blockGap;
    const int rows = (static_cast<int>(shape_.replicas.size()) + level.replicaColumns - 1) /
                     level.replicaColumns;
    const int firstRow = std::max(0, (area.top() - MapLayout::kMargin) / stepY);
    const int lastRow = std::min(rows - 1, (area.bottom() - MapLayout::kMargin) / stepY);
    const int firstColumn = std::max(0, (area.left() - MapLayout::kMargin) / stepX);
    const int lastColumn =
        std::min(level.replicaColumns - 1, (area.right() - MapLayout::kMargin) / stepX);
    for (int row = firstRow; row <= lastRow; ++row)
        for (int column = firstColumn; column <= lastColumn; ++column) {
            const auto replica = static_cast<uint32_t>(row * level.replicaColumns + column);
            if (replica < shape_.replicas.size()) paintBlock(painter, image, replica, area);
        }
    return image;
}

const QImage& FleetMap::tile(int column, int row) {
    const quint64 key =
        static_cast<quint64>(static_cast<uint32_t>(row)) << 32 | static_cast<uint32_t>(column);
    QImage* kept = tiles_.object(key);
    if (kept != nullptr && kept->devicePixelRatio() == devicePixelRatioF()) return *kept;
    kept = new QImage(paintTile({column * kTile, row * kTile, kTile, kTile}));
    tiles_.insert(key, kept);
    return *kept;
}

void FleetMap::paintEvent(QPaintEvent* event) {
    QPainter painter(this);
    painter.fillRect(event->rect(), theme().tokens().surface);
    if (layout_.levels() == 0) return;
    const QRect seen = plot();
    painter.setClipRect(seen);
    const QRect world =
        QRect(QPoint(), layout_.world(level_)).intersected(seen.translated(offset_));
    for (int row = world.top() / kTile; row <= world.bottom() / kTile; ++row)
        for (int column = world.left() / kTile; column <= world.right() / kTile; ++column)
            painter.drawImage(QPoint(column * kTile, row * kTile) - offset_, tile(column, row));
    paintSelection(painter);
    paintTitlesAtEdge(painter);
    painter.setClipping(false);
    paintLegend(painter);
}

void FleetMap::paintSelection(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QColor ink = hasFocus() ? t.accent : t.text;
    const auto frame = [&](QRect r) {
        // A small cell would disappear beneath its own frame.
        const int more = std::max(0, kOutline - std::min(r.width(), r.height()) + 1) / 2;
        r = r.translated(-offset_).adjusted(-2 - more, -2 - more, 2 + more, 2 + more);
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(t.surface, 4));
        painter.drawRect(r);
        painter.setPen(QPen(ink, 2));
        painter.drawRect(r);
    };
    if (const auto place = current()) return frame(layout_.cell(level_, *place));
    if (const auto index = shape_.indexOf(replica_)) {
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(ink, 2));
        return painter.drawRect(layout_.block(level_, *index).translated(-offset_));
    }
    if (replica_ >= 0 || node_.isEmpty()) return;
    const std::string node = node_.toStdString();
    for (const FleetShape::Group& group : shape_.groups) {
        if (group.node != node) continue;
        const uint32_t first = layout_.unitOf(level_, group.first);
        const uint32_t last = layout_.unitOf(level_, group.first + group.count - 1);
        for (uint32_t unit = first; unit <= last; ++unit) frame(layout_.unit(level_, unit));
    }
}

int FleetMap::paintStates(QPainter& painter, QRect line) const {
    const auto& counts = figures_.counts;
    const Tokens& t = theme().tokens();
    int x = line.left();
    for (size_t i = kRankConditions; i-- > 0;) {
        if (counts[i] == 0) continue;
        const auto condition = static_cast<RankCondition>(i);
        const QString words = QStringLiteral("%1 %2").arg(label(condition), formatCount(counts[i]));
        const int width = kSwatch + Space::kHalf + painter.fontMetrics().horizontalAdvance(words);
        if (x + width > line.right()) break;
        const QRect swatch(x, line.center().y() - kSwatch / 2 + 1, kSwatch, kSwatch);
        painter.fillRect(swatch, colorOf(condition));
        painter.setPen(inkOn(colorOf(condition)));
        painter.drawText(swatch, Qt::AlignCenter, QString(letter(condition)));
        painter.setPen(t.text);
        painter.drawText(QRect(x + kSwatch + Space::kHalf, line.top(), width, line.height()),
                         Qt::AlignLeft | Qt::AlignVCenter, words);
        x += width + Space::kTwo;
    }
    return x;
}

int FleetMap::paintScale(QPainter& painter, QRect line) const {
    const Tokens& t = theme().tokens();
    const QFontMetrics metrics = painter.fontMetrics();
    int x = line.left();
    const auto write = [&](const QString& words, const QColor& color) {
        painter.setPen(color);
        painter.drawText(QRect(x, line.top(), line.width(), line.height()),
                         Qt::AlignLeft | Qt::AlignVCenter, words);
        x += metrics.horizontalAdvance(words) + Space::kOne;
    };
    const FleetScale& scale = figures_.scale;
    const bool falls = scale.worst < scale.best;
    const bool ofMedian =
        figures_.figure == FleetFigure::kThroughput || figures_.figure == FleetFigure::kMemory;
    const bool isEnd = scale.best == 0 || figures_.figure == FleetFigure::kGpuLoad;
    const QString atMost = QStringLiteral("\u2264\u00a0");
    const QString atLeast = QStringLiteral("\u2265\u00a0");
    const QString best = figureWords(figures_.figure, scale.best);
    write(figures_.ofGpu ? tr("GPU memory") : label(figures_.figure), t.muted);
    write(ofMedian ? tr("median %1").arg(best)
          : isEnd  ? best
                   : (falls ? atLeast : atMost) + best,
          t.text);
    const auto shades = FleetMap::shades();
    for (int i = 0; i < kScale; ++i)
        painter.fillRect(QRect(x + i, line.center().y() - 4, 1, 9),
                         shades[static_cast<size_t>(i) * kShades / kScale]);
    x += kScale + Space::kOne;
    write((falls ? atMost : atLeast) + figureWords(figures_.figure, scale.worst), t.text);
    const size_t unknown = figures_.badness.size() - figures_.known;
    if (unknown > 0) {
        x += Space::kOne;
        const QRect swatch(x, line.center().y() - kSwatch / 2 + 1, kSwatch, kSwatch);
        painter.fillRect(swatch, blend(t.surface, t.faint, 0.3));
        painter.setPen(t.faint);
        painter.setClipRect(swatch);
        for (int d = -kSwatch; d < kSwatch; d += kHatch)
            painter.drawLine(swatch.left() + d, swatch.bottom() + 1,
                             swatch.left() + d + kSwatch + 1, swatch.top());
        painter.setClipping(false);
        x += kSwatch + Space::kHalf;
        write(tr("no figure: %1").arg(formatCount(unknown)), t.text);
    }
    return x;
}

void FleetMap::paintLegend(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QRect strip(0, height() - kLegend, width(), kLegend);
    painter.fillRect(strip, t.surface);
    painter.setFont(Theme::font(-1));
    const QRect line = strip.adjusted(Space::kOne, 0, -Space::kOne, 0);
    int x = figures_.figure == FleetFigure::kState ? paintStates(painter, line)
                                                   : paintScale(painter, line);
    x += Space::kOne;
    const QString words = currentWords();
    const QRect rest(x, line.top(), line.right() - x, line.height());
    if (words.isEmpty() || rest.width() < 80) return;
    painter.setPen(t.muted);
    painter.drawText(rest, Qt::AlignRight | Qt::AlignVCenter,
                     painter.fontMetrics().elidedText(words, Qt::ElideRight, rest.width()));
}

}  // namespace bulkhead::ui
