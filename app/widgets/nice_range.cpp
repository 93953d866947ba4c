// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/nice_range.h"

#include <algorithm>
#include <cmath>

namespace bulkhead::ui {

NiceRange niceRange(double least, double greatest, int wantedTicks) {
    if (!(greatest > least)) {
        const double around = std::max(std::abs(least) * 0.1, 1e-9);
        least -= around;
        greatest += around;
    }
    const double raw = (greatest - least) / std::max(wantedTicks - 1, 1);
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    double step = power * 10;
    for (const double factor : {1.0, 2.0, 2.5, 5.0})
        if (raw <= factor * power * 1.0000001) {
            step = factor * power;
            break;
        }
    NiceRange range;
    range.least = std::floor(least / step + 1e-9) * step;
    range.greatest = std::ceil(greatest / step - 1e-9) * step;
    range.ticks = static_cast<int>(std::lround((range.greatest - range.least) / step)) + 1;
    range.decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
    if (std::abs(step / power - 2.5) < 1e-9 && step < 10) ++range.decimals;
    return range;
}

}  // namespace bulkhead::ui
