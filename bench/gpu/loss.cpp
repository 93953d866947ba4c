// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "bench/gpu/measures.h"
#include "tests/replica/mini_job.h"

namespace bulkhead::bench {
namespace {

constexpr uint64_t kWarm = 20;  // steps before the loss
constexpr int32_t kVictim = 2;

double since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

/// Milliseconds that the others lose by a kill -9, beyond the step they are in.
double stallOf(const model::JobSpec& spec, const std::string& folder) {
    runtime::MiniJob job(spec, folder);
    const auto must = [&](bool reached) {
        if (!reached) die(absl::DeadlineExceededError(job.output()));
    };
    must(job.runToStep(kWarm));
    const auto began = std::chrono::steady_clock::now();
    must(job.runToStep(2 * kWarm));
    const double step = since(began) / kWarm;
    const auto killed = std::chrono::steady_clock::now();
    job.kill({kVictim, 0}, SIGKILL);
    must(job.runUntil([&] {
        return job.facts<protocol::fact::StepCommitted>().back().votes.size() < spec.replicas;
    }));
    return since(killed) - step;
}

}  // namespace

void measureLoss(int times, Report& report) {
    const std::string folder =
        (std::filesystem::temp_directory_path() / absl::StrCat("bulkhead-loss-", ::getpid()))
            .string();
    std::vector<double> ms;
    for (int i = 0; i < times; ++i) {
        model::JobSpec spec = runtime::tinyJob(folder);
        spec.device = "cuda";
        spec.replicas = 4;
        spec.shards = 1;
        ms.push_back(stallOf(spec, folder));
        std::filesystem::remove_all(folder);
    }
    report.row(
        {"kill -9 of one of four on this GPU: survivors' stall", "", "", "", cell(spreadOf(ms))});
}

}  // namespace bulkhead::bench
