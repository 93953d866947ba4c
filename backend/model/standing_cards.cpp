// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/model/command_text.h"
#include "backend/model/gpu_text.h"
#include "backend/model/incident_card_parts.h"
#include "backend/model/names.h"
#include "backend/model/rank_name.h"
#include "backend/model/units.h"

/// Cards of problems that stand and are no incident.
namespace bulkhead::model {
namespace {

using namespace card_detail;

IncidentCard standing(const RunState& s, Problem problem, int64_t sinceNs, std::string title) {
    IncidentCard card;
    card.problem = problem;
    card.beginNs = sinceNs;
    card.endNs = s.lastEventNs;
    card.title = std::move(title);
    return card;
}

/// The rank that has made no progress for longest.
const RankView* slowestRank(const RunState& s) {
    const RankView* worst = nullptr;
    for (const RankView& r : s.ranks)
        if (r.progressAgeMs && (worst == nullptr || *r.progressAgeMs > *worst->progressAgeMs))
            worst = &r;
    return worst;
}

void addNoProgress(const RunState& s, const Prices& prices, std::vector<IncidentCard>& out) {
    const auto frozen = frozenStretch(s);
    if (!frozen) return;
    const double ms = durationMs(frozen->beginNs, frozen->endNs);
    IncidentCard card = standing(s, Problem::kNoProgress, frozen->beginNs,
                                 concat("No step for ", humanDuration(ms)));
    card.happened = concat("Step ", s.lastCommit ? s.lastCommit->record.step : 0,
                           " was the last; a step takes ", humanDuration(s.typicalStepMs),
                           " here. Nobody was found lost for it.");
    card.now = "Every replica waits for the step.";
    setCost(card, s, ms / 1000 * replicasThatTrain(s), prices);
    const RankView* slowest = slowestRank(s);
    if (slowest != nullptr) {
        card.replica = slowest->rank.replica;
        card.evidence.push_back(concat(rankName(slowest->rank), ": no progress for ",
                                       humanDuration(*slowest->progressAgeMs), ", phase ",
                                       wordsOf(slowest->phase)));
    }
    for (size_t i = s.faults.size(); i-- > 0;) {
        if (!lasts(&s.faults[i])) continue;
        card.endFault = s.faults[i].fault;
        advise(card, concat("End fault #", card.endFault, ": ", describe(s.faults[i].spec), "."));
        return out.push_back(std::move(card));
    }
    if (slowest != nullptr)
        advise(
            card,
            concat("Restart replica ", slowest->rank.replica, " if it does not go on by itself."),
            ActionKind::kRestartReplica, slowest->rank.replica);
    else
        advise(card, "Look at the output of the ranks.");
    out.push_back(std::move(card));
}

void addPhase(const RunState& s, std::vector<IncidentCard>& out) {
    const bool paused = s.phase == JobPhase::kPaused;
    if (!paused && s.phase != JobPhase::kWaiting) return;
    IncidentCard card = standing(s, paused ? Problem::kPaused : Problem::kWaiting, s.phaseSinceNs,
                                 paused ? "The job is paused" : "The job waits for replicas");
    card.happened = sentence(s.explanation, "No reason was told.");
    card.now = "Every replica keeps its state; no step is begun.";
    if (paused) {
        advise(card, "Resume when what it was paused for is done.", ActionKind::kResume);
        return out.push_back(std::move(card));
    }
    const auto kept = std::find_if(s.replicas.begin(), s.replicas.end(),
                                   [](const ReplicaView& r) { return staysOut(r.state); });
    if (kept != s.replicas.end())
        advise(card, concat("Let replica ", kept->replica, " come back, which stays out."),
               ActionKind::kReleaseRejoin, kept->replica);
    else
        advise(card, "Nothing while replicas are on their way back; see their incidents.");
    out.push_back(std::move(card));
}

void addReplicas(const RunState& s, std::vector<IncidentCard>& out) {
    for (const ReplicaView& r : s.replicas) {
        if (!staysOut(r.state) || r.openIncident != 0) continue;
        IncidentCard card = standing(s, Problem::kReplicaOut, r.sinceNs,
                                     concat("Replica ", r.replica, " is out: ", wordsOf(r.state)));
        card.replica = r.replica;
        card.happened = sentence(r.why, "An operator took it out.");
        card.now = concat(doingOf(r), "; ", trainOn(s), ".");
        card.backText = "Not by itself.";
        adviseRelease(card, r);
        out.push_back(std::move(card));
    }
}

void addNodes(const RunState& s, std::vector<IncidentCard>& out) {
    for (const NodeView& node : s.nodes) {
        if (node.state == NodeState::kUp) continue;
        const bool lost = node.state == NodeState::kLost;
        IncidentCard card =
            standing(s, Problem::kNodeOut, node.sinceNs,
                     concat("Node ", node.node, lost ? " is lost" : " is cordoned"));
        card.node = node.node;
        card.happened = sentence(node.why, "No reason was told.");
        card.now = lost ? "Its replicas start elsewhere as far as other nodes have free slots."
                        : "It takes no new ranks; those that run there go on.";
        if (lost)
            advise(card, concat("Start its agent again, or the machine. Will it not come back: "
                                "bulkheadctl nodes forget ",
                                node.node));
        else
            advise(card, "Uncordon it when it is in order.", ActionKind::kUncordon, node.node);
        out.push_back(std::move(card));
    }
}

void addGpus(const RunState& s, std::vector<IncidentCard>& out) {
    std::vector<std::pair<std::string, uint32_t>> told;
    for (size_t i = s.gpuTroubles.size(); i-- > 0;) {
        const GpuTroubled& trouble = s.gpuTroubles[i].trouble;
        const NodeView* node = findNode(s, trouble.node);
        const std::pair<std::string, uint32_t> which{trouble.node, trouble.gpu};
        if (node == nullptr || node->state != NodeState::kUp ||
            severityOf(trouble) < Severity::kError ||
            std::find(told.begin(), told.end(), which) != told.end())
            continue;
        told.push_back(which);
        IncidentCard card = standing(s, Problem::kGpu, s.gpuTroubles[i].timeNs,
                                     concat(gpuName(trouble), " failed"));
        card.node = trouble.node;
        card.happened = sentence(troubleText(trouble), "");
        card.now = sentence(ranksText(trouble), "");
        advise(card, concat("Cordon ", trouble.node, ", so that no rank starts there."),
               ActionKind::kCordon, trouble.node);
        out.push_back(std::move(card));
    }
}

void addCheckpoint(const RunState& s, std::vector<IncidentCard>& out) {
    if (s.checkpoints.empty() || s.checkpoints.back().checkpoint.ok) return;
    const CheckpointView& last = s.checkpoints.back();
    IncidentCard card =
        standing(s, Problem::kCheckpoint, last.timeNs,
                 concat("The checkpoint of step ", last.checkpoint.step, " was not written"));
    card.replica = last.checkpoint.replica;
    card.happened = sentence(last.checkpoint.error, "No reason was told.");
    card.now = "Training goes on; the checkpoint before it counts.";
    advise(card, "Make room or repair the folder, then write a checkpoint.",
           ActionKind::kCheckpoint);
    out.push_back(std::move(card));
}

void addInvariants(const RunState& s, std::vector<IncidentCard>& out) {
    if (s.broken.empty()) return;
    const InvariantView& last = s.broken.back();
    IncidentCard card = standing(s, Problem::kInvariant, last.timeNs,
                                 concat("A promise was broken: ", last.invariant));
    card.happened = sentence(last.detail, "");
    card.now = s.finished ? "The run has ended." : "Training goes on.";
    advise(card, "Verify the ledger of this run, and keep the run file for whoever repairs it.");
    out.push_back(std::move(card));
}

}  // namespace

std::vector<IncidentCard> standingCards(const RunState& s, const Prices& prices) {
    std::vector<IncidentCard> cards;
    addInvariants(s, cards);
    if (s.finished) return cards;
    addNoProgress(s, prices, cards);
    addPhase(s, cards);
    addGpus(s, cards);
    addReplicas(s, cards);
    addNodes(s, cards);
    addCheckpoint(s, cards);
    return cards;
}

}  // namespace bulkhead::model
