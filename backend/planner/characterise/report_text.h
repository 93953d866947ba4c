// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/planner/characterise/characterise.h"

namespace bulkhead::planner {

/// The characterisation for people, under the paper's three findings as headings; several lines,
/// plain text. Says of each number what it means and whose definition it is.
[[nodiscard]] std::string reportText(const Characterisation& it);

}  // namespace bulkhead::planner
