// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/incident_book.h"

#include <algorithm>

namespace bulkhead::protocol {
void IncidentBook::resume(const std::vector<OpenIncident>& open, uint64_t last) {
    next_ = last + 1;
    for (const OpenIncident& o : open) {
        Incident& i = open_[o.replica];
        i.id = o.id;
        i.replica = o.replica;
        i.begin = o.begin;
        i.decidedAt = o.decidedAt;
        i.survivorsWait = o.survivorsWait;
        i.stallMs = o.stallMs;
        i.samplesRedone = o.samplesRedone;
        i.survivors = o.survivors;
    }
}

void IncidentBook::open(MonoNs now, int32_t replica, uint32_t incarnation, uint64_t step,
                        EvidenceKind cause, const std::string& title, MonoNs symptomAt,
                        MonoNs evidenceAt, bool contributed, size_t survivors,
                        std::vector<Fact>& out) {
    close(now, replica, false, "lost again", out);
    Incident& i = open_[replica];
    i.id = next_++;
    i.replica = replica;
    i.begin = std::min(symptomAt, now);
    i.decidedAt = now;
    i.survivorsWait = contributed;
    i.survivors = survivors;
    i.currentSince = now;
    i.running = replica != kWholeJob;
    out.push_back(fact::IncidentOpened{i.id, replica, incarnation, step, cause, title});
    out.push_back(fact::IncidentPhase{i.id, IncidentPhaseKind::kDetect, i.begin, evidenceAt});
    out.push_back(fact::IncidentPhase{i.id, IncidentPhaseKind::kDecide, evidenceAt, now});
    if (contributed) i.stallMs = inMs(now - i.begin);
}

void IncidentBook::reformed(MonoNs now, const std::vector<int32_t>& lost, uint64_t samples,
                            std::vector<Fact>& out) {
    bool counted = false;
    for (int32_t replica : lost) {
        const auto it = open_.find(replica);
        if (it == open_.end() || !it->second.survivorsWait || it->second.reformedAt != 0) continue;
        Incident& i = it->second;
        i.reformedAt = now;
        i.stallMs += inMs(now - i.decidedAt);
        if (!counted) i.samplesRedone += samples;
        counted = true;
        out.push_back(fact::IncidentPhase{i.id, IncidentPhaseKind::kReform, i.decidedAt, now});
    }
}

void IncidentBook::committed(MonoNs now, double exchangeMs, std::vector<Fact>& out) {
    for (auto& [replica, i] : open_) {
        if (!i.survivorsWait) continue;
        i.survivorsWait = false;
        if (i.reformedAt == 0) {
            // The sum was complete without it: the commit itself is the new beginning.
            i.stallMs += inMs(now - i.decidedAt);
            out.push_back(fact::IncidentPhase{i.id, IncidentPhaseKind::kReform, i.decidedAt, now});
            continue;
        }
        const auto exchange = static_cast<MonoNs>(exchangeMs * kMillisecond);
        const MonoNs begin = std::max(i.reformedAt, now - exchange);
        out.push_back(fact::IncidentPhase{i.id, IncidentPhaseKind::kReexchange, begin, now});
    }
}

void IncidentBook::endPhase(MonoNs now, Incident& i, std::vector<Fact>& out) {
    if (!i.running) return;
    out.push_back(fact::IncidentPhase{i.id, i.current, i.currentSince, now});
    i.running = false;
}

void IncidentBook::phase(MonoNs now, int32_t replica, IncidentPhaseKind phase,
                         std::vector<Fact>& out) {
    const auto it = open_.find(replica);
    if (it == open_.end() || (it->second.running && it->second.current == phase)) return;
    endPhase(now, it->second, out);
    it->second.current = phase;
    it->second.currentSince = now;
    it->second.running = true;
}

void IncidentBook::close(MonoNs now, int32_t replica, bool rejoined, const std::string& outcome,
                         std::vector<Fact>& out) {
    const auto it = open_.find(replica);
    if (it == open_.end()) return;
    Incident& i = it->second;
    endPhase(now, i, out);
    const double away = replica == kWholeJob ? 0 : inMs(now - i.begin);
    out.push_back(fact::IncidentClosed{i.id, i.stallMs, rejoined ? away : 0,
                                       (away + i.stallMs * static_cast<double>(i.survivors)) / 1000,
                                       i.samplesRedone, outcome});
    open_.erase(it);
}

void IncidentBook::closeAll(MonoNs now, const std::string& outcome, std::vector<Fact>& out) {
    while (!open_.empty()) close(now, open_.begin()->first, false, outcome, out);
}

}  // namespace bulkhead::protocol
