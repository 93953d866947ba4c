// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "backend/model/event.h"

/// Sizes of the lane timeline in pixels and other facts that its handling and its painting share.
namespace bulkhead::ui::lanes {

constexpr int kGutter = 88;     ///< names at the left
constexpr int kAxis = 26;       ///< times at the top
constexpr int kCommitRow = 30;  ///< commits at the bottom
constexpr int kMaxLane = 40;
constexpr int kMinLane = 14;  ///< a name fits
constexpr int kScrollBar = 12;

/// The job does not train then, whatever its replicas could do.
bool stands(model::JobPhase phase);

}  // namespace bulkhead::ui::lanes
