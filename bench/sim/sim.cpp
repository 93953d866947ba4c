// SPDX-License-Identifier: Apache-2.0
// How fast the simulator tries the protocol, and that no seed breaks it.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

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

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    Settings settings;
    CLI::App app("How fast the simulator tries the protocol, and that no seed breaks it");
    addPlace(app, settings);
    app.add_option("--seeds", settings.seeds, "of each number of faults")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    Report report("sim", {"faults a seed", "broken", "steps", "virtual h", "events/s", "faults/s"});
    trials(settings, report);
    return report.finish(settings.out);
}
