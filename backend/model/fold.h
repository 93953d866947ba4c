// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "backend/model/names.h"
#include "backend/model/run_state.h"

/// Inside the fold (run_state.h): one function per event, each false when the event names something
/// impossible and was ignored. `at` is the event's time.
namespace bulkhead::model::fold_detail {

// fold_run.cpp
bool fold(RunState& s, int64_t at, const RunStarted& e);
bool fold(RunState& s, int64_t at, const ModelDescribed& e);
bool fold(RunState& s, int64_t at, const JobPhaseChanged& e);
bool fold(RunState& s, int64_t at, const OperatorActed& e);
bool fold(RunState& s, int64_t at, const PoliciesChanged& e);
bool fold(RunState& s, int64_t at, const CheckpointWritten& e);
bool fold(RunState& s, int64_t at, const InvariantBroken& e);
bool fold(RunState& s, int64_t at, const RunFinished& e);

// fold_fleet.cpp
bool fold(RunState& s, int64_t at, const NodeChanged& e);
bool fold(RunState& s, int64_t at, const ReplicaChanged& e);
bool fold(RunState& s, int64_t at, const RankStarted& e);
bool fold(RunState& s, int64_t at, const RankExited& e);
bool fold(RunState& s, int64_t at, const RankOutput& e);
bool fold(RunState& s, int64_t at, const FleetSampled& e);
bool fold(RunState& s, int64_t at, const CatchUpProgress& e);
bool fold(RunState& s, int64_t at, const GpuTroubled& e);
bool fold(RunState& s, int64_t at, const ProgramSeen& e);

// fold_steps.cpp
bool fold(RunState& s, int64_t at, const LineageOpened& e);
bool fold(RunState& s, int64_t at, const QuorumDecided& e);
bool fold(RunState& s, int64_t at, const StepCommitted& e);
bool fold(RunState& s, int64_t at, const StepRedone& e);
bool fold(RunState& s, int64_t at, const StepsSuspect& e);
bool fold(RunState& s, int64_t at, const RangeQuarantined& e);
bool fold(RunState& s, int64_t at, const ParityDisputed& e);
bool fold(RunState& s, int64_t at, const ParityPaced& e);

// fold_experts.cpp
bool fold(RunState& s, int64_t at, const ExpertLoads& e);

// fold_layout.cpp
bool fold(RunState& s, int64_t at, const LayoutChanged& e);
bool fold(RunState& s, int64_t at, const PlanProposed& e);
bool fold(RunState& s, int64_t at, const RoutingSampled& e);
/// Folds a completed action into the state of plans.
void noteAction(RunState& s, const Action& action);
/// Folds the experts' traffic of a commit into its point and into the layout it ran in.
void noteTraffic(RunState& s, StepPoint& point, const StepCommitted& e);

// fold_incidents.cpp
bool fold(RunState& s, int64_t at, const EvidenceSeen& e);
bool fold(RunState& s, int64_t at, const IncidentOpened& e);
bool fold(RunState& s, int64_t at, const IncidentPhase& e);
bool fold(RunState& s, int64_t at, const IncidentClosed& e);
bool fold(RunState& s, int64_t at, const FaultInjected& e);
bool fold(RunState& s, int64_t at, const FaultEnded& e);

// fold_campaigns.cpp
bool fold(RunState& s, int64_t at, const CampaignStarted& e);
bool fold(RunState& s, int64_t at, const CampaignSkipped& e);
bool fold(RunState& s, int64_t at, const CampaignEnded& e);

/// The replica's view, made if there is none; null when the id is impossible. Invalidates pointers.
ReplicaView* replicaOf(RunState& s, int32_t replica);
RankView* rankOf(RunState& s, RankId rank);

inline std::string text(std::string_view words) {
    return shortened(words, Limits::kText);
}

inline void addTo(uint64_t& counter, uint64_t amount) {
    if (__builtin_add_overflow(counter, amount, &counter))
        counter = std::numeric_limits<uint64_t>::max();
}

/// A copy with its words cut to what a state keeps.
template <class Body>
Body withText(Body body, std::string Body::*words) {
    body.*words = text(body.*words);
    return body;
}

}  // namespace bulkhead::model::fold_detail
