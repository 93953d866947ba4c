// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/token_sample.h"

namespace bulkhead::planner {

/// How much higher node load max/mean (mean over layers) should come out on as many requests not
/// seen than on those of the sample. Estimated by drawing requests anew, half as many (the plan was
/// fitted to one sample and will be measured on another: twice the variance). 0 for more than 1,000
/// requests. Thread: any.
[[nodiscard]] double loadMargin(const TokenSample& sample, const NodeRoutes& routes,
                                const std::vector<uint16_t>& homes, uint64_t seed);

}  // namespace bulkhead::planner
