// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "backend/model/run_state.h"

namespace bulkhead::model {

/// Headline figures of a run, by which two runs are compared. Absent figures are
/// absent, never zero.
struct RunFigures {
    uint64_t steps = 0;  ///< last committed step
    std::optional<double> loss;
    double effectiveTime = 1;  ///< 0..1
    uint64_t incidents = 0;
    double survivorStallMs = 0;          ///< of incidents that closed
    std::optional<double> meanRejoinMs;  ///< of incidents that closed with a rejoin
    uint64_t samplesRedone = 0;          ///< redone by incidents, or committed and rolled back
    RecoveryPolicy recovery = RecoveryPolicy::kFt;  ///< as it is at the end
};

/// Pure; thread: any.
[[nodiscard]] RunFigures figuresOf(const RunState& state);

}  // namespace bulkhead::model
