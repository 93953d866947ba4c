// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/cli/cli.h"
#include "backend/planner/live/live_plan.h"

namespace CLI {
class App;
}

/// Pinned and forbidden experts of a running job, as the command line names them.
namespace bulkhead::cli {

/// --pin and --forbid.
void addRuleOptions(CLI::App& verb, std::vector<std::string>& pins,
                    std::vector<std::string>& forbids);

/// Them as rules, checked against each other and the job; the job's own are left aside. Layers are
/// typed under the model's own numbers, as the console shows them; rules have mixtures from 0.
absl::StatusOr<std::vector<model::ExpertRule>> rulesGiven(const std::vector<std::string>& pins,
                                                          const std::vector<std::string>& forbids,
                                                          const planner::LiveJob& job);

/// `plan rules` and `plan dismiss`.
void addPlanRules(CLI::App& plan, Cli& cli);

}  // namespace bulkhead::cli
