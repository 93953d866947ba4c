// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/protocol/commit_log.h"

/// The state directory: one folder per run with job.json, term, commit.log, checkpoints/.
namespace bulkhead::runtime {

/// "demo-20261121-121530": the job's name, what of it a folder can carry, and the time (UTC).
std::string makeRunId(const std::string& name, int64_t unixNs);

/// InvalidArgument unless it is a plain folder name.
absl::Status checkRunId(const std::string& run);

/// Runs with a job.json whose commit log does not say that they ended. One whose log cannot be read
/// counts: taking it up will say what is wrong with it.
std::vector<std::string> unfinishedRuns(const std::string& stateDir);

/// NotFound, or DataLoss naming the file.
absl::StatusOr<model::JobSpec> readSpec(const std::string& runDir);

/// The last checkpoint of the run `from`, or the one whose manifest is at the path `from`; only
/// those that a run of this state directory has logged. NotFound says where it looked.
absl::StatusOr<protocol::LogCheckpoint> findCheckpoint(const std::string& stateDir,
                                                       const std::string& from);

}  // namespace bulkhead::runtime
