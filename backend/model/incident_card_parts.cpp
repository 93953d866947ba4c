// SPDX-License-Identifier: Apache-2.0
#include "backend/model/incident_card_parts.h"

#include <algorithm>
#include <map>

#include "backend/model/names.h"
#include "backend/model/units.h"

namespace bulkhead::model::card_detail {
namespace {

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

std::string costText(const Cost& cost, bool open, const Prices& prices) {
    std::string text = concat(fixedText(cost.replicaSeconds, 1), " replica-s");
    if (cost.gpuHours > 0)
        text += concat(", ", fixedText(cost.gpuHours, cost.gpuHours < 10 ? 3 : 1), " GPU-h");
    if (cost.tokens >= 1)
        text += concat(", ", countText(static_cast<uint64_t>(std::min(cost.tokens, 1e18))),
                       " tokens not trained");
    if (cost.money) text += concat(", ", fixedText(*cost.money, 2), " ", prices.currency);
    return open ? text + " so far" : text;
}

}  // namespace

std::string sentence(std::string told, std::string_view otherwise) {
    if (told.empty()) return std::string(otherwise);
    if (told[0] >= 'a' && told[0] <= 'z') told[0] += 'A' - 'a';
    return told + ".";
}

uint32_t replicasThatTrain(const RunState& s) {
    return static_cast<uint32_t>(
        std::count_if(s.replicas.begin(), s.replicas.end(),
                      [](const ReplicaView& r) { return r.state == ReplicaState::kTraining; }));
}

std::string trainOn(const RunState& s) {
    const uint32_t here = replicasThatTrain(s);
    if (here == 0) return "no replica trains";
    return concat(here, " of ", s.replicas.size(),
                  here == 1 ? " replicas trains" : " replicas train",
                  s.phase == JobPhase::kTraining ? " on" : " when the job goes on");
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

bool staysOut(ReplicaState state) {
    return state == ReplicaState::kHeld || state == ReplicaState::kDrained ||
           state == ReplicaState::kFailed;
}

bool lasts(const FaultView* fault) {
    if (fault == nullptr || fault->endedNs != 0) return false;
    const FaultKind kind = fault->spec.kind;
    return kind == FaultKind::kHang || kind == FaultKind::kSlow || kind == FaultKind::kCutNetwork ||
           kind == FaultKind::kDelayNetwork || kind == FaultKind::kFillDisk;
}

void setCost(IncidentCard& card, const RunState& s, double replicaSeconds, const Prices& prices) {
    Cost& cost = card.cost.emplace();
    cost.replicaSeconds = replicaSeconds;
    cost.gpuHours = replicaSeconds * gpusPerReplica(s) / 3600;
    cost.tokens = replicaSeconds * tokensPerReplicaSecond(s);
    if (prices.gpuHour > 0) cost.money = cost.gpuHours * prices.gpuHour;
    card.costText = costText(cost, card.open, prices);
}

void advise(IncidentCard& card, std::string words) {
    card.advice = std::move(words);
}

void advise(IncidentCard& card, std::string words, ActionKind kind, int32_t replica) {
    advise(card, std::move(words));
    card.action.emplace().kind = kind;
    card.action->replica = replica;
}

void advise(IncidentCard& card, std::string words, ActionKind kind, const std::string& node) {
    advise(card, std::move(words), kind);
    card.action->node = node;
}

void adviseRelease(IncidentCard& card, const ReplicaView& r) {
    advise(card,
           r.state == ReplicaState::kFailed
               ? "Look at its output for the reason, then let it come back."
               : "Let it come back when what it was taken out for is done.",
           ActionKind::kReleaseRejoin, r.replica);
}

}  // namespace bulkhead::model::card_detail
