// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/planner/data/counts.h"
#include "backend/planner/data/routing.h"

namespace bulkhead::planner {

enum class Phase { kUnknown, kPrefill, kDecode };

/// Counts of one stretch of a recording: a step, a pass, an iteration, or all of a domain.
struct CountsWindow {
    std::string label;   ///< e.g. "step 12", "domain code"
    std::string domain;  ///< "" when not known
    Phase phase = Phase::kUnknown;
    Counts counts;
};

/// What an import gives: routing token by token where the source has it, else counts only. Ids are
/// logical and layers MoE layers; `notes` say, in sentences, how the source's were mapped to that
/// and what was left out. Thread: a value.
struct Recording {
    ModelShape shape;
    std::string source;  ///< the file, and the form it was read as
    std::vector<std::string> notes;
    std::optional<Routing> routing;
    /// In order of time where the source has one. Empty when there is routing: count that.
    std::vector<CountsWindow> windows;
};

/// All of a recording's tokens by layer and expert, from whichever it has.
[[nodiscard]] Counts totalCounts(const Recording& recording);

}  // namespace bulkhead::planner
