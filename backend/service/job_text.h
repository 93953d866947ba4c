// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/model/job_file.h"

namespace bulkhead::service {

/// The text of a job file with "key=value" overrides applied on top: keys as in the file, dots for
/// tables ("policies.lr=linear", "model.layers=4"), values as TOML or, when they are none, as they
/// stand. Errors and `mayRead` as model::parseJob; InvalidArgument naming an override that cannot
/// be applied.
absl::StatusOr<model::JobSpec> parseJobText(const std::string& text, const std::string& fileName,
                                            const std::string& baseDir,
                                            const std::vector<std::string>& overrides,
                                            const model::MayReadModel& mayRead = {});

}  // namespace bulkhead::service
