// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "bench/report.h"

namespace bulkhead::bench {

/// The map of 12 x 8,192 ranks: a frame of panning at each zoom, and a new sample of all of them,
/// on the map alone and in the console. Adds rows of its own to the notes, and the bars.
void measureFleetMap(Report& report);

}  // namespace bulkhead::bench
