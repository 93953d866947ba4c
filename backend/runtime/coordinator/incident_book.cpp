// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/incident_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"

namespace bulkhead::runtime {
namespace {

using model::IncidentPhaseKind;
using model::ReplicaState;
using model::Severity;

/// A fault that has shown no effect for so long is not what a new loss answers to.
constexpr int64_t kFaultMemoryNs = 60 * kSecond;

double ms(int64_t ns) {
    return static_cast<double>(ns) / kMillisecond;
}

std::optional<IncidentPhaseKind> sideOf(ReplicaState state) {
    switch (state) {
        case ReplicaState::kAbsent:
        case ReplicaState::kBackingOff:
            return IncidentPhaseKind::kRestart;
        case ReplicaState::kStarting:
            return IncidentPhaseKind::kInit;
        case ReplicaState::kFetching:
            return IncidentPhaseKind::kFetch;
        case ReplicaState::kReplaying:
            return IncidentPhaseKind::kReplay;
        case ReplicaState::kProven:
            return IncidentPhaseKind::kJoin;
        default:
            return std::nullopt;
    }
}

}  // namespace

void IncidentBook::faultTookEffect(uint64_t fault, const model::FaultSpec& spec,
                                   std::vector<int32_t> hit, int64_t ns) {
    faults_.push_back({fault, spec, std::move(hit), ns});
}

std::optional<IncidentBook::Fault> IncidentBook::takeFault(int32_t replica, int64_t ns) {
    std::erase_if(faults_, [&](const Fault& f) {
        const int64_t lasts = static_cast<int64_t>(f.spec.durationMs) * kMillisecond;
        return f.hit.empty() || ns - f.ns > kFaultMemoryNs + lasts;
    });
    // The latest one that can explain it: an older one had its effect already.
    for (auto it = faults_.rbegin(); it != faults_.rend(); ++it) {
        const auto hit = std::find(it->hit.begin(), it->hit.end(), replica);
        if (hit == it->hit.end()) continue;
        it->hit.erase(hit);
        return *it;
    }
    return std::nullopt;
}

void IncidentBook::evidence(int32_t replica, int64_t ns) {
    firstEvidence_.try_emplace(replica, ns);
}

IncidentBook::Incident& IncidentBook::open(int32_t replica, uint32_t incarnation, uint64_t step,
                                           model::EvidenceKind cause, const std::string& title,
                                           int64_t ns) {
    const auto seen = firstEvidence_.find(replica);
    const int64_t evidenceNs = seen == firstEvidence_.end() ? ns : std::min(seen->second, ns);
    firstEvidence_.erase(replica);
    const std::optional<Fault> fault = takeFault(replica, ns);

    Incident incident;
    incident.id = nextId_++;
    incident.incarnation = incarnation;
    incident.step = step;
    incident.beginNs = fault ? std::min(fault->ns, evidenceNs) : evidenceNs;
    incident.decidedNs = ns;
    emit_(model::IncidentOpened{incident.id, replica, incarnation, step, cause,
                                fault ? fault->id : 0, title},
          Severity::kWarning);
    phase(incident, IncidentPhaseKind::kDetect, incident.beginNs, evidenceNs);
    phase(incident, IncidentPhaseKind::kDecide, evidenceNs, ns);
    return open_[replica] = incident;
}

void IncidentBook::lost(int32_t replica, uint32_t incarnation, uint64_t step,
                        model::EvidenceKind cause, const std::string& title, int64_t ns) {
    if (const auto it = open_.find(replica); it != open_.end()) {
        if (it->second.incarnation == incarnation && !it->second.disturbance) return;
        finish(
            replica,
            it->second.disturbance ? "the replica was lost" : "lost again before it had rejoined",
            false, ns);
    }
    Incident& incident = open(replica, incarnation, step, cause, title, ns);
    enterSide(incident, IncidentPhaseKind::kRestart, ns);
}

void IncidentBook::disturbed(int32_t replica, uint32_t incarnation, uint64_t step,
                             model::EvidenceKind cause, const std::string& title, int64_t ns) {
    if (open_.contains(replica)) return;
    open(replica, incarnation, step, cause, title, ns).disturbance = true;
}

void IncidentBook::samplesReturned(int32_t replica, uint64_t samples) {
    if (const auto it = open_.find(replica); it != open_.end()) it->second.samplesRedone += samples;
}

void IncidentBook::phase(const Incident& incident, IncidentPhaseKind kind, int64_t begin,
                         int64_t end) {
    emit_(model::IncidentPhase{incident.id, kind, begin, std::max(begin, end)}, Severity::kInfo);
}

void IncidentBook::enterSide(Incident& incident, std::optional<IncidentPhaseKind> next,
                             int64_t ns) {
    if (incident.side == next) return;
    if (incident.side) phase(incident, *incident.side, incident.sideBeginNs, ns);
    incident.side = next;
    incident.sideBeginNs = ns;
}

void IncidentBook::replicaState(int32_t replica, uint32_t incarnation, ReplicaState state,
                                int64_t ns) {
    const auto it = open_.find(replica);
    if (it == open_.end() || it->second.disturbance) return;
    Incident& incident = it->second;
    if (state == ReplicaState::kFailed) return finish(replica, "given up", false, ns);
    if (state == ReplicaState::kDrained) return finish(replica, "drained", false, ns);
    if (state == ReplicaState::kHeld) return finish(replica, "held outside", false, ns);
    // Late news of the incarnation that was lost says nothing about the way back.
    if (state != ReplicaState::kBackingOff && incarnation <= incident.incarnation) return;
    if (const auto side = sideOf(state)) enterSide(incident, side, ns);
}

void IncidentBook::reform(Incident& incident, const StepTiming& timing) {
    incident.reformed = true;
    const int64_t begin = std::max(incident.decidedNs, timing.exchangeBeginNs);
    // Survivors that were still computing when the decision came did not wait for it.
    const int64_t waitedFrom = std::max(incident.beginNs, timing.computeEndNs);
    const int64_t stall =
        std::clamp<int64_t>(begin - waitedFrom, 0, timing.committedNs - incident.beginNs);
    phase(incident, IncidentPhaseKind::kReform, incident.decidedNs, begin);
    if (timing.attempt > 1)
        phase(incident, IncidentPhaseKind::kReexchange, begin, std::max(begin, timing.lastVoteNs));
    incident.stallMs = ms(stall);
    if (timing.step != lastStalledStep_) stalledNs_ += stall;
    lastStalledStep_ = timing.step;
}

void IncidentBook::committed(const StepTiming& timing) {
    std::vector<int32_t> rejoined;
    std::vector<int32_t> settled;
    for (auto& [replica, incident] : open_) {
        const bool contributes = std::find(timing.contributors.begin(), timing.contributors.end(),
                                           replica) != timing.contributors.end();
        if (incident.disturbance) {
            if (!incident.reformed) reform(incident, timing);
            settled.push_back(replica);
            continue;
        }
        if (!incident.reformed) {
            // A complete sum commits with a contributor that died meanwhile: the survivors' side
            // ends with the first step that goes without it.
            if (contributes && timing.step <= incident.step) continue;
            reform(incident, timing);
        }
        if (contributes && incident.side == IncidentPhaseKind::kJoin) rejoined.push_back(replica);
    }
    for (const int32_t r : settled)
        finish(r, absl::StrCat("computed again, committed as step ", timing.step), false,
               timing.committedNs);
    for (const int32_t r : rejoined)
        finish(r, absl::StrCat("rejoined at step ", timing.step), true, timing.committedNs);
}

void IncidentBook::finish(int32_t replica, const std::string& outcome, bool rejoined, int64_t ns) {
    Incident incident = open_.at(replica);
    open_.erase(replica);
    enterSide(incident, std::nullopt, ns);
    model::IncidentClosed closed;
    closed.incident = incident.id;
    closed.survivorStallMs = incident.stallMs;
    closed.rejoinMs = rejoined ? ms(ns - incident.beginNs) : 0;
    const double away = incident.disturbance ? 0 : ms(ns - incident.beginNs);
    closed.replicaSeconds = (away + incident.stallMs * (replicas_ - 1)) / 1000;
    closed.samplesRedone = incident.samplesRedone;
    closed.outcome = outcome;
    emit_(std::move(closed), Severity::kNotice);
}

void IncidentBook::close(const std::string& outcome, int64_t ns) {
    while (!open_.empty()) finish(open_.begin()->first, outcome, false, ns);
}

}  // namespace bulkhead::runtime
