// SPDX-License-Identifier: Apache-2.0
#include "backend/model/incident_return.h"

#include <algorithm>
#include <array>

#include "backend/model/incident_phases.h"
#include "backend/model/names.h"
#include "backend/model/units.h"

namespace bulkhead::model {
namespace {

using Phase = IncidentPhaseKind;

/// Phases of a lost replica until it trains again, in this order.
constexpr std::array kWayBack = {Phase::kRestart, Phase::kInit, Phase::kFetch, Phase::kReplay,
                                 Phase::kJoin};

struct Spread {
    double least = 0, middle = 0, most = 0;
};

Spread spreadOf(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    return {values.front(), values[values.size() / 2], values.back()};
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

}  // namespace

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
        for (const IncidentView* e : earlier) took.push_back(phaseMs(*e, kWayBack[k]).value_or(0));
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

}  // namespace bulkhead::model
