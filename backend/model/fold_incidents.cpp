// SPDX-License-Identifier: Apache-2.0
#include "backend/model/fold.h"
#include "backend/model/incident_phases.h"

namespace bulkhead::model::fold_detail {
namespace {

constexpr size_t kMostPhases = 64;
constexpr size_t kMostEvidence = 32;
constexpr size_t kMostIncidentsPerFault = 32;

IncidentView* incidentOf(RunState& s, uint64_t id) {
    return const_cast<IncidentView*>(findIncident(s, id));
}
FaultView* faultOf(RunState& s, uint64_t id) {
    return const_cast<FaultView*>(findFault(s, id));
}

/// Books a stall on the step within which it ended, which may be committed already.
void bookStall(RunState& s, int64_t endNs, double ms) {
    constexpr size_t kLookBack = 64;
    if (s.steps.empty() || s.steps.back().timeNs < endNs) {
        s.pendingStallMs += ms;
        return;
    }
    size_t i = s.steps.size() - 1;
    for (size_t n = 0; n < kLookBack && i > 0 && s.steps[i - 1].timeNs >= endNs; ++n) --i;
    StepPoint& p = s.steps[i];
    p.stallMs = std::max(p.stallMs, std::min(p.stallMs + ms, p.stepMs));
}

/// Evidence on the replica from shortly before its incident belongs to that incident.
void adoptEvidence(RunState& s, IncidentView& incident) {
    constexpr double kShortlyMs = 60'000;
    for (EvidenceView& seen : s.recentEvidence) {
        const bool isOurs = seen.incident == 0 && seen.evidence.replica == incident.replica &&
                            durationMs(seen.timeNs, incident.openedNs) <= kShortlyMs;
        if (!isOurs || incident.evidence.size() >= kMostEvidence) continue;
        seen.incident = incident.incident;
        incident.evidence.push_back(seen);
    }
}

}  // namespace

bool fold(RunState& s, int64_t at, const EvidenceSeen& e) {
    EvidenceView seen{at, withText(e, &EvidenceSeen::detail), 0};
    seen.evidence.reporter = text(e.reporter);
    addTo(s.counters.evidence, 1);
    const ReplicaView* replica = findReplica(s, e.replica);
    if (replica && replica->openIncident != 0) {
        if (IncidentView* incident = incidentOf(s, replica->openIncident)) {
            seen.incident = incident->incident;
            if (incident->evidence.size() < kMostEvidence) incident->evidence.push_back(seen);
        }
    }
    s.recentEvidence.push(std::move(seen));
    return true;
}

bool fold(RunState& s, int64_t at, const IncidentOpened& e) {
    if (e.incident == 0 || findIncident(s, e.incident)) return false;
    IncidentView view;
    view.incident = e.incident;
    view.openedNs = at;
    view.replica = e.replica;
    view.incarnation = e.incarnation;
    view.step = e.step;
    view.cause = e.cause;
    view.fault = e.fault;
    view.title = text(e.title);
    adoptEvidence(s, view);
    if (FaultView* fault = faultOf(s, e.fault))
        if (fault->incidents.size() < kMostIncidentsPerFault)
            fault->incidents.push_back(e.incident);
    if (ReplicaView* replica = replicaOf(s, e.replica)) replica->openIncident = e.incident;
    s.incidents.push(std::move(view));
    addTo(s.counters.incidents, 1);
    addTo(s.counters.incidentsOpen, 1);
    return true;
}

bool fold(RunState& s, int64_t, const IncidentPhase& e) {
    IncidentView* incident = incidentOf(s, e.incident);
    if (!incident || e.endNs < e.beginNs || incident->phases.size() >= kMostPhases) return false;
    incident->phases.push_back({e.phase, e.beginNs, e.endNs});
    const double ms = durationMs(e.beginNs, e.endNs);
    if (stopsSurvivors(e.phase)) {
        if (incident->closedNs == 0) incident->survivorStallMs += ms;
        bookStall(s, e.endNs, ms);
    }
    if (isSurvivorPhase(e.phase))
        s.stalls.push({e.incident, e.phase, incident->replica, e.beginNs, e.endNs});
    return true;
}

bool fold(RunState& s, int64_t at, const IncidentClosed& e) {
    IncidentView* incident = incidentOf(s, e.incident);
    if (!incident || incident->closedNs != 0) return false;
    incident->closedNs = at == 0 ? 1 : at;
    incident->survivorStallMs = e.survivorStallMs;
    incident->rejoinMs = e.rejoinMs;
    incident->replicaSeconds = e.replicaSeconds;
    incident->samplesRedone = e.samplesRedone;
    incident->outcome = text(e.outcome);
    for (ReplicaView& replica : s.replicas)
        if (replica.openIncident == e.incident) replica.openIncident = 0;
    if (s.counters.incidentsOpen > 0) --s.counters.incidentsOpen;
    s.counters.survivorStallMs += e.survivorStallMs;
    s.counters.replicaSeconds += e.replicaSeconds;
    addTo(s.counters.samplesRedone, e.samplesRedone);
    if (e.rejoinMs > 0) {
        s.counters.rejoinMs += e.rejoinMs;
        addTo(s.counters.rejoins, 1);
    }
    return true;
}

bool fold(RunState& s, int64_t at, const FaultInjected& e) {
    if (e.fault == 0 || findFault(s, e.fault)) return false;
    FaultView view;
    view.fault = e.fault;
    view.spec = e.spec;
    view.spec.node = text(e.spec.node);
    view.spec.atPhase = text(e.spec.atPhase);
    view.step = e.step;
    view.by = text(e.by);
    view.injectedNs = at;
    s.faults.push(std::move(view));
    addTo(s.counters.faults, 1);
    return true;
}

bool fold(RunState& s, int64_t at, const FaultEnded& e) {
    FaultView* fault = faultOf(s, e.fault);
    if (!fault) return false;
    fault->endedNs = at;
    fault->outcome = text(e.outcome);
    return true;
}

}  // namespace bulkhead::model::fold_detail
