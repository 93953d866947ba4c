// SPDX-License-Identifier: Apache-2.0
#include "backend/model/run_figures.h"

namespace bulkhead::model {

RunFigures figuresOf(const RunState& state) {
    RunFigures f;
    if (state.lastCommit) {
        f.steps = state.lastCommit->record.step;
        f.loss = state.lastCommit->loss;
    }
    const Counters& c = state.counters;
    f.effectiveTime = state.effectiveTime;
    f.incidents = c.incidents;
    f.survivorStallMs = c.survivorStallMs;
    if (c.rejoins > 0) f.meanRejoinMs = c.rejoinMs / static_cast<double>(c.rejoins);
    f.samplesRedone = c.samplesRedone + c.samplesSuperseded;
    f.recovery = state.policies.recovery;
    return f;
}

}  // namespace bulkhead::model
