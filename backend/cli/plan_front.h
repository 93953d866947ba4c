// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/model/json.h"
#include "backend/planner/evaluate/migration.h"
#include "backend/planner/solve/front.h"

/// The figures that `plan solve` shows of plans: every objective it knows by name.
namespace bulkhead::cli {

/// A row for each plan and `marks` beside it; with `moves`, what it takes to get to each from the
/// plan in use.
std::string pointsTable(const std::vector<planner::FrontPoint>& points,
                        const std::vector<std::string>& marks,
                        const std::vector<planner::Migration>& moves = {});

/// Table of what the plan is to be expected to do on requests not seen, beside those it was made
/// from; empty when it does not say.
std::string forecastTable(const planner::Plan& plan);

model::Json pointJson(const planner::FrontPoint& point);

/// Caveats that a reader of `plan` has to know before using it: tokens that were drawn from counts,
/// GPUs of unequally many slots. One sentence each.
std::vector<std::string> planNotes(const planner::Plan& plan);

}  // namespace bulkhead::cli
