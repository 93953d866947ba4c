// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "backend/model/run_views.h"

/// Phases of an incident: the side that each concerns, and its duration (docs/protocol.md,
/// "Incidents"). Pure; thread: any.
namespace bulkhead::model {

/// The survivors' stall consists of these: it lasts from the first symptom until they hold the new
/// quorum.
constexpr bool stopsSurvivors(IncidentPhaseKind phase) {
    using enum IncidentPhaseKind;
    return phase == kDetect || phase == kDecide || phase == kReform;
}

/// The others are the lost replica's own. Re-exchange is the survivors' and no stall: it trains.
constexpr bool isSurvivorPhase(IncidentPhaseKind phase) {
    return stopsSurvivors(phase) || phase == IncidentPhaseKind::kReexchange;
}

/// Nobody waited for a replica that gave no part, or that was silently wrong.
inline bool survivorsStood(const IncidentView& incident) {
    return incident.survivorStallMs > 0;
}

/// All phases of one kind together; nullopt: none was reported.
inline std::optional<double> phaseMs(const IncidentView& incident, IncidentPhaseKind kind) {
    std::optional<double> total;
    for (const PhaseView& phase : incident.phases)
        if (phase.phase == kind) total = total.value_or(0) + phase.ms();
    return total;
}

}  // namespace bulkhead::model
