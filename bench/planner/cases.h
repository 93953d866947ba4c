// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <ctime>
#include <string>

#include "backend/planner/data/routing.h"
#include "bench/report.h"

namespace bulkhead::bench {

struct Settings : Place {
    std::string data, python, eplb;
    double effort = 1;
    uint64_t seed = 1;
    uint32_t splits = 50;
    uint64_t splitSeed = 2026;  ///< of the halves; others were used to choose constants
    bool neighbours = false;    ///< splits: both halves with the recorded mixture
    uint32_t own = 0;           ///< splits: also plans from the scored half itself, of so many
    bool each = false;          ///< a line for each split
    std::string model;          ///< the only one to look at: esft, gptoss, made
    std::string target;         ///< the only one of splits: sends, copies or tight
};

/// One of ../shared/data/moe's recordings. Ends the program with a message when it cannot be read.
planner::Routing readRecording(const std::string& path);

void heldOutCases(const Settings& settings, Report& report);
void splitCases(const Settings& settings, Report& report);
void littleCases(const Settings& settings, Report& report);
void taskCases(const Settings& settings, Report& report);
void routerCases(const Settings& settings, Report& report);
void balanceCases(const Settings& settings, Report& report);
void scaleCases(const Settings& settings, Report& report);

template <class Work>
double secondsOf(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The same in processor time of this process: what an idle core takes for work on one thread,
/// also where others use the core.
template <class Work>
double processorSecondsOf(Work&& work) {
    const std::clock_t start = std::clock();
    work();
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace bulkhead::bench
