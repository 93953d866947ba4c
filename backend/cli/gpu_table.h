// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/run_state.h"

namespace bulkhead::cli {

/// Every GPU of every node, one line each, a dash where the driver does not tell; a line that says
/// why for nodes without one; the troubles they had. Pure; thread: any.
std::string gpusText(const model::RunState& state);

}  // namespace bulkhead::cli
