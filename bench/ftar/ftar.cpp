// SPDX-License-Identifier: Apache-2.0
// Bulkhead's exchange beside OpenMPI and Gloo, and beside what the machine could do: every
// contender is a program that times itself (contender.h), and they run in turn.
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/report.h"

namespace bulkhead::bench {
namespace {

constexpr size_t kKiB = 1u << 10;
constexpr size_t kMiB = 1u << 20;
const std::vector<size_t> kSizes{64 * kKiB, kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB};
constexpr int kBindingRanks = 4;

struct Contender {
    std::string name;
    std::string command;  ///< RANKS, BYTES and ITERATIONS follow `program`, then `rest`
    std::string rest;
};

struct Folders {
    std::string programs = "build/bin";
    std::string peers = "build/bench/peers";
    std::string out = "build/bench";
};

std::vector<Contender> contenders(const Folders& folders, int ranks) {
    const std::string ours = folders.programs + "/bulkhead-bench-ftar-ours";
    const std::string mpi =
        absl::StrCat("mpirun --allow-run-as-root --oversubscribe -n ", ranks, " --mca btl self,");
    return {{"shm", ours, "shm"},
            {"tcp", ours, "tcp"},
            {"OpenMPI shm", mpi + "vader " + folders.peers + "/mpi", ""},
            {"OpenMPI tcp", mpi + "tcp " + folders.peers + "/mpi", ""},
            {"Gloo ring tcp", folders.peers + "/gloo", folders.out + "/gloo-store"},
            {"memory bound", folders.programs + "/bulkhead-bench-ftar-bound", ""}};
}

int iterationsFor(size_t bytes) {
    return bytes <= kMiB ? 100 : bytes <= 16 * kMiB ? 15 : bytes <= 64 * kMiB ? 8 : 4;
}

/// Milliseconds of each iteration; empty when the contender failed.
std::vector<double> runOnce(const Contender& contender, int ranks, size_t bytes,
                            const Folders& folders) {
    const std::string store = folders.out + "/gloo-store";
    std::filesystem::remove_all(store);
    std::filesystem::create_directories(store);
    const std::string command = absl::StrCat(contender.command, " ", ranks, " ", bytes, " ",
                                             iterationsFor(bytes), " ", contender.rest);
    std::vector<double> ms;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return ms;
    char line[128];
    while (std::fgets(line, sizeof line, pipe) != nullptr) ms.push_back(std::atof(line));
    if (::pclose(pipe) != 0) ms.clear();
    return ms;
}

std::string sizeName(size_t bytes) {
    return bytes < kMiB ? absl::StrCat(bytes / kKiB, " KiB") : absl::StrCat(bytes / kMiB, " MiB");
}

std::string cell(const Spread& s) {
    if (s.count == 0) return "failed";
    const int digits = s.median < 1 ? 3 : s.median < 10 ? 2 : 1;
    return absl::StrCat(number(s.median, digits), " (", number(s.min, digits), "-",
                        number(s.max, digits), ")");
}

using Medians = std::map<std::string, double>;

/// One line of the table; the medians of who finished.
Medians measure(Report& report, const Folders& folders, int ranks, size_t bytes, int rounds) {
    const std::vector<Contender> all = contenders(folders, ranks);
    std::map<std::string, std::vector<double>> times;
    for (int round = 0; round < rounds; ++round)
        for (const Contender& c : all)
            for (const double ms : runOnce(c, ranks, bytes, folders)) times[c.name].push_back(ms);
    std::vector<std::string> cells{std::to_string(ranks), sizeName(bytes)};
    Medians medians;
    for (const Contender& c : all) {
        const Spread spread = spreadOf(times[c.name]);
        cells.push_back(cell(spread));
        if (spread.count > 0) medians[c.name] = spread.median;
    }
    report.row(cells);
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
    if (bytes >= 16 * kMiB)
        report.atLeast("shm against the memory bound" + at, 100 * m["memory bound"] / m["shm"], 65,
                       "%");
}

int run(int argc, char** argv) {
    Folders folders;
    int rounds = 3;
    bool quick = false;
    CLI::App app("All-reduce: Bulkhead, OpenMPI and Gloo in one run");
    app.add_option("--programs", folders.programs, "where Bulkhead's programs are");
    app.add_option("--peers", folders.peers, "where the peers' programs are");
    app.add_option("--out", folders.out, "where ftar.json goes");
    app.add_option("--rounds", rounds, "how often everybody has a turn")->check(CLI::Range(1, 100));
    app.add_flag("--quick", quick, "4 ranks and at most 64 MiB");
    CLI11_PARSE(app, argc, argv);
    Report report("ftar", {"ranks", "float32", "shm ms", "tcp ms", "OpenMPI shm ms",
                           "OpenMPI tcp ms", "Gloo ring tcp ms", "memory bound ms"});
    report.note("Milliseconds of one all-reduce: median (least-most). The bars bind 4 ranks.");
    report.note("Memory bound: the same additions and copies, shared over the cores, no waiting.");
    for (const int ranks : quick ? std::vector<int>{kBindingRanks} : std::vector<int>{4, 2, 8})
        for (const size_t bytes : kSizes) {
            if (quick && bytes > 64 * kMiB) continue;
            const Medians medians = measure(report, folders, ranks, bytes, rounds);
            if (ranks == kBindingRanks) bars(report, bytes, medians);
        }
    if (const absl::Status s = report.finish(folders.out); !s.ok()) {
        std::fprintf(stderr, "%s\n", std::string(s.message()).c_str());
        return 2;
    }
    return report.allHold() ? 0 : 1;
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    return bulkhead::bench::run(argc, argv);
}
