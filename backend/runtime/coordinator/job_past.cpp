// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/job_past.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/runtime/protocol/step_commit.h"

namespace bulkhead::runtime {
namespace {

namespace fact = protocol::fact;
using model::IncidentPhaseKind;

const model::PhaseView* phaseOf(const model::IncidentView& incident, IncidentPhaseKind kind) {
    const auto it = std::find_if(incident.phases.begin(), incident.phases.end(),
                                 [kind](const auto& p) { return p.phase == kind; });
    return it == incident.phases.end() ? nullptr : &*it;
}

/// The step it was lost in has not been committed, nor was a new quorum decided.
bool survivorsWait(const model::IncidentView& incident, const model::RunState& past) {
    if (phaseOf(incident, IncidentPhaseKind::kReform) != nullptr || !past.quorum) return false;
    const auto& members = past.quorum->contributors;
    return incident.openedNs >= past.lastCommitNs &&
           std::any_of(members.begin(), members.end(), [&](const Contribution& c) {
               return c.replica == incident.replica && c.incarnation == incident.incarnation;
           });
}

uint64_t samplesRedone(const model::IncidentView& incident, const model::RunState& past) {
    uint64_t samples = 0;
    for (size_t i = 0; i < past.redos.size(); ++i) {
        const auto& [timeNs, redo] = past.redos[i];
        const auto& lost = redo.lost;
        if (timeNs >= incident.openedNs &&
            std::find(lost.begin(), lost.end(), incident.replica) != lost.end())
            samples += redo.samplesReturned;
    }
    return samples;
}

/// Index behind the entry that made the last link which history knows; 0: there is none.
size_t behindLink(const std::vector<protocol::LogEntry>& entries, const model::RunState& past) {
    for (size_t i = past.link.empty() ? 0 : entries.size(); i > 0; --i) {
        const bool told = std::visit(
            [&](const auto& e) {
                if constexpr (requires { e.link; })
                    return e.link == past.link;
                else
                    return false;
            },
            entries[i - 1]);
        if (told) return i;
    }
    return 0;
}

/// The log has everything before history is told of it, unless its disk, or whoever put an older
/// file in its place, has lost some. Numbers that were used then are not used again.
void addLost(protocol::RecoveredState& recovered, const std::vector<protocol::LogEntry>& entries,
             const model::RunState& past) {
    if (past.link.empty() || behindLink(entries, past) > 0) return;
    recovered.lost = absl::StrCat(
        "the commit log ends with step ", recovered.step, " of lineage ", recovered.lineage,
        ", and people were told of step ", past.lastCommit ? past.lastCommit->record.step : 0,
        " of lineage ", past.lineage, ": its disk has lost what it had said was safe");
    recovered.term = std::max(recovered.term, past.term);
    recovered.lineageUsed = past.lineage;
    recovered.epoch = std::max(recovered.epoch, past.epoch);
    recovered.layoutTried = std::max(recovered.layoutTried, past.layout);
    for (size_t i = 0; i < past.layouts.size(); ++i)
        recovered.layoutTried = std::max(recovered.layoutTried, past.layouts[i].layout);
    for (const model::ReplicaView& r : past.replicas) {
        const auto at = static_cast<size_t>(r.replica);
        if (at < recovered.incarnations.size())
            recovered.incarnations[at] = std::max(recovered.incarnations[at], r.incarnation);
    }
}

}  // namespace

void addPast(protocol::RecoveredState& recovered, const std::vector<protocol::LogEntry>& entries,
             const model::RunState& past, const Clock& clock) {
    addLost(recovered, entries, past);
    const MonoNs offset = clock.now() - clock.unixNs();
    if (past.startedNs != 0)
        recovered.ranFor = std::max<MonoNs>(0, clock.unixNs() - past.startedNs);
    if (past.lastEventNs != 0) recovered.lastSign = past.lastEventNs + offset;
    for (size_t i = 0; i < past.incidents.size(); ++i) {
        const model::IncidentView& incident = past.incidents[i];
        recovered.lastIncident = std::max(recovered.lastIncident, incident.incident);
        if (incident.closedNs != 0) continue;
        const model::PhaseView* detect = phaseOf(incident, IncidentPhaseKind::kDetect);
        const model::PhaseView* decide = phaseOf(incident, IncidentPhaseKind::kDecide);
        protocol::OpenIncident open;
        open.id = incident.incident;
        open.replica = incident.replica;
        open.begin = (detect ? detect->beginNs : incident.openedNs) + offset;
        open.decidedAt = (decide ? decide->endNs : incident.openedNs) + offset;
        open.survivorsWait = survivorsWait(incident, past);
        const bool stalled =
            open.survivorsWait || phaseOf(incident, IncidentPhaseKind::kReform) != nullptr;
        open.stallMs = stalled ? incident.survivorStallMs : 0;
        open.samplesRedone = samplesRedone(incident, past);
        const uint32_t training = model::contributors(past);
        open.survivors = training - std::min<uint32_t>(training, open.survivorsWait ? 1 : 0);
        recovered.incidents.push_back(open);
    }
}

void withholdQuarantined(protocol::LogCheckpoint& checkpoint, const model::RunState& past) {
    auto ledger = protocol::DataLedger::restore(checkpoint.ledger, {});
    if (!ledger.ok()) return;  // a start from it reports the error
    for (size_t i = 0; i < past.quarantined.size(); ++i)
        ledger->withhold(past.quarantined[i].range);
    checkpoint.ledger = ledger->state();
}

bool goesOn(const std::vector<protocol::LogEntry>& entries, const model::RunState& past) {
    if (past.link.empty()) return !past.lastCommit;
    return behindLink(entries, past) > 0;
}

size_t firstUntold(const std::vector<protocol::LogEntry>& entries, const model::RunState& past) {
    if (const size_t behind = behindLink(entries, past); behind > 0) return behind;
    if (!past.lastCommit) return 0;
    const CommitRecord& known = past.lastCommit->record;
    for (size_t i = entries.size(); i > 0; --i) {
        const auto* commit = std::get_if<protocol::LogCommit>(&entries[i - 1]);
        if (commit != nullptr && commit->record.lineage == known.lineage &&
            commit->record.step == known.step)
            return i;
    }
    return entries.size();
}

std::optional<protocol::Fact> untoldFact(const std::vector<protocol::LogEntry>& entries, size_t i,
                                         const model::RunState& past) {
    if (const auto* commit = std::get_if<protocol::LogCommit>(&entries[i])) {
        fact::StepCommitted line = protocol::stepLine(commit->record, commit->figures);
        line.link = commit->link;
        return line;
    }
    if (const auto* lineage = std::get_if<protocol::LogLineage>(&entries[i])) {
        if (lineage->lineage <= past.lineage) return std::nullopt;
        uint64_t term = 0;
        for (size_t k = 0; k < i; ++k)
            if (const auto* t = std::get_if<protocol::LogTerm>(&entries[k])) term = t->term;
        return fact::LineageOpened{lineage->lineage, lineage->fromStep, term, lineage->why,
                                   lineage->link};
    }
    if (const auto* moved = std::get_if<protocol::LogLayout>(&entries[i])) {
        for (size_t k = past.layouts.size(); k-- > 0;)
            if (past.layouts[k].ok && past.layouts[k].step + 1 == moved->fromStep &&
                past.layouts[k].layout == moved->layout)
                return std::nullopt;
        return fact::LayoutChanged{
            moved->fromStep - 1, moved->layout,         true, 0, moved->expertShard, "",
            moved->domainShare,  moved->predictedRemote};
    }
    if (const auto* bad = std::get_if<protocol::LogQuarantine>(&entries[i])) {
        for (size_t k = 0; k < past.quarantined.size(); ++k)
            if (past.quarantined[k].range == bad->range) return std::nullopt;
        return fact::RangeQuarantined{bad->range, bad->why, bad->link};
    }
    if (const auto* end = std::get_if<protocol::LogFinished>(&entries[i])) {
        uint64_t step = 0;
        for (size_t k = 0; k < i; ++k)
            if (const auto* c = std::get_if<protocol::LogCommit>(&entries[k]))
                step = c->record.step;
        return fact::RunFinished{end->ok, end->why, step};
    }
    if (const auto* disputed = std::get_if<protocol::LogDispute>(&entries[i]))
        return fact::ParityDisputed{disputed->dispute, disputed->link};
    return std::nullopt;
}

}  // namespace bulkhead::runtime
