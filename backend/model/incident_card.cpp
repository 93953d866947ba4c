// SPDX-License-Identifier: Apache-2.0
#include "backend/model/incident_card.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "backend/model/command_text.h"
#include "backend/model/gpu_text.h"
#include "backend/model/names.h"
#include "backend/model/units.h"

namespace bulkhead::model {
namespace {

using Phase = IncidentPhaseKind;

/// Phases of a lost replica until it trains again, in this order.
constexpr std::array kWayBack = {Phase::kRestart, Phase::kInit, Phase::kFetch, Phase::kReplay,
                                 Phase::kJoin};

std::string spaced(std::string_view name) {
    std::string words(name);
    std::replace(words.begin(), words.end(), '_', ' ');
    return words;
}

std::string capital(std::string text) {
    if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] += 'A' - 'a';
    return text;
}

std::string sinceStart(const RunState& s, int64_t timeNs) {
    return concat(humanDuration(durationMs(s.startedNs, timeNs)), " after the start");
}

uint32_t training(const RunState& s) {
    return static_cast<uint32_t>(
        std::count_if(s.replicas.begin(), s.replicas.end(),
                      [](const ReplicaView& r) { return r.state == ReplicaState::kTraining; }));
}

std::string trainOn(const RunState& s) {
    const uint32_t here = training(s);
    if (here == 0) return "no replica trains";
    return concat(here, " of ", s.replicas.size(),
                  here == 1 ? " replicas trains" : " replicas train",
                  s.phase == JobPhase::kTraining ? " on" : " when the job goes on");
}

// ---- when it will be back -----------------------------------------------------------------------

struct Spread {
    double least = 0, middle = 0, most = 0;
};

Spread spreadOf(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    return {values.front(), values[values.size() / 2], values.back()};
}

double phaseMs(const IncidentView& i, Phase kind) {
    double ms = 0;
    for (const PhaseView& p : i.phases)
        if (p.phase == kind) ms += p.ms();
    return ms;
}

std::vector<const IncidentView*> recoveries(const RunState& s) {
    std::vector<const IncidentView*> out;
    for (const IncidentView& i : s.incidents)
        if (i.closedNs != 0 && i.rejoinMs > 0) out.push_back(&i);
    return out;
}

/// Position in kWayBack that the incident has come to, and since when.
std::pair<size_t, int64_t> stageOf(const IncidentView& i) {
    size_t stage = 0;
    int64_t since = i.openedNs;
    for (const PhaseView& p : i.phases) {
        const auto at = std::find(kWayBack.begin(), kWayBack.end(), p.phase);
        if (at == kWayBack.end()) continue;
        stage =
            std::min<size_t>(static_cast<size_t>(at - kWayBack.begin()) + 1, kWayBack.size() - 1);
        since = p.endNs;
    }
    return {stage, since};
}

/// Time that is left of a transfer, by its pace so far; nothing before any byte has come.
std::optional<double> transferLeftMs(const ReplicaView& r) {
    if (r.state != ReplicaState::kFetching || !r.catchUp || r.catchUp->bytesDone == 0)
        return std::nullopt;
    const CatchUpView& c = *r.catchUp;
    const double took = durationMs(r.sinceNs, c.updatedNs);
    const double left = static_cast<double>(c.bytesTotal) - static_cast<double>(c.bytesDone);
    if (took <= 0 || left < 0) return std::nullopt;
    return took * left / static_cast<double>(c.bytesDone);
}

std::optional<Return> returnOf(const RunState& s, const IncidentView& i, const ReplicaView& r) {
    const std::vector<const IncidentView*> earlier = recoveries(s);
    const std::optional<double> transfer = transferLeftMs(r);
    if (earlier.empty())
        return transfer ? std::optional(Return{*transfer, *transfer, 0, 0}) : std::nullopt;
    const auto [stage, since] = stageOf(i);
    Return back;
    back.of = static_cast<uint32_t>(earlier.size());
    double longest = 0;
    for (const IncidentView* e : earlier) longest = std::max(longest, e->rejoinMs);
    back.overdue = durationMs(i.openedNs, s.lastEventNs) > longest && !transfer;
    for (size_t k = stage; k < kWayBack.size(); ++k) {
        std::vector<double> took;
        for (const IncidentView* e : earlier) took.push_back(phaseMs(*e, kWayBack[k]));
        Spread spread = spreadOf(std::move(took));
        if (k == stage) {
            const double passed = durationMs(since, s.lastEventNs);
            for (double* ms : {&spread.least, &spread.middle, &spread.most})
                *ms = std::max(0.0, *ms - passed);
            if (transfer) spread = {*transfer, *transfer, *transfer};
        }
        back.leastMs += spread.least;
        back.likelyMs += spread.middle;
        back.mostMs += spread.most;
    }
    return back;
}

std::string returnText(const Return& back) {
    if (back.of == 0)
        return concat("Not before ", humanDuration(back.leastMs),
                      ", which its transfer still takes; this run has no recovery to go by yet.");
    const std::string of =
        back.of == 1 ? "the one recovery" : concat("all ", back.of, " recoveries");
    if (back.overdue) return concat("Overdue: it takes longer than ", of, " of this run took.");
    const std::string least = humanDuration(back.leastMs), most = humanDuration(back.mostMs);
    const std::string spread = least == most ? "" : concat(" (", least, " to ", most, ")");
    return concat("In about ", humanDuration(back.likelyMs), spread, ", after ", of,
                  " of this run.");
}

// ---- what it costs ------------------------------------------------------------------------------

/// GPUs of one replica's ranks; 0: they have none, or nothing was told of them.
double gpusPerReplica(const RunState& s) {
    std::map<int32_t, size_t> gpus;
    for (const RankView& rank : s.ranks) gpus[rank.rank.replica] += rank.gpus.size();
    size_t most = 0;
    for (const auto& [replica, count] : gpus) most = std::max(most, count);
    return static_cast<double>(most);
}

/// By one replica in one second, at the usual pace of the job.
double tokensPerReplicaSecond(const RunState& s) {
    if (!s.lastCommit || s.typicalStepMs <= 0 || s.lastCommit->record.contributors.empty())
        return 0;
    return static_cast<double>(s.lastCommit->record.tokens) /
           static_cast<double>(s.lastCommit->record.contributors.size()) / (s.typicalStepMs / 1000);
}

Cost costOf(const RunState& s, double replicaSeconds, const Prices& prices) {
    Cost cost;
    cost.replicaSeconds = replicaSeconds;
    cost.gpuHours = replicaSeconds * gpusPerReplica(s) / 3600;
    cost.tokens = replicaSeconds * tokensPerReplicaSecond(s);
    if (prices.gpuHour > 0) cost.money = cost.gpuHours * prices.gpuHour;
    return cost;
}

std::string decimals(double value, int count) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", count, value);
    return text;
}

std::string costText(const Cost& cost, bool open, const Prices& prices) {
    std::string text = concat(decimals(cost.replicaSeconds, 1), " replica-s");
    if (cost.gpuHours > 0)
        text += concat(", ", decimals(cost.gpuHours, cost.gpuHours < 10 ? 3 : 1), " GPU-h");
    if (cost.tokens >= 1)
        text += concat(", ", countText(static_cast<uint64_t>(std::min(cost.tokens, 1e18))),
                       " tokens not trained");
    if (cost.money) text += concat(", ", decimals(*cost.money, 2), " ", prices.currency);
    return open ? text + " so far" : text;
}

// ---- what to do ---------------------------------------------------------------------------------

Action actionOn(ActionKind kind, int32_t replica) {
    Action action;
    action.kind = kind;
    action.replica = replica;
    return action;
}

Action actionOn(ActionKind kind, const std::string& node) {
    Action action;
    action.kind = kind;
    action.node = node;
    return action;
}

void advise(IncidentCard& card, std::string words, std::optional<Action> action = {}) {
    card.advice = std::move(words);
    card.action = std::move(action);
}

bool staysOut(ReplicaState state) {
    return state == ReplicaState::kHeld || state == ReplicaState::kDrained ||
           state == ReplicaState::kFailed;
}

/// Incidents of a replica that nobody injected, within the last hour.
size_t recentLosses(const RunState& s, int32_t replica) {
    constexpr double kHourMs = 3'600'000;
    size_t count = 0;
    for (size_t k = s.incidents.size(); k-- > 0;) {
        const IncidentView& i = s.incidents[k];
        if (durationMs(i.openedNs, s.lastEventNs) > kHourMs) break;
        count += i.replica == replica && i.fault == 0;
    }
    return count;
}

/// A fault that goes on until it is ended.
bool lasts(const FaultView* fault) {
    if (fault == nullptr || fault->endedNs != 0) return false;
    const FaultKind kind = fault->spec.kind;
    return kind == FaultKind::kHang || kind == FaultKind::kSlow || kind == FaultKind::kCutNetwork ||
           kind == FaultKind::kDelayNetwork || kind == FaultKind::kFillDisk;
}

void adviseOpen(const RunState& s, IncidentCard& card, const IncidentView& i,
                const ReplicaView& r) {
    if (lasts(findFault(s, i.fault))) {
        card.endFault = i.fault;
        return advise(card, concat("End fault #", i.fault, ", which still lasts."));
    }
    if (r.state == ReplicaState::kFailed)
        return advise(card, "Look at its output for the reason, then let it come back.",
                      actionOn(ActionKind::kReleaseRejoin, r.replica));
    if (staysOut(r.state))
        return advise(card, "Let it come back when what you took it out for is done.",
                      actionOn(ActionKind::kReleaseRejoin, r.replica));
    if (card.back && card.back->overdue)
        return advise(card, "Restart it: it is later than ever before in this run.",
                      actionOn(ActionKind::kRestartReplica, r.replica));
    advise(card, "Nothing: it comes back by itself, and the others train on.");
}

void adviseClosed(const RunState& s, IncidentCard& card, const IncidentView& i) {
    constexpr size_t kOften = 3;
    const ReplicaView* r = findReplica(s, i.replica);
    const size_t losses = recentLosses(s, i.replica);
    if (r != nullptr && losses >= kOften && !r->node.empty())
        if (const NodeView* node = findNode(s, r->node);
            node != nullptr && node->state == NodeState::kUp)
            return advise(card,
                          concat("Cordon ", r->node, ": replica ", i.replica, " was lost ", losses,
                                 " times within the last hour, the last time there."),
                          actionOn(ActionKind::kCordon, r->node));
    advise(card, "Nothing: it is over.");
}

// ---- cards --------------------------------------------------------------------------------------

std::string happened(const RunState& s, const IncidentView& i) {
    std::string text = capital(sinceStart(s, i.openedNs));
    text += concat(", in step ", i.step, ": ", spaced(enumName(i.cause)));
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

std::vector<std::string> evidenceOf(const IncidentView& i) {
    std::vector<std::string> lines;
    for (const EvidenceView& seen : i.evidence) {
        const EvidenceSeen& e = seen.evidence;
        const bool before = seen.timeNs < i.openedNs;
        const double apart =
            before ? durationMs(seen.timeNs, i.openedNs) : durationMs(i.openedNs, seen.timeNs);
        lines.push_back(concat(before ? "-" : "+", humanDuration(apart), " ", e.reporter, ": ",
                               spaced(enumName(e.kind))));
        if (e.shard >= 0) lines.back() += concat(" of r", e.replica, "s", e.shard);
        if (!e.detail.empty()) lines.back() += concat(", ", e.detail);
    }
    return lines;
}

std::string doingOf(const ReplicaView& r) {
    const std::string who = concat("Replica ", r.replica);
    const std::string why = r.why.empty() ? "" : concat(" (", r.why, ")");
    switch (r.state) {
        case ReplicaState::kAbsent:
            return who + " has no process" + why;
        case ReplicaState::kBackingOff:
            return who + " waits before its next start" + why;
        case ReplicaState::kStarting:
            return who + " starts";
        case ReplicaState::kFetching:
            if (!r.catchUp || r.catchUp->bytesTotal == 0) return who + " fetches the state";
            return concat(who, " fetches the state, ",
                          bytesText(static_cast<double>(r.catchUp->bytesDone)), " of ",
                          bytesText(static_cast<double>(r.catchUp->bytesTotal)));
        case ReplicaState::kReplaying:
            return who + " replays the steps since";
        case ReplicaState::kProven:
            return who + " holds the state and enters with the next step";
        case ReplicaState::kTraining:
            return who + " trains again";
        case ReplicaState::kDrained:
            return who + " is drained and stays out";
        case ReplicaState::kHeld:
            return who + " is held and stays out";
        case ReplicaState::kFailed:
            return who + " was given up" + why;
    }
    return who;
}

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
        if (r.sampledNs != 0 && (worst == nullptr || r.progressAgeMs > worst->progressAgeMs))
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
    card.cost = costOf(s, ms / 1000 * training(s), prices);
    card.costText = costText(*card.cost, true, prices);
    const RankView* slowest = slowestRank(s);
    if (slowest != nullptr) {
        card.replica = slowest->rank.replica;
        card.evidence.push_back(concat("r", slowest->rank.replica, "s", slowest->rank.shard,
                                       ": no progress for ", humanDuration(slowest->progressAgeMs),
                                       ", phase ", spaced(enumName(slowest->phase))));
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
            actionOn(ActionKind::kRestartReplica, slowest->rank.replica));
    else
        advise(card, "Look at the output of the ranks.");
    out.push_back(std::move(card));
}

void addPhase(const RunState& s, std::vector<IncidentCard>& out) {
    const bool paused = s.phase == JobPhase::kPaused;
    if (!paused && s.phase != JobPhase::kWaiting) return;
    IncidentCard card = standing(s, paused ? Problem::kPaused : Problem::kWaiting, s.phaseSinceNs,
                                 paused ? "The job is paused" : "The job waits for replicas");
    card.happened = s.explanation.empty() ? "No reason was told." : capital(s.explanation) + ".";
    card.now = "Every replica keeps its state; no step is begun.";
    if (paused) {
        advise(card, "Resume when what it was paused for is done.",
               actionOn(ActionKind::kResume, -1));
        return out.push_back(std::move(card));
    }
    const auto kept = std::find_if(s.replicas.begin(), s.replicas.end(),
                                   [](const ReplicaView& r) { return staysOut(r.state); });
    if (kept != s.replicas.end())
        advise(card, concat("Let replica ", kept->replica, " come back, which stays out."),
               actionOn(ActionKind::kReleaseRejoin, kept->replica));
    else
        advise(card, "Nothing while replicas are on their way back; see their incidents.");
    out.push_back(std::move(card));
}

void addReplicas(const RunState& s, std::vector<IncidentCard>& out) {
    for (const ReplicaView& r : s.replicas) {
        if (!staysOut(r.state) || r.openIncident != 0) continue;
        IncidentCard card =
            standing(s, Problem::kReplicaOut, r.sinceNs,
                     concat("Replica ", r.replica, " is out: ", spaced(enumName(r.state))));
        card.replica = r.replica;
        card.happened = r.why.empty() ? "An operator took it out." : capital(r.why) + ".";
        card.now = concat(doingOf(r), "; ", trainOn(s), ".");
        card.backText = "Not by itself.";
        advise(card, "Let it come back when what it is out for is done.",
               actionOn(ActionKind::kReleaseRejoin, r.replica));
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
        card.happened = node.why.empty() ? "No reason was told." : capital(node.why) + ".";
        card.now = lost ? "Its replicas start elsewhere as far as other nodes have free slots."
                        : "It takes no new ranks; those that run there go on.";
        if (lost)
            advise(card, "Start its agent again, or the machine.");
        else
            advise(card, "Uncordon it when it is in order.",
                   actionOn(ActionKind::kUncordon, node.node));
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
        card.happened = capital(troubleText(trouble)) + ".";
        card.now = capital(ranksText(trouble)) + ".";
        advise(card, concat("Cordon ", trouble.node, ", so that no rank starts there."),
               actionOn(ActionKind::kCordon, trouble.node));
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
    card.happened = capital(last.checkpoint.error) + ".";
    card.now = "Training goes on; the checkpoint before it counts.";
    advise(card, "Make room or repair the folder, then write a checkpoint.",
           actionOn(ActionKind::kCheckpoint, -1));
    out.push_back(std::move(card));
}

void addInvariants(const RunState& s, std::vector<IncidentCard>& out) {
    if (s.broken.empty()) return;
    const InvariantView& last = s.broken.back();
    IncidentCard card = standing(s, Problem::kInvariant, last.timeNs,
                                 concat("A promise was broken: ", last.invariant));
    card.happened = capital(last.detail) + ".";
    card.now = s.finished ? "The run has ended." : "Training goes on.";
    advise(card, "Verify the ledger of this run, and keep the run file for whoever repairs it.");
    out.push_back(std::move(card));
}

std::string elapsed(int64_t startedNs, int64_t timeNs) {
    return humanDuration(durationMs(startedNs, timeNs));
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
    double seconds = i.replicaSeconds;
    if (card.open) {
        const double away = i.replica < 0 ? 0 : durationMs(card.beginNs, s.lastEventNs);
        const auto others = static_cast<double>(s.replicas.empty() ? 0 : s.replicas.size() - 1);
        seconds = (away + i.survivorStallMs * others) / 1000;
        card.now = concat(r != nullptr ? doingOf(*r) + "; " : "", trainOn(s), ".");
    } else {
        card.now = concat("Over after ", humanDuration(durationMs(card.beginNs, i.closedNs)), ": ",
                          i.outcome, ". The others stood still for ",
                          humanDuration(i.survivorStallMs), ".");
        if (i.samplesRedone > 0)
            card.now += concat(" ", countText(i.samplesRedone), " samples were computed again.");
    }
    card.cost = costOf(s, seconds, prices);
    card.costText = costText(*card.cost, card.open, prices);
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

std::string commandLine(const Action& action, const std::string& job) {
    const auto verb = [&]() -> std::string {
        switch (action.kind) {
            case ActionKind::kReleaseRejoin:
                return concat("release ", action.replica);
            case ActionKind::kRestartReplica:
                return concat("restart ", action.replica);
            case ActionKind::kCordon:
                return concat("cordon ", action.node);
            case ActionKind::kUncordon:
                return concat("uncordon ", action.node);
            case ActionKind::kResume:
                return "resume";
            case ActionKind::kCheckpoint:
                return "checkpoint";
            default:
                return {};
        }
    }();
    if (verb.empty()) return {};
    return concat("bulkheadctl ", verb, job.empty() ? "" : concat(" --job ", job));
}

std::string cardText(const IncidentCard& card, int64_t startedNs, const std::string& job) {
    std::string out = card.incident > 0 ? concat("#", card.incident, " ") : std::string();
    out += concat(card.title, card.open ? " (open since " : " (at ",
                  elapsed(startedNs, card.beginNs), ")\n");
    const auto line = [&](std::string_view name, std::string_view words) {
        if (words.empty()) return;
        std::string head(name);
        head.resize(12, ' ');
        out += concat("  ", head, words, "\n");
    };
    line("happened", card.happened);
    for (size_t i = 0; i < card.evidence.size(); ++i)
        line(i == 0 ? "evidence" : "", card.evidence[i]);
    line("now", card.now);
    line("back", card.backText);
    line("cost", card.costText);
    line("do", card.advice);
    if (card.action) line("", commandLine(*card.action, job));
    if (card.endFault > 0)
        line("",
             concat("bulkheadctl heal ", card.endFault, job.empty() ? "" : concat(" --job ", job)));
    return out;
}

}  // namespace bulkhead::model
