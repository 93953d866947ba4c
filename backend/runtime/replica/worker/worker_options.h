// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/replica/replica_rank.h"

namespace bulkhead::runtime {

/// Reads the command line (README.md), the token file and the job file. InvalidArgument names the
/// option or the file and what was expected. corpusHash is not set here.
[[nodiscard]] absl::StatusOr<RankOptions> readWorkerOptions(const std::vector<std::string>& args);

std::string workerUsage();

}  // namespace bulkhead::runtime
