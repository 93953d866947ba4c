// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"

/// Lines of a server's log that tell how balanced its ranks were; all other lines are passed over.
///
/// - vLLM with log_balancedness (distributed/eplb/eplb_state.py, several versions: quite sure):
///   "EPLB step: [N[ for model M]: ]avg_tokens=F, max_tokens=N, balancedness=F...". Its
///   balancedness is the sum over layers of the mean of ranks by the sum over layers of their
///   maximum.
/// - SGLang with --enable-expert-distribution-metrics (eplb/expert_distribution.py: quite sure):
///   "[Expert Balancedness] forward_pass_id=N current_pass_balancedness=F ...": the mean over
///   layers of mean by maximum of ranks.
///
/// Gives Recording::balance only: neither counts nor routing. A line that is cut (a log may end
/// anywhere) is passed over and counted in the notes. InvalidArgument when no line tells anything.
namespace bulkhead::planner {

[[nodiscard]] bool looksLikeBalanceLog(std::string_view bytes);

[[nodiscard]] absl::StatusOr<Recording> readBalanceLog(std::string_view bytes,
                                                       std::string_view file);

}  // namespace bulkhead::planner
