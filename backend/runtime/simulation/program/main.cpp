// SPDX-License-Identifier: Apache-2.0
// bulkhead-sim: the protocol in virtual time, from the command line.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/runtime/simulation/found_case.h"
#include "backend/runtime/simulation/minimise.h"
#include "backend/runtime/simulation/program/ett.h"
#include "backend/runtime/simulation/story.h"

namespace bulkhead::simulation {
namespace {

constexpr int kBroken = 1;

struct Range {
    uint64_t first = 1;
    uint64_t last = 1;
};

/// "5" or "1..100". Empty on anything else.
std::optional<Range> parseRange(const std::string& text) {
    const size_t dots = text.find("..");
    Range r;
    try {
        size_t used = 0;
        r.first = std::stoull(text, &used);
        if (used != (dots == std::string::npos ? text.size() : dots)) return std::nullopt;
        r.last = r.first;
        if (dots != std::string::npos) {
            r.last = std::stoull(text.substr(dots + 2), &used);
            if (used != text.size() - dots - 2) return std::nullopt;
        }
    } catch (const std::exception&) {
        return std::nullopt;
    }
    if (r.first > r.last) return std::nullopt;
    return r;
}

nlohmann::json toJson(const Verdict& v) {
    return {{"seed", v.seed},
            {"ok", !v.broken},
            {"broken", v.broken.value_or("")},
            {"virtual_ms", v.time / kMillisecond},
            {"digest", absl::StrFormat("%016x", v.digest)},
            {"events", v.counts.events},
            {"faults", v.counts.faults},
            {"commits", v.counts.commits},
            {"redone", v.counts.redone},
            {"fenced", v.counts.fenced},
            {"messages", v.counts.messages.sent},
            {"dropped", v.counts.messages.dropped},
            {"duplicated", v.counts.messages.duplicated},
            {"reordered", v.counts.messages.reordered}};
}

nlohmann::json toJson(const Schedule& schedule) {
    nlohmann::json out = nlohmann::json::array();
    for (const Fault& f : schedule)
        out.push_back({{"at_ms", static_cast<double>(f.at) / kMillisecond},
                       {"kind", std::string(enumName(f.kind))},
                       {"what", describe(f)}});
    return out;
}

Verdict trial(uint64_t seed, size_t faults, bool drivers) {
    const Setup setup = setupOf(seed, drivers);
    return runTrial(seed, setup, drawSchedule(seed, setup, faults));
}

struct RunArguments {
    std::string seeds = "1..100";
    size_t faults = 100;
    size_t stopAfter = 1;
    bool json = false;
    bool whole = false;  ///< do not minimise
    bool drivers = false;
};

void explain(uint64_t seed, size_t faults, bool drivers, const Verdict& verdict, bool whole,
             bool everything) {
    const Setup setup = setupOf(seed, drivers);
    Minimised m{drawSchedule(seed, setup, faults), verdict, 0};
    if (!whole) m = minimise(seed, setup, m.schedule, verdict);
    std::fputs(tellStory(seed, setup, m, everything).c_str(), stdout);
}

int run(const RunArguments& a) {
    const auto range = parseRange(a.seeds);
    if (!range) {
        std::fprintf(stderr, "bulkhead-sim: --seeds %s: expected one seed or FIRST..LAST\n",
                     a.seeds.c_str());
        return kUsage;
    }
    const auto begin = std::chrono::steady_clock::now();
    SimulatedJob::Counts sum;
    MonoNs time = 0;
    size_t seeds = 0;
    size_t broken = 0;
    for (uint64_t seed = range->first; seed <= range->last; ++seed) {
        const Verdict v = trial(seed, a.faults, a.drivers);
        ++seeds;
        time += v.time;
        sum.events += v.counts.events;
        sum.faults += v.counts.faults;
        sum.commits += v.counts.commits;
        sum.redone += v.counts.redone;
        sum.fenced += v.counts.fenced;
        sum.messages.sent += v.counts.messages.sent;
        sum.messages.dropped += v.counts.messages.dropped;
        sum.messages.duplicated += v.counts.messages.duplicated;
        sum.messages.reordered += v.counts.messages.reordered;
        if (a.json) std::printf("%s\n", toJson(v).dump().c_str());
        if (!v.broken) continue;
        ++broken;
        if (!a.json) {
            std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                        v.broken->c_str());
            if (broken <= a.stopAfter) explain(seed, a.faults, a.drivers, v, a.whole, false);
        }
        std::fflush(stdout);
        if (a.stopAfter > 0 && broken >= a.stopAfter) break;
    }
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!a.json)
        std::printf(
            "%zu seeds, %llu faults, %zu broken; %llu steps committed, %llu redone; %llu messages: "
            "%llu dropped, %llu doubled, %llu out of order, %llu fenced\n"
            "%.1f virtual hours in %.1f s: %.0f events/s, %.0f faults/s\n",
            seeds, static_cast<unsigned long long>(sum.faults), broken,
            static_cast<unsigned long long>(sum.commits),
            static_cast<unsigned long long>(sum.redone),
            static_cast<unsigned long long>(sum.messages.sent),
            static_cast<unsigned long long>(sum.messages.dropped),
            static_cast<unsigned long long>(sum.messages.duplicated),
            static_cast<unsigned long long>(sum.messages.reordered),
            static_cast<unsigned long long>(sum.fenced),
            static_cast<double>(time) / static_cast<double>(3600 * kSecond), wall,
            static_cast<double>(sum.events) / wall, static_cast<double>(sum.faults) / wall);
    return broken > 0 ? kBroken : 0;
}

/// Writes what broke as a case of tests/simulation/found, minimised; its path and size in words.
std::string keep(const std::string& folder, bool drivers, const Setup& setup,
                 const Schedule& schedule, const Verdict& broken) {
    const Minimised m = minimise(broken.seed, setup, schedule, broken);
    const std::string path = absl::StrCat(folder, "/", broken.seed, ".json");
    std::ofstream file(path);
    file << toText({broken.seed, drivers, m.verdict.broken.value_or(*broken.broken), m.schedule});
    return absl::StrCat(m.schedule.size(), " faults are enough: ", path,
                        file.flush() ? "" : " cannot be written");
}

struct ReplayArguments {
    uint64_t seed = 1;
    size_t faults = 100;
    bool story = false;
    bool everything = false;
    bool whole = false;
    bool json = false;
    bool drivers = false;
    std::string keepIn;
};

int replay(const ReplayArguments& a) {
    const Verdict v = trial(a.seed, a.faults, a.drivers);
    if (a.json) {
        nlohmann::json out = toJson(v);
        const Setup setup = setupOf(a.seed, a.drivers);
        Minimised m{drawSchedule(a.seed, setup, a.faults), v, 0};
        if (v.broken && !a.whole) m = minimise(a.seed, setup, m.schedule, v);
        out["schedule"] = toJson(m.schedule);
        std::printf("%s\n", out.dump(2).c_str());
    } else if (v.broken || a.story) {
        explain(a.seed, a.faults, a.drivers, v, a.whole || !v.broken, a.everything);
    } else {
        std::printf("seed %llu: all is well; %llu events, digest %016llx\n",
                    static_cast<unsigned long long>(a.seed),
                    static_cast<unsigned long long>(v.counts.events),
                    static_cast<unsigned long long>(v.digest));
    }
    if (v.broken && !a.keepIn.empty()) {
        const Setup setup = setupOf(a.seed, a.drivers);
        std::fprintf(
            stderr, "%s\n",
            keep(a.keepIn, a.drivers, setup, drawSchedule(a.seed, setup, a.faults), v).c_str());
    }
    return v.broken ? kBroken : 0;
}

struct SoakArguments {
    double hours = 1;
    size_t faults = 100;
    std::string found = "tests/simulation/found";
};

/// Seeds of the clock and of this process, so that no two runs share any.
int soak(const SoakArguments& a) {
    const auto begin = std::chrono::steady_clock::now();
    const auto spent = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const uint64_t first =
        mix(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
            static_cast<uint64_t>(::getpid())) >>
        24;
    uint64_t seed = first;
    uint64_t faults = 0;
    uint64_t events = 0;
    size_t broken = 0;
    std::printf("seeds from %llu, %zu faults each; every other one on the real programs\n",
                static_cast<unsigned long long>(first), a.faults);
    for (; spent() < a.hours * 3600; ++seed) {
        const bool drivers = seed % 2 == 1;
        const Setup setup = setupOf(seed, drivers);
        const Schedule schedule = drawSchedule(seed, setup, a.faults);
        const Verdict v = runTrial(seed, setup, schedule);
        faults += v.counts.faults;
        events += v.counts.events;
        if (!v.broken) continue;
        ++broken;
        std::printf("seed %llu: %s\n    %s\n", static_cast<unsigned long long>(seed),
                    v.broken->c_str(), keep(a.found, drivers, setup, schedule, v).c_str());
        std::fflush(stdout);
    }
    std::printf("seeds %llu..%llu: %llu faults, %zu broken, %.0f events/s\n",
                static_cast<unsigned long long>(first), static_cast<unsigned long long>(seed - 1),
                static_cast<unsigned long long>(faults), broken,
                static_cast<double>(events) / std::max(1e-9, spent()));
    return broken > 0 ? kBroken : 0;
}

}  // namespace

int mainOf(int argc, char** argv) {
    CLI::App app{
        "The fault tolerant protocol in virtual time: exit code 0 all is well, 1 something "
        "is broken, 2 bad arguments"};
    app.require_subcommand(1);
    RunArguments ra;
    CLI::App* runCommand = app.add_subcommand("run", "run seeds, stop at the first that breaks");
    runCommand->add_option("--seeds", ra.seeds, "one seed or FIRST..LAST")->capture_default_str();
    runCommand->add_option("--faults", ra.faults, "per seed")->capture_default_str();
    runCommand->add_option("--stop-after", ra.stopAfter, "so many broken seeds; 0: never")
        ->capture_default_str();
    runCommand->add_flag("--whole", ra.whole, "do not minimise a broken seed");
    runCommand->add_flag("--json", ra.json, "one line per seed");
    const char* drivers = "controller, agents and ranks as they are built for production";
    runCommand->add_flag("--drivers", ra.drivers, drivers);
    ReplayArguments pa;
    CLI::App* replayCommand = app.add_subcommand("replay", "run one seed again and tell its story");
    replayCommand->add_option("seed", pa.seed)->required();
    replayCommand->add_option("--faults", pa.faults, "as in the run")->capture_default_str();
    replayCommand->add_flag("--story", pa.story, "also when all is well");
    replayCommand->add_flag("--all", pa.everything, "every line, not only the last before the end");
    replayCommand->add_flag("--whole", pa.whole, "do not minimise");
    replayCommand->add_flag("--json", pa.json, "verdict and schedule");
    replayCommand->add_flag("--drivers", pa.drivers, drivers);
    replayCommand->add_option("--keep", pa.keepIn, "write what broke into this folder, as soak");
    SoakArguments sa;
    CLI::App* soakCommand =
        app.add_subcommand("soak", "run seeds drawn from the clock; keep what breaks, minimised");
    soakCommand->add_option("--hours", sa.hours)->capture_default_str();
    soakCommand->add_option("--faults", sa.faults, "per seed")->capture_default_str();
    soakCommand->add_option("--found", sa.found, "folder of the cases")->capture_default_str();
    EttArguments ea;
    CLI::App* ettCommand =
        app.add_subcommand("ett", "effective training time of jobs of any size, from a model");
    ettCommand->add_option("--preset", ea.preset, "one of them instead of all");
    ettCommand->add_option("--set", ea.changes, "KEY=VALUE; --json names the keys")
        ->allow_extra_args(false);
    ettCommand->add_option("--days", ea.days, "to simulate")->capture_default_str();
    ettCommand->add_option("--seed", ea.seed)->capture_default_str();
    ettCommand->add_flag("--json", ea.json, "every figure, parameter and source");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? 0 : kUsage;
    }
    if (ettCommand->parsed()) return showEtt(ea);
    if (soakCommand->parsed()) return soak(sa);
    return runCommand->parsed() ? run(ra) : replay(pa);
}

}  // namespace bulkhead::simulation

int main(int argc, char** argv) {
    return bulkhead::simulation::mainOf(argc, argv);
}
