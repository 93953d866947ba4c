// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/live/live_plan.h"

/// Several plans for a running job, so that the operator sees what each costs. Pure; thread: any.
namespace bulkhead::planner {

struct LiveFrontPoint {
    std::string name;  ///< "load 1.15", "fewer moves, load 1.15", "as it is"
    LivePlan plan;
    double load = 1;         ///< copies that reach a shard's experts, max/mean, mean of the layers
    bool keepsRules = true;  ///< only what is in use may not: pins came after it
    bool onFront = true;     ///< no other has as few remote copies, as even a load and as few moves

    /// The upper end of its range, where one can be told; else `load`.
    double mostLoad() const {
        const LiveForecast& told = plan.preview.forecast;
        return told.hasRange ? told.load.high : load;
    }
};

struct LiveFront {
    std::vector<LiveFrontPoint> points;  ///< the first is what is in use; no two place alike
    size_t recommended = 0;
    std::string reason;    ///< "fewest remote copies, 48.2 %, with ..."
    bool stopped = false;  ///< by onProgress: more plans would have been made
    double more = -1;      ///< as in LiveFrontProgress, at the end
};

/// Progress of liveFront().
struct LiveFrontProgress {
    uint32_t done = 0, of = 0;  ///< plans; the first is made for the prediction of the others
    double best = -1;  ///< fewest remote copies expected so far within the load; -1: none is yet
    /// Part by which what is minimised would fall with as many groupings tried again (gainOfMore);
    /// -1: not known yet.
    double more = -1;
};

/// Plans for tighter and looser loads, each with moves cheap and dear, beside what is in use.
/// Recommends the one with the fewest remote copies whose load is at most `options.loadCap` by
/// mostLoad(), or, where none is, the one that comes nearest. `onProgress` is called many times;
/// after the first false what is under way ends with the best so far, and no other plan is made.
/// Errors as recommendPlan.
[[nodiscard]] absl::StatusOr<LiveFront> liveFront(
    const LiveJob& job, const LiveOptions& options,
    const std::function<bool(const LiveFrontProgress&)>& onProgress = {});

}  // namespace bulkhead::planner
