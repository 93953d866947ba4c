// SPDX-License-Identifier: GPL-3.0-only
#pragma once

/// Sizes of the lane timeline in pixels, shared by its handling and its painting.
namespace bulkhead::ui::lanes {

constexpr int kGutter = 88;     ///< names at the left
constexpr int kAxis = 26;       ///< times at the top
constexpr int kCommitRow = 30;  ///< commits at the bottom
constexpr int kMaxLane = 40;
constexpr int kMinLane = 14;  ///< a name fits
constexpr int kScrollBar = 12;

}  // namespace bulkhead::ui::lanes
