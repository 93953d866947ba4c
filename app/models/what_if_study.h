// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <optional>
#include <vector>

#include "app/models/series.h"
#include "backend/model/what_if.h"

/// Results of a scenario, and of the same one with more or fewer GPUs. Pure; thread: any.
namespace bulkhead::ui {

struct WhatIfStudy {
    model::WhatIf scenario;
    double days = 0;  ///< simulated; fewer than 54 where failures come thick
    model::WhatIfResult result;
    /// x: GPUs, y: effective training time in percent. As many replicas as the scenario has, larger
    /// and smaller ones, as many failures per node, all its times. The scenario is a point of its
    /// own recovery's curve.
    Points faultTolerant;
    Points restartAll;
};

/// The scenario over 54 days with seed 1, as `bulkhead-sim ett` does. `scenario` passes
/// model::checkWhatIf. Bounded: some 50 ms whatever the scenario is.
[[nodiscard]] WhatIfStudy studyOf(const model::WhatIf& scenario);

/// The active ones.
[[nodiscard]] double gpusOf(const model::WhatIf& scenario);

/// A published figure to stand beside the curves.
struct PublishedPoint {
    QPointF at;  ///< as in WhatIfStudy's curves
    QString name;
    QString source;
};
[[nodiscard]] std::vector<PublishedPoint> publishedPoints();

/// Figures that a scenario and a live job have in common; absent where there is none.
struct WhatIfFigures {
    std::optional<double> effective;  ///< 0..1
    std::optional<double> stallMs;    ///< mean stand-still for a failure
    std::optional<double> returnMs;   ///< mean time until the lost replica contributes again
    std::optional<uint64_t> redone;   ///< samples trained again
};
[[nodiscard]] WhatIfFigures figuresOf(const WhatIfStudy& study);
[[nodiscard]] WhatIfFigures liveFigures(const model::RunState& state);

}  // namespace bulkhead::ui
