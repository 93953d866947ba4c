// SPDX-License-Identifier: Apache-2.0
// A run file as large as a long job's: see README.md beside this.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "bench/report.h"
#include "tests/support/made_run_file.h"

int main(int argc, char** argv) {
    using namespace bulkhead;
    test::RunShape shape = test::largeRun();
    uint64_t steps = 100'000;
    std::string out;
    CLI::App app("Writes a large run file");
    app.add_option("--steps", steps, "of the run")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--replicas", shape.replicas, "of the run")
        ->check(CLI::Range(2, 4096))
        ->capture_default_str();
    app.add_option("--ranks", shape.shards, "of each replica")
        ->check(CLI::Range(1, 8192))
        ->capture_default_str();
    app.add_option("--seed", shape.seed, "of its noise and its losses")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--out", out, "file to write; must not be there yet")->required();
    CLI11_PARSE(app, argc, argv);
    if (std::filesystem::exists(out))
        bench::die(absl::AlreadyExistsError(out + " is there; name a file that is not"));
    shape.decaySteps = steps;
    const bool isWatched = ::isatty(STDERR_FILENO) == 1;
    bench::need(test::writeMadeRun(out, shape, steps, [&](uint64_t step) {
        if (isWatched && step % 1000 == 0)
            std::fprintf(stderr, "\rstep %llu", static_cast<unsigned long long>(step));
    }));
    if (isWatched) std::fprintf(stderr, "\r");
    std::printf("%s: %llu steps, %.1f MB\n", out.c_str(), static_cast<unsigned long long>(steps),
                static_cast<double>(std::filesystem::file_size(out)) / 1e6);
    return 0;
}
