// SPDX-License-Identifier: GPL-3.0-only
#pragma once

namespace bulkhead::ui {

/// Round limits around [least, greatest] and how many ticks to draw between them.
struct NiceRange {
    double least = 0, greatest = 1;
    int ticks = 2;
    int decimals = 0;

    double tick(int i) const { return least + (greatest - least) * i / (ticks - 1); }
};
NiceRange niceRange(double least, double greatest, int wantedTicks);

}  // namespace bulkhead::ui
