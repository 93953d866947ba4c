// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>

#include "backend/model/run_state.h"

/// What part of a run a page shows and in which detail, so that nothing is left out unsaid. Pure;
/// thread: any.
namespace bulkhead::ui {

/// `text` fits a page's header; `detail` is its tooltip. Empty: everything is shown.
struct RangeWords {
    QString text;
    QString detail;
};

/// Of the charts over steps: the range, and how many steps a point stands for.
RangeWords chartRange(const model::RunState& state);
/// Of the timeline: what it has only in part.
RangeWords laneRange(const model::RunState& state);

}  // namespace bulkhead::ui
