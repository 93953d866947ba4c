// SPDX-License-Identifier: Apache-2.0
#include "backend/model/incident_card.h"

#include <algorithm>
#include <map>

#include "backend/model/command_text.h"
#include "backend/model/incident_card_parts.h"
#include "backend/model/incident_phases.h"
#include "backend/model/incident_return.h"
#include "backend/model/names.h"
#include "backend/model/rank_name.h"
#include "backend/model/units.h"

/// Cards of incidents, and all cards in their order.
namespace bulkhead::model {
namespace {

using namespace card_detail;

std::string happened(const RunState& s, const IncidentView& i) {
    std::string text = concat(humanDuration(durationMs(s.startedNs, i.openedNs)),
                              " after the start, in step ", i.step, ": ", wordsOf(i.cause));
    const ReplicaView* r = findReplica(s, i.replica);
    if (r != nullptr) text += concat(", incarnation ", i.incarnation);
    if (r != nullptr && r->incarnation == i.incarnation && !r->node.empty())
        text += concat(" on ", r->node);
    text += ".";
    if (const FaultView* fault = findFault(s, i.fault))
        text +=
            concat(" Fault #", i.fault, " injected by ",
                   fault->by.empty() ? "a campaign" : fault->by, ": ", describe(fault->spec), ".");
    return text;
}

/// "4 ms before": than the incident was opened.
std::string whenSeen(const EvidenceView& seen, const IncidentView& i) {
    const auto [first, last] = std::minmax(seen.timeNs, i.openedNs);
    if (first == last) return "at once";
    return concat(humanDuration(durationMs(first, last)),
                  seen.timeNs == first ? " before" : " after");
}

std::vector<std::string> evidenceOf(const IncidentView& i) {
    std::vector<std::string> lines;
    for (const EvidenceView& seen : i.evidence) {
        const EvidenceSeen& e = seen.evidence;
        std::string& line =
            lines.emplace_back(concat(whenSeen(seen, i), ", ", e.reporter, ": ", wordsOf(e.kind)));
        if (e.shard >= 0) line += concat(" of ", rankName({e.replica, e.shard}));
        if (!e.detail.empty()) line += concat(", ", e.detail);
    }
    return lines;
}

/// The survivors' bar of the incident, in words.
std::string survivorsText(const IncidentView& i) {
    const std::string who = i.replica < 0 ? "All replicas" : "The others";
    if (!survivorsStood(i)) return concat(who, " did not stand still.");
    const std::string stood = concat(who, " stood still for ", humanDuration(i.survivorStallMs));
    const std::optional<double> again = phaseMs(i, IncidentPhaseKind::kReexchange);
    return again ? concat(stood, ", then exchanged again for ", humanDuration(*again), ".")
                 : stood + ".";
}

std::string outcomeText(const IncidentCard& card, const IncidentView& i) {
    std::string text = concat("Over after ", humanDuration(durationMs(card.beginNs, i.closedNs)),
                              ": ", i.outcome, ". ", survivorsText(i));
    if (i.samplesRedone > 0)
        text += concat(" ", countText(i.samplesRedone), " samples were computed again.");
    return text;
}

/// By the replica that is away, and by the others while they stood still, up to now.
double openReplicaSeconds(const RunState& s, const IncidentCard& card, const IncidentView& i) {
    const double away = i.replica < 0 ? 0 : durationMs(card.beginNs, s.lastEventNs);
    const auto others = static_cast<double>(s.replicas.empty() ? 0 : s.replicas.size() - 1);
    return (away + i.survivorStallMs * others) / 1000;
}

/// Incidents that nobody injected within the last hour, by replica.
std::map<int32_t, size_t> recentLosses(const RunState& s) {
    constexpr double kHourMs = 3'600'000;
    std::map<int32_t, size_t> counts;
    for (size_t k = s.incidents.size(); k-- > 0;) {
        const IncidentView& i = s.incidents[k];
        if (durationMs(i.openedNs, s.lastEventNs) > kHourMs) break;
        if (i.fault == 0) ++counts[i.replica];
    }
    return counts;
}

void adviseOpen(const RunState& s, IncidentCard& card, const IncidentView& i,
                const ReplicaView& r) {
    if (lasts(findFault(s, i.fault))) {
        card.endFault = i.fault;
        return advise(card, concat("End fault #", i.fault, ", which still lasts."));
    }
    if (staysOut(r.state)) return adviseRelease(card, r);
    if (card.back && card.back->overdue)
        return advise(card, "Restart it: it is later than ever before in this run.",
                      ActionKind::kRestartReplica, r.replica);
    advise(card, "Nothing: it comes back by itself, and the others train on.");
}

void adviseClosed(const RunState& s, IncidentCard& card, const IncidentView& i) {
    constexpr size_t kOften = 3;
    const ReplicaView* r = findReplica(s, i.replica);
    const NodeView* node = r != nullptr ? findNode(s, r->node) : nullptr;
    const std::map<int32_t, size_t> recent = recentLosses(s);
    const auto own = recent.find(i.replica);
    const size_t losses = own == recent.end() ? 0 : own->second;
    if (node == nullptr || node->state != NodeState::kUp || losses < kOften)
        return advise(card, "Nothing: it is over.");
    // A cordon helps when the node is to blame, and there is another.
    const bool elsewhere = std::any_of(s.nodes.begin(), s.nodes.end(), [&](const NodeView& n) {
        return n.node != r->node && n.state == NodeState::kUp;
    });
    const bool others = std::any_of(recent.begin(), recent.end(), [&](const auto& other) {
        return other.first != i.replica && other.second >= kOften;
    });
    if (!elsewhere || others)
        return advise(card, concat("Look for the cause in the program or in what all nodes share: ",
                                   others ? "replica " : "there is no other node, and replica ",
                                   i.replica, " was lost ", losses, " times within the last hour",
                                   others ? ", and others likewise." : "."));
    advise(card,
           concat("Cordon ", r->node, ": replica ", i.replica, " was lost ", losses,
                  " times within the last hour, the last time there."),
           ActionKind::kCordon, r->node);
}

}  // namespace

IncidentCard incidentCard(const RunState& s, const IncidentView& i, const Prices& prices) {
    IncidentCard card;
    card.incident = i.incident;
    card.replica = i.replica;
    card.open = i.closedNs == 0;
    card.beginNs = i.openedNs;
    for (const PhaseView& p : i.phases) card.beginNs = std::min(card.beginNs, p.beginNs);
    card.endNs = card.open ? s.lastEventNs : i.closedNs;
    card.title = i.title;
    card.happened = happened(s, i);
    card.evidence = evidenceOf(i);
    const ReplicaView* r = findReplica(s, i.replica);
    card.now = card.open ? concat(r != nullptr ? doingOf(*r) + "; " : "", trainOn(s), ".")
                         : outcomeText(card, i);
    setCost(card, s, card.open ? openReplicaSeconds(s, card, i) : i.replicaSeconds, prices);
    if (!card.open || r == nullptr || s.finished) {
        adviseClosed(s, card, i);
        return card;
    }
    if (staysOut(r->state)) {
        card.backText = "Not by itself.";
    } else {
        card.back = returnOf(s, i, *r);
        card.backText = card.back ? returnText(*card.back)
                                  : "Not known: this run has no recovery to go by yet.";
    }
    adviseOpen(s, card, i, *r);
    return card;
}

std::vector<IncidentCard> incidentCards(const RunState& s, const Prices& prices) {
    std::vector<IncidentCard> cards = standingCards(s, prices);
    for (const bool open : {true, false})
        for (size_t i = s.incidents.size(); i-- > 0;)
            if ((s.incidents[i].closedNs == 0) == open)
                cards.push_back(incidentCard(s, s.incidents[i], prices));
    return cards;
}

size_t openProblems(const RunState& s) {
    return standingCards(s, {}).size() + (s.finished ? 0 : s.counters.incidentsOpen);
}

}  // namespace bulkhead::model
