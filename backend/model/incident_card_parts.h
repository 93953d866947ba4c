// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "backend/model/incident_card.h"

/// Inside this room: what cards of incidents and of problems that stand have in common. Pure.
namespace bulkhead::model::card_detail {

/// "process exit"
template <class Enum>
std::string wordsOf(Enum value) {
    std::string name(enumName(value));
    for (char& c : name)
        if (c == '_') c = ' ';
    return name;
}

/// "Why it was so."; `otherwise` where nothing was told.
[[nodiscard]] std::string sentence(std::string told, std::string_view otherwise);

[[nodiscard]] uint32_t replicasThatTrain(const RunState& state);
/// "2 of 3 replicas train on"
[[nodiscard]] std::string trainOn(const RunState& state);
/// "Replica 2 fetches the state, 12 MB of 40 MB"
[[nodiscard]] std::string doingOf(const ReplicaView& replica);

/// Out until somebody lets it come back.
[[nodiscard]] bool staysOut(ReplicaState state);
/// A fault that goes on until it is ended; null: none.
[[nodiscard]] bool lasts(const FaultView* fault);

void setCost(IncidentCard& card, const RunState& state, double replicaSeconds,
             const Prices& prices);

void advise(IncidentCard& card, std::string words);
void advise(IncidentCard& card, std::string words, ActionKind kind, int32_t replica = -1);
void advise(IncidentCard& card, std::string words, ActionKind kind, const std::string& node);
/// Advises to release a replica that stays out.
void adviseRelease(IncidentCard& card, const ReplicaView& replica);

}  // namespace bulkhead::model::card_detail
