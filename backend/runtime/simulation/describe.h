// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/runtime/simulation/words.h"

namespace bulkhead::simulation {

/// Describes it for people; empty if there is nothing to say.
std::string describe(const Fact& fact);
std::string describe(const Action& action);
std::string describe(const RankAction& action);

/// "step 7 (lineage 1, epoch 2, attempt 1)"
std::string stepName(const CommitRecord& record);

}  // namespace bulkhead::simulation
