// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <array>
#include <cstdint>
#include <vector>

#include "app/models/fleet_shape.h"
#include "app/models/labels.h"
#include "backend/model/run_state.h"

/// One figure of each rank of a fleet, and how bad that is.
/// Pure; thread: any.
namespace bulkhead::ui {

/// A rank is coloured by one of these.
enum class FleetFigure {
    kState,
    kThroughput,
    kProgressAge,
    kBeatAge,
    kMemory,
    kTemperature,
    kGpuLoad,
    kLastError,
};
inline constexpr int kFleetFigures = 8;
QString label(FleetFigure figure);

/// State of a rank at a glance: its replica's, unless the rank itself is worse. Better ones first.
enum class RankCondition : uint8_t {
    kTraining,
    kJoining,
    kReplaying,
    kFetching,
    kStarting,
    kOut,  ///< its replica is drained, held or absent
    kBackingOff,
    kLate,  ///< in training, without a heartbeat or progress for half of the time allowed
    kGone,  ///< no process, though its replica trains or catches up
    kFailed,
};
inline constexpr int kRankConditions = 10;
QString label(RankCondition condition);
/// One letter for cells that have no room for the word; each condition has its own.
QChar letter(RankCondition condition);
/// 0 in training to 1 for what is lost.
float badness(RankCondition condition);

/// The figures at which a rank is as good and as bad as the colours tell.
struct FleetScale {
    double best = 0;
    double worst = 1;
    bool logarithmic = false;
    /// 0..1; a scale without extent calls everything good.
    float badnessOf(double value) const;
};

/// A figure of every rank, by place.
struct FleetFigures {
    static constexpr float kNone = -1;

    FleetFigure figure = FleetFigure::kState;
    FleetScale scale;
    bool ofGpu = false;          ///< memory: of GPUs, else resident memory of processes
    std::vector<float> values;   ///< NaN: no figure; infinite: no error so far
    std::vector<float> badness;  ///< 0..1, kNone without figure; of a lost rank without one 1
    std::vector<RankCondition> conditions;
    size_t known = 0;                              ///< ranks with a badness
    std::array<size_t, kRankConditions> counts{};  ///< ranks by condition
};
/// `unseenMs`: see RunFeed.
FleetFigures fleetFigures(const model::RunState& state, const FleetShape& shape, FleetFigure figure,
                          double unseenMs = 0);

/// "92 °C", "8.1 k tok/s", "Training": the figure of a rank in words; a dash where there is none.
QString figureWords(const FleetFigures& figures, uint32_t place);
QString figureWords(FleetFigure figure, double value);

/// Places of the `most` worst ranks, the worst first. Ranks without figure are not among them, nor
/// those whose state is good or that had no error.
std::vector<uint32_t> worstRanks(const FleetFigures& figures, size_t most);
/// Place of the worst of `count` ranks from `first`; the first where they are alike.
uint32_t worstOf(const FleetFigures& figures, uint32_t first, uint32_t count);

/// All figures of a rank, a line each: for tool tips. Empty: no such rank.
QString rankWords(const model::RunState& state, RankId rank, double unseenMs = 0);

}  // namespace bulkhead::ui
