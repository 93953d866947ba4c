// SPDX-License-Identifier: Apache-2.0
// Bulkhead's exchange beside OpenMPI and Gloo, and beside what the machine could do: every
// contender is a program that times itself (contender.h), and they run in turn.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/ftar/contenders.h"
#include "bench/report.h"

namespace bulkhead::bench {
namespace {

constexpr size_t kKiB = 1u << 10;
const std::vector<size_t> kSizes{64 * kKiB, kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB};
constexpr int kBindingRanks = 4;

std::string sizeName(size_t bytes) {
    return bytes < kMiB ? absl::StrCat(bytes / kKiB, " KiB") : absl::StrCat(bytes / kMiB, " MiB");
}

std::string cell(const Spread& s) {
    if (s.count == 0) return "failed";
    const int digits = s.median < 1 ? 3 : s.median < 10 ? 2 : 1;
    return absl::StrCat(number(s.median, digits), " (", number(s.min, digits), "-",
                        number(s.max, digits), ")");
}

struct Run {
    Folders folders;
    int rounds = 3;  ///< of everybody, at 4 ranks
    int pairs = 15;  ///< of turns with and without what is to be paid for
    size_t largest = 256 * kMiB;
};

using Cells = std::map<std::string, std::map<size_t, std::string>>;  // by contender and size
using Medians = std::map<std::string, double>;

/// Everybody's turns at one size; the medians of who finished.
Medians measure(const Run& run, const std::vector<Contender>& all, int ranks, size_t bytes,
                Cells& cells) {
    std::map<std::string, std::vector<double>> times;
    const int most = bytes > 64 * kMiB ? std::min(2, run.rounds) : run.rounds;
    const int rounds = ranks == kBindingRanks ? most : 1;
    for (int round = 0; round < rounds; ++round)
        for (const Contender& c : all)
            if (c.takesPart(bytes))
                for (const double ms : runOnce(c, ranks, bytes, iterationsFor(bytes), run.folders))
                    times[c.name].push_back(ms);
    Medians medians;
    for (const Contender& c : all) {
        if (!c.takesPart(bytes)) continue;
        const Spread spread = spreadOf(times[c.name]);
        cells[c.name][bytes] = cell(spread);
        if (spread.count > 0) medians[c.name] = spread.median;
    }
    std::fprintf(stderr, "%d ranks, %s: done\n", ranks, sizeName(bytes).c_str());
    return medians;
}

void bars(Report& report, size_t bytes, Medians m) {
    const std::string at = " at " + sizeName(bytes);
    const double mpiShm = m["OpenMPI shm"], mpiTcp = m["OpenMPI tcp"], gloo = m["Gloo ring tcp"];
    if (m["shm"] <= 0 || m["tcp"] <= 0 || mpiShm <= 0 || mpiTcp <= 0 || gloo <= 0) {
        report.atLeast("all contenders finished" + at, 0, 1, "");
        return;
    }
    const double bestOfAll = std::min({mpiShm, mpiTcp, gloo}), bestTcp = std::min(mpiTcp, gloo);
    const double shm = bytes < 16 * kMiB ? 1 : bytes < 64 * kMiB ? 3 : 5;
    const double tcp = bytes < 16 * kMiB ? 1 : 1.3;
    report.atLeast("shm against the best peer" + at, bestOfAll / m["shm"], shm, "x");
    report.atLeast("tcp against the best peer's tcp" + at, bestTcp / m["tcp"], tcp, "x");
    if (bytes < 16 * kMiB) return;
    report.atLeast("tcp bfloat16 against the best peer's tcp" + at, bestTcp / m["tcp bfloat16"],
                   2.2, "x");
    report.atLeast("shm against the memory bound" + at, 100 * m["memory bound"] / m["shm"], 65,
                   "%");
}

/// The cost of `with` beside `without`: the median over pairs that ran one after the other.
/// Without a `bound` a figure that explains another.
void cost(Report& report, const Run& run, const std::string& name, const Contender& with,
          const Contender& without, size_t bytes, std::optional<double> bound) {
    std::vector<double> percent;
    for (int pair = 0; pair < run.pairs; ++pair) {
        const auto turn = [&](const Contender& c) {
            const int iterations = 2 * iterationsFor(bytes);
            return spreadOf(runOnce(c, kBindingRanks, bytes, iterations, run.folders)).median;
        };
        // The second contender finds the other's caches: they take turns at that too.
        const bool swapped = pair % 2 == 1;
        const double first = turn(swapped ? without : with);
        const double second = turn(swapped ? with : without);
        if (first <= 0 || second <= 0) continue;
        percent.push_back(100 * (swapped ? second / first - 1 : first / second - 1));
    }
    const Spread s = spreadOf(percent);
    const std::string what = absl::StrCat(name, " at ", sizeName(bytes));
    report.note(absl::StrCat(what, ": ", number(s.median), " % (", number(s.min), " to ",
                             number(s.max), ", ", s.count, " pairs)"));
    if (bound) report.atMost(what, s.count > 0 ? s.median : 1e9, *bound, "%");
}

void costs(Report& report, const Run& run) {
    const std::vector<Contender> all = contenders(run.folders, kBindingRanks);
    const auto named = [&](const std::string& name) -> const Contender& {
        const auto it = std::find_if(all.begin(), all.end(),
                                     [&](const Contender& c) { return c.name == name; });
        if (it != all.end()) return *it;
        std::fprintf(stderr, "no contender is called \"%s\"\n", name.c_str());
        std::abort();
    };
    for (const size_t bytes : {16 * kMiB, 64 * kMiB}) {
        if (bytes > run.largest) continue;
        for (const std::string way : {"shm", "tcp"}) {
            const Contender& kept = named(way + " bare, input kept");
            const std::string name = "fault tolerance, " + way;
            cost(report, run, name, named(way), named(way + " bare"), bytes, 3);
            cost(report, run, name + ", beside a bare sum that keeps the input", named(way), kept,
                 bytes, std::nullopt);
        }
    }
    for (const size_t bytes : kSizes) {
        if (bytes > run.largest) continue;
        const Contender& unsummed = named("tcp unsummed");
        cost(report, run, "authenticated frames, tcp", named("tcp"), unsummed, bytes, 10);
        cost(report, run, "encrypted frames, tcp", named("tcp encrypted"), unsummed, bytes,
             std::nullopt);
    }
}

void aborts(Report& report, const Run& run) {
    for (const char* way : {"shm", "tcp", "tcp,ring", "tcp,bfloat16"}) {
        const size_t bytes = std::min(run.largest, 64 * kMiB);
        const Contender c{"", run.folders.programs + "/bulkhead-bench-ftar-abort", way};
        const Spread s = spreadOf(runOnce(c, kBindingRanks, bytes, 25, run.folders));
        report.note(absl::StrCat("abort, ", way, ", ", sizeName(bytes), ": returns after ", cell(s),
                                 " ms, ", s.count, " aborts"));
        report.atMost(absl::StrCat("longest return after an abort, ", way),
                      s.count > 0 ? s.max : 1e9, 10, "ms");
    }
}

void table(Report& report, const Run& run, int ranks) {
    const std::vector<Contender> all = contenders(run.folders, ranks);
    Cells cells;
    for (const size_t bytes : kSizes) {
        if (bytes > run.largest) continue;
        const Medians medians = measure(run, all, ranks, bytes, cells);
        if (ranks == kBindingRanks) bars(report, bytes, medians);
    }
    for (const Contender& c : all) {
        std::vector<std::string> row{std::to_string(ranks), c.name};
        for (const size_t bytes : kSizes) row.push_back(cells[c.name][bytes]);
        report.row(row);
    }
}

int run(int argc, char** argv) {
    Run run;
    bool quick = false;
    std::vector<std::string> parts{"sizes", "costs", "aborts"};
    CLI::App app("All-reduce: Bulkhead, OpenMPI and Gloo in one run");
    app.add_option("--programs", run.folders.programs, "where Bulkhead's programs are");
    app.add_option("--peers", run.folders.peers, "where the peers' programs are");
    addPlace(app, run.folders);
    app.add_option("--rounds", run.rounds, "how often everybody has a turn at 4 ranks")
        ->check(CLI::Range(1, 100));
    app.add_option("--part", parts, "sizes, costs, aborts; default all")
        ->check(CLI::IsMember(parts));
    app.add_flag("--quick", quick, "4 ranks, one turn and at most 16 MiB");
    CLI11_PARSE(app, argc, argv);
    if (quick) {
        run.largest = 16 * kMiB;
        run.rounds = 1;
        run.pairs = 3;
    }
    std::vector<std::string> columns{"ranks", "program"};
    for (const size_t bytes : kSizes) columns.push_back(sizeName(bytes) + " ms");
    Report report("ftar", columns);
    report.note("Milliseconds of one all-reduce: median (least-most). The bars bind 4 ranks.");
    report.note("Memory bound: the same additions and copies, shared over the cores, no waiting.");
    report.note(
        "bare: without fault tolerance; unsummed: payloads neither authenticated nor encrypted; "
        "hosts: two of"
        " them, half of the ranks on each.");
    const auto wanted = [&](const char* part) {
        return std::find(parts.begin(), parts.end(), part) != parts.end();
    };
    for (const int ranks : quick ? std::vector<int>{kBindingRanks} : std::vector<int>{4, 2, 8})
        if (wanted("sizes")) table(report, run, ranks);
    if (wanted("costs")) costs(report, run);
    if (wanted("aborts")) aborts(report, run);
    return report.finish(run.folders.out);
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    return bulkhead::bench::run(argc, argv);
}
