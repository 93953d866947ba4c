// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/model/incident_card.h"

/// When a lost replica trains again, by the earlier recoveries of its run. Pure; thread: any.
namespace bulkhead::model {

/// nullopt: the run has no recovery to go by, and no transfer is under way.
[[nodiscard]] std::optional<Return> returnOf(const RunState& state, const IncidentView& incident,
                                             const ReplicaView& replica);

[[nodiscard]] std::string returnText(const Return& back);

}  // namespace bulkhead::model
