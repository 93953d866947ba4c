// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "backend/planner/data/recording.h"

namespace bulkhead::planner {

/// A recording as the JSON Lines that import/json_lines.h reads: requests where it has tokens, else
/// counts. FailedPrecondition for one that has neither (a server's log). The caller looks at the
/// stream's state. Thread: any.
[[nodiscard]] absl::Status writeLines(const Recording& recording, std::ostream& out);

}  // namespace bulkhead::planner
