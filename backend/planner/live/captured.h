// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "backend/model/run_state.h"
#include "backend/planner/data/recording.h"

namespace bulkhead::planner {

/// Turns routing samples of a running job (model::RoutingSampled) into a recording: each sample
/// becomes a request of its domain. InvalidArgument naming the sample when it does not fit the
/// job's model, or when there is none. Thread: any.
[[nodiscard]] absl::StatusOr<Recording> captured(const model::RunState& job,
                                                 const std::vector<RoutedSample>& samples);

}  // namespace bulkhead::planner
