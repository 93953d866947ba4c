// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// Cost of the migration from one plan to another.
struct Migration {
    uint64_t slots = 0;      ///< (layer, slot) whose GPU must fetch an expert it does not hold
    uint64_t experts = 0;    ///< (layer, expert) with at least one such slot
    double bytes = 0;        ///< fetched, all GPUs
    double bytesAcross = 0;  ///< ... of which from another node
    double seconds = 0;      ///< of the GPU that fetches longest, nearest holder each, one by one
    bool bytesAssumed = false;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("slots", self.slots);
        visit("experts", self.experts);
        visit("bytes", self.bytes);
        visit("bytes_across_nodes", self.bytesAcross);
        visit("seconds", self.seconds);
        visit("bytes_assumed", self.bytesAssumed);
    }
};

/// A GPU that already holds an expert of a layer fetches nothing for it. InvalidArgument when the
/// plans are not for the same layers, experts and GPUs. `expertBytes` 0: the plan's, else as
/// StepModel assumes.
[[nodiscard]] absl::StatusOr<Migration> migrationBetween(const Plan& from, const Plan& to,
                                                         double expertBytes = 0);

/// Renames the slots of `to` inside each GPU so that experts that stay keep their slot; nothing
/// else changes.
[[nodiscard]] Plan alignedTo(const Plan& from, Plan to);

}  // namespace bulkhead::planner
