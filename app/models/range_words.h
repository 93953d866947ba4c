// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>

#include "backend/model/run_state.h"

/// Words for the part of a run that a page shows and for its detail, so that nothing is left out
/// unsaid. Pure; thread: any.
namespace bulkhead::ui {

/// `text` fits a page's header; `detail` is its tooltip. Empty: everything is shown.
struct RangeWords {
    QString text;
    QString detail;
};

/// Charts over steps: the range, and how many steps a point stands for.
RangeWords chartRange(const model::RunState& state);
/// The timeline says what it has only in part.
RangeWords laneRange(const model::RunState& state);

}  // namespace bulkhead::ui
