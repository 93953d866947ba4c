// SPDX-License-Identifier: Apache-2.0
// Speed of the simulator, and proof that no seed breaks the protocol; and what a job of a
// hundred thousand GPUs would get out of them (the model behind `bulkhead-sim ett`).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "backend/model/what_if.h"
#include "backend/runtime/simulation/trial.h"
#include "bench/report.h"

namespace bulkhead::bench {
namespace {

struct Settings : Place {
    uint64_t seeds = 300;
};

struct Total {
    uint64_t broken = 0;
    uint64_t events = 0;
    uint64_t faults = 0;
    uint64_t commits = 0;
    double virtualHours = 0;
    double seconds = 0;
};

/// Seeds 1 to `seeds` of the campaign, with so many faults each.
Total campaign(uint64_t seeds, size_t faults) {
    Total t;
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
        const simulation::Verdict v = simulation::runTrial(seed, faults);
        if (v.broken)
            std::printf("seed %llu of %zu faults: %s\n", static_cast<unsigned long long>(seed),
                        faults, v.broken->c_str());
        t.broken += v.broken.has_value();
        t.events += v.counts.events;
        t.faults += v.counts.faults;
        t.commits += v.counts.commits;
        t.virtualHours += static_cast<double>(v.time) / static_cast<double>(3600 * kSecond);
    }
    t.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return t;
}

void trials(const Settings& settings, Report& report) {
    report.note(std::to_string(settings.seeds) + " seeds of each number of faults, on one thread");
    uint64_t broken = 0;
    for (const size_t faults : {size_t{0}, size_t{10}, size_t{40}, size_t{100}, size_t{400}}) {
        const Total t = campaign(settings.seeds, faults);
        broken += t.broken;
        report.row({number(static_cast<double>(faults), 0),
                    number(static_cast<double>(t.broken), 0),
                    number(static_cast<double>(t.commits), 0), number(t.virtualHours, 2),
                    number(static_cast<double>(t.events) / t.seconds, 0),
                    number(static_cast<double>(t.faults) / t.seconds, 0)});
    }
    report.atMost("broken seeds", static_cast<double>(broken), 0, "");
}

constexpr double kDays = 54;
/// Tolerance around a published figure: a model further away does not explain it.
constexpr double kPoints = 2;

std::string lossesOf(const model::WhatIfResult& r) {
    std::string text;
    for (size_t i = 0; i < model::kTimeLosses; ++i)
        if (r.lost[i] > 0)
            absl::StrAppend(&text, text.empty() ? "" : ", ",
                            std::string(model::timeLossName(static_cast<model::TimeLoss>(i))), " ",
                            number(100 * r.lost[i], 2));
    return text;
}

/// The bars on one scenario: as published, or what Bulkhead aims at.
void bars(const model::WhatIfPreset& preset, const model::WhatIfResult& r, Report& report) {
    const std::string name(preset.name);
    if (preset.published > 0)
        report.atMost(name + ": distance from the published figure",
                      std::abs(100 * (r.effective - preset.published)), kPoints, "points");
    if (name == "bulkhead")
        report.atLeast(name + ": effective training time", 100 * r.effective, 93, "%");
    if (name == "bulkhead_spares")
        report.atLeast(name + ": effective training time per active GPU", 100 * r.effective, 96,
                       "%");
}

/// Every scenario of `bulkhead-sim ett`, on this thread.
Report effectiveTime() {
    Report report("ett", {"scenario", "published %", "ours %", "+-", "provisioned %", "failures",
                          "interval min", "% of the active GPUs' time lost to"});
    report.note(number(kDays, 0) +
                " days of 12 replicas x 8,192 GPUs, seed 1, on one thread; every "
                "assumption with its source: bulkhead-sim ett --json");
    const auto begin = std::chrono::steady_clock::now();
    for (const model::WhatIfPreset& preset : model::whatIfPresets()) {
        const model::WhatIfResult r = model::simulate(preset.scenario, kDays, 1);
        report.row({std::string(preset.name),
                    preset.published > 0 ? number(100 * preset.published, 0) : "-",
                    number(100 * r.effective, 2), number(100 * r.error, 2),
                    number(100 * r.perProvisioned, 2), number(r.failures, 0),
                    number(r.meanIntervalS / 60, 2), lossesOf(r)});
        bars(preset, r, report);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    report.atMost("54 simulated days of every scenario", took.count(), 30, "s");
    return report;
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    Settings settings;
    CLI::App app("How fast the simulator tries the protocol; effective training time at 98K GPUs");
    addPlace(app, settings);
    app.add_option("--seeds", settings.seeds, "of each number of faults")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    Report report("sim", {"faults a seed", "broken", "steps", "virtual h", "events/s", "faults/s"});
    trials(settings, report);
    const int first = report.finish(settings.out);
    return std::max(first, effectiveTime().finish(settings.out));
}
