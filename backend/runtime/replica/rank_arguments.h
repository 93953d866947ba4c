// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/replica/replica_rank.h"

namespace bulkhead::runtime {

/// Arguments of an agent for a rank that it starts, from bulkhead-worker's command line
/// (README.md), the token file and the job file. InvalidArgument names the option or the file and
/// what was expected. What the rank itself must find out (corpusHash, device) is not set here.
[[nodiscard]] absl::StatusOr<RankOptions> readRankArguments(const std::vector<std::string>& args);

/// The same from the environment, for a program of a job's own: protocol::rankVariable().
[[nodiscard]] absl::StatusOr<RankOptions> readRankEnvironment();

}  // namespace bulkhead::runtime
