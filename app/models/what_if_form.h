// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <vector>

#include "backend/model/what_if.h"

/// A scenario as an operator changes it: which numbers a slider moves, over which values, and the
/// words for each. Pure; thread: any.
namespace bulkhead::ui {

struct Knob {
    const model::WhatIfParameter* parameter;
    bool inFront;                ///< shown at once; the others behind "More"
    std::vector<double> values;  ///< the slider's positions, ascending
};

/// Every number of a scenario but the time between failures, which the failure rate stands for.
const std::vector<Knob>& knobs();
/// Position of the value nearest to `value`.
int positionOf(const Knob& knob, double value);
/// The scenario's value; the failure rate in either unit.
double valueOf(const Knob& knob, const model::WhatIf& scenario);

/// "8 192", "10 min 00 s", "5.3 %", "3.9 GB".
QString words(const model::WhatIfParameter& parameter, double value);
/// The number's source: the preset's source, or that it was set here and what the preset has.
QString sourceWords(const model::WhatIfPreset& preset, const Knob& knob,
                    const model::WhatIf& scenario);

/// The reason for which a change would have no effect with the other values; empty if it would.
QString idleWords(const Knob& knob, const model::WhatIf& scenario);

/// Those to start from; their twins that differ only in the spacing of failures are left out.
const std::vector<const model::WhatIfPreset*>& startingPoints();

QString label(model::TimeLoss loss);
QString label(model::WhatIfRecovery recovery);
QString label(model::FailureSpacing spacing);

}  // namespace bulkhead::ui
