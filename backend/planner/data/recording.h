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

/// Load balance among the ranks of a running server, as the server reported and defined it
/// (import/balance_log.h).
struct BalanceSample {
    std::string engine;
    std::string model;             ///< "" when not said
    std::optional<uint64_t> step;  ///< the engine's count of steps or passes
    double balancedness = 0;       ///< mean by maximum of ranks, 0 to 1
    double meanTokens = 0;         ///< of a rank; 0 when not said
    double maxTokens = 0;
};

/// Result of an import: routing token by token where the source has it, else counts. Ids are
/// logical and layers are MoE layers; `notes` say, in sentences, how the source's ids and layers
/// were mapped and what was left out. Thread: a value.
struct Recording {
    ModelShape shape;
    std::string source;  ///< the file, and the form it was read as
    std::vector<std::string> notes;
    std::optional<Routing> routing;
    /// `routing` was drawn from counts (solve/drawn_routing.h): load is as recorded, which experts
    /// a token uses together is not known. Whoever shows copies or sends of it says so.
    bool tokensDrawn = false;
    /// In order of time where the source has one. Empty when there is routing: count that.
    std::vector<CountsWindow> windows;
    /// From a server's log, which has nothing else.
    std::vector<BalanceSample> balance;
};

/// All of a recording's tokens by layer and expert, from whichever it has.
[[nodiscard]] Counts totalCounts(const Recording& recording);

}  // namespace bulkhead::planner
