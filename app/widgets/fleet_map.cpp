// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/fleet_map.h"

#include <QApplication>
#include <QHelpEvent>
#include <QKeyEvent>
#include <QToolTip>
#include <algorithm>

#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kMostTiles = 320;       // 80 MB at the usual pixel ratio
constexpr double kTurn = 0.6;         // of the scale, where the calm half ends
constexpr double kQuietInDark = 0.6;  // share of its colour, still 3:1 on the ground
constexpr double kQuietInLight = 0.7;
constexpr int kWheelStep = 120;

}  // namespace

FleetMap::FleetMap(QWidget* parent) : QWidget(parent), tiles_(kMostTiles) {
    setFocusPolicy(Qt::StrongFocus);
    setAccessibleName(tr("Map of the fleet"));
    setCursor(Qt::ArrowCursor);
    forgetTiles();
    connect(&theme(), &Theme::changed, this, &FleetMap::forgetTiles);
}

std::array<QColor, FleetMap::kShades> FleetMap::shades() {
    const Tokens& t = theme().tokens();
    std::array<QColor, kShades> out;
    for (size_t i = 0; i < kShades; ++i) {
        const double at = static_cast<double>(i) / (kShades - 1);
        out[i] = at < kTurn ? blend(t.low, t.high, at / kTurn)
                            : blend(t.high, t.bad, (at - kTurn) / (1 - kTurn));
    }
    return out;
}

QColor FleetMap::colorOf(RankCondition condition) {
    const Tokens& t = theme().tokens();
    using enum model::ReplicaState;
    switch (condition) {
        case RankCondition::kTraining:
            // Nearly all of them: quieter than elsewhere, so that the others are seen first.
            return blend(t.surface, t.of(kTraining),
                         theme().scheme() == Scheme::kDark ? kQuietInDark : kQuietInLight);
        case RankCondition::kJoining:
            return t.of(kProven);
        case RankCondition::kReplaying:
            return t.of(kReplaying);
        case RankCondition::kFetching:
            return t.of(kFetching);
        case RankCondition::kStarting:
            return t.of(kStarting);
        case RankCondition::kOut:
            return t.of(kDrained);
        case RankCondition::kBackingOff:
        case RankCondition::kLate:
            return t.warning;
        case RankCondition::kGone:
        case RankCondition::kFailed:
            return t.bad;
    }
    return t.muted;
}

/// After a change of colours or figures.
void FleetMap::forgetTiles() {
    const QColor ground = theme().tokens().surface;
    const auto shades = FleetMap::shades();
    for (size_t i = 0; i < kShades; ++i) {
        shades_[i] = shades[i].rgb();
        dimmedShades_[i] = blend(ground, shades[i], kDimmed).rgb();
    }
    for (size_t i = 0; i < kRankConditions; ++i) {
        const QColor color = colorOf(static_cast<RankCondition>(i));
        states_[i] = color.rgb();
        dimmedStates_[i] = blend(ground, color, kDimmed).rgb();
    }
    tiles_.clear();
    update();
}

void FleetMap::setFleet(const model::RunState& state, FleetFigure figure, double unseenMs) {
    state_ = &state;
    unseenMs_ = unseenMs;
    const bool reshaped = !shape_.fits(state);
    if (reshaped) shape_ = fleetShape(state);
    figures_ = fleetFigures(state, shape_, figure, unseenMs);
    titles_.clear();
    for (const FleetShape::Replica& replica : shape_.replicas) {
        const model::ReplicaView* view = model::findReplica(state, replica.replica);
        const auto value = view ? view->state : model::ReplicaState::kAbsent;
        titles_.push_back({tr("Replica %1").arg(replica.replica), label(value), value});
    }
    if (reshaped) {
        match_.reset();
        layOut();
    }
    forgetTiles();
    if (const auto place = current()) setAccessibleDescription(wordsOf(*place));
}

void FleetMap::setMatch(std::optional<FleetMatch> match) {
    if (match && match->hits.size() != shape_.ranks.size()) match.reset();
    match_ = std::move(match);
    forgetTiles();
}

void FleetMap::setSelected(int replica, int shard, const QString& node) {
    if (replica == replica_ && shard == shard_ && node == node_) return;
    replica_ = replica;
    shard_ = shard;
    node_ = node;
    if (const auto place = current()) {
        setAccessibleDescription(wordsOf(*place));
        reveal(shape_.ranks[*place]);
    } else {
        setAccessibleDescription(replica >= 0 ? tr("Replica %1").arg(replica) : node);
    }
    update();
}

QRect FleetMap::plot() const {
    return rect().adjusted(0, 0, 0, -kLegend);
}

void FleetMap::layOut() {
    const auto place = level_ > 0 ? current() : std::nullopt;
    layout_ = MapLayout(shape_, plot().size());
    level_ = std::clamp(level_, 0, std::max(0, layout_.levels() - 1));
    tiles_.clear();
    moveTo(offset_);
    if (place) reveal(shape_.ranks[*place]);
    update();
}

void FleetMap::resizeEvent(QResizeEvent*) {
    layOut();
}

std::optional<uint32_t> FleetMap::current() const {
    if (replica_ < 0 || shard_ < 0) return std::nullopt;
    return shape_.placeOf({replica_, shard_});
}

QRect FleetMap::cellOf(RankId rank) const {
    const auto place = shape_.placeOf(rank);
    return place && layout_.levels() > 0 ? layout_.cell(level_, *place).translated(-offset_)
                                         : QRect();
}

QString FleetMap::wordsOf(uint32_t place) const {
    const std::string& node = shape_.groups[shape_.groupOf[place]].node;
    QString words =
        tr("%1, %2, %3")
            .arg(rankName(shape_.ranks[place]), node.empty() ? tr("no node") : toQt(node),
                 label(figures_.conditions[place]));
    if (figures_.figure != FleetFigure::kState)
        words += QStringLiteral(", ") +
                 tr("%1 %2").arg(label(figures_.figure), figureWords(figures_, place));
    return words;
}

QString FleetMap::currentWords() const {
    const auto place = current();
    return place ? wordsOf(*place) : QString();
}

void FleetMap::setCurrent(uint32_t place) {
    const RankId rank = shape_.ranks[place];
    setSelected(rank.replica, rank.shard);
    Q_EMIT picked(rank.replica, rank.shard);
}

void FleetMap::moveTo(QPoint offset) {
    if (layout_.levels() == 0) return;
    const QSize room = layout_.world(level_) - plot().size();
    offset_ = {std::clamp(offset.x(), 0, std::max(0, room.width())),
               std::clamp(offset.y(), 0, std::max(0, room.height()))};
    update();
}

void FleetMap::pan(QPoint by) {
    moveTo(offset_ + by);
}

void FleetMap::setLevel(int level, QPoint about, std::optional<uint32_t> place) {
    if (layout_.levels() == 0) return;
    level = std::clamp(level, 0, layout_.levels() - 1);
    if (level == level_) return;
    QPoint to;
    if (place) {
        // The rank stays where it is on the screen, at the same part of its cell.
        const QRect before = layout_.cell(level_, *place).translated(-offset_);
        const QRect after = layout_.cell(level, *place);
        const QPoint within = about - before.topLeft();
        to = after.topLeft() + QPoint(within.x() * after.width() / std::max(before.width(), 1),
                                      within.y() * after.height() / std::max(before.height(), 1));
    } else {
        const QSize before = layout_.world(level_);
        const QSize after = layout_.world(level);
        const QPoint at = offset_ + about;
        to = {static_cast<int>(static_cast<double>(at.x()) * after.width() / before.width()),
              static_cast<int>(static_cast<double>(at.y()) * after.height() / before.height())};
    }
    level_ = level;
    tiles_.clear();
    moveTo(to - about);
}

void FleetMap::zoom(int levels, QPoint about) {
    setLevel(level_ + levels, about, hitAt(about).place);
}

void FleetMap::zoom(int levels) {
    // About the current rank where it can be seen, else about the middle.
    const auto place = current();
    if (place && layout_.levels() > 0) {
        const QPoint at = layout_.cell(level_, *place).translated(-offset_).center();
        if (plot().contains(at)) return setLevel(level_ + levels, at, place);
    }
    zoom(levels, plot().center());
}

void FleetMap::showAll() {
    level_ = 0;
    tiles_.clear();
    moveTo({});
}

void FleetMap::goTo(int replica, int shard) {
    const auto index = shape_.indexOf(replica);
    if (!index || layout_.levels() == 0) return;
    const auto place = shard < 0 ? std::nullopt : shape_.placeOf({replica, shard});
    const auto target = [&](int level) {
        return place ? layout_.unit(level, layout_.unitOf(level, *place))
                     : layout_.block(level, *index);
    };
    int level = 0;
    const QSize room = plot().size() - QSize(2 * MapLayout::kMargin, 2 * MapLayout::kMargin);
    for (int i = 1; i < layout_.levels(); ++i) {
        const QSize size = target(i).size();
        if (size.width() <= room.width() && size.height() <= room.height()) level = i;
    }
    level_ = level;
    tiles_.clear();
    moveTo(target(level).center() - plot().center());
}

void FleetMap::reveal(RankId rank) {
    const auto place = shape_.placeOf(rank);
    if (!place || layout_.levels() == 0) return;
    const int title = layout_.at(level_).blockTitle > 0 ? titleBand() : 0;  // may be above it
    const QRect cell = layout_.cell(level_, *place)
                           .adjusted(-Space::kTwo, -Space::kTwo - title, Space::kTwo, Space::kTwo);
    const auto along = [](int offset, int from, int to, int room) {
        if (from < offset) return from;
        return to > offset + room ? to - room : offset;
    };
    moveTo({along(offset_.x(), cell.left(), cell.right(), plot().width()),
            along(offset_.y(), cell.top(), cell.bottom(), plot().height())});
}

MapHit FleetMap::hitAt(const QPoint& at) const {
    if (!plot().contains(at)) return {};
    const MapHit hit = layout_.hit(level_, at + offset_);
    if (hit.replica && titleAtEdge(*hit.replica).contains(at))
        return {hit.replica, std::nullopt, std::nullopt};
    return hit;
}

/// The rank that a cell stands for: of an aggregate, its worst.
uint32_t FleetMap::worstAt(uint32_t place) const {
    const MapLevel& level = layout_.at(level_);
    if (!level.aggregated) return place;
    const uint32_t unit = layout_.unitOf(level_, place);
    return worstOf(figures_, level.starts[unit], level.starts[unit + 1] - level.starts[unit]);
}

void FleetMap::move(int dx, int dy) {
    if (shape_.ranks.empty() || layout_.levels() == 0) return;
    const auto from = current();
    if (!from) {
        const auto index = shape_.indexOf(replica_);
        const uint32_t first =
            index && shape_.replicas[*index].count > 0 ? shape_.replicas[*index].first : 0;
        return setCurrent(worstAt(first));
    }
    const MapLevel& level = layout_.at(level_);
    const QRect cell = layout_.cell(level_, *from);
    const QSize world = layout_.world(level_);
    // Steps over gaps and titles until there is another cell.
    const QPoint step(dx * std::max(level.pitch.width() / 2, 1),
                      dy * std::max(level.pitch.height() / 2, 1));
    for (QPoint at = cell.center() + step; QRect(QPoint(), world).contains(at); at += step) {
        const auto place = layout_.hit(level_, at).place;
        if (!place || layout_.cell(level_, *place) == cell) continue;
        return setCurrent(worstAt(*place));
    }
}

void FleetMap::keyPressEvent(QKeyEvent* event) {
    const bool pans = event->modifiers() & Qt::ShiftModifier;
    const auto go = [&](int dx, int dy) {
        if (pans) return pan({dx * plot().width() / 8, dy * plot().height() / 8});
        move(dx, dy);
    };
    switch (event->key()) {
        case Qt::Key_Left:
            return go(-1, 0);
        case Qt::Key_Right:
            return go(1, 0);
        case Qt::Key_Up:
            return go(0, -1);
        case Qt::Key_Down:
            return go(0, 1);
        case Qt::Key_Plus:
        case Qt::Key_Equal:
            return zoom(1);
        case Qt::Key_Minus:
            return zoom(-1);
        case Qt::Key_Home:
            return showAll();
        case Qt::Key_Return:
        case Qt::Key_Enter: {
            const int before = level_;
            goTo(replica_);
            if (level_ <= before && shard_ >= 0) goTo(replica_, shard_);
            return;
        }
        default:
            QWidget::keyPressEvent(event);
    }
}

void FleetMap::wheelEvent(QWheelEvent* event) {
    wheel_ += event->angleDelta().y();
    const int steps = wheel_ / kWheelStep;
    wheel_ -= steps * kWheelStep;
    if (steps != 0) zoom(steps, event->position().toPoint());
    event->accept();
}

void FleetMap::mousePressEvent(QMouseEvent* event) {
    if (event->button() == Qt::RightButton) pick(event->pos());  // its menu acts on that
    if (event->button() != Qt::LeftButton) return QWidget::mousePressEvent(event);
    pressed_ = event->pos();
    dragged_ = false;
}

void FleetMap::mouseMoveEvent(QMouseEvent* event) {
    if (!pressed_) return;
    const QPoint by = event->pos() - *pressed_;
    if (!dragged_ && by.manhattanLength() < QApplication::startDragDistance()) return;
    dragged_ = true;
    setCursor(Qt::ClosedHandCursor);
    pan(-by);
    pressed_ = event->pos();
}

void FleetMap::mouseReleaseEvent(QMouseEvent* event) {
    if (!pressed_ || event->button() != Qt::LeftButton) return;
    pressed_.reset();
    setCursor(Qt::ArrowCursor);
    if (!dragged_) pick(event->pos());
}

void FleetMap::pick(const QPoint& at) {
    const MapHit hit = hitAt(at);
    if (hit.place) return setCurrent(worstAt(*hit.place));
    if (hit.unit && layout_.at(level_).unitTitle > 0) {
        const uint32_t first = layout_.at(level_).starts[*hit.unit];
        const QString node = toQt(shape_.groups[shape_.groupOf[first]].node);
        if (!node.isEmpty()) return void(Q_EMIT nodePicked(node));
    }
    if (hit.replica) Q_EMIT picked(shape_.replicas[*hit.replica].replica, -1);
}

void FleetMap::mouseDoubleClickEvent(QMouseEvent* event) {
    const MapHit hit = hitAt(event->pos());
    if (!hit.replica) return;
    const int replica = shape_.replicas[*hit.replica].replica;
    const int before = level_;
    goTo(replica);
    // From the replica on to the node.
    if (level_ <= before && hit.place) goTo(replica, shape_.ranks[*hit.place].shard);
}

QString FleetMap::tip(const MapHit& hit) const {
    if (state_ == nullptr || !hit.replica) return {};
    const FleetShape::Replica& replica = shape_.replicas[*hit.replica];
    if (!hit.place)
        return QStringLiteral("%1: %2\n%3")
            .arg(titles_[*hit.replica].name, titles_[*hit.replica].state,
                 tr("%1 ranks on %2 nodes")
                     .arg(formatCount(replica.count), formatCount(replica.groups)));
    const uint32_t place = worstAt(*hit.place);
    const QString rank = rankWords(*state_, shape_.ranks[place], unseenMs_);
    const MapLevel& level = layout_.at(level_);
    if (!level.aggregated) return rank;
    const uint32_t first = level.starts[*hit.unit];
    return tr("%1 ranks, coloured by the worst of them:")
               .arg(formatCount(level.starts[*hit.unit + 1] - first)) +
           u'\n' + rank;
}

bool FleetMap::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        const QString words = tip(hitAt(help->pos()));
        if (words.isEmpty())
            QToolTip::hideText();
        else
            QToolTip::showText(help->globalPos(), words, this);
        return true;
    }
    return QWidget::event(event);
}

}  // namespace bulkhead::ui
