// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/map_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace bulkhead::ui {
namespace {

constexpr int kBlockTitle = 22;
constexpr int kUnitTitle = 16;
constexpr int kRoomyWidth = 32;  // a block of less has neither title nor padding
constexpr int kRoomyHeight = 24;
constexpr int kRoomyPad = 6;
constexpr int kTightPad = 1;
constexpr int kRoomyGap = 8;
constexpr int kTightGap = 2;
constexpr int kLeastTitledWidth = 132;  // of a block, where few replicas leave room for words
constexpr size_t kFewReplicas = 16;
constexpr uint32_t kLargeNode = 32;
constexpr int kLargestHeight = 128;
constexpr double kZoom = 1.3;

constexpr std::array kHeights = {96, 80, 72, 64, 56, 48, 40, 34, 28, 24, 20,
                                 17, 14, 12, 10, 9,  8,  7,  6,  5,  4,  3};
constexpr std::array kAggregates = {
    QSize(14, 14), QSize(12, 12), QSize(10, 10), QSize(9, 9), QSize(8, 8), QSize(7, 7), QSize(6, 6),
    QSize(6, 5),   QSize(5, 5),   QSize(5, 4),   QSize(4, 4), QSize(4, 3), QSize(3, 3)};

int divideUp(int a, int b) {
    return (a + b - 1) / b;
}

QSize pitchOf(int height) {
    return {height >= 14 ? height * 8 / 5 : height, height};
}

/// The shape of a fleet as far as the layout depends on it.
struct Extent {
    int replicas = 0;
    int units = 0;  ///< most of a replica
    int ranks = 0;  ///< most of a unit, 1 when aggregated
};

/// Fills in all that follows from columns, rows and pitch.
void measure(MapLevel& level, const Extent& extent) {
    const int h = level.pitch.height();
    if (level.aggregated) {
        level.cellGap = 0;
        level.unitGap = std::min(level.pitch.width(), h) > MapLayout::kLeastCell ? 1 : 0;
        level.pitch -= QSize(level.unitGap, level.unitGap);
    } else {
        level.cellGap = h >= 24 ? 3 : h >= 8 ? 2 : h >= 5 ? 1 : 0;
        level.unitGap = h >= 24 ? 8 : h >= 8 ? 4 : h >= 5 ? 2 : 1;
        const int width = level.rankColumns * level.pitch.width();
        level.unitTitle = h >= 17 && width >= 64 ? kUnitTitle : 0;
    }
    level.unit = {level.rankColumns * level.pitch.width() - level.cellGap,
                  level.rankRows * level.pitch.height() - level.cellGap + level.unitTitle};
    level.unitRows = std::max(1, divideUp(extent.units, level.unitColumns));
    QSize body(level.unitColumns * (level.unit.width() + level.unitGap) - level.unitGap,
               level.unitRows * (level.unit.height() + level.unitGap) - level.unitGap);
    if (static_cast<size_t>(extent.replicas) <= kFewReplicas)
        body = body.expandedTo({level.aggregated ? 0 : kLeastTitledWidth, kRoomyHeight});
    const bool roomy = body.width() >= kRoomyWidth && body.height() >= kRoomyHeight;
    level.blockTitle = roomy ? kBlockTitle : 0;
    level.padding = roomy ? kRoomyPad : kTightPad;
    level.blockGap = roomy ? kRoomyGap : kTightGap;
    level.block = body + QSize(2 * level.padding, 2 * level.padding + level.blockTitle);
}

QSize worldOf(const MapLevel& level, int replicas) {
    const int columns = std::min(level.replicaColumns, std::max(replicas, 1));
    const int rows = std::max(1, divideUp(replicas, level.replicaColumns));
    return {
        columns * (level.block.width() + level.blockGap) - level.blockGap + 2 * MapLayout::kMargin,
        rows * (level.block.height() + level.blockGap) - level.blockGap + 2 * MapLayout::kMargin};
}

/// Columns and rows for the cells of a unit that leave few of them empty.
std::vector<std::pair<int, int>> grids(int ranks) {
    std::vector<std::pair<int, int>> out;
    for (int columns = 1; columns <= ranks;) {
        const int rows = divideUp(ranks, columns);
        out.emplace_back(divideUp(ranks, rows), rows);
        // The next number of columns that needs fewer rows.
        columns = rows == 1 ? ranks + 1 : divideUp(ranks, rows - 1);
    }
    return out;
}

/// The less the better: how far an arrangement is from even blocks and units of a pleasant shape.
double costOf(const MapLevel& level, const Extent& extent, QSize view) {
    const auto shape = [](QSize size, double wanted) {
        return std::abs(std::log(static_cast<double>(size.width()) / size.height() / wanted));
    };
    const int rows = divideUp(extent.replicas, level.replicaColumns);
    const double emptyBlocks = static_cast<double>(rows * level.replicaColumns) / extent.replicas;
    const double emptyCells =
        static_cast<double>(level.rankColumns * level.rankRows) / std::max(extent.ranks, 1);
    const double wanted = static_cast<double>(view.width()) / view.height();
    return emptyBlocks + 2 * emptyCells + 0.1 * shape(level.block, 1.6) +
           0.1 * shape(level.unit, 2) + 0.05 * shape(worldOf(level, extent.replicas), wanted);
}

/// The best arrangement of cells of one size that fits into the view; nullopt: none does.
std::optional<MapLevel> arrange(const Extent& extent, QSize view, QSize pitch, bool aggregated,
                                int replicaColumns = 0) {
    std::optional<MapLevel> best;
    double leastCost = std::numeric_limits<double>::infinity();
    for (const auto& [columns, rows] : grids(std::max(extent.ranks, 1))) {
        const int first = replicaColumns > 0 ? replicaColumns : 1;
        const int last = replicaColumns > 0 ? replicaColumns : std::max(extent.replicas, 1);
        for (int c = first; c <= last; ++c) {
            MapLevel level;
            level.aggregated = aggregated;
            level.replicaColumns = c;
            level.rankColumns = columns;
            level.rankRows = rows;
            level.pitch = pitch;
            // The widest possible block says how many units fit; they are evened out over its rows.
            measure(level, extent);
            const int outer = view.width() - 2 * MapLayout::kMargin;
            const bool roomy = (outer + kRoomyGap) / c - kRoomyGap >= kRoomyWidth + 2 * kRoomyPad;
            const int gap = roomy ? kRoomyGap : kTightGap;
            const int width = (outer + gap) / c - gap - 2 * (roomy ? kRoomyPad : kTightPad);
            const int step = level.unit.width() + level.unitGap;
            const int most = std::min((width + level.unitGap) / step, std::max(extent.units, 1));
            if (most < 1) break;
            const int unitRows = divideUp(std::max(extent.units, 1), most);
            level.unitColumns = divideUp(std::max(extent.units, 1), unitRows);
            level.pitch = pitch;
            measure(level, extent);
            const QSize world = worldOf(level, extent.replicas);
            if (world.width() > view.width() || world.height() > view.height()) continue;
            if (const double cost = costOf(level, extent, view); cost < leastCost) {
                leastCost = cost;
                best = level;
            }
        }
    }
    return best;
}

/// Cuts every replica into units: each node into pieces of at most `ranks`, or `nodes` whole nodes
/// together.
void cut(const FleetShape& shape, uint32_t ranks, uint32_t nodes, MapLevel& level) {
    level.starts.clear();
    level.firstUnit.clear();
    for (const FleetShape::Replica& replica : shape.replicas) {
        level.firstUnit.push_back(static_cast<uint32_t>(level.starts.size()));
        for (uint32_t g = 0; g < replica.groups; ++g) {
            if (g % nodes != 0) continue;
            const FleetShape::Group& group = shape.groups[replica.firstGroup + g];
            const uint32_t end = nodes > 1 ? group.first + 1 : group.first + group.count;
            for (uint32_t place = group.first; place < end; place += ranks)
                level.starts.push_back(place);
        }
    }
    level.firstUnit.push_back(static_cast<uint32_t>(level.starts.size()));
    level.starts.push_back(static_cast<uint32_t>(shape.ranks.size()));
}

Extent extentOf(const MapLevel& level, uint32_t ranks) {
    Extent extent;
    extent.replicas = static_cast<int>(level.firstUnit.size()) - 1;
    for (size_t r = 0; r + 1 < level.firstUnit.size(); ++r)
        extent.units =
            std::max(extent.units, static_cast<int>(level.firstUnit[r + 1] - level.firstUnit[r]));
    extent.ranks = static_cast<int>(ranks);
    return extent;
}

void takeUnits(MapLevel& level, const MapLevel& from) {
    level.starts = from.starts;
    level.firstUnit = from.firstUnit;
}

/// The whole fleet, in aggregates. Coarser ones are tried until they fit; what never fits hangs
/// over, and can be panned to.
MapLevel aggregate(const FleetShape& shape, uint32_t largest, QSize view) {
    uint32_t ranks = largest <= kLargeNode ? largest : 4;
    uint32_t nodes = 1;
    MapLevel units;
    for (;;) {
        cut(shape, ranks, nodes, units);
        const Extent extent = extentOf(units, 1);
        for (const QSize& pitch : kAggregates)
            if (auto level = arrange(extent, view, pitch, true)) {
                takeUnits(*level, units);
                return *level;
            }
        if (ranks < largest) {
            ranks = std::min(2 * ranks, largest);
        } else if (extent.units > 1) {
            nodes *= 2;
        } else {
            MapLevel level;
            level.aggregated = true;
            level.pitch = {MapLayout::kLeastCell, MapLayout::kLeastCell};
            level.replicaColumns =
                std::max(1, (view.width() - 2 * MapLayout::kMargin) / (MapLayout::kLeastCell + 4));
            measure(level, extent);
            takeUnits(level, units);
            return level;
        }
    }
}

}  // namespace

MapLayout::MapLayout(const FleetShape& shape, QSize view)
    : replicas_(static_cast<uint32_t>(shape.replicas.size())) {
    if (replicas_ == 0) return;
    view = view.expandedTo({64, 48});
    uint32_t largest = 1;
    for (const FleetShape::Group& group : shape.groups) largest = std::max(largest, group.count);
    MapLevel nodes;
    cut(shape, largest, 1, nodes);
    const Extent whole = extentOf(nodes, largest);
    std::optional<MapLevel> fit;
    for (const int height : kHeights)
        if ((fit = arrange(whole, view, pitchOf(height), false))) break;
    int height = fit ? fit->pitch.height() : 0;
    if (!fit) {
        MapLevel first = aggregate(shape, largest, view);
        levels_.push_back(first);
        // From aggregates to ranks the blocks keep their places, in a view that is as much larger.
        for (double factor = kZoom; !fit && factor < 1e4; factor *= kZoom) {
            const QSize larger(static_cast<int>(view.width() * factor),
                               static_cast<int>(view.height() * factor));
            for (const int h : {5, 4, kLeastCell})
                if ((fit = arrange(whole, larger, pitchOf(h), false, first.replicaColumns))) break;
            if (fit) {
                height = fit->pitch.height();
                break;
            }
            MapLevel between = first;
            between.pitch = (first.pitch + QSize(first.unitGap, first.unitGap)) * factor;
            measure(between, extentOf(between, 1));
            levels_.push_back(std::move(between));
        }
        if (!fit) return;
    }
    takeUnits(*fit, nodes);
    levels_.push_back(*fit);
    while (height < kLargestHeight) {
        height = std::max(height + 1, static_cast<int>(std::lround(height * kZoom)));
        MapLevel next = *fit;
        next.pitch = pitchOf(std::min(height, kLargestHeight));
        measure(next, whole);
        levels_.push_back(std::move(next));
    }
}

QSize MapLayout::world(int level) const {
    return levels_.empty() ? QSize() : worldOf(at(level), static_cast<int>(replicas_));
}

QRect MapLayout::block(int level, uint32_t replica) const {
    const MapLevel& l = at(level);
    const int column = static_cast<int>(replica) % l.replicaColumns;
    const int row = static_cast<int>(replica) / l.replicaColumns;
    return {QPoint(kMargin + column * (l.block.width() + l.blockGap),
                   kMargin + row * (l.block.height() + l.blockGap)),
            l.block};
}

uint32_t MapLayout::replicaOfUnit(int level, uint32_t unit) const {
    const auto& first = at(level).firstUnit;
    // The last replica that begins at or before the unit: those without ranks begin there too.
    return static_cast<uint32_t>(std::upper_bound(first.begin(), first.end() - 1, unit) -
                                 first.begin() - 1);
}

QRect MapLayout::unit(int level, uint32_t unit) const {
    const MapLevel& l = at(level);
    const uint32_t replica = replicaOfUnit(level, unit);
    const int k = static_cast<int>(unit - l.firstUnit[replica]);
    const QPoint origin = block(level, replica).topLeft() +
                          QPoint(l.padding, l.padding + l.blockTitle) +
                          QPoint(k % l.unitColumns * (l.unit.width() + l.unitGap),
                                 k / l.unitColumns * (l.unit.height() + l.unitGap));
    return {origin + QPoint(0, l.unitTitle), l.unit - QSize(0, l.unitTitle)};
}

uint32_t MapLayout::unitOf(int level, uint32_t place) const {
    const auto& starts = at(level).starts;
    return static_cast<uint32_t>(std::upper_bound(starts.begin(), starts.end() - 1, place) -
                                 starts.begin() - 1);
}

QRect MapLayout::cell(int level, uint32_t place) const {
    const MapLevel& l = at(level);
    const uint32_t u = unitOf(level, place);
    const QRect whole = unit(level, u);
    if (l.aggregated) return whole;
    const int k = static_cast<int>(place - l.starts[u]);
    return {whole.topLeft() +
                QPoint(k % l.rankColumns * l.pitch.width(), k / l.rankColumns * l.pitch.height()),
            l.pitch - QSize(l.cellGap, l.cellGap)};
}

MapHit MapLayout::hit(int level, QPoint at) const {
    MapHit result;
    if (levels_.empty()) return result;
    const MapLevel& l = this->at(level);
    const QPoint p = at - QPoint(kMargin, kMargin);
    if (p.x() < 0 || p.y() < 0) return result;
    const int column = p.x() / (l.block.width() + l.blockGap);
    const int row = p.y() / (l.block.height() + l.blockGap);
    if (column >= l.replicaColumns) return result;
    const int64_t index = static_cast<int64_t>(row) * l.replicaColumns + column;
    if (index >= replicas_) return result;
    const auto replica = static_cast<uint32_t>(index);
    const QRect outer = block(level, replica);
    if (!outer.contains(at)) return result;
    result.replica = replica;
    const QPoint inside = at - outer.topLeft() - QPoint(l.padding, l.padding + l.blockTitle);
    if (inside.x() < 0 || inside.y() < 0) return result;
    const int x = inside.x() / (l.unit.width() + l.unitGap);
    const int y = inside.y() / (l.unit.height() + l.unitGap);
    if (x >= l.unitColumns || y >= l.unitRows) return result;
    const uint32_t u = l.firstUnit[replica] + static_cast<uint32_t>(y * l.unitColumns + x);
    if (u >= l.firstUnit[replica + 1]) return result;
    result.unit = u;
    const QPoint in = at - unit(level, u).topLeft();
    if (in.y() < 0) return result;  // its title
    // A gap belongs to the cell before it, so that there is no way to miss a small one.
    const int k = l.aggregated
                      ? 0
                      : std::min(in.y() / l.pitch.height(), l.rankRows - 1) * l.rankColumns +
                            std::min(in.x() / l.pitch.width(), l.rankColumns - 1);
    const uint32_t place = l.starts[u] + static_cast<uint32_t>(k);
    if (place < l.starts[u + 1]) result.place = place;
    return result;
}

std::pair<uint32_t, uint32_t> MapLayout::unitsIn(int level, uint32_t replica,
                                                 const QRect& area) const {
    const MapLevel& l = at(level);
    const int top = block(level, replica).top() + l.padding + l.blockTitle;
    const int step = l.unit.height() + l.unitGap;
    const int firstRow = std::clamp((area.top() - top) / step, 0, l.unitRows);
    const int endRow = std::clamp((area.bottom() - top) / step + 1, 0, l.unitRows);
    const uint32_t first = l.firstUnit[replica];
    const uint32_t end = l.firstUnit[replica + 1];
    const auto at = [&](int row) {
        return std::min(end,
                        first + static_cast<uint32_t>(row) * static_cast<uint32_t>(l.unitColumns));
    };
    return {at(firstRow), std::max(at(firstRow), at(endRow))};
}

}  // namespace bulkhead::ui
