// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/range_words.h"

#include <QStringList>
#include <algorithm>

#include "app/models/units.h"
#include "app/models/words.h"

namespace bulkhead::ui {

RangeWords chartRange(const model::RunState& state) {
    if (state.steps.empty()) return {};
    const model::StepPoint& newest = state.steps.back();
    const uint64_t exact = state.steps[0].step;
    if (state.earlierSteps.empty())
        return {tr("steps %1 \u2013 %2").arg(formatCount(exact), formatCount(newest.step)),
                tr("Every step is shown.")};
    const QString first = formatCount(state.earlierSteps[0].first);
    const QString width = formatCount(state.earlierSteps.width());
    return {tr("steps %1 \u2013 %2, %3 to a point before %4")
                .arg(first, formatCount(newest.step), width, formatCount(exact)),
            tr("From step %1 on every step is shown. Before it a curve goes through the least and "
               "the greatest figure of each %2 steps; replay the run at an earlier moment to see "
               "every step there.")
                .arg(formatCount(exact), width)};
}

RangeWords laneRange(const model::RunState& state) {
    QStringList details;
    const auto kept = [&](const auto& ring, const QString& what, int64_t fromNs) {
        if (ring.total() <= ring.size()) return;
        details << tr("The newest %1 of %2 %3 are kept, from %4 on.")
                       .arg(formatCount(ring.size()), formatCount(ring.total()), what,
                            formatElapsed(fromNs - state.startedNs));
    };
    if (!state.incidents.empty())
        kept(state.incidents, tr("incidents"), state.incidents[0].openedNs);
    if (!state.stalls.empty()) kept(state.stalls, tr("stalls"), state.stalls[0].beginNs);
    if (!state.faults.empty()) kept(state.faults, tr("faults"), state.faults[0].injectedNs);
    const bool merged = std::any_of(
        state.replicas.begin(), state.replicas.end(), [](const model::ReplicaView& replica) {
            return std::any_of(replica.lane.begin(), replica.lane.end(),
                               [](const model::LaneInterval& i) { return i.stretches > 1; });
        });
    if (merged)
        details << tr(
            "Of a replica with more than 512 changes, the shortest are drawn as one "
            "hatched bar; its tooltip says how many.");
    if (details.isEmpty()) return {};
    return {tr("not every change is drawn"), details.join(u'\n')};
}

}  // namespace bulkhead::ui
