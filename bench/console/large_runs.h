// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>

#include "bench/report.h"

/// A console that opens large run files, in a process of its own, so that its memory and its start
/// are its own.
namespace bulkhead::bench {

/// The process: opens the file, seeks, replays for so long at a hundred times its speed, and prints
/// what that cost. Returns what main() does.
int openLargeRun(const QString& file, int replaySeconds);

/// Writes the files where they are missing, opens each in its process and adds the bars.
void measureLargeRuns(Report& report, const Place& place, int replaySeconds);

}  // namespace bulkhead::bench
