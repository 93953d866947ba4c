// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "bench/gpu/measures.h"

int main(int argc, char** argv) {
    using namespace bulkhead;
    bench::Place place;
    int times = 20;
    size_t most = size_t{1} << 30;
    std::string only;
    CLI::App app(
        "What the CUDA device's sums and exchanges take, and a step of training, on one GPU");
    bench::addPlace(app, place);
    app.add_option("--times", times, "how often each is measured")->check(CLI::Range(1, 1000));
    app.add_option("--most", most, "the largest exchange and the largest sum, bytes")
        ->check(CLI::Range(size_t{1024}, size_t{1} << 32));
    app.add_option("--only", only, "one of the parts")
        ->check(CLI::IsMember({"exchanges", "sums", "losses", "rejoin", "training"}));
    CLI11_PARSE(app, argc, argv);
    const auto wanted = [&](const char* part) { return only.empty() || only == part; };
    bench::Report report("gpu", {"what", "blocks", "GB/s", "% of copy", "ms"});
    report.note("GB/s: all that is read and written; for exchanges by all replicas together.");
    // First, since they are processes, and the GPU's driver does not survive a fork.
    if (wanted("exchanges")) bench::measureExchanges(times, most, report);
    support::GpuPlugin plugin(BULKHEAD_CUDA_PLUGIN);
    if (const std::string why = plugin.whyNot(); !why.empty())
        bench::die(absl::UnavailableError(absl::StrCat("no GPU answers here: ", why)));
    support::GpuRank first(plugin);
    bulkhead_device_info info{};
    if (!first.ok() || plugin.device().describe(first.device(), &info) != BULKHEAD_OK)
        bench::die(absl::UnavailableError(plugin.error()));
    report.note(absl::StrCat("GPU: ", info.name));
    if (wanted("sums")) bench::measureSums(plugin, times, most, report);
    if (wanted("losses")) bench::measureLoss(std::min(times, 5), report);
    if (wanted("rejoin")) bench::measureRejoin(report);
    int failed = only == "training" ? 0 : report.finish(place.out);
#ifdef BULKHEAD_MODULE
    if (wanted("training")) {
        bench::Report training("gpu-training",
                               {"what", "ms", "tokens/s", "TFLOP/s", "% of cuBLAS"});
        training.note(absl::StrCat("GPU: ", info.name));
        training.note(
            "TFLOP/s of a step: what the model needs, nothing computed twice or in vain.");
        bench::measureTraining(plugin, times, training);
        failed |= training.finish(place.out);
    }
#endif
    return failed;
}
