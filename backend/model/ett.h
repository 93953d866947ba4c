// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "backend/model/run_state.h"

/// Effective training time (ETT): which part of the wall time was training, each replica counted
/// for its share. Measured: sum of (step time - stall within it) x contributors / replicas over
/// wall time. Modelled: the arithmetic of the FT-HSDP paper, one failure an interval.
/// Pure; thread: a value with one owner.
namespace bulkhead::model {

class EffectiveTime {
  public:
    /// One committed step: its time from commit to commit and what of it was stall, in ms.
    void addStep(double stepMs, double stallMs, uint32_t contributors, uint32_t replicas);
    /// Wall time in which nothing was committed and nothing will be: start-up, a pause, a restart.
    void addIdle(double ms);
    /// A rollback: work that was counted and is lost.
    void takeBack(double stepMs, double stallMs, uint32_t contributors, uint32_t replicas);
    /// 0..1; 1 before any time has passed.
    double value() const;
    double wallMs() const { return wallMs_; }
    double usefulMs() const { return usefulMs_; }

  private:
    double usefulMs_ = 0;
    double wallMs_ = 0;
};

/// One interval between failures, in one unit of time (the paper: minutes).
struct FailureModel {
    double interval = 0;     ///< from failure to failure
    double stall = 0;        ///< all survivors stand still
    double degraded = 0;     ///< then train without the lost replica, until it is back
    double rejoinStall = 0;  ///< all stand still while it joins; the paper's 80% leaves this out
    uint32_t replicas = 1;
};

/// FT-HSDP: (interval - stall - degraded - rejoinStall + degraded x (R-1)/R) / interval, within
/// 0..1. FT-HSDP paper (abstract and its talk): interval 18 min, stall 3, degraded 7, R = 12 gives
/// (8 + 7 x 11/12) / 18 = 80%.
double predictFaultTolerant(const FailureModel& model);

/// Synchronous restart: (interval - stall) / interval. The same source: (18 - 10) / 18 = 44%.
double predictRestartAll(double interval, double stall);

/// The model's result for the failures of this run: interval = time per closed incident,
/// stall and degraded = their means. nullopt before the first incident closed.
std::optional<double> predictForRun(const RunState& state);

}  // namespace bulkhead::model
