// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "bench/gpu/measures.h"

int main(int argc, char** argv) {
    using namespace bulkhead;
    bench::Place place;
    int times = 20;
    bool sumsOnly = false, trainingOnly = false;
    CLI::App app(
        "What the CUDA device's sums and exchanges take, and a step of training, on one GPU");
    bench::addPlace(app, place);
    app.add_option("--times", times, "how often each is measured")->check(CLI::Range(1, 1000));
    auto* sums = app.add_flag("--sums-only", sumsOnly, "no exchanges, no training");
    app.add_flag("--training-only", trainingOnly, "neither sums nor exchanges")->excludes(sums);
    CLI11_PARSE(app, argc, argv);
    support::GpuPlugin plugin(BULKHEAD_CUDA_PLUGIN);
    if (const std::string why = plugin.whyNot(); !why.empty())
        bench::die(absl::UnavailableError(absl::StrCat("no GPU answers here: ", why)));
    support::GpuRank first(plugin);
    bulkhead_device_info info{};
    if (!first.ok() || plugin.device().describe(first.device(), &info) != BULKHEAD_OK)
        bench::die(absl::UnavailableError(plugin.error()));
    int failed = 0;
    if (!trainingOnly) {
        bench::Report report("gpu", {"what", "blocks", "GB/s", "% of copy", "ms"});
        report.note(absl::StrCat("GPU: ", info.name));
        report.note("GB/s: all that is read and written; for exchanges by all replicas together.");
        bench::measureSums(plugin, times, report);
        if (!sumsOnly) bench::measureExchanges(plugin, times, report);
        if (!sumsOnly) bench::measureLoss(std::min(times, 5), report);
        failed |= report.finish(place.out);
    }
#ifdef BULKHEAD_MODULE
    if (!sumsOnly) {
        bench::Report report("gpu-training", {"what", "ms", "tokens/s", "TFLOP/s", "% of cuBLAS"});
        report.note(absl::StrCat("GPU: ", info.name));
        report.note("TFLOP/s of a step: what the model needs, nothing computed twice or in vain.");
        bench::measureTraining(plugin, times, report);
        failed |= report.finish(place.out);
    }
#endif
    return failed;
}
