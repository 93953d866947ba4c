// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/gpu/measures.h"

namespace bulkhead::bench {
namespace {

constexpr size_t kBytes = 1024 * kMiB;  // less is over too soon to be timed at 3 TB/s

/// Percent of a copy's bandwidth that this many blocks reach at least. On an H100 no loop that was
/// tried moves more than 125 GB/s on a multiprocessor, 65 % of a copy on 16 of them.
struct Bar {
    uint32_t blocks;
    double aim;
};
constexpr Bar kBars[] = {{16, 60}, {24, 80}};
constexpr uint32_t kTimeoutMs = 10'000;

/// GB/s of all that is read and written.
double rate(const std::vector<double>& ms, double bytes) {
    return bytes / spreadOf(ms).median / 1e6;
}

/// Two sources into one target, by the persistent kernel.
double planeRate(support::GpuPlugin& plugin, uint32_t blocks, int times, size_t count) {
    support::GpuRank rank(plugin, blocks);
    if (!rank.ok()) die(absl::UnavailableError(plugin.error()));
    const void* from[2] = {rank.floats(count), rank.floats(count)};
    bulkhead_sum sum{};
    sum.struct_size = sizeof sum;
    sum.sources = 2;
    sum.from = from;
    sum.to = rank.floats(count);
    sum.count = count;
    if (sum.to == nullptr) die(absl::ResourceExhaustedError(plugin.error()));
    const bulkhead_data_plane_api& plane = plugin.plane();
    const auto must = [&](bulkhead_status status) {
        if (status != BULKHEAD_OK) die(absl::InternalError(plane.why(rank.plane())));
    };
    must(plane.enter(rank.plane()));
    const std::vector<double> ms = timed(times, [&] {
        must(plane.submit(rank.plane(), &sum));
        must(plane.finish(rank.plane(), kTimeoutMs));
    });
    must(plane.leave(rank.plane()));
    return rate(ms, 3.0 * static_cast<double>(count * sizeof(float)));
}

}  // namespace

void measureSums(support::GpuPlugin& plugin, int times, size_t most, Report& report) {
    const size_t count = std::min(kBytes, most) / sizeof(float), bytes = count * sizeof(float);
    support::GpuRank rank(plugin);
    if (!rank.ok()) die(absl::UnavailableError(plugin.error()));
    float* a = rank.floats(count);
    float* b = rank.floats(count);
    float* to = rank.floats(count);
    if (to == nullptr) die(absl::ResourceExhaustedError(plugin.error()));
    const double copy = rate(timed(times, [&] { (void)rank.copy(to, a, bytes); }),
                             2.0 * static_cast<double>(bytes));
    report.row({"copy on the device", "", number(copy, 0), "100"});
    const void* from[2] = {a, b};
    const double whole =
        rate(timed(times,
                   [&] {
                       (void)plugin.device().reduce_copy(rank.device(), to, from, 2, count,
                                                         BULKHEAD_F32, BULKHEAD_F32, nullptr);
                       (void)plugin.device().stream_synchronize(rank.device(), nullptr);
                   }),
             3.0 * static_cast<double>(bytes));
    report.row({"reduce_copy, 2 sources", "all", number(whole, 0), number(100 * whole / copy, 0)});
    double best = 0;
    for (const uint32_t blocks : {1u, 2u, 4u, 8u, 16u, 20u, 24u, 32u, 64u}) {
        const double got = 100 * planeRate(plugin, blocks, times, count) / copy;
        best = std::max(best, got);
        report.row({"persistent kernel, 2 sources", std::to_string(blocks),
                    number(got * copy / 100, 0), number(got, 0)});
        for (const Bar& bar : kBars)
            if (bar.blocks == blocks)
                report.atLeast("persistent kernel with at most " + std::to_string(blocks) +
                                   " blocks, of a copy",
                               best, bar.aim, "%");
    }
}

}  // namespace bulkhead::bench
