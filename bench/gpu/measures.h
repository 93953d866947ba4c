// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "bench/report.h"
#include "tests/support/gpu_plugin.h"

namespace bulkhead::bench {

constexpr size_t kMiB = size_t{1} << 20;

/// Milliseconds of each of `times` calls, after one that is not counted.
inline std::vector<double> timed(int times, const std::function<void()>& call) {
    std::vector<double> ms;
    call();
    for (int i = 0; i < times; ++i) {
        const auto start = std::chrono::steady_clock::now();
        call();
        ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
    }
    return ms;
}

/// "12.3 (11.9-14.0)"
inline std::string cell(const Spread& s, int decimals = 2) {
    return number(s.median, decimals) + " (" + number(s.min, decimals) + "-" +
           number(s.max, decimals) + ")";
}

/// Sums of at most `most` bytes on the device against a copy on it: rows, and the bar.
void measureSums(support::GpuPlugin& plugin, int times, size_t most, Report& report);
/// The exchange of 2 and 4 replicas, processes that share the GPU, of at most `most` bytes: rows.
/// Nothing of this process may have touched the GPU before.
void measureExchanges(int times, size_t most, Report& report);
/// Four replicas of the tiny model, worker processes that share the GPU, one of them killed.
void measureLoss(int times, Report& report);
/// Two replicas of `base` that share the GPU, one of them killed: the other's steps until it is
/// back, beside those of a job of one replica.
void measureRejoin(Report& report);
/// Steps of the workload's `base` model against cuBLAS on the same GPU: rows of a table of its own
/// ("what", "ms", "tokens/s", "TFLOP/s", "% of cuBLAS"), and the bar.
void measureTraining(support::GpuPlugin& plugin, int times, Report& report);

}  // namespace bulkhead::bench
