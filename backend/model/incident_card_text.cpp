// SPDX-License-Identifier: Apache-2.0
#include "backend/model/incident_card.h"
#include "backend/model/names.h"
#include "backend/model/units.h"

/// Cards in a terminal.
namespace bulkhead::model {

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
                  humanDuration(durationMs(startedNs, card.beginNs)), ")\n");
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
