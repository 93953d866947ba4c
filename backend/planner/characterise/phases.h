// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "backend/planner/characterise/characterise.h"

namespace bulkhead::planner {

/// Prefill against decode of the requests that have both; where no request does, the first
/// `headFraction` of each against its rest, which is not the same thing and is named so.
[[nodiscard]] std::optional<PhaseCorrelation> phaseCorrelation(const Routing& routing,
                                                               double headFraction);

/// The pooled part only, from windows of known phase.
[[nodiscard]] std::optional<PhaseCorrelation> phaseCorrelation(
    const std::vector<CountsWindow>& windows);

}  // namespace bulkhead::planner
