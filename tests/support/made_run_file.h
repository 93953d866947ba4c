// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "tests/support/made_run.h"

namespace bulkhead::test {

/// Adds the made-up run of that shape, up to step `steps` and an end, to a run file, which is made
/// when it is missing; with the same events every time. `told` hears of each step.
[[nodiscard]] absl::Status writeMadeRun(const std::string& path, const RunShape& shape,
                                        uint64_t steps,
                                        const std::function<void(uint64_t step)>& told = {});

/// The little run that views are tested with.
[[nodiscard]] absl::Status writeSampleRun(const std::string& path, int steps);

}  // namespace bulkhead::test
