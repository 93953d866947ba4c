// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/gpu/measures.h"

namespace bulkhead::bench {
namespace {

constexpr size_t kBytes = 256 * kMiB;
constexpr size_t kCount = kBytes / sizeof(float);
constexpr double kSumsAim = 80;  // percent of a copy's bandwidth
constexpr uint32_t kTimeoutMs = 10'000;

/// GB/s of all that is read and written.
double rate(const std::vector<double>& ms, double bytes) {
    return bytes / spreadOf(ms).median / 1e6;
}

/// Two sources into one target, by the persistent kernel.
double planeRate(support::GpuPlugin& plugin, uint32_t blocks, int times) {
    support::GpuRank rank(plugin, blocks);
    if (!rank.ok()) die(absl::UnavailableError(plugin.error()));
    const void* from[2] = {rank.floats(kCount), rank.floats(kCount)};
    bulkhead_sum sum{};
    sum.struct_size = sizeof sum;
    sum.sources = 2;
    sum.from = from;
    sum.to = rank.floats(kCount);
    sum.count = kCount;
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
    return rate(ms, 3.0 * kBytes);
}

}  // namespace

void measureSums(support::GpuPlugin& plugin, int times, Report& report) {
    support::GpuRank rank(plugin);
    if (!rank.ok()) die(absl::UnavailableError(plugin.error()));
    float* a = rank.floats(kCount);
    float* b = rank.floats(kCount);
    float* to = rank.floats(kCount);
    if (to == nullptr) die(absl::ResourceExhaustedError(plugin.error()));
    const double copy = rate(timed(times, [&] { (void)rank.copy(to, a, kBytes); }), 2.0 * kBytes);
    report.row({"copy on the device", "", number(copy, 0), "100"});
    const void* from[2] = {a, b};
    const double whole =
        rate(timed(times,
                   [&] {
                       (void)plugin.device().reduce_copy(rank.device(), to, from, 2, kCount,
                                                         BULKHEAD_F32, BULKHEAD_F32, nullptr);
                       (void)plugin.device().stream_synchronize(rank.device(), nullptr);
                   }),
             3.0 * kBytes);
    report.row({"reduce_copy, 2 sources", "all", number(whole, 0), number(100 * whole / copy, 0)});
    double best = 0;
    for (const uint32_t blocks : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
        const double got = planeRate(plugin, blocks, times);
        best = std::max(best, got);
        report.row({"persistent kernel, 2 sources", std::to_string(blocks), number(got, 0),
                    number(100 * got / copy, 0)});
    }
    report.atLeast("persistent kernel with enough blocks, of a copy", 100 * best / copy, kSumsAim,
                   "%");
}

}  // namespace bulkhead::bench
