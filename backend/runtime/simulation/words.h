// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/runtime/protocol/checkpoint_book.h"
#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/rank_machine.h"

namespace bulkhead::simulation {

/// The simulator speaks the protocol's words throughout.
using namespace protocol;  // NOLINT(google-build-using-namespace)

}  // namespace bulkhead::simulation
