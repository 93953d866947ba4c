// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QPoint>
#include <QRect>
#include <QSize>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "app/models/fleet_shape.h"

/// Rectangles of the fleet's map. Pure; thread: any.
namespace bulkhead::ui {

/// The map at one zoom. A block per replica, in it units in rows, in a unit cells of equal size. A
/// unit is a node's ranks with a cell each, or, where cells would have less than kLeastCell pixels,
/// one cell for all of them: an aggregate, which shows its worst rank.
struct MapLevel {
    bool aggregated = false;
    int replicaColumns = 1;
    int unitColumns = 1;  ///< of a block
    int unitRows = 1;
    int rankColumns = 1;  ///< of a unit
    int rankRows = 1;
    QSize pitch;      ///< from cell to cell
    int cellGap = 0;  ///< of the pitch, what is left free
    int unitGap = 0;
    int unitTitle = 0;   ///< height of a node's name above its cells; 0: no room for it
    int blockTitle = 0;  ///< height of a replica's name and state; 0: likewise
    int padding = 1;
    int blockGap = 2;
    QSize unit;  ///< without gap
    QSize block;
    std::vector<uint32_t> starts;     ///< first place of each unit, then the number of ranks
    std::vector<uint32_t> firstUnit;  ///< first unit of each replica, then the number of units
};

/// The part of the map at a point.
struct MapHit {
    std::optional<uint32_t> replica;  ///< index
    std::optional<uint32_t> unit;     ///< over all replicas
    std::optional<uint32_t> place;    ///< of a rank's cell; the first of an aggregate
    bool operator==(const MapHit&) const = default;
};

/// All zoom levels of a fleet in a view of some size: at level 0 the whole fleet is in sight.
class MapLayout {
  public:
    /// Sides of the smallest cell, so that nothing bad is too small to be seen.
    static constexpr int kLeastCell = 3;
    static constexpr int kMargin = 8;  ///< around the blocks

    MapLayout() = default;
    MapLayout(const FleetShape& shape, QSize view);

    int levels() const { return static_cast<int>(levels_.size()); }
    const MapLevel& at(int level) const { return levels_[static_cast<size_t>(level)]; }
    QSize world(int level) const;
    QRect block(int level, uint32_t replica) const;
    /// The cells of a unit, without its title.
    QRect unit(int level, uint32_t unit) const;
    /// The cell that shows a rank, its gap left out.
    QRect cell(int level, uint32_t place) const;
    uint32_t unitOf(int level, uint32_t place) const;
    MapHit hit(int level, QPoint at) const;
    /// Units of a replica in the rows that `area` touches, first and behind the last.
    std::pair<uint32_t, uint32_t> unitsIn(int level, uint32_t replica, const QRect& area) const;

  private:
    uint32_t replicaOfUnit(int level, uint32_t unit) const;

    std::vector<MapLevel> levels_;
    uint32_t replicas_ = 0;
};

}  // namespace bulkhead::ui
