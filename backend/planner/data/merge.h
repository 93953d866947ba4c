// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"

namespace bulkhead::planner {

/// Several recordings of one model as one, in the given order: a file a domain, or a file a day.
/// InvalidArgument naming both sources when layers, experts or top-k differ, or when some have
/// tokens and others only counts. One recording comes back as it is. Thread: any.
[[nodiscard]] absl::StatusOr<Recording> merged(std::vector<Recording> recordings);

/// One request of `from`, of a model of the same sizes, to the end of `to`. `ids` is room that is
/// used again. InvalidArgument as RoutingBuilder's.
[[nodiscard]] absl::Status appendRequest(const Routing& from, const Request& request,
                                         RoutingBuilder& to, std::vector<uint16_t>& ids);

}  // namespace bulkhead::planner
