// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "backend/model/job_spec.h"

namespace bulkhead::runtime {

/// Sets one policy from its name and value as they stand in a job file's [policies] (an enum by its
/// name, a number in decimal). InvalidArgument naming what was expected; nothing is changed then.
absl::Status setPolicy(model::Policies& policies, std::string_view name, std::string_view value);

}  // namespace bulkhead::runtime
