// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <string>

#include "absl/status/status.h"

namespace bulkhead::test {

/// Adds the made-up run, `steps` steps and an end, to a run file, which is made when it is missing.
[[nodiscard]] absl::Status writeSampleRun(const std::string& path, int steps);

}  // namespace bulkhead::test
