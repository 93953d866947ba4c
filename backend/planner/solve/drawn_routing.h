// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"

namespace bulkhead::planner {

/// Requests drawn from a recording that has counts only, so that what needs tokens can be made from
/// them: of each domain in proportion to its counts, 64 tokens long, `tokens` in all (at least one
/// request a domain). In every layer a token has each expert as often as the domain's counts say,
/// exactly in the mean (systematic sampling over a shuffled order), and independent of its other
/// experts and layers: home and load are right, experts that are used together are not known.
/// InvalidArgument when there are no counts, or no top-k to draw. Thread: any.
[[nodiscard]] absl::StatusOr<Routing> drawnRouting(const Recording& recording, uint64_t tokens,
                                                   uint64_t seed);

}  // namespace bulkhead::planner
